"""Contents of one epoch, read through its record: tables, outbox, sinks, source position, savepoints."""

from collections import Counter
from dataclasses import dataclass, field

from statebed.checkpoint.given_up import is_given_up
from statebed.checkpoint.log import CheckpointLog
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.records import input_watermark
from statebed.inspect.run_states import is_published
from statebed.inspect.sizes import subtasks_of
from statebed.protocol.sink_history import output_files


@dataclass(frozen=True)
class OperatorContents:
    """One operator of an epoch."""

    operator: str
    parallelism: int
    rows_in: int
    rows_late: int
    rows_out: int
    watermark_us: int | None
    """Time up to which its windows are closed."""
    output_watermark_us: int | None
    """Lower bound of the event times of later results."""
    reads: tuple[str, ...] = ()
    """Sources and operators that it reads, if the record names them."""


@dataclass(frozen=True)
class TableSummary:
    """One table of an operator, over all its subtasks."""

    operator: str
    table: str
    kind: str
    tier: str
    subtasks: int
    files: int
    rows: int
    bytes: int
    tombstones: int
    levels: dict[int, int] = field(default_factory=dict)
    """Number of files of each level."""


@dataclass(frozen=True)
class SubtaskSummary:
    """One subtask of an operator: its hash range and the size of its part of the tables."""

    operator: str
    subtask: int
    owned_first: int
    """First key hash of its range."""
    owned_last: int
    files: int
    rows: int
    bytes: int
    tombstones: int


@dataclass(frozen=True)
class SinkSummary:
    """One sink of an epoch, and whether the epoch's output is published to it."""

    sink: str
    operator: str
    stream: str
    files: int
    rows: int
    bytes: int
    published: bool
    """Whether a marker says that the sink has the epoch; also true if its rows were given up."""
    given_up: bool = False
    """Whether the sink advanced to the epoch without its rows, as requested at a start."""

    @property
    def delivery(self) -> str:
        """Whether the sink has the rows, in words."""
        return "given up" if self.given_up else "yes" if self.published else "not yet"


@dataclass(frozen=True)
class Contents:
    """Contents of an epoch."""

    operators: tuple[OperatorContents, ...]
    tables: tuple[TableSummary, ...]
    sinks: tuple[SinkSummary, ...]
    source_kind: str
    source_query: str
    source_batch: int | None
    savepoints: dict[str, int]


Metadata = dict[str, list[pb.OperatorCheckpointMetadata]]
"""Metadata of the subtasks of each operator."""


def metadata_of(log: CheckpointLog, record: pb.CheckpointMetadata) -> Metadata:
    """Read the metadata of an epoch's subtasks, but no data."""
    return {entry.operator_id: subtasks_of(log, entry) for entry in record.operators}


def contents_of(log: CheckpointLog, record: pb.CheckpointMetadata, metadata: Metadata | None = None) -> Contents:
    """Return the contents of an epoch; pass the metadata of its subtasks if it is already read."""
    position = record.source_position
    metadata = metadata_of(log, record) if metadata is None else metadata
    tier = "object store" if "://" in log.store.url else "local disk"
    return Contents(
        operators=tuple(_operator(entry) for entry in record.operators),
        tables=tuple(table for name, subtasks in metadata.items() for table in _tables(name, subtasks, tier)),
        sinks=tuple(sink_of(log, record, entry) for entry in record.sinks),
        source_kind=position.kind,
        source_query=position.query_id,
        source_batch=position.batch_id if position.HasField("batch_id") else None,
        savepoints={pin.savepoint: pin.epoch for pin in record.pins},
    )


def _operator(entry: pb.OperatorEntry) -> OperatorContents:
    return OperatorContents(
        operator=entry.operator_id,
        parallelism=entry.parallelism,
        rows_in=entry.rows_in,
        rows_late=entry.rows_late,
        rows_out=entry.rows_out,
        watermark_us=input_watermark(entry),
        output_watermark_us=entry.output_watermark_us if entry.HasField("output_watermark_us") else None,
        reads=tuple(dict.fromkeys(origin for input_ in entry.inputs for origin in input_.origins)),
    )


def _tables(operator: str, subtasks: list[pb.OperatorCheckpointMetadata], tier: str) -> list[TableSummary]:
    parts: dict[str, list[pb.TableSubtaskCheckpointMetadata]] = {}
    kinds: dict[str, str] = {}
    for metadata in subtasks:
        for name, table in metadata.tables.items():
            parts.setdefault(name, []).extend(table.subtasks.values())
            kinds[name] = (table.config.WhichOneof("kind") or "unknown").replace("_", " ")
    return [_table(operator, name, kinds[name], tier, parts[name]) for name in sorted(parts)]


def _table(
    operator: str, name: str, kind: str, tier: str, subtasks: list[pb.TableSubtaskCheckpointMetadata]
) -> TableSummary:
    # After a rescale two subtasks may list the same file; count it once.
    files = {file.path: file for subtask in subtasks for file in subtask.files}
    return TableSummary(
        operator=operator,
        table=name,
        kind=kind,
        tier=tier,
        subtasks=len(subtasks),
        files=len(files),
        rows=sum(file.rows for file in files.values()),
        bytes=sum(file.size for file in files.values()),
        tombstones=sum(len(subtask.tombstones) for subtask in subtasks),
        levels=dict(sorted(Counter(file.level for file in files.values()).items())),
    )


def subtasks_in(metadata: Metadata) -> list[SubtaskSummary]:
    """Return the parts of all subtasks, by operator; a file shared by several subtasks counts for each."""
    return [_subtask(name, subtask) for name, subtasks in metadata.items() for subtask in subtasks]


def _subtask(operator: str, metadata: pb.OperatorCheckpointMetadata) -> SubtaskSummary:
    parts = [part for table in metadata.tables.values() for part in table.subtasks.values()]
    files = [file for part in parts for file in part.files]
    return SubtaskSummary(
        operator=operator,
        subtask=metadata.subtask_index,
        owned_first=metadata.owned.first,
        owned_last=metadata.owned.last,
        files=len(files),
        rows=sum(file.rows for file in files),
        bytes=sum(file.size for file in files),
        tombstones=sum(len(part.tombstones) for part in parts),
    )


def sink_of(log: CheckpointLog, record: pb.CheckpointMetadata, entry: pb.SinkEntry) -> SinkSummary:
    """Return a sink of an epoch; a sink that names no operator gets the files of its stream from all operators."""
    files = output_files(record, entry.operator_id, entry.stream)
    published = is_published(log, record.epoch, entry.sink_id)
    return SinkSummary(
        sink=entry.sink_id,
        operator=entry.operator_id,
        stream=entry.stream,
        files=len(files),
        rows=sum(file.rows for file in files),
        bytes=sum(file.size for file in files),
        published=published,
        given_up=published and is_given_up(log.store, record.epoch, entry.sink_id),
    )
