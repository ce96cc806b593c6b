"""A process that fills one window of one key, and closes it, changes it late or emits its result in every epoch; prints
the memory that this took.

Arguments: the folder of the state, the budget in bytes, the number of values, and "close", "late" or "early".
"""

import gc
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import statebed as sb
from statebed import testing
from statebed.state.memory.pages import give_back_pages, keep_pages
from statebed.storage import LocalStore

BATCH_ROWS = 20_000
DAY_US = 86_400_000_000


def anonymous() -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * sum(int(lines[name].split()[0]) for name in ("RssAnon", "RssShmem"))


def batches(values: int) -> Iterator[pa.Table]:
    """All values in the first window, and then rows that let it close."""
    for first in range(0, values, BATCH_ROWS):
        numbers = np.arange(first, min(first + BATCH_ROWS, values))
        times = pa.array(numbers).cast(pa.timestamp("us", "UTC"))
        yield pa.table({"k": np.full(len(numbers), 7), "v": numbers, "ts": times})
    for day in (2, 3):
        yield pa.table({"k": [8], "v": [0], "ts": pa.array([day * DAY_US]).cast(pa.timestamp("us", "UTC"))})


def late_row(value: int) -> pa.Table:
    return pa.table({"k": [7], "v": [value], "ts": pa.array([0]).cast(pa.timestamp("us", "UTC"))})


def play(folder: Path, budget: int, values: int, emit: str) -> None:
    flow = sb.Flow("hot")
    rows = flow.source("rows", "k bigint, v bigint, ts timestamp", watermark=("ts", "0 s"))
    windows = rows.group_by("k", sb.tumbling("1 day"), name="result")
    windows.agg(
        emit="early" if emit == "early" else "close",
        allowed_lateness="30 days" if emit == "late" else "0 s",
        middle=sb.median("v"),
    )
    with testing.run(flow, memory=budget, store=LocalStore(folder)) as run:
        for batch in batches(values):
            run.feed("rows", batch)
            if emit != "early":
                results = run.changes("result").to_pylist()
                assert [row["middle"] for row in results if row["k"] == 7] in ([], [(values - 1) / 2])
            run.discard_rows()
        if emit == "late":
            run.feed("rows", late_row(values))
            results = run.changes("result").to_pylist()
            changed = {row["middle"]: row["_weight"] for row in results if row["k"] == 7}
            assert changed == {(values - 1) / 2: -1, values / 2: 1}


def main() -> None:
    folder, budget, values, emit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    keep_pages(budget)  # as in every process whose tables share a budget
    play(folder / "warm", budget, BATCH_ROWS, emit)
    gc.collect()
    give_back_pages()
    base = peak = anonymous()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, anonymous())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    play(folder / "hot", budget, values, emit)
    done.set()
    thread.join(10)
    print(json.dumps({"grown": peak - base, "batch": next(batches(values)).nbytes}))  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main()
