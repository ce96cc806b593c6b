"""Flows whose state had another shape in earlier versions, and the rows they were fed.

`earlier_states/` holds the state of each after FIRST_EPOCHS, written by the last version that kept the elements of a
key in one list; those of "sessions_by_start" by the last version that kept sessions by their start, and those of
"many_values" by the last one that listed all values of a window. Run this file with such a version on the path to
write some of them again:

    PYTHONPATH=OLD/src python tests/unit/operators/earlier_flows.py NAME...
"""

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import statebed as sb
from statebed import testing
from statebed.aggregates import functions as f
from statebed.flow import Flow, Stream, eq
from statebed.operators.window_definition import SessionWindow, Window, session
from statebed.storage import MemoryStore

STATES = Path(__file__).parent / "earlier_states"
FIRST_EPOCHS = 3
EPOCHS = 5
PARALLELISM = 2
_TAGS = ("a", "b", None, "c")
Rows = list[dict[str, Any]]


def bids_of(epoch: int) -> Rows:
    """Bids, some of them equal; each epoch of its own."""
    numbers = range(epoch * 40, epoch * 40 + 40)
    return [
        {
            "auction": n * 7 % 5 if n % 9 else None,
            "price": n * 13 % 17,
            "score": [0.0, -0.0, float("nan"), None, 1.5][n % 5],
            "tag": _TAGS[n % 4],
            "ts": 100 * epoch + n % 3,
        }
        for n in numbers
    ]


def auctions_of(epoch: int) -> Rows:
    return [
        {"id": n % 6, "seller": f"seller {n % 4}", "reserve": n % 3, "opened": 100 * epoch}
        for n in range(epoch, epoch + 5)
    ]


def _streams(name: str) -> tuple[Flow, Stream, Stream]:
    flow = Flow(name)
    bids = flow.source(
        "bids", "auction bigint, price bigint, score double, tag string, ts timestamp", watermark=("ts", "0s")
    )
    auctions = flow.source(
        "auctions", "id bigint, seller string, reserve bigint, opened timestamp", watermark=("opened", "0s")
    )
    return flow, bids, auctions


def _join(**options: Any) -> Callable[[str], Flow]:
    def made(name: str) -> Flow:
        flow, bids, auctions = _streams(name)
        best = auctions.key_by("id", name="latest").agg(seller=f.max("seller"), reserve=f.sum("reserve"))
        bids.join(best, eq("auction", "id"), name="result", **options)
        return flow

    return made


class Kept(sb.ProcessKey):
    """Keeps a list and a map, and tells both."""

    recent = sb.ListState("price bigint, tag string")
    by_tag = sb.MapState(key="string", value="bigint")
    output = "shown string"

    def on_rows(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        """Append to the list, add to the map, drop what is old."""
        for row in rows:
            state.recent.append(price=row["price"], tag=row["tag"])
            if row["tag"] is not None:
                state.by_tag.put(row["tag"], state.by_tag.get(row["tag"], 0) + row["price"])
        if len(state.recent.get()) > 15:
            state.recent.put(state.recent.get()[-10:])
            state.by_tag.remove("b")
        shown = [(row["price"], row["tag"]) for row in state.recent.get()]
        yield {"shown": f"{key} {shown} {sorted(state.by_tag.items().items())}"}


def _process(name: str) -> Flow:
    flow, bids, _ = _streams(name)
    bids.key_by("auction").process(Kept(), name="result")
    return flow


def _aggregates(name: str) -> Flow:
    flow, bids, _ = _streams(name)
    bids.key_by("auction", name="result").agg(
        rows=f.count(),
        tags=f.count_distinct("tag"),
        scores=f.count_distinct("score"),
        prices=f.collect_set("price"),
        middle=f.median("price"),
    )
    return flow


def _aggregates_of_changes(name: str) -> Flow:
    flow, bids, _ = _streams(name)
    best = bids.key_by("auction", "tag", name="best").agg(price=f.max("price"), score=f.min("score"))
    best.key_by("auction", name="result").agg(
        prices=f.count_distinct("price"), least=f.min("price"), most=f.max("price"), all=f.collect_list("price")
    )
    return flow


def _top(name: str) -> Flow:
    flow, bids, _ = _streams(name)
    bids.key_by("auction", name="result").top(3, "price desc", number="place")
    return flow


def _top_of_changes(name: str) -> Flow:
    flow, bids, _ = _streams(name)
    best = bids.key_by("auction", "tag", name="best").agg(price=f.max("price"))
    best.key_by("auction", name="result").top(2, "price desc", numbering="rank", number="place")
    return flow


def _collected(**ttl: Any) -> Callable[[str], Flow]:
    """Aggregates of which some were rows and others were lists in the version before, and all were lists with a TTL."""

    def made(name: str) -> Flow:
        flow, bids, _ = _streams(name)
        bids.key_by("auction", name="result").agg(
            **ttl,
            tags=f.count_distinct("tag"),
            prices=f.collect_set("price"),
            scores=f.collect_list("score"),
            text=f.string_agg("tag", "+"),
            total=f.sum_distinct("price"),
            often=f.mode("price"),
            middle=f.median("price"),
            rows=f.count(),
        )
        return flow

    return made


def _collected_of_changes(**ttl: Any) -> Callable[[str], Flow]:
    def made(name: str) -> Flow:
        flow, bids, _ = _streams(name)
        best = bids.key_by("auction", "tag", name="best").agg(price=f.max("price"), score=f.min("score"))
        best.key_by("auction", name="result").agg(
            **ttl,
            prices=f.collect_list("price"),
            tags=f.string_agg("tag", ","),
            scores=f.sum_distinct("score"),
            least=f.min("price"),
        )
        return flow

    return made


def _top_of_changes_with_ttl(name: str) -> Flow:
    flow, bids, _ = _streams(name)
    best = bids.key_by("auction", "tag", name="best").agg(price=f.max("price"))
    best.key_by("auction", name="result").top(2, "price desc", number="place", ttl="150 us")
    return flow


def _sessions(**options: Any) -> Callable[[str], Flow]:
    """Sessions that stay in the state for three epochs, so that a key has several."""

    def made(name: str) -> Flow:
        flow, bids, _ = _streams(name)
        bids.group_by("auction", session("10 us"), name="result").agg(
            **options, rows=f.count(), total=f.sum("price"), tags=f.collect_list("tag")
        )
        return flow

    return made


def _many_values(window: Window | SessionWindow) -> Callable[[str], Flow]:
    """Windows whose values are all listed in their partials, and are rows of their own today."""

    def made(name: str) -> Flow:
        flow, bids, _ = _streams(name)
        bids.group_by("auction", window, name="result").agg(
            emit="early",
            rows=f.count(),
            prices=f.count_distinct("price"),
            scores=f.collect_list("score"),
            often=f.mode("price"),
            middle=f.median("price"),
        )
        return flow

    return made


LATE_SESSIONS = _sessions(allowed_lateness="250 us")
EARLY_SESSIONS = _sessions(allowed_lateness="250 us", emit="early")
FLOWS: dict[str, Callable[[str], Flow]] = {
    "join_inner": _join(),
    "join_left": _join(how="left"),
    "join_full_condition": _join(how="full", condition="price > reserve"),
    "join_event_time": _join(ttl="150 us"),
    "process": _process,
    "aggregates": _aggregates,
    "aggregates_of_changes": _aggregates_of_changes,
    "top": _top,
    "top_of_changes": _top_of_changes,
    "collected": _collected(),
    "collected_event_time": _collected(ttl="150 us"),
    "collected_of_changes": _collected_of_changes(),
    "collected_of_changes_event_time": _collected_of_changes(ttl="150 us"),
    "top_of_changes_event_time": _top_of_changes_with_ttl,
    "sessions": LATE_SESSIONS,
    "sessions_early": EARLY_SESSIONS,
    "sessions_by_start": LATE_SESSIONS,
    "sessions_by_start_early": EARLY_SESSIONS,
    "many_values_of_windows": _many_values(sb.tumbling("250 us")),
    "many_values_of_sessions": _many_values(session("1 ms")),
}


def feed(run: testing.TestRun, first: int, end: int) -> None:
    """Feed some epochs."""
    for epoch in range(first, end):
        run.feed_all({"bids": bids_of(epoch), "auctions": auctions_of(epoch)})


def stored(name: str) -> MemoryStore:
    """A copy, in memory, of the state that was stored."""
    copy = MemoryStore()
    with zipfile.ZipFile(STATES / f"{name}.zip") as archive:
        for path in archive.namelist():
            copy.put(path, archive.read(path))
    return copy


def main() -> None:
    """Write the states."""
    STATES.mkdir(exist_ok=True)
    for name in sys.argv[1:]:
        make = FLOWS[name]
        store = MemoryStore()
        with testing.run(make(name), parallelism=PARALLELISM, store=store, retained_epochs=1) as run:
            feed(run, 0, FIRST_EPOCHS)
        with zipfile.ZipFile(STATES / f"{name}.zip", "w") as archive:
            for info in store.list(""):
                archive.writestr(zipfile.ZipInfo(info.path), store.get(info.path), zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    main()
