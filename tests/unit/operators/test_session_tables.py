"""Sessions of a key that are open at the same time, against a plain model, and how few of them an epoch reads."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from effort import diagonals

from statebed import testing
from statebed.aggregates import functions as f
from statebed.flow import Flow
from statebed.inspect import diff_state, read_state
from statebed.operators.window_definition import session
from statebed.state import KeyedView
from statebed.storage import get_storage_provider

GAP, LATENESS = 10, 60
Session = tuple[str, int, int, int, int]
"""Key, start, end, number of rows, and their sum."""


def visits(**options: Any) -> Flow:
    flow = Flow("clicks")
    clicks = flow.source("clicks", "user string, n bigint, ts timestamp", watermark=("ts", "0s"))
    clicks.group_by("user", session(f"{GAP} us"), name="visits").agg(clicks=f.count(), total=f.sum("n"), **options)
    return flow


def row(user: str, n: int, time: int) -> dict[str, Any]:
    return {"user": user, "n": n, "ts": time}


def brief(rows: list[dict[str, Any]]) -> list[Session]:
    return sorted(
        (one["user"], one["window_start"].microsecond, one["window_end"].microsecond, one["clicks"], one["total"])
        for one in rows
    )


class Model:
    """All sessions, those that left the state included."""

    def __init__(self, lateness: int) -> None:
        self.lateness = lateness
        self.open: list[Session] = []
        self.gone: list[Session] = []
        self.watermark = 0

    def feed(self, rows: list[dict[str, Any]]) -> None:
        for one in rows:
            user, start, count, total = one["user"], one["ts"], 1, one["n"]
            end = start + GAP
            if end + self.lateness <= self.watermark:
                continue
            for other in [other for other in self.open if other[0] == user and other[1] <= end and start <= other[2]]:
                self.open.remove(other)
                start, end = min(start, other[1]), max(end, other[2])
                count, total = count + other[3], total + other[4]
            self.open.append((user, start, end, count, total))

    def advance(self, watermark: int) -> None:
        self.watermark = watermark
        over = [one for one in self.open if one[2] + self.lateness <= watermark]
        self.gone += over
        self.open = [one for one in self.open if one not in over]

    def shown(self, *, early: bool) -> list[Session]:
        """Return the sessions whose results were emitted and not retracted."""
        return sorted(self.gone + [one for one in self.open if early or one[2] <= self.watermark])


@pytest.mark.parametrize(("early", "seed"), diagonals([False, True], range(8), kept=2))
def test_many_open_sessions_of_a_key_are_merged_and_closed_as_in_a_model(seed: int, early: bool) -> None:
    draw = random.Random(seed)
    lateness = draw.choice([0, LATENESS])
    model = Model(lateness)
    options = {"emit": "early"} if early else {}
    with testing.run(visits(allowed_lateness=f"{lateness} us", **options), parallelism=2) as t:
        t.watermark(0)
        for epoch in range(12):
            newest = 20 * epoch
            rows = [
                row(draw.choice("abc"), draw.randrange(9), max(0, newest - draw.choice([0, 5, 40, 90, 150])))
                for _ in range(draw.randrange(9))
            ]
            t.feed("clicks", rows)
            model.feed(rows)
            if draw.random() < 0.5:
                reached = max(model.watermark, newest - draw.randrange(120))
                t.watermark(reached)
                model.advance(reached)
            assert brief(t.output("visits")) == model.shown(early=early)
            if draw.random() < 0.2:
                t.crash()
            if draw.random() < 0.2:
                t.rescale(draw.choice([1, 2, 3]))
        t.watermark(100_000)
        model.advance(100_000)
        assert brief(t.output("visits")) == model.shown(early=early)
        assert t.state_rows("visits") == 0


def test_a_row_of_the_newest_session_reads_no_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.run(visits()) as t:
        t.watermark(0)
        t.feed("clicks", [row("ann", 1, 20 * n) for n in range(500)])
        assert t.state("visits", "sessions").num_rows == 1
        assert t.state("visits", "earlier_sessions").num_rows == 499
        with monkeypatch.context() as patched:
            read = earlier_rows_read(patched)
            t.feed("clicks", [row("ann", 1, 20 * 499 + 1)])
            t.feed("clicks", [row("ann", 1, 20 * 500)])
        assert sum(read) == 0
        assert t.state("visits", "earlier_sessions").num_rows == 500
        t.feed("clicks", [row("ann", 1, 10), row("ann", 1, 30)])
        assert t.state("visits", "earlier_sessions").num_rows == 498, "three sessions became one"
        t.watermark(20 * 498 + GAP)
        assert t.state("visits", "earlier_sessions").num_rows == 1
        t.watermark(100_000)
        assert sum(one["clicks"] for one in t.output("visits")) == 504
        assert t.state_rows("visits") == 0


def earlier_rows_read(patched: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the number of cells of earlier sessions that each read looks into."""
    read: list[int] = []
    get = KeyedView.get

    def counted(view: KeyedView, keys: Any) -> Any:
        if view.table.name == "earlier_sessions":
            read.append(keys.num_rows)
        return get(view, keys)

    patched.setattr(KeyedView, "get", counted)
    patched.setattr(KeyedView, "elements", lambda *_: pytest.fail("all earlier sessions of a key are read"))
    return read


@pytest.mark.parametrize("count", [50, 5_000])
def test_p4_what_an_epoch_reads_does_not_grow_with_the_open_sessions_of_a_key(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    with testing.run(visits(allowed_lateness="5 us")) as t:
        t.watermark(0)
        t.feed("clicks", [row("ann", 1, 20 * n) for n in range(count)])
        read = earlier_rows_read(monkeypatch)
        t.feed("clicks", [row("ann", 1, 20 * (count // 2) + 1)])
        assert 1 <= sum(read) <= 4, "a row out of order"
        read.clear()
        t.watermark(52)
        assert sum(read) == 3, "three sessions that close"
        assert len(t.output("visits")) == 3
        assert t.state("visits", "earlier_sessions").num_rows == count - 1 - 2, "one of them may still get rows"


def test_one_epoch_writes_only_the_earlier_sessions_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def counted(write: Callable[..., None]) -> Callable[..., None]:
        def write_and_count(view: KeyedView, keys: Any, values: Any, *others: Any) -> None:
            written.append(values.num_rows)
            write(view, keys, values, *others)

        return write_and_count

    with testing.run(visits()) as t:
        t.watermark(0)
        t.feed("clicks", [row("ann", 1, 20 * n) for n in range(100)])
        for name in ("upsert", "replace"):
            monkeypatch.setattr(KeyedView, name, counted(getattr(KeyedView, name)))
        t.feed("clicks", [row("ann", 1, 41)])
        assert written == [1, 1], "one earlier session, and the row of the key"


def test_all_open_sessions_are_results_and_a_change_of_an_earlier_one_is_a_difference(tmp_path: Path) -> None:
    with testing.run(visits(), store=get_storage_provider(tmp_path)) as t:
        t.watermark(0)
        t.feed("clicks", [row("ann", 1, 0), row("ann", 1, 20), row("bob", 1, 3)])
        t.feed("clicks", [row("ann", 4, 1)])
    rows = read_state(tmp_path, results=True).to_arrow().to_pylist()
    assert brief(rows) == [("ann", 0, 11, 2, 5), ("ann", 20, 30, 1, 1), ("bob", 3, 13, 1, 1)]
    changes = diff_state(tmp_path, since=3, results=True).to_arrow().to_pylist()
    assert brief(changes) == [("ann", 0, 10, 1, 1), ("ann", 0, 11, 2, 5)]
