"""Queries of Spark and SQL text: what planning them costs, and their throughput against the same jobs in our own API.

Planning is what `job.from_dataframe(df)` and `job.sql(text)` do: Spark analyses the text, and the analysed plan becomes
operators. It happens once per start. The first plans of a process warm up Spark and Python, and are not counted.

For throughput, the query and the job in our own API take turns over the same files in one session. Both must give the
same rows.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import statebed as sb
from bench.jvm_calls import calls_counted
from bench.report import Figure, Report, faster, is_chosen, smaller
from bench.spark.cases import Side
from bench.spark.child import session_of
from bench.spark.inputs import START_US
from bench.spark.ours import OutboxSink
from bench.spark.watch import ProcessorClock
from statebed.format.stream_schema import WEIGHT
from statebed.spark import JobStream

PLANNING_SECONDS = 0.5
"""Longest time that planning may take."""
THROUGHPUT = 0.9
"""A query has at least this part of the throughput of the same job in our own API."""
KEYS = 10_000
FILES = 8
DELAY = "10 seconds"
COLUMNS = "k bigint, v bigint, ts timestamp"
_ROW_US = 500
_WARM_PLANS = 3
_SUMMED = ("n", "total")
"""Columns of every case's results, by which those of both sides are compared."""

Plan = Callable[[sb.Job, DataFrame, DataFrame], Callable[[], JobStream]]
"""Prepares the streams `a` and `b` for a job, and returns a function that plans the query."""


@dataclass(frozen=True)
class Case:
    """A query over two streams, `a` and `b`, and the same job in our own API."""

    query: Plan
    own: Plan | None = None
    """The same job in our own API, or None if only the planning of the query is measured."""


def _prepared(plan: Plan, session: SparkSession, folder: Path, state: Path) -> Callable[[], JobStream]:
    """Return a function that plans a new job."""
    job = sb.Job("bench", state=str(state), memory="1g", parallelism=2, spark=session)
    return plan(job, *(_stream(session, folder / name) for name in ("a", "b")))


def run(report: Report, *, quick: bool, only: str = "") -> int | None:
    """Measure planning of each case, then throughput of those that both sides have."""
    chosen = {name: case for name, case in CASES.items() if is_chosen(name, only)}
    if not chosen:
        print("no such case; there are:", *CASES, sep="\n  ", file=sys.stderr)
        return 2
    rows, plans, turns = (50_000, 10, 2) if quick else (500_000, 30, 4)
    with tempfile.TemporaryDirectory(prefix="statebed-bench-") as name:
        folder = Path(name)
        for seed, source in enumerate(("a", "b")):
            _write(folder / source, rows, seed)
        session = session_of(Side.OURS, folder / "own")
        try:
            for case, queries in chosen.items():
                _plan(report, case, queries, session, folder, plans=plans)
            for case, queries in chosen.items():
                if queries.own is not None:
                    _race(report, case, queries, session, folder, rows=rows * FILES, turns=turns)
        finally:
            session.stop()
    return None


def _write(folder: Path, rows: int, seed: int) -> None:
    """Write files of rows in the order of their times, which have two row groups each so that both cores read."""
    folder.mkdir()
    draw = np.random.default_rng(seed)
    for number in range(FILES):
        times = START_US + (number * rows + np.arange(rows)) * _ROW_US
        table = pa.table(
            {
                "k": draw.integers(0, KEYS, rows),
                "v": draw.integers(0, 1000, rows),
                "ts": pa.array(times, pa.timestamp("us", "UTC")),
            }
        )
        pq.write_table(table, folder / f"{number:04d}.parquet", row_group_size=-(-rows // 2))


def _stream(session: SparkSession, folder: Path) -> DataFrame:
    return session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder))


# ---- planning --------------------------------------------------------------------------------------------------------


def _plan(report: Report, name: str, case: Case, session: SparkSession, folder: Path, *, plans: int) -> None:
    seconds, processor, calls = [], 0.0, []
    clock = ProcessorClock(os.getpid())
    for number in range(_WARM_PLANS + plans):
        plan = _prepared(case.query, session, folder, folder / "planned")
        spent, began = clock.seconds(), time.perf_counter()
        with calls_counted() as sent:
            plan()
        if number >= _WARM_PLANS:
            seconds.append(time.perf_counter() - began)
            processor += clock.seconds() - spent
            calls.append(len(sent))
    took, goal = statistics.median(seconds) * 1e3, PLANNING_SECONDS * 1e3
    report.add(smaller(name, "the goal", "planning, p50", ours=took, theirs=goal, unit="ms", target=1.0))
    used = processor / plans * 1e3
    report.add(smaller(name, "the goal", "planning, processor time", ours=used, theirs=goal, unit="ms", target=1.0))
    report.figure(Figure(name, "planning, fastest", min(seconds) * 1e3, "ms"))
    report.figure(Figure(name, "calls of the JVM to plan", statistics.median(calls), "calls"))


# ---- throughput ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """One run of a job over all files."""

    seconds: float
    processor_seconds: float
    calls: int
    results: tuple[int, ...]


def _race(report: Report, name: str, case: Case, session: SparkSession, folder: Path, *, rows: int, turns: int) -> None:
    assert case.own is not None
    sides = {"query": case.query, "own API": case.own}
    took: dict[str, list[Turn]] = {side: [] for side in sides}
    numbers = count()
    for turn in range(turns + 1):
        # Neither side always comes first; the first turn warms up.
        for side in sides if turn % 2 else reversed(sides):
            place = folder / f"{name}-{next(numbers)}"
            took[side].append(_turn(_prepared(sides[side], session, folder, place / "state")(), place))
    for side in sides:
        took[side] = took[side][1:]
    answers = {turn.results for several in took.values() for turn in several}
    if len(answers) > 1 or not all(answers.copy().pop()):
        raise SystemExit(f"{name}: the query and the job in our own API give other rows: {answers}")
    seconds, processor = (
        {side: statistics.median(getattr(turn, what) for turn in several) for side, several in took.items()}
        for what in ("seconds", "processor_seconds")
    )
    report.add(
        faster(
            name,
            "own API",
            "throughput",
            ours=rows / seconds["query"],
            theirs=rows / seconds["own API"],
            unit="rows/s",
            target=THROUGHPUT,
        )
    )
    processor_us = {side: spent / rows * 1e6 for side, spent in processor.items()}
    report.add(
        smaller(
            name, "own API", "processor time", ours=processor_us["query"], theirs=processor_us["own API"], unit="us/row"
        )
    )
    calls = {side: float(statistics.median(turn.calls for turn in several)) for side, several in took.items()}
    report.add(
        smaller(
            name,
            "own API",
            f"calls of the JVM, start and {FILES} epochs",
            ours=calls["query"],
            theirs=calls["own API"],
            unit="calls",
        )
    )


def _turn(stream: JobStream, folder: Path) -> Turn:
    """Run the job of a stream to its end."""
    sink = OutboxSink(folder / "out", lambda: None)
    stream.write(sink)
    clock = ProcessorClock(os.getpid())
    spent, began = clock.seconds(), time.perf_counter()
    with calls_counted() as sent:
        stream.job.start(available_now=True).await_termination()
    took = time.perf_counter() - began
    return Turn(took, clock.seconds() - spent, len(sent), _results(folder / "out"))


def _results(folder: Path) -> tuple[int, ...]:
    """Return the number of rows of all output files, and the sums of their values; retractions count negatively."""
    rows = pa.concat_tables([pq.read_table(file) for file in sorted(folder.iterdir())], promote_options="default")
    weights = rows[WEIGHT] if WEIGHT in rows.column_names else pa.repeat(1, rows.num_rows)
    sums = [pc.sum(pc.multiply(rows[name].cast(pa.int64()), weights.cast(pa.int64()))).as_py() for name in _SUMMED]
    return (int(pc.sum(weights).as_py() or 0), *(int(value or 0) for value in sums))


# ---- cases -----------------------------------------------------------------------------------------------------------


def _tables(job: sb.Job, a: DataFrame, b: DataFrame) -> tuple[JobStream, JobStream]:
    """Make both streams sources of a job, and thereby tables of its SQL text."""
    watermark = ("ts", DELAY)
    return job.source(a, name="a", watermark=watermark), job.source(b, name="b", watermark=watermark)


def _text(text: str) -> Plan:
    def prepare(job: sb.Job, a: DataFrame, b: DataFrame) -> Callable[[], JobStream]:
        _tables(job, a, b)
        return lambda: job.sql(text)

    return prepare


def _frame(query: Callable[[DataFrame, DataFrame], DataFrame], mode: str | None) -> Plan:
    def prepare(job: sb.Job, a: DataFrame, b: DataFrame) -> Callable[[], JobStream]:
        df = query(*(frame.withWatermark("ts", DELAY) for frame in (a, b)))
        return lambda: job.from_dataframe(df, mode=mode)

    return prepare


def _own(build: Callable[[JobStream, JobStream], JobStream]) -> Plan:
    return lambda job, a, b: lambda: build(*_tables(job, a, b))


def _windows(a: JobStream, _: JobStream) -> JobStream:
    return a.group_by("k", sb.tumbling("1 minute"), name="window").agg(n=sb.count(), total=sb.sum("v"))


def _totals(a: JobStream, _: JobStream) -> JobStream:
    return a.key_by("k", name="totals").agg(n=sb.count(), total=sb.sum("v"))


def _pairs(a: JobStream, b: JobStream) -> JobStream:
    joined = a.join(b, "k", within=sb.between("0 s", "5 s"), name="pairs")
    return joined.select("k", "v as n", "v_right as total")


def _windowed_frame(a: DataFrame, _: DataFrame) -> DataFrame:
    grouped = a.groupBy(F.window("ts", "1 minute"), "k")
    return grouped.agg(F.count("*").alias("n"), F.sum("v").alias("total"))


def _chained_frame(a: DataFrame, _: DataFrame) -> DataFrame:
    per_minute = a.groupBy(F.window("ts", "1 minute"), "k").agg(F.sum("v").alias("s"))
    hours = per_minute.groupBy(F.window(F.window_time("window"), "1 hour")).agg(F.max("s").alias("most"))
    return hours.selectExpr("window.start", "most")


def _joined_frame(a: DataFrame, b: DataFrame) -> DataFrame:
    right = b.selectExpr("k as k2", "v as v2", "ts as ts2")
    near = "k = k2 and ts2 between ts and ts + interval 5 seconds"
    return a.join(right, F.expr(near), "leftOuter").dropDuplicates(["k", "ts", "ts2"])


CASES = {
    "window by key, DataFrame": Case(_frame(_windowed_frame, "append"), _own(_windows)),
    "updating aggregate, SQL": Case(_text("SELECT k, count(*) AS n, sum(v) AS total FROM a GROUP BY k"), _own(_totals)),
    "interval join, SQL": Case(
        _text(
            "SELECT a.k, a.v AS n, b.v AS total FROM a JOIN b "
            "ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '5' SECONDS"
        ),
        _own(_pairs),
    ),
    "chained windows, DataFrame": Case(_frame(_chained_frame, "append")),
    "outer join and deduplication, DataFrame": Case(_frame(_joined_frame, "append")),
    "top 3 of sliding windows, SQL": Case(
        _text(
            "WITH hot AS (SELECT k, count(*) AS n, window_start, window_end "
            "FROM TABLE(HOP(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECONDS, INTERVAL '1' MINUTE)) "
            "GROUP BY k, window_start, window_end) "
            "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY window_start, window_end ORDER BY n DESC) "
            "AS place FROM hot) WHERE place <= 3"
        )
    ),
    "cube of sliding windows, SQL": Case(
        _text(
            "SELECT k, v, count(*) AS n FROM a GROUP BY HOP(ts, INTERVAL '10' SECONDS, INTERVAL '1' MINUTE), CUBE(k, v)"
        )
    ),
    "join of windows, SQL": Case(
        _text(
            "SELECT l.k, l.s, r.s AS t "
            "FROM (SELECT window, k, sum(v) AS s FROM a GROUP BY window(ts, '1 minute'), k) l "
            "JOIN (SELECT window, k, sum(v) AS s FROM b GROUP BY window(ts, '1 minute'), k) r "
            "ON l.window = r.window AND l.k = r.k"
        )
    ),
}
