"""One subtask of one epoch: the unit of work that Spark, or any Python program, calls.

It opens exactly the state that the task names, applies its share of the batch, writes data files, outbox and its
metadata, and reports. Names are digests of bytes, and nothing in the bytes or in the report tells one attempt from
another, so a retry writes the same objects again and reports the same.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from statebed.checkpoint.objects import fetch_subtask, store_subtask
from statebed.errors import SubtaskError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.columns import uint64_values
from statebed.format.digest import crc32c, digest
from statebed.format.ranges import in_range, overlaps, owned_range
from statebed.format.schema import KEY_HASH
from statebed.operators.outbox import encode_outbox
from statebed.operators.window_aggregate import WindowAggregate
from statebed.state.live.files import LiveFiles
from statebed.state.time_keyed.table import MAX_FILES, RowsRead, read_rows, write_segment
from statebed.storage import ObjectStore


@dataclass(frozen=True)
class SubtaskTask:
    """What a subtask is to do; picklable."""

    job_id: str
    epoch: int
    operator: WindowAggregate
    subtask_index: int
    parallelism: int
    base: tuple[bytes, ...]
    """Serialised SubtaskReferences of the base epoch whose owned range overlaps this subtask's; others are ignored."""
    late_us: int | None
    """Rows whose last window ends here or earlier are late: the previous epoch's watermark. None: no row is late."""
    watermark_us: int | None
    """Windows that end here or earlier are closed: this epoch's watermark. None: none is."""
    epoch_time_us: int


class _ReportWire(msgspec.Struct, array_like=True, frozen=True):
    operator_id: str
    subtask_index: int
    epoch: int
    reference: bytes
    outbox: list[bytes]
    numbers: dict[str, int | None]


@dataclass(frozen=True)
class SubtaskReport:
    """What a subtask did; small, and equal for every attempt."""

    operator_id: str
    subtask_index: int
    epoch: int
    reference: pb.SubtaskReference
    """Names the metadata object of this subtask for the record."""
    outbox: tuple[pb.OutboxFile, ...]
    rows_in: int
    rows_late: int
    rows_out: int
    max_event_time_us: int | None
    """Of all rows of this batch, late ones too; None: no row had an event time."""
    state_rows: int
    state_bytes: int
    state_files: int
    bytes_read: int
    bytes_written: int

    def to_bytes(self) -> bytes:
        wire = _ReportWire(
            operator_id=self.operator_id,
            subtask_index=self.subtask_index,
            epoch=self.epoch,
            reference=self.reference.SerializeToString(deterministic=True),
            outbox=[file.SerializeToString(deterministic=True) for file in self.outbox],
            numbers={name: getattr(self, name) for name in _NUMBERS},
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
            **wire.numbers,  # type: ignore[arg-type]  # the names are this class's own fields
        )


_NUMBERS = (
    "rows_in",
    "rows_late",
    "rows_out",
    "max_event_time_us",
    "state_rows",
    "state_bytes",
    "state_files",
    "bytes_read",
    "bytes_written",
)


def run_subtask(task: SubtaskTask, store: ObjectStore, batches: Iterable[pa.RecordBatch]) -> SubtaskReport:
    """Do the subtask's share of the epoch: read the base, apply the batches, write, report.

    `store` is the job's folder. Where nothing changes, the base's metadata is handed over as it is.
    """
    operator, table = task.operator, task.operator.table
    base = _open_base(task, store)
    closing = RowsRead(table.row_schema.empty_table(), 0)
    if task.watermark_us is not None:
        closing = read_rows(table, base.live, store, end_us=operator.closing_until(task.watermark_us))
    result = operator.step(closing.rows, _routed(batches, task), late_us=task.late_us, watermark_us=task.watermark_us)
    live = base.live if result.delete_before_us is None else base.live.delete_before(result.delete_before_us)
    live, merge_bytes = _append(task, live, store, result.partials)
    outbox = _write_outbox(task, store, result.output)
    if base.reference is not None and live == base.live:
        reference, metadata_bytes = base.reference, 0
    else:
        reference = store_subtask(store, _metadata(task, live))
        metadata_bytes = reference.size
    written = [file.size for file in live.files if file not in base.live.files]
    return SubtaskReport(
        operator_id=operator.operator_id,
        subtask_index=task.subtask_index,
        epoch=task.epoch,
        reference=reference,
        outbox=outbox,
        rows_in=result.counts.rows_in,
        rows_late=result.counts.rows_late,
        rows_out=result.output.num_rows,
        max_event_time_us=result.counts.max_event_time_us,
        state_rows=sum(file.rows for file in live.files),
        state_bytes=sum(file.size for file in live.files),
        state_files=len(live.files),
        bytes_read=base.bytes_read + closing.bytes_read + merge_bytes,
        bytes_written=sum(written) + sum(file.size for file in outbox) + metadata_bytes,
    )


@dataclass(frozen=True)
class _Base:
    """The state that the base epoch hands to this subtask."""

    live: LiveFiles
    reference: pb.SubtaskReference | None
    """The base's only reference, when it owns the same range: what an unchanged subtask hands over."""
    bytes_read: int


def _open_base(task: SubtaskTask, store: ObjectStore) -> _Base:
    owned = owned_range(task.subtask_index, task.parallelism)
    references = [pb.SubtaskReference.FromString(data) for data in task.base]
    references = [one for one in references if overlaps(one.owned, owned)]
    parts: list[pb.TableSubtaskCheckpointMetadata] = []
    for reference in references:
        metadata = fetch_subtask(store, reference)
        where = f"{store.url}/{reference.path}"
        _check_base(task, metadata, where=where)
        parts.extend(metadata.tables[task.operator.table.name].subtasks.values())
    live = LiveFiles.restore(parts, owned=owned)
    task.operator.table.check_schema(live, where=f"{store.url}, operator {task.operator.operator_id!r}")
    only = references[0] if len(references) == 1 and references[0].owned == owned else None
    return _Base(live=live, reference=only, bytes_read=sum(one.size for one in references))


def _check_base(task: SubtaskTask, metadata: pb.OperatorCheckpointMetadata, *, where: str) -> None:
    if (metadata.job_id, metadata.operator_id) != (task.job_id, task.operator.operator_id):
        raise SubtaskError(
            f"the base names metadata of operator {metadata.operator_id!r} of job {metadata.job_id!r} for a subtask of "
            f"{task.operator.operator_id!r} of {task.job_id!r}",
            where=where,
            fix="hand over the references of the operator's own entry in the base record",
        )
    closed = metadata.watermark_us if metadata.HasField("watermark_us") else None
    marks = [closed, task.late_us, task.watermark_us]
    known = [mark for mark in marks if mark is not None]
    if known != sorted(known) or (closed is not None and None in marks):
        raise SubtaskError(
            f"watermarks went back: the base closed up to {closed}, this epoch says late {task.late_us}, "
            f"watermark {task.watermark_us}: closed windows would open again",
            where=where,
            fix="late_us is the base epoch's watermark, and watermark_us is not before it",
        )


def _routed(batches: Iterable[pa.RecordBatch], task: SubtaskTask) -> Iterator[pa.RecordBatch]:
    """The batches, once every row is known to be this subtask's."""
    owned = owned_range(task.subtask_index, task.parallelism)
    for batch in batches:
        hashes = uint64_values(batch.column(KEY_HASH))
        if not bool(in_range(hashes, owned).all()):
            raise SubtaskError(
                "a row was routed to a subtask that does not own its key hash",
                where=f"operator {task.operator.operator_id!r}, subtask {task.subtask_index} of {task.parallelism}",
                fix="route rows by ((hash >>> 32) * parallelism) >>> 32 of the unsigned hash",
            )
        yield batch


def _append(task: SubtaskTask, live: LiveFiles, store: ObjectStore, partials: pa.Table) -> tuple[LiveFiles, int]:
    """The live files with this epoch's segment: of its own rows, or of all rows when there are too many files."""
    table = task.operator.table

    def name_of(digest: str) -> str:
        return names.data_file(task.epoch, task.operator.operator_id, table.name, task.subtask_index, digest)

    if len(live.files) + min(partials.num_rows, 1) > MAX_FILES:
        everything = read_rows(table, live, store)
        merged = task.operator.merge(pa.concat_tables([everything.rows, partials]))
        emptied = replace(live, files=(), tombstones=())
        if merged.num_rows == 0:
            return emptied, everything.bytes_read
        return write_segment(table, emptied, store, merged, name_of=name_of, level=1), everything.bytes_read
    if partials.num_rows == 0:
        return live, 0
    return write_segment(table, live, store, partials, name_of=name_of), 0


def _write_outbox(task: SubtaskTask, store: ObjectStore, output: pa.Table) -> tuple[pb.OutboxFile, ...]:
    if output.num_rows == 0:
        return ()
    data = encode_outbox(output)
    path = names.outbox_file(task.epoch, task.operator.operator_id, "", task.subtask_index, digest(data))
    store.put(path, data)
    return (
        pb.OutboxFile(
            operator_id=task.operator.operator_id,
            subtask_index=task.subtask_index,
            path=path,
            size=len(data),
            rows=output.num_rows,
            crc32c=crc32c(data),
        ),
    )


def _metadata(task: SubtaskTask, live: LiveFiles) -> pb.OperatorCheckpointMetadata:
    table = task.operator.table
    part = pb.TableSubtaskCheckpointMetadata(
        subtask_index=task.subtask_index,
        owned=live.owned,
        next_sequence=live.next_sequence,
        files=live.files,
        tombstones=live.tombstones,
        schemas=live.schemas,
        bytes=sum(file.size for file in live.files),
        rows=sum(file.rows for file in live.files),
    )
    metadata = pb.OperatorCheckpointMetadata(
        job_id=task.job_id,
        operator_id=task.operator.operator_id,
        epoch=task.epoch,
        subtask_index=task.subtask_index,
        parallelism=task.parallelism,
        owned=live.owned,
        watermark_us=task.watermark_us,
    )
    entry = metadata.tables[table.name]
    entry.config.CopyFrom(table.config())
    entry.subtasks[task.subtask_index].CopyFrom(part)
    return metadata
