"""Messages between operators and the engine: writes, deletions, checkpoint requests and their completion."""

import datetime as dt
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.ranges import owned_range
from statebed.state.arguments import check_rows, checked_range

# ---- who works ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskInfo:
    """Identity of a subtask: its job, its operator and its part of the key-hash space."""

    job_id: str
    operator_id: str
    subtask_index: int = 0
    parallelism: int = 1
    label: str = ""
    """Name of the operator in errors; its id if empty."""

    def __post_init__(self) -> None:
        names.job_folder(self.job_id)
        names.check_part("operator", self.operator_id)
        owned_range(self.subtask_index, self.parallelism)

    @property
    def owned(self) -> pb.HashRange:
        """Range of hashes whose keys only this subtask writes."""
        return owned_range(self.subtask_index, self.parallelism)

    @property
    def where(self) -> str:
        """Location of the subtask for error messages."""
        label = self.label or f"operator {self.operator_id!r}"
        return f"job {self.job_id}, {label}, subtask {self.subtask_index} of {self.parallelism}"


# ---- what is done to rows -----------------------------------------------------------------------------------
# An operation applies to all rows of a batch.


@dataclass(frozen=True)
class Insert:
    """Write the rows. In tables with keys, a row replaces the one with the same key."""


@dataclass(frozen=True)
class DeleteKey:
    """Delete every row of each key; the batch has the key columns."""


@dataclass(frozen=True)
class DeleteTimeKey:
    """Delete the rows of each key at its time; the batch has the key columns and `_time`."""


@dataclass(frozen=True)
class DeleteValue:
    """Delete the rows of each key that have these values; the batch has key and value columns."""


@dataclass(frozen=True)
class DeleteTimeRange:
    """Delete the rows with start_us <= time < end_us; the batch is empty."""

    start_us: int
    end_us: int

    def __post_init__(self) -> None:
        checked_range(self.start_us, self.end_us, where="DeleteTimeRange")


DataOperation: TypeAlias = Insert | DeleteTimeKey | DeleteKey | DeleteValue | DeleteTimeRange


# ---- what is sent to the engine -----------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordBatch:
    """Rows of a table with the operation to apply to them."""

    batch: pa.RecordBatch
    operation: DataOperation = field(default_factory=Insert)

    def __post_init__(self) -> None:
        check_rows(self.batch, "rows", where="RecordBatch")
        if not isinstance(self.operation, DataOperation):
            raise InputError(
                f"{self.operation!r} is not an operation on rows",
                where="RecordBatch",
                fix="pass an instance: Insert(), DeleteKey(), DeleteTimeKey(), DeleteValue() or DeleteTimeRange(...)",
            )


@dataclass(frozen=True)
class CommitData:
    """Opaque bytes of the first phase of a two-phase commit: durable with the epoch and returned by a restore."""

    data: bytes


@dataclass(frozen=True)
class KeyedData:
    """One encoded key with its encoded value; a value of None deletes the key."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True)
class TableData:
    """Data for one table."""

    table: str
    data: RecordBatch | CommitData | KeyedData


@dataclass(frozen=True)
class CheckpointMessage:
    """Request to make an epoch durable."""

    epoch: int
    time: dt.datetime
    """Processing time of the epoch."""
    watermark: dt.datetime | None = None
    then_stop: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint all tables."""

    message: CheckpointMessage


@dataclass(frozen=True)
class Compaction:
    """Compact the files of these tables, or of all tables if none is named, with the next checkpoint."""

    tables: tuple[str, ...] = ()


StateMessage: TypeAlias = Checkpoint | Compaction | TableData


# ---- what the engine answers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointCompleted:
    """Reports that one subtask's part of an epoch is durable and was read back, so its record may be committed."""

    task: TaskInfo
    epoch: int
    reference: pb.SubtaskReference
    """Reference that the record must contain."""
    live_bytes: int
    """Size of all live files."""
    written_bytes: int
    """Size of the data files that this epoch added."""
    rows: int
    files: int
    watermark_us: int | None
    then_stop: bool
    commit_data: tuple[tuple[str, bytes], ...] = ()
    """Table and bytes of everything prepared for a two-phase commit in this epoch."""
