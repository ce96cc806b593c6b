"""Decides whether the batches of a query can be scanned natively, and builds the tasks of each batch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from statebed.errors import StatebedError
from statebed.expressions.functions.json_columns import ReadingTally, counted_reading
from statebed.spark.analysed.expression_text import UntranslatableError
from statebed.spark.analysed.optimised import optimised_plan, pushed_filters
from statebed.spark.analysed.plan_tree import PlanNode, analysed_plan
from statebed.spark.plan.job_plan import JobPlan
from statebed.spark.scan.batch_files import (
    BatchFile,
    files_of,
    is_empty,
    is_read_in_place,
    leaves_of_batch,
    tasks_of,
)
from statebed.spark.scan.kafka_ranges import ranges_of, tasks_of_ranges
from statebed.spark.scan.kafka_reader import KafkaClient, KafkaRange
from statebed.spark.scan.parquet_reader import PARTITION_TYPES, FilePart, ScanRefusedError
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


ReadWork: TypeAlias = tuple[int, FilePart | KafkaRange]
"""A file or messages that a task reads, with the number of its stream."""
_FEW_DOCUMENTS = 1_000
_SHARE_ONE_BY_ONE = 0.02


@dataclass(frozen=True)
class NativeScan:
    """Programs of a query's streams, in the order of the leaves of its plan."""

    programs: tuple[Program, ...]
    case_sensitive: bool

    def of_batch(self, session: SparkSession, query_id: str, *, parallelism: int) -> "ScanFunction | None":
        """Return the function that scans the batch that Spark runs; None if it has no files."""
        leaves = leaves_of_batch(session, query_id)
        if len(leaves) != len(self.programs):
            raise ScanRefusedError(f"the batch reads {len(leaves)} streams, the job {len(self.programs)}")
        files: list[list[BatchFile]] = []
        ranges: list[tuple[int, KafkaRange]] = []
        for number, (leaf, program) in enumerate(zip(leaves, self.programs, strict=True)):
            stream = files_of(leaf) if program.client is None else []
            files.append(stream)
            if program.client is not None and not is_empty(leaf):
                ranges += [(number, messages) for messages in ranges_of(leaf, program.client)]
            kinds = {column.name: column.field.type for column in program.columns}
            for name in {name for file in stream for name in file.values} & kinds.keys():
                if kinds[name] not in PARTITION_TYPES:
                    raise ScanRefusedError(f"the partition column {name} has the type {kinds[name]}")
        slots = session.sparkContext.defaultParallelism
        tasks: list[tuple[ReadWork, ...]] = [*tasks_of(files, slots=slots), *tasks_of_ranges(ranges, slots=slots)]
        in_place = not ranges and is_read_in_place(files, slots=slots, parallelism=parallelism)
        return ScanFunction(tuple(tasks), self.programs, self.case_sensitive, in_place) if tasks else None


@dataclass(frozen=True)
class ScanFunction:
    """Source of rows in a task: reads the parts of files, and the messages, that belong to it."""

    tasks: tuple[tuple[ReadWork, ...], ...]
    programs: tuple[Program, ...]
    case_sensitive: bool
    in_place: bool = False
    """Whether every subtask reads all files and keeps its own rows, so that no rows move between tasks."""

    def rows(self, number: int, counts: list[int], latest_ms: dict[str, int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the branches that the task of this number reads; add the number of rows that were read to
        the count of their stream, and note the greatest event time at each watermark.
        """
        documents = ReadingTally()
        for stream, part in self.tasks[number]:
            program = self.programs[stream]
            for rows in part.batches(program.columns, case_sensitive=self.case_sensitive):
                counts[stream] += rows.num_rows
                try:
                    if program.client is None:
                        yield from program.rows(rows, latest_ms)
                        continue
                    with counted_reading(documents):
                        outputs = list(program.rows(rows, latest_ms))
                    _check_speed(documents)
                    yield from outputs
                except StatebedError as error:
                    # Spark may succeed, because it computes an operand only if it needs it, or has its own error.
                    raise ScanRefusedError(f"{part.path}: {error.what.splitlines()[0]}") from error


def _check_speed(documents: ReadingTally) -> None:
    """Raise ScanRefusedError if many documents were read one by one, which takes longer than in the JVM."""
    if documents.one_by_one > max(_FEW_DOCUMENTS, documents.documents * _SHARE_ONE_BY_ONE):
        raise ScanRefusedError(
            f"{documents.one_by_one:,} of {documents.documents:,} JSON values do not fit the schema, or are written in "
            "a way that only Spark reads fast"
        )


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
    clients = [_client_of(node) for node in root.walk() if not node.children]
    try:
        observed = {watermark.node_id for watermark in plan.graph.spark_watermarks}
        if observed:
            _check_observed(root, plan.session)
        programs = programs_of(root, plan.session, observed=observed)
    except StatebedError as error:
        raise UntranslatableError(error.what) from error
    programs = [replace(program, client=client) for program, client in zip(programs, clients, strict=True)]
    return NativeScan(tuple(programs), settings.get("spark.sql.caseSensitive", "false").lower() == "true")


def _check_observed(root: PlanNode, session: SparkSession) -> None:
    """Raise UntranslatableError if Spark would observe other rows than those that reach a watermark in the plan."""
    optimised = optimised_plan(session, root)
    if optimised is None or any(pushed_filters(root, optimised).values()):
        raise UntranslatableError("Spark's optimiser moves a condition below a watermark of the query")


def _client_of(leaf: PlanNode) -> KafkaClient | None:
    """Return the client that reads a stream of messages, and None for a stream of Parquet files; raise
    UntranslatableError if only Spark can read it.
    """
    if leaf.kind == "StreamingRelationV2":
        if str(leaf.handle.sourceName()).lower() != "kafka":
            raise UntranslatableError(f"the source {leaf.handle.sourceName()} is read by Spark")
        try:
            return KafkaClient.of(dict(leaf.handle.extraOptions().asCaseSensitiveMap()))
        except ScanRefusedError as refused:
            raise UntranslatableError(str(refused)) from refused
    if leaf.kind != "StreamingRelation":
        raise UntranslatableError(f"{leaf.kind} is read by Spark")
    source: Any = leaf.handle.dataSource()
    if str(source.className()).lower() not in {name.lower() for name in _PARQUET}:
        raise UntranslatableError(f"files of the format {source.className()} are read by Spark")
    names = str(source.options().keySet().mkString("\x01")).split("\x01")
    changed = [name for name in names if name and name.lower() not in _LISTING]
    if changed:
        raise UntranslatableError(f"the option {changed[0]} changes how files are read")
    return None
