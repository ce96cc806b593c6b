"""Processes: the same running total per key, over whole batches, and written for one key at a time.

Both keep their state in the engine and make each batch durable, and both give the same rows, which is checked.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import statebed as sb
from bench.report import Report, faster, is_chosen
from statebed import testing
from statebed.storage import LocalStore

BATCH_ROWS = 100_000
COLUMNS = "k bigint, v bigint, ts timestamp"
KEYS = {"ten rows of a key in a batch": 10_000, "one row of a key in a batch": 1_000_000}


class Totals(sb.Process):
    """Process over whole batches."""

    total = sb.ValueState("sum bigint")
    output = "k bigint, sum bigint"

    def on_batch(self, rows: pa.RecordBatch, ctx: sb.Context) -> pa.Table:
        added = pa.array(np.add.reduceat(rows["v"].to_numpy(), ctx.key_starts))
        sums = pc.add(pc.fill_null(ctx.get(self.total)["sum"], 0), added)
        ctx.put(self.total, pa.table({"sum": sums}))
        return pa.table({"k": ctx.keys["k"], "sum": sums})


class TotalsOfDicts(sb.ProcessKey):
    """Key by key, over dicts."""

    total = sb.ValueState("sum bigint")
    output = "k bigint, sum bigint"

    def on_rows(self, key: Any, rows: Any, state: Any, ctx: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - as users write it
        before = state.total.get()
        total = (before["sum"] if before else 0) + sum(row["v"] for row in rows)
        state.total.put(sum=total)
        yield {"k": key, "sum": total}


class TotalsOfFrames(sb.ProcessKey):
    """Key by key, over pandas."""

    total = sb.ValueState("sum bigint")
    output = "k bigint, sum bigint"
    rows_as = "pandas"

    def on_rows(self, key: Any, rows: Any, state: Any, ctx: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - as users write it
        before = state.total.get()
        total = (before["sum"] if before else 0) + int(rows["v"].sum())
        state.total.put(sum=total)
        yield {"k": key, "sum": total}


def run(report: Report, *, quick: bool, only: str = "") -> int | None:
    """Measure every case whose name contains `only`; an exit status when there is none."""
    chosen = {name: keys for name, keys in KEYS.items() if is_chosen(name, only)}
    if not chosen:
        print("no such case; there are:", *KEYS, sep="\n  ", file=sys.stderr)
        return 2
    batches = 3 if quick else 10
    for name, keys in chosen.items():
        ours, answer = _speed(Totals(), keys, batches)
        for baseline, process in (("key by key, dicts", TotalsOfDicts()), ("key by key, pandas", TotalsOfFrames())):
            theirs, result = _speed(process, keys, batches)
            if not result.equals(answer):
                raise SystemExit(f"{name}: {baseline} gives other rows")
            report.add(faster(name, baseline, "over batches", ours=ours, theirs=theirs, unit="rows/s"))
    return None


def _speed(process: sb.Process, keys: int, batches: int) -> tuple[float, pa.Table]:
    """Rows per second, and all rows that came out, sorted."""
    flow = sb.Flow("bench")
    rows = flow.source("rows", COLUMNS, watermark=("ts", "10 s"))
    rows.key_by("k", name="totals").process(process)
    draw = np.random.default_rng(7)
    fed = [
        pa.table(
            {
                "k": pa.array(draw.integers(0, keys, BATCH_ROWS)),
                "v": pa.array(draw.integers(0, 1000, BATCH_ROWS)),
                "ts": pa.array(number * 1_000_000 + draw.integers(0, 1_000_000, BATCH_ROWS)).cast(
                    pa.timestamp("us", tz="UTC")
                ),
            }
        )
        for number in range(batches)
    ]
    with (
        tempfile.TemporaryDirectory(prefix="statebed-bench-") as folder,
        testing.run(flow, memory=4 << 30, store=LocalStore(Path(folder))) as t,
    ):
        start = time.perf_counter()
        for table in fed:
            t.feed("rows", table)
        seconds = time.perf_counter() - start
        result = t.table("totals").select(["k", "sum"])
    return batches * BATCH_ROWS / seconds, result.sort_by([("k", "ascending"), ("sum", "ascending")]).combine_chunks()
