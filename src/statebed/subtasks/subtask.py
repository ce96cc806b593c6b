"""One subtask of one epoch: the unit of work that Spark, or any Python program, calls.

It opens exactly the state that the task names, applies its share of the batch, writes data files, outbox and its
metadata, and reports. Names are digests of bytes, and neither the bytes nor the report depend on the attempt, so a
retry writes the same objects again and returns the same report.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
import pyarrow as pa

from statebed.aggregates.preaggregation import GROUPS_IN
from statebed.arrays.columns import uint64_values
from statebed.errors import InputError, SinkError, SubtaskError, error_text, raised_at
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.format.ranges import in_range, overlaps, owned_range
from statebed.format.schema import KEY_HASH, TIME
from statebed.operators.labels import operator_label
from statebed.operators.operator import MAIN, Clock, Operator, StepResult, earlier_tables, upgrade_state
from statebed.state import (
    CheckpointCompleted,
    CompactionMode,
    ManagerOptions,
    Purpose,
    TableManager,
    TaskInfo,
    Tiers,
)
from statebed.state.evolution.evolve import TIME_TO_LIVE
from statebed.state.host_cache import HostCache
from statebed.state.tiers.spill_folder import spill_error
from statebed.storage import ObjectStore, put_verified
from statebed.subtasks.figures import Measured, SubtaskFigures, WaitTimer, memory_figures, operator_figures
from statebed.subtasks.outbox import FILE_ROWS, ROW_GROUP_ROWS, encode_outbox_pieces, encoding_bytes, row_groups
from statebed.subtasks.staged_writer import StagedOutput

MAX_STAGED_BYTES = 64 << 10
"""Maximum number of bytes that the writer of a two-phase sink may return."""
OPTIONS = ManagerOptions(compaction=CompactionMode.OFF)
"""A subtask ends with its epoch: a background compaction would be lost work and make files depend on timing."""


class Delivery(Protocol):
    """Rows for sinks: an output of the operator, optionally after stateless steps."""

    @property
    def stream(self) -> str:
        """Name that distinguishes the outbox files of this delivery from others."""

    def rows(self, outputs: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of an epoch: the user's columns, `_time`, and `_weight` in a changelog."""


@dataclass(frozen=True)
class MainOutput:
    """The operator's main output, unchanged."""

    stream: str = MAIN

    def rows(self, outputs: Mapping[str, pa.Table]) -> pa.Table:
        return outputs.get(MAIN, pa.table({}))


@dataclass(frozen=True)
class SubtaskTask:
    """Work of one subtask in one epoch; picklable."""

    job_id: str
    epoch: int
    operator: Operator
    subtask_index: int
    parallelism: int
    base: tuple[bytes, ...]
    """Serialized SubtaskReferences of the base epoch whose owned range overlaps this subtask's; others are ignored."""
    late_us: int | None
    """Watermark of the previous epoch, or None if no row is late."""
    watermark_us: int | None
    """Watermark of this epoch, or None if nothing is final."""
    epoch_time_us: int
    edits: tuple[bytes, ...] = ()
    """Edits from compactions of the operator's files; those that apply to the base are applied."""
    compacting_epoch: int | None = None
    """A compaction in progress reads files of epochs up to this one; the checkpoint does not compact them if it can."""
    deliveries: tuple["Delivery", ...] = ()
    """Deliveries to publish; the main output if empty."""
    staging: tuple[StagedOutput, ...] = ()
    """Writers of two-phase sinks."""
    staged_only: frozenset[str] = frozenset()
    """Streams without an outbox file, because only two-phase sinks read them."""

    def of(self, subtask_index: int) -> "SubtaskTask":
        """Return the same task for another subtask."""
        return replace(self, subtask_index=subtask_index)

    @property
    def info(self) -> TaskInfo:
        label = operator_label(self.operator)
        return TaskInfo(self.job_id, self.operator.operator_id, self.subtask_index, self.parallelism, label)

    @property
    def clock(self) -> Clock:
        return Clock(self.late_us, self.watermark_us, self.epoch_time_us)


class _ReportWire(msgspec.Struct, array_like=True, frozen=True):
    operator_id: str
    subtask_index: int
    epoch: int
    reference: bytes
    outbox: list[bytes]
    numbers: dict[str, int | None]
    matches: bytes | None
    staged: list[tuple[str, bytes]] = []


@dataclass(frozen=True)
class SubtaskReport:
    """Result of a subtask; small, and equal for every attempt."""

    operator_id: str
    subtask_index: int
    epoch: int
    reference: pb.SubtaskReference
    """Reference to the metadata object of this subtask, for the record."""
    outbox: tuple[pb.OutboxFile, ...]
    rows_in: int
    rows_late: int
    rows_out: int
    state_rows: int
    state_bytes: int
    state_files: int
    bytes_written: int
    due_bytes: int = 0
    """Size of files that are worth compacting."""
    edits_applied: int = 0
    groups_in: int = 0
    """Number of groups among the input rows, if the operator groups them."""
    next_timer_us: int | None = None
    """First processing time at which a step is due even without rows."""
    matches: pb.JoinMatches | None = None
    """Matches of a join by time in this epoch."""
    staged: tuple[tuple[str, bytes], ...] = ()
    """Two-phase sinks, and what their writers returned."""

    def to_bytes(self) -> bytes:
        wire = _ReportWire(
            operator_id=self.operator_id,
            subtask_index=self.subtask_index,
            epoch=self.epoch,
            reference=self.reference.SerializeToString(deterministic=True),
            outbox=[file.SerializeToString(deterministic=True) for file in self.outbox],
            numbers={name: getattr(self, name) for name in _NUMBERS},
            matches=None if self.matches is None else self.matches.SerializeToString(deterministic=True),
            staged=list(self.staged),
        )
        return msgspec.msgpack.encode(wire)

    @classmethod
    def from_bytes(cls, data: bytes) -> "SubtaskReport":
        wire = msgspec.msgpack.decode(data, type=_ReportWire)
        return cls(
            operator_id=wire.operator_id,
            subtask_index=wire.subtask_index,
            epoch=wire.epoch,
            reference=pb.SubtaskReference.FromString(wire.reference),
            outbox=tuple(pb.OutboxFile.FromString(file) for file in wire.outbox),
            matches=None if wire.matches is None else pb.JoinMatches.FromString(wire.matches),
            staged=tuple(wire.staged),
            **wire.numbers,  # type: ignore[arg-type]  # the names are this class's own fields
        )


_NUMBERS = (
    "rows_in",
    "rows_late",
    "rows_out",
    "state_rows",
    "state_bytes",
    "state_files",
    "bytes_written",
    "due_bytes",
    "edits_applied",
    "groups_in",
    "next_timer_us",
)


def run_subtask(
    task: SubtaskTask,
    store: ObjectStore,
    batches: Iterable[pa.RecordBatch],
    *more: Iterable[pa.RecordBatch],
    tiers: Tiers | None = None,
    cache: HostCache | None = None,
    forward: Callable[[Mapping[str, pa.Table]], None] | None = None,
    measured: Measured | None = None,
) -> SubtaskReport:
    """Run the subtask's share of the epoch: restore the base, apply the batches of each input, write, report.

    `store` is the job's folder. If nothing changes, the base's metadata is reused. `forward` is called with the
    outputs, for downstream operators. `cache` holds copies of files that tasks of this host share. `measured` is called
    with the measurements of this attempt.
    """
    operator = task.operator
    tiers = Tiers.shared() if tiers is None else tiers
    waiting, spilled = WaitTimer(), _spilled_bytes(tiers)
    tiers.memory.restart_peak()
    started = time.perf_counter()
    with TableManager(
        task.info,
        operator.tables,
        store,
        restore_from=_base_record(task),
        options=OPTIONS,
        tiers=tiers,
        cache=cache,
        combines=operator.combines,
        edits=task.edits,
        compacting_epoch=task.compacting_epoch,
        earlier=earlier_tables(operator),
    ) as manager:
        _check_definition(task, manager)
        _check_watermarks(task, manager.watermark_us)
        manager.advance(time=task.epoch_time_us)
        upgrade_state(operator, manager, task.clock)
        inputs = [waiting.over(_routed(rows, task, place)) for place, rows in enumerate((batches, *more))]
        result = operator.step(manager, inputs, task.clock)
        stepped = time.perf_counter()
        outbox = _write_outbox(task, store, result, tiers)
        staged = tuple(_write_staged(task, result))
        taken = manager.checkpoint(task.epoch, 0, task.watermark_us, then_stop=True, time=task.epoch_time_us)
        report = _report(task, result, taken.result(OPTIONS.timeout_seconds), outbox, manager)
        report = replace(report, staged=staged)
        merge_us = _micros(stepped - started - waiting.seconds)
        write_us = _micros(time.perf_counter() - stepped)
        if measured is not None:
            now = manager.metrics()
            figures = operator_figures(
                operator.operator_id,
                result,
                now.tables,
                bytes_written=report.bytes_written,
                busy_us=merge_us + write_us,
            )
            measured(SubtaskFigures(figures, merge_us, write_us, memory_figures(now.memory, spilled_before=spilled)))
    if forward is not None:
        forward(result.outputs)
    return report


def _spilled_bytes(tiers: Tiers) -> int:
    return tiers.memory.snapshot().events.get("spilled_bytes", 0)


def _micros(seconds: float) -> int:
    return max(0, round(seconds * 1_000_000))


def _report(
    task: SubtaskTask,
    result: StepResult,
    stored: CheckpointCompleted,
    outbox: Sequence[pb.OutboxFile],
    manager: TableManager,
) -> SubtaskReport:
    handed_over = stored.reference.SerializeToString() in task.base
    metadata_bytes = 0 if handed_over else stored.reference.size
    return SubtaskReport(
        operator_id=task.operator.operator_id,
        subtask_index=task.subtask_index,
        epoch=task.epoch,
        reference=stored.reference,
        outbox=tuple(outbox),
        rows_in=result.rows_in,
        rows_late=result.rows_late,
        rows_out=result.outputs[MAIN].num_rows if MAIN in result.outputs else 0,
        state_rows=stored.rows,
        state_bytes=stored.live_bytes,
        state_files=stored.files,
        bytes_written=stored.written_bytes + sum(file.size for file in outbox) + metadata_bytes,
        due_bytes=manager.due_bytes,
        edits_applied=manager.edits_applied,
        groups_in=result.counts.get(GROUPS_IN, 0),
        next_timer_us=result.next_timer_us,
        matches=result.matches,
    )


def _base_record(task: SubtaskTask) -> pb.CheckpointMetadata | None:
    """Return the part of the base's record that this subtask is restored from: all of it if a table is global."""
    owned = owned_range(task.subtask_index, task.parallelism)
    references = [pb.SubtaskReference.FromString(data) for data in task.base]
    if not any(table.WhichOneof("kind") == "global_keyed" for table in task.operator.tables.values()):
        references = [reference for reference in references if overlaps(reference.owned, owned)]
    if not references:
        return None
    entry = pb.OperatorEntry(operator_id=task.operator.operator_id, subtasks=references)
    return pb.CheckpointMetadata(job_id=task.job_id, epoch=task.epoch - 1, operators=[entry])


def _check_definition(task: SubtaskTask, manager: TableManager) -> None:
    """Raise an error if the tables' definition changed, since partials of added or dropped columns have no known
    meaning.
    """
    changed = [
        f"table {name!r}: {difference}"
        for name, differences in manager.evolutions.items()
        for difference in differences
        if difference.what != TIME_TO_LIVE
    ]
    if changed and not task.operator.definition.tables_evolve:
        raise InputError(
            f"the operator's tables differ from those that its state was written with: {'; '.join(changed)}",
            where=task.info.where,
            fix="give the changed operator another name, or restore its definition",
        )


def _check_watermarks(task: SubtaskTask, closed_us: int | None) -> None:
    marks = [closed_us, task.late_us, task.watermark_us]
    known = [mark for mark in marks if mark is not None]
    if known != sorted(known) or (closed_us is not None and None in marks):
        raise SubtaskError(
            f"watermarks went back: the base closed up to {closed_us}, this epoch has late {task.late_us}, "
            f"watermark {task.watermark_us}: closed windows would open again",
            where=task.info.where,
            fix="late_us must be the base epoch's watermark, and watermark_us must not be before it",
        )


def _routed(batches: Iterable[pa.RecordBatch], task: SubtaskTask, place: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an input after checking that this subtask owns every row, unless all subtasks get them."""
    owned = owned_range(task.subtask_index, task.parallelism)
    broadcast = any(number == place and input_.broadcast for number, input_ in enumerate(task.operator.inputs))
    for batch in batches:
        if broadcast:
            yield batch
            continue
        hashes = uint64_values(batch.column(KEY_HASH))
        if not bool(in_range(hashes, owned).all()):
            raise SubtaskError(
                "a row was routed to a subtask that does not own its key hash",
                where=task.info.where,
                fix="route rows by ((hash >>> 32) * parallelism) >>> 32 of the unsigned hash",
            )
        yield batch


def _write_outbox(task: SubtaskTask, store: ObjectStore, result: StepResult, tiers: Tiers) -> list[pb.OutboxFile]:
    files = []
    for delivery in task.deliveries or (MainOutput(),):
        if delivery.stream in task.staged_only:
            continue
        for part in slices_of(result.outputs, FILE_ROWS):
            file = _outbox_file(task, store, delivery, part, tiers)
            files += [] if file is None else [file]
    return files


def _write_staged(task: SubtaskTask, result: StepResult) -> Iterator[tuple[str, bytes]]:
    """Let the writers of two-phase sinks write the output; yield each sink and what its writer returned."""
    for delivery in task.deliveries or (MainOutput(),):
        for output in task.staging:
            if output.stream != delivery.stream:
                continue
            for number, part in enumerate(slices_of(result.outputs, FILE_ROWS)):
                rows = _without_time(delivery.rows(part))
                if rows.num_rows:
                    yield output.sink_id, _staged(task, output, rows, number)


def _staged(task: SubtaskTask, output: StagedOutput, rows: pa.Table, number: int) -> bytes:
    part = f"{task.operator.operator_id}-{task.subtask_index}" + (f"-{number}" if number else "")
    try:
        data = output.writer.write(rows, epoch=task.epoch, part=part)
    except Exception as error:
        raise SinkError(
            f"the writer of sink {output.sink_id} raised {error_text(error)}",
            where=f"{task.info.where}, epoch {task.epoch}, {rows.num_rows} rows; {raised_at(error)}",
            fix="fix the writer and start the job again: nothing of the epoch is committed",
        ) from error
    if not isinstance(data, bytes) or len(data) > MAX_STAGED_BYTES:
        got = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise InputError(
            f"the writer of sink {output.sink_id} must return at most {MAX_STAGED_BYTES} bytes, got {got}",
            where=task.info.where,
            fix="return the names of what was written, not the rows: the bytes become part of the record",
        )
    return data


def slices_of(outputs: Mapping[str, pa.Table], rows: int) -> Iterator[Mapping[str, pa.Table]]:
    """Yield the outputs in slices of at most `rows` rows each; at least one slice."""
    longest = max((table.num_rows for table in outputs.values()), default=0)
    for start in range(0, max(longest, 1), rows):
        yield {name: table.slice(start, rows) for name, table in outputs.items()}


def _outbox_file(
    task: SubtaskTask, store: ObjectStore, delivery: Delivery, outputs: Mapping[str, pa.Table], tiers: Tiers
) -> pb.OutboxFile | None:
    """Write the rows of a delivery, converted and encoded one row group at a time; None if there are none."""
    count = 0

    def pieces() -> Iterator[pa.Table]:
        nonlocal count
        for part in slices_of(outputs, ROW_GROUP_ROWS):
            rows = delivery.rows(part)
            count += rows.num_rows
            for group in row_groups(_without_time(rows)):
                charge.resize(encoding_bytes(group))
                yield group

    with tiers.memory.reserve(task.operator.operator_id, Purpose.WRITES) as charge:
        encoded_pieces = pieces()
        first = next(encoded_pieces, None)
        if first is None:
            return None
        data = _encoded(itertools.chain([first], encoded_pieces), tiers, in_file=encoding_bytes(first) > 0)
        charge.resize(len(data))
        return _stored_outbox(task, store, delivery.stream, data, rows=count)


def _encoded(pieces: Iterable[pa.Table], tiers: Tiers, *, in_file: bool) -> bytes:
    if not in_file:
        return encode_outbox_pieces(pieces)
    path = tiers.folder.new_file(".outbox")
    try:
        return encode_outbox_pieces(pieces, path)
    except OSError as error:
        raise spill_error("cannot write rows to the folder for spilled state", path, error) from error
    finally:
        path.unlink(missing_ok=True)


def _stored_outbox(task: SubtaskTask, store: ObjectStore, stream: str, data: bytes, *, rows: int) -> pb.OutboxFile:
    path = names.outbox_file(task.epoch, task.operator.operator_id, stream, task.subtask_index, digest(data))
    put_verified(store, path, data)
    return pb.OutboxFile(
        operator_id=task.operator.operator_id,
        subtask_index=task.subtask_index,
        stream=stream,
        path=path,
        size=len(data),
        rows=rows,
        crc32c=crc32c(data),
    )


def _without_time(rows: pa.Table) -> pa.Table:
    """Return the columns that sinks get."""
    return rows.drop_columns([TIME]) if TIME in rows.schema.names else rows
