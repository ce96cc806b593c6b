"""One more row for a key that has many values: the time and memory of one operator, printed as JSON.

    python bench/hotkeys_child.py build CASE VALUES FOLDER
    python bench/hotkeys_child.py measure CASE VALUES FOLDER

Each is a process of its own, so that memory which the first one keeps is not taken for that of the second. All that is
used here is public API, so that it can be run against any version of statebed (PYTHONPATH).
"""

import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import statebed as sb
from statebed import testing
from statebed.state.memory.pages import give_back_pages, keep_pages
from statebed.storage import LocalStore

BUDGET = 32 << 20
CHUNK = 20_000
CHUNK_OF_WHOLE = 100_000
"""Rows of an epoch if its result contains all values: there are few epochs, because each emits as much as the last."""
WARM_UP = 1 << 13
REPEATS = 9
HOT, SMALL = 7, 8
COLUMNS = "k bigint, v bigint, note string, ts timestamp"
_LOOK_SECONDS = 0.001
_APART_US = 10


class Appended(sb.ProcessKey):
    """Appends to a list."""

    items = sb.ListState("v bigint, note string")
    output = "n bigint"

    def on_rows(self, key: Any, rows: Any, state: Any, ctx: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - as users write it
        for row in rows:
            state.items.append(v=row["v"], note=row["note"])
        yield {"n": len(rows)}


class Mapped(sb.ProcessKey):
    """Sets entries of a map."""

    items = sb.MapState(key="bigint", value="string")
    output = "n bigint"

    def on_rows(self, key: Any, rows: Any, state: Any, ctx: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - as users write it
        for row in rows:
            state.items.put(row["v"], row["note"])
        yield {"n": len(rows)}


def _join(flow: sb.Flow) -> None:
    left = flow.source("rows", COLUMNS, watermark=("ts", "0 s"))
    right = flow.source("others", "k bigint, w bigint, ts timestamp", watermark=("ts", "0 s"))
    left.join(right, sb.eq("k", "k"), how="left", name="result")


def _aggregate(**functions: Any) -> Callable[[sb.Flow], None]:
    def build(flow: sb.Flow) -> None:
        flow.source("rows", COLUMNS, watermark=("ts", "0 s")).key_by("k", name="result").agg(**functions)

    return build


def _limited(flow: sb.Flow) -> None:
    """Collect with a limit, which earlier versions do not have."""
    _aggregate(all=sb.collect_list("v", limit=1_000, keep="last"))(flow)


def _of_changes(make: Callable[[Any], None]) -> Callable[[sb.Flow], None]:
    """Declare a job over results that may be retracted."""

    def build(flow: sb.Flow) -> None:
        rows = flow.source("rows", COLUMNS, watermark=("ts", "0 s"))
        make(rows.key_by("k", "v", name="each").agg(most=sb.max("note")))

    return build


def _sessions(flow: sb.Flow) -> None:
    """Sessions of one row each, all of which stay open."""
    visits = flow.source("rows", COLUMNS, watermark=("ts", "1 hour"))
    visits.group_by("k", sb.session("3 microseconds"), name="result").agg(n=sb.count())


def _window(window: Any = None, **functions: Any) -> Callable[[sb.Flow], None]:
    """One window, whose result is emitted whenever it changes."""

    def build(flow: sb.Flow) -> None:
        values = flow.source("rows", COLUMNS, watermark=("ts", "1 hour"))
        values.group_by("k", window or sb.tumbling("10 days"), name="result").agg(emit="early", **functions)

    return build


def _process(process: sb.Process) -> Callable[[sb.Flow], None]:
    def build(flow: sb.Flow) -> None:
        flow.source("rows", COLUMNS, watermark=("ts", "0 s")).key_by("k", name="keyed").process(process, name="result")

    return build


CASES: dict[str, Callable[[sb.Flow], None]] = {
    "updating join": _join,
    "count_distinct": _aggregate(n=sb.count_distinct("v")),
    "mode": _aggregate(often=sb.mode("v")),
    "median": _aggregate(middle=sb.median("v")),
    "sum_distinct": _aggregate(total=sb.sum_distinct("v")),
    "collect_list": _aggregate(all=sb.collect_list("v")),
    "collect_set": _aggregate(all=sb.collect_set("v")),
    "string_agg": _aggregate(all=sb.string_agg("note", ",")),
    "collect_list of the last 1,000": _limited,
    "count_distinct with a TTL": _aggregate(n=sb.count_distinct("v"), ttl="1 hour"),
    "mode with a TTL": _aggregate(often=sb.mode("v"), ttl="1 hour"),
    "top 10 with a TTL": _of_changes(lambda rows: rows.key_by("k", name="result").top(10, "v", ttl="1 hour")),
    "min of a changelog": _of_changes(lambda rows: rows.key_by("k", name="result").agg(least=sb.min("v"))),
    "max_by of a changelog": _of_changes(
        lambda rows: rows.key_by("k", name="result").agg(found=sb.max_by("most", "v"))
    ),
    "top 10": _of_changes(lambda rows: rows.key_by("k", name="result").top(10, "v")),
    "count_distinct in a window": _window(n=sb.count_distinct("v")),
    "median in a window": _window(middle=sb.median("v")),
    "count_distinct in a session": _window(sb.session("1 minute"), n=sb.count_distinct("v")),
    "median in a session": _window(sb.session("1 minute"), middle=sb.median("v")),
    "open sessions": _sessions,
    "open sessions, a row out of order": _sessions,
    "list state": _process(Appended()),
    "map state": _process(Mapped()),
}

WHOLE = ("collect_list", "collect_set", "string_agg")
"""Cases whose results contain all values of a key, and are emitted whenever one of them changes."""


def rows(first: int, count: int, key: int) -> pa.Table:
    """Rows of one key with different values."""
    values = np.arange(first, first + count)
    return pa.table(
        {
            "k": pa.array(np.full(count, key)),
            "v": pa.array(values),
            "note": pa.array([f"note {value}" for value in values.tolist()]),
            "ts": pa.array(values * _APART_US).cast(pa.timestamp("us", tz="UTC")),
        }
    )


def anonymous_bytes() -> int:
    """Anonymous and shared memory of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))


class Peak:
    """The greatest memory while something runs."""

    def __init__(self) -> None:
        self.bytes = anonymous_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            self.bytes = max(self.bytes, anonymous_bytes())


def build(case: str, values: int, folder: str) -> dict[str, float]:
    """Write the state of a job whose hot key has `values` values; return the memory that takes above a small one."""
    chunk = CHUNK_OF_WHOLE if case in WHOLE else CHUNK
    with tempfile.TemporaryDirectory(prefix="statebed-bench-") as other:
        _fill(case, min(values, chunk), chunk, other)
    give_back_pages()
    base = anonymous_bytes()
    with Peak() as peak:
        _fill(case, values, chunk, folder)
    return {"built_mb": (peak.bytes - base) / (1 << 20)}


def _fill(case: str, values: int, chunk: int, folder: str) -> None:
    with testing.run(_flow(case), memory=BUDGET, store=LocalStore(Path(folder))) as run:
        _begin(case, run)
        for first in range(0, values, chunk):
            run.feed("rows", rows(first, min(chunk, values - first), HOT))
            run.discard_rows()


def measure(case: str, values: int, folder: str) -> dict[str, float]:
    """Seconds of epochs with one more row, and the memory they take above that of a small state.

    Rows of the hot key and of the small one take turns, so that both meet the same noise and equally warm caches. The
    first epoch after a restore is measured for each key after a restore of its own.
    """
    with tempfile.TemporaryDirectory(prefix="statebed-bench-") as other:
        # The same work with a small state, so that everything is imported and has run. Some thousand rows load the
        # compiled loops, which take more memory than the budget of this benchmark and hold no state.
        with testing.run(_flow(case), memory=BUDGET, store=LocalStore(Path(other))) as run:
            _begin(case, run)
            run.feed("rows", rows(0, WARM_UP, SMALL))
            _seconds(case, run, values, SMALL)
        give_back_pages()
        base = anonymous_bytes()
    with Peak() as peak:
        # Each from the same files, the first one to warm up.
        _, first_small, first = (_first_seconds(case, values, folder, key) for key in (SMALL, SMALL, HOT))
        with testing.run(_flow(case), memory=BUDGET, store=LocalStore(Path(folder))) as run:
            _seconds(case, run, values, HOT)
            pairs = [
                (_seconds(case, run, values + 1 + number, HOT), _seconds(case, run, values + 1 + number, SMALL))
                for number in range(REPEATS)
            ]
    hot, small = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    peak_mb = (peak.bytes - base) / (1 << 20)
    measured = {"first": first, "first_small": first_small, "hot": hot, "small": small, "peak_mb": peak_mb}
    return measured | (_min_cost(case, values) if case in WHOLE else {})


def _min_cost(case: str, values: int) -> dict[str, float]:
    """Seconds that pyarrow takes to build the old and the new result from sorted values, and to encode both."""
    numbers = np.arange(values)
    texts = rows(0, values, HOT)["note"].combine_chunks() if case == "string_agg" else None

    def result(count: int) -> pa.Array:
        offsets = pa.array([0, count], pa.int32())
        if texts is None:
            return pa.ListArray.from_arrays(offsets, pa.array(numbers[:count].copy()))
        return pc.binary_join(pa.ListArray.from_arrays(offsets, texts.slice(0, count)), ",")

    seconds, nbytes = [], 0
    for _ in range(REPEATS):
        started = time.perf_counter()
        for count in (values - 1, values):
            table = pa.table({"k": [HOT], "all": result(count)})
            pq.write_table(table, pa.BufferOutputStream(), compression="zstd", use_dictionary=False)
            nbytes = table.nbytes
        seconds.append(time.perf_counter() - started)
    return {"least": statistics.median(seconds), "result_mb": nbytes / (1 << 20)}


def _flow(case: str) -> sb.Flow:
    flow = sb.Flow("hotkeys")
    CASES[case](flow)
    return flow


def _begin(case: str, run: testing.TestRun) -> None:
    if case == "updating join":
        times = pa.array([0, 0]).cast(pa.timestamp("us", tz="UTC"))
        run.feed("others", pa.table({"k": [HOT, SMALL], "w": [1, 1], "ts": times}))
    run.feed("rows", rows(0, 2, SMALL))


def _first_seconds(case: str, values: int, folder: str, key: int) -> float:
    """Seconds of the first epoch after a restore, which leaves the state in the folder as it is."""
    with tempfile.TemporaryDirectory(prefix="statebed-bench-") as other:
        shutil.copytree(folder, other, dirs_exist_ok=True)
        with testing.run(_flow(case), memory=BUDGET, store=LocalStore(Path(other))) as run:
            return _seconds(case, run, values, key)


def _seconds(case: str, run: testing.TestRun, value: int, key: int) -> float:
    if case.endswith("out of order"):
        value //= 2
    started = time.perf_counter()
    run.feed("rows", rows(value, 1, key))
    return time.perf_counter() - started


def main() -> None:
    """Build or measure, as the arguments say."""
    what, case, values, folder = sys.argv[1:]
    keep_pages(BUDGET)  # as in every process whose tables share a budget
    step = build if what == "build" else measure
    print(json.dumps(step(case, int(values), folder)))


if __name__ == "__main__":
    main()
