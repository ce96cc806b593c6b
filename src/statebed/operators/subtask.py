"""One subtask of one epoch: the unit of work that Spark, or any Python program, calls.

It opens exactly the state that the task names, applies its share of the batch, writes data files, outbox and its
metadata, and reports. Names are digests of bytes, and nothing in the bytes or in the report tells one attempt from
another, so a retry writes the same objects again and reports the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.operators.tumbling import TumblingAggregate
from statebed.storage import ObjectStore


@dataclass(frozen=True)
class SubtaskTask:
    """What a subtask is to do; picklable."""

    job_id: str
    epoch: int
    operator: TumblingAggregate
    subtask_index: int
    parallelism: int
    base: tuple[bytes, ...]
    """Serialised SubtaskReferences of the base epoch whose owned range overlaps this subtask's; others are ignored."""
    late_us: int | None
    """Rows whose window ends here or earlier are late: the previous epoch's watermark. None: no row is late."""
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
    """Do the subtask's share of the epoch: read the base, apply the batches, write, report."""
    raise NotImplementedError
