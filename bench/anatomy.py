"""Processor time of each part of the way of a row: `python -m bench anatomy`.

One part at a time is added to the same plan, whose rows end in a sink that does nothing. The cost of a part is what it
adds. The whole job comes last. Spark's own reader and the native scan are measured over the same files, each in a
process of its own. Times are processor time of the driver, the JVM and the Python workers, not seconds of the clock:
both cores are busy, and others may be, too.

The ceiling of a job is one without state: it reads the same rows, writes them to the outbox and commits every epoch.
The parts inside a subtask are measured apart from Spark.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import statebed as sb
from bench.report import Figure, Report, is_chosen, smaller
from bench.spark.cases import Case, Files, Kind
from bench.spark.child import HEAP, WITHOUT_ROWS
from bench.spark.inputs import write_inputs
from bench.spark.watch import ProcessorClock, tree_of
from bench.subtask_parts import parts_per_row
from statebed.java import use_java
from statebed.spark.epoch.epoch_levels import routing
from statebed.spark.epoch.exchange import PieceFiles, placed, reading
from statebed.spark.plan.job_plan import JobPlan
from statebed.spark.plan.pieces import PIECES_SCHEMA, SUBTASK, Piece
from statebed.spark.plan.routing import RouteFunction
from statebed.spark.plan.worker_resources import freeze_heap
from statebed.spark.scan import batch_files
from statebed.spark.scan.native_scan import NativeScan, ScanFunction, native_scan

WAYS = ("Spark reads", "native scan")
WHOLE_JOB, STATELESS_JOB, INSIDE = "whole job", "job without state", "inside a subtask"
PARTS = ("planning", "read", "pipe", "route", "shuffle", "second pipe", WHOLE_JOB)
"""Planning of a batch; reading of its columns; rows to Arrow and to a Python worker; hashing, splitting, encoding and
the way back; shuffle; to the worker of the subtask; fold, state, checkpoint, outbox, commit.
"""
NATIVE_PARTS = ("planning", "read", "route", "shuffle", "second pipe", WHOLE_JOB)
_CEILING_GOAL = 0.7
_THREADS = {
    "C1 Compiler": "JIT",
    "C2 Compiler": "JIT",
    "G1": "garbage collection",
    "GC": "garbage collection",
    "Executor task": "tasks",
    "stream executio": "planning",
}
SETTINGS = {
    "spark.driver.memory": HEAP,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.openCostInBytes": "1",
    "spark.python.unix.domain.socket.enabled": "true",
}


@dataclass(frozen=True)
class Sizes:
    """Number of batches and rows."""

    keys: int
    rows: int
    warm: int
    measured: int


def run(report: Report, *, quick: bool = False, only: str = "") -> None:
    """Print the processor time of each part, in microseconds per row."""
    sizes = Sizes(100_000, 100_000, 10, 5) if quick else Sizes(1_000_000, 500_000, 20, 10)
    with tempfile.TemporaryDirectory() as folder:
        files = Files(warm=sizes.warm, warm_rows=sizes.rows, measured=sizes.measured, rows=sizes.rows)
        write_inputs(_case(sizes.keys), files, Path(folder) / "in")
        for way in WAYS:
            if is_chosen(way, only):
                _report(report, way, sizes, _measured(way, sizes, Path(folder)))
    if is_chosen(INSIDE, only):
        for part, spent in parts_per_row(keys=sizes.keys, epochs=4 if quick else 12).items():
            report.figure(Figure(f"{INSIDE}, {sizes.keys:,} keys", part, spent, "us/row"))


def _measured(way: str, sizes: Sizes, folder: Path) -> dict[str, dict[str, float]]:
    """Return microseconds per row of each part's plan, by process and group of threads, from a process of its own."""
    arguments = [way, str(folder), str(sizes.rows), str(sizes.warm), str(sizes.measured)]
    child = subprocess.run(  # noqa: S603 - this module itself
        [sys.executable, "-m", "bench.anatomy", *arguments], stdout=subprocess.PIPE, check=True, text=True
    )
    times: dict[str, dict[str, float]] = json.loads(child.stdout.splitlines()[-1])
    return times


def _report(report: Report, way: str, sizes: Sizes, times: dict[str, dict[str, float]]) -> None:
    case = f"{way}, {sizes.keys:,} keys"
    ceiling = times.pop(STATELESS_JOB)
    before: dict[str, float] = {}
    for part, spent in times.items():
        for process in ("JVM", "Python"):
            added = spent[process] - before.get(process, 0.0)
            report.figure(Figure(case, f"{part}, {process}", added, "us/row"))
        before = spent
    whole = times[WHOLE_JOB]
    for name, value in whole.items():
        report.figure(Figure(case, f"{WHOLE_JOB}, {name} in all", value, "us/row"))
    ours, theirs = (spent["JVM"] + spent["Python"] for spent in (whole, ceiling))
    report.figure(Figure(case, f"{WHOLE_JOB} in all", ours, "us/row"))
    report.figure(Figure(case, f"{STATELESS_JOB} in all", theirs, "us/row"))
    share = smaller(
        case, STATELESS_JOB, "processor time", ours=ours, theirs=theirs, unit="us/row", target=_CEILING_GOAL
    )
    report.add(share)


# ---- the process that measures ---------------------------------------------------------------------------------------


def _case(keys: int) -> Case:
    return Case(Kind.AGGREGATE, keys)


class Probe:
    """Reads the processor time at the end of each batch."""

    def __init__(self, sizes: tuple[int, int, int]) -> None:
        self._rows, self._warm, self._measured = sizes
        self._clock = ProcessorClock(os.getpid())
        self._marks: list[dict[str, float]] = []
        self._own_seconds = 0.0
        """Processor time of the probe, which is no part of a batch."""

    def batch_ended(self) -> None:
        before = time.thread_time()
        whole = self._clock.seconds()
        java = self._clock.java_seconds
        self._marks.append({"JVM": java, "Python": whole - java - self._own_seconds, **_java_threads()})
        self._own_seconds += time.thread_time() - before

    def per_row(self) -> dict[str, float]:
        """Return microseconds per row of the measured batches."""
        first, last = self._marks[self._warm - 1], self._marks[self._warm + self._measured - 1]
        rows = self._rows * self._measured
        return {name: (last[name] - first.get(name, 0.0)) * 1e6 / rows for name in last}


def _java_threads() -> dict[str, float]:
    """Return the processor seconds of the JVM's live threads by what they do; compiler threads come and go."""
    ticks = os.sysconf("SC_CLK_TCK")
    by_group = dict.fromkeys((f"JVM: {group}" for group in (*_THREADS.values(), "other threads")), 0.0)
    java = [pid for pid in tree_of(os.getpid()) if _is_java(pid)]
    for folder in (task for pid in java for task in Path(f"/proc/{pid}/task").iterdir()):
        try:
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        group = next((group for start, group in _THREADS.items() if name.startswith(start)), "other threads")
        by_group[f"JVM: {group}"] += sum(map(int, rest.split()[11:13])) / ticks
    return by_group


def _is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    except OSError:
        return False


def _main() -> None:
    way, folder = sys.argv[1], Path(sys.argv[2])
    rows, warm, measured = map(int, sys.argv[3:6])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    use_java()
    native = way == WAYS[1]
    builder = SparkSession.builder.master("local[2]")
    for name, value in (SETTINGS | (WITHOUT_ROWS if native else {})).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.conf.set("spark.statebed.native_scan", str(native).lower())
    times = {}
    for part in (*(NATIVE_PARTS if native else PARTS), STATELESS_JOB):
        own = folder / way.replace(" ", "-") / part.replace(" ", "-")
        probe = Probe((rows, warm, measured))
        _run_part(session, part, folder / "in" / "a", own, probe, native=native)
        times[part] = probe.per_row()
    session.stop()
    print(json.dumps(times))


class Ends:
    """Sink that only tells the probe that an epoch has been published."""

    sink_id = "ends"
    guarantee = sb.Guarantee.AT_LEAST_ONCE

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def open(self, run: int) -> None:
        """Do nothing: the sink keeps no position."""

    def roll_back(self, run: int, epoch: int) -> None:
        """Do nothing: it is never called."""

    def publish(self, publication: sb.Publication) -> None:
        del publication
        self._probe.batch_ended()


def _run_part(session: SparkSession, part: str, source: Path, own: Path, probe: Probe, *, native: bool) -> None:
    frame = session.readStream.schema(_case(1).columns).option("maxFilesPerTrigger", 1).parquet(str(source))
    job = sb.Job("anatomy", state=str(own / "state"), memory="1g", parallelism=2, spark=session)
    rows = job.source(frame, name="a")
    if part == STATELESS_JOB:
        result = rows.select("k", "v")
    else:
        result = rows.key_by("k", name="totals").agg(n=sb.count(), total=sb.sum("v"))
    result.write(Ends(probe))
    # The parts before the whole job move rows between tasks, so it has to do that, too.
    batch_files.READ_AGAIN_BYTES = -1
    if part in {WHOLE_JOB, STATELESS_JOB}:
        job.start(available_now=True).await_termination()
        return
    plan = job._plan()  # noqa: SLF001 - the plan of a job is not public, and the parts are made of it
    scan = native_scan(plan) if native else None
    steps = _spark_steps(plan, part) if scan is None else native_steps(plan, part, scan, own / "pieces")

    def on_batch(batch: DataFrame, _batch_id: int) -> None:
        steps(batch)
        probe.batch_ended()

    writer = plan.prepared.writeStream.foreachBatch(on_batch).option("checkpointLocation", str(own / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def _spark_steps(plan: JobPlan, part: str) -> Callable[[DataFrame], None]:
    """Return what is done with a batch that Spark reads, up to a part."""
    names = PARTS[: PARTS.index(part) + 1]

    def run(rows: DataFrame) -> None:
        if part == "planning":
            return
        if "route" in names:
            rows = rows.mapInArrow(_Routed(routing(plan, None)), PIECES_SCHEMA)
        elif "pipe" in names:
            rows = rows.mapInArrow(drained, PIECES_SCHEMA)
        if "shuffle" in names:
            rows = rows.repartitionById(plan.parallelism, F.col(SUBTASK))
        if "second pipe" in names:
            rows = rows.mapInArrow(drained, PIECES_SCHEMA)
        rows.write.format("noop").mode("overwrite").save()

    return run


def native_steps(plan: JobPlan, part: str, scan: NativeScan, folder: Path) -> Callable[[DataFrame], None]:
    """Return what is done with a batch whose files are scanned, up to a part."""
    names = NATIVE_PARTS[: NATIVE_PARTS.index(part) + 1]
    files = PieceFiles(str(folder))

    def run(batch: DataFrame) -> None:
        if part == "planning":
            return
        context = batch.sparkSession.sparkContext
        query_id = str(context.getLocalProperty("sql.streaming.queryId"))
        function = scan.of_batch(plan.prepared.sparkSession, query_id, parallelism=plan.parallelism)
        assert function is not None
        read = _Scanned(function, routing(plan, None) if "route" in names else drained)
        folder.mkdir(parents=True)
        rdd = reading(context, read, tasks=len(function.tasks), files=files)
        if "shuffle" in names:
            rdd = placed(rdd, plan.parallelism)
        if "second pipe" in names:
            rdd.foreachPartition(_Taken(files))
        else:
            rdd._jrdd.count()  # noqa: SLF001 - in the JVM, so that nothing else is added
        shutil.rmtree(folder)

    return run


@dataclass(frozen=True)
class _Routed:
    """Function of a task: routes rows."""

    route: RouteFunction

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in self.route(batches):
            yield piece.row()
        freeze_heap()


@dataclass(frozen=True)
class _Scanned:
    """Function of a task: scans files, and passes the rows on."""

    function: ScanFunction
    behind: Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]

    def __call__(self, number: int) -> Iterator[Piece]:
        yield from self.behind(self.function.rows(number, [0] * len(self.function.programs), {}))
        freeze_heap()


def drained(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    """Take all rows, and return none."""
    for batch in batches:
        del batch
    yield from ()
    freeze_heap()  # as a subtask does; otherwise PySpark's garbage collection after each task would be most of its time


@dataclass(frozen=True)
class _Taken:
    """Function of a task: takes all pieces, and does nothing with them."""

    files: PieceFiles

    def __call__(self, references: Iterable[Piece]) -> None:
        for piece in self.files.read(references):
            del piece


if __name__ == "__main__":
    _main()
