"""Small epochs against micro-batches without state: how long each takes, and whether that stays the same.

The same files go through a job of ours, which counts and sums by key and commits its state and output, and through two
queries of Spark that only pass rows on: one to nowhere, by foreachBatch, and one to Parquet files. The first is run
with Spark's usual checkpoint files and with plain ones, as our epochs have them. The queries take turns in one session,
some files at a time. Each turn resumes the query from its checkpoint, and the first batches after that are not counted.
An epoch of ours is timed from the end of the one before it; batches of Spark are timed by Spark.
"""

import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import statebed as sb
from bench.jvm_calls import calls_counted
from bench.report import Figure, Report, is_chosen, smaller
from bench.spark.cases import Side
from bench.spark.child import session_of
from bench.spark.ours import OutboxSink
from statebed.spark.session import start_with_plain_checkpoint

ROWS = (0, 1_000)
KEYS = 10_000
COLUMNS = "k bigint, v bigint"
OURS, NOWHERE, NOWHERE_PLAIN, PARQUET = "statebed", "foreachBatch", "foreachBatch, plain", "Parquet sink"
TARGET = 1 / 1.5
"""An epoch takes at most 1.5 times as long as a batch that is passed on."""
FLAT = 1 / 1.2
"""Epochs at the end take at most 1.2 times as long as those at the beginning."""
_TURNS = 4
_UNCOUNTED = 10
"""Batches after each start that are not counted: Spark plans, and Java compiles."""
_PERCENTILES = (50, 99)


def run(report: Report, *, quick: bool, only: str = "") -> int | None:
    """Measure epochs of each number of rows; an hour's worth of one a second, unless `quick`."""
    batches = 60 if quick else 3600 // _TURNS
    chosen = [rows for rows in ROWS if is_chosen(_name(rows), only)]
    if not chosen:
        print("no such case; there are:", *map(_name, ROWS), sep="\n  ", file=sys.stderr)
        return 2
    for rows in chosen:
        with tempfile.TemporaryDirectory(prefix="statebed-bench-") as folder:
            _measure(report, rows, batches, Path(folder))
    return None


def _name(rows: int) -> str:
    return f"epoch of {rows:,} rows"


def _measure(report: Report, rows: int, batches: int, folder: Path) -> None:
    session = session_of(Side.OURS, folder / "own")
    session.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(2 * batches))
    took: dict[str, list[float]] = {OURS: [], NOWHERE: [], NOWHERE_PLAIN: [], PARQUET: []}
    calls = []
    try:
        for turn in range(_TURNS):
            _write(folder / "in", rows, batches, first=turn * batches)
            with calls_counted() as count:
                took[OURS] += _ours(session, folder, batches)[_UNCOUNTED:]
            calls.append(len(count) / batches)
            for name in (NOWHERE, NOWHERE_PLAIN, PARQUET):
                took[name] += _theirs(session, name, folder, batches)[_UNCOUNTED:]
    finally:
        session.stop()
    case = _name(rows)
    for other in (NOWHERE, NOWHERE_PLAIN, PARQUET):
        for percent in _PERCENTILES:
            ours, theirs = (float(np.percentile(took[name], percent)) * 1e3 for name in (OURS, other))
            target = TARGET if percent == _PERCENTILES[0] and other != NOWHERE_PLAIN else None
            report.add(smaller(case, other, f"p{percent}", ours=ours, theirs=theirs, unit="ms", target=target))
    quarter = len(took[OURS]) // 4
    begin, end = (statistics.median(part) * 1e3 for part in (took[OURS][:quarter], took[OURS][-quarter:]))
    report.add(smaller(case, "the first quarter", "p50, last quarter", ours=end, theirs=begin, unit="ms", target=FLAT))
    report.figure(Figure(case, "calls of the JVM per epoch", statistics.median(calls), "calls"))


def _write(folder: Path, rows: int, files: int, *, first: int) -> None:
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(first)
    for number in range(first, first + files):
        table = pa.table({"k": draw.integers(0, KEYS, rows), "v": draw.integers(0, 1000, rows)})
        path = folder / f"{number:06d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # read in this order


def _stream(session: SparkSession, folder: Path) -> DataFrame:
    return session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))


def _ours(session: SparkSession, folder: Path, batches: int) -> list[float]:
    """Run the job over the new files; seconds of each epoch but the first."""
    ends: list[float] = []
    job = sb.Job("latency", state=str(folder / "state"), memory="256mb", parallelism=2, spark=session)
    totals = job.source(_stream(session, folder), name="rows").key_by("k", name="totals")
    sink = OutboxSink(folder / f"out-{time.time_ns()}", lambda: ends.append(time.perf_counter()))
    totals.agg(n=sb.count(), total=sb.sum("v")).write(sink)
    job.start(available_now=True).await_termination()
    if len(ends) < batches:
        raise RuntimeError(f"{OURS} ended after {len(ends)} of {batches} epochs")
    return [after - before for before, after in itertools.pairwise(ends)]


def _theirs(session: SparkSession, name: str, folder: Path, batches: int) -> list[float]:
    """Pass the rows of the new files on; seconds of each batch."""
    writer = _stream(session, folder).writeStream.option("checkpointLocation", str(folder / f"log of {name}"))
    if name == PARQUET:
        writer = writer.format("parquet").option("path", str(folder / "passed on"))
    else:
        writer = writer.foreachBatch(lambda batch, _: batch.write.format("noop").mode("append").save())
    writer = writer.trigger(availableNow=True)
    query = start_with_plain_checkpoint(writer, session) if name == NOWHERE_PLAIN else writer.start()
    query.awaitTermination()
    spent = [progress["durationMs"] for progress in query.recentProgress]
    took = [float(progress["triggerExecution"]) / 1e3 for progress in spent if "addBatch" in progress]
    if len(took) < batches:
        raise RuntimeError(f"{name} ended after {len(took)} of {batches} batches")
    return took
