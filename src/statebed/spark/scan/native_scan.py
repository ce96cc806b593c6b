"""Decides whether the batches of a query can be scanned natively, and builds the tasks of each batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from statebed.errors import StatebedError
from statebed.spark.analysed.expression_text import UntranslatableError
from statebed.spark.analysed.optimised import optimised_plan, pushed_filters
from statebed.spark.analysed.plan_tree import PlanNode, analysed_plan
from statebed.spark.plan.job_plan import JobPlan
from statebed.spark.scan.batch_files import Work, files_of_batch, is_read_in_place, tasks_of
from statebed.spark.scan.parquet_reader import PARTITION_TYPES, ScanRefusedError, batches_of
from statebed.spark.scan.program import Program
from statebed.spark.scan.translation import programs_of
from statebed.spark.session import configuration

_PARQUET = frozenset({"parquet", "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"})
_LISTING = frozenset(
    {
        "basepath",
        "cleansource",
        "filenameonly",
        "latestfirst",
        "maxbytespertrigger",
        "maxcachedfiles",
        "maxfileage",
        "maxfilespertrigger",
        "modifiedafter",
        "modifiedbefore",
        "path",
        "pathglobfilter",
        "recursivefilelookup",
        "sourcearchivedir",
    }
)
"""Options that choose files, and say nothing about reading them."""
_READ_BY_SPARK = {
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.parquet.binaryAsString": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "legacy",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.int96AsTimestamp": "false",
    "spark.sql.parquet.int96RebaseModeInRead": "legacy",
    "spark.sql.parquet.int96TimestampConversion": "true",
}
"""Settings of Spark that change how it reads files."""


@dataclass(frozen=True)
class NativeScan:
    """Programs of a query's streams, in the order of the leaves of its plan."""

    programs: tuple[Program, ...]
    case_sensitive: bool

    def of_batch(self, session: SparkSession, query_id: str, *, parallelism: int) -> "ScanFunction | None":
        """Return the function that scans the batch that Spark runs; None if it has no files."""
        files = files_of_batch(session, query_id)
        if len(files) != len(self.programs):
            raise ScanRefusedError(f"the batch reads {len(files)} streams, the job {len(self.programs)}")
        for stream, program in zip(files, self.programs, strict=True):
            kinds = {column.name: column.field.type for column in program.columns}
            for name in {name for file in stream for name in file.values} & kinds.keys():
                if kinds[name] not in PARTITION_TYPES:
                    raise ScanRefusedError(f"the partition column {name} has the type {kinds[name]}")
        slots = session.sparkContext.defaultParallelism
        tasks = tasks_of(files, slots=slots)
        in_place = is_read_in_place(files, slots=slots, parallelism=parallelism)
        return ScanFunction(tuple(tasks), self.programs, self.case_sensitive, in_place) if tasks else None


@dataclass(frozen=True)
class ScanFunction:
    """Source of rows in a task: reads the parts of files that belong to it."""

    tasks: tuple[tuple[Work, ...], ...]
    programs: tuple[Program, ...]
    case_sensitive: bool
    in_place: bool = False
    """Whether every subtask reads all files and keeps its own rows, so that no rows move between tasks."""

    def rows(self, number: int, counts: list[int], latest_ms: dict[str, int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the branches that the task of this number reads; add the number of rows that were read to
        the count of their stream, and note the greatest event time at each watermark.
        """
        for stream, part in self.tasks[number]:
            program = self.programs[stream]
            for rows in batches_of(part, program.columns, case_sensitive=self.case_sensitive):
                counts[stream] += rows.num_rows
                try:
                    yield from program.rows(rows, latest_ms)
                except StatebedError as error:
                    # Spark may succeed, because it computes an operand only if it needs it, or has its own error.
                    raise ScanRefusedError(f"{part.path}: {error.what.splitlines()[0]}") from error


def reading_text(plan: JobPlan) -> str:
    """Return who reads the sources of a job, and why if Spark does."""
    if not plan.settings.native_scan:
        return "Spark (native_scan is off)"
    try:
        native_scan(plan)
    except UntranslatableError as error:
        return f"Spark ({error.why})"
    return "tasks, with Arrow (native scan)"


def native_scan(plan: JobPlan) -> NativeScan:
    """Return the scan of a job's streams; raise UntranslatableError with the reason if only Spark can read them."""
    settings = configuration(plan.session)
    for name, value in _READ_BY_SPARK.items():
        if settings.get(name, "").lower() == value:
            raise UntranslatableError(f"{name} is {settings[name]}")
    root = analysed_plan(plan.prepared)
    for node in root.walk():
        if not node.children:
            _check_stream(node)
    try:
        observed = {watermark.node_id for watermark in plan.graph.spark_watermarks}
        if observed:
            _check_observed(root, plan.session)
        programs = programs_of(root, plan.session, observed=observed)
    except StatebedError as error:
        raise UntranslatableError(error.what) from error
    return NativeScan(tuple(programs), settings.get("spark.sql.caseSensitive", "false").lower() == "true")


def _check_observed(root: PlanNode, session: SparkSession) -> None:
    """Raise UntranslatableError if Spark would observe other rows than those that reach a watermark in the plan."""
    optimised = optimised_plan(session, root)
    if optimised is None or any(pushed_filters(root, optimised).values()):
        raise UntranslatableError("Spark's optimiser moves a condition below a watermark of the query")


def _check_stream(leaf: PlanNode) -> None:
    """Raise UntranslatableError for a stream that is not made of Parquet files with default options."""
    if leaf.kind != "StreamingRelation":
        raise UntranslatableError(f"{leaf.kind} is read by Spark")
    source: Any = leaf.handle.dataSource()
    if str(source.className()).lower() not in {name.lower() for name in _PARQUET}:
        raise UntranslatableError(f"files of the format {source.className()} are read by Spark")
    names = str(source.options().keySet().mkString("\x01")).split("\x01")
    changed = [name for name in names if name and name.lower() not in _LISTING]
    if changed:
        raise UntranslatableError(f"the option {changed[0]} changes how files are read")
