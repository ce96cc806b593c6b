"""What operators and the engine tell each other: writes, deletions, the order to checkpoint, and its completion."""

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
    """Identity of a subtask: which job, which operator, which part of the key-hash space."""

    job_id: str
    operator_id: str
    subtask_index: int = 0
    parallelism: int = 1
    label: str = ""
    """What errors call the operator; empty: its id."""

    def __post_init__(self) -> None:
        names.job_folder(self.job_id)
        names.check_part("operator", self.operator_id)
        owned_range(self.subtask_index, self.parallelism)

    @property
    def owned(self) -> pb.HashRange:
        """The hashes whose keys this subtask alone writes."""
        return owned_range(self.subtask_index, self.parallelism)

    @property
    def where(self) -> str:
        """For errors."""
        label = self.label or f"operator {self.operator_id!r}"
        return f"job {self.job_id}, {label}, subtask {self.subtask_index} of {self.parallelism}"


# ---- what is done to rows -----------------------------------------------------------------------------------
# An operation says what is done with the rows of a whole batch.


@dataclass(frozen=True)
class Insert:
    """Write the rows; in tables with keys a row replaces the one with its key."""


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
    """Rows of a table, and what is done with them."""

    batch: pa.RecordBatch
    operation: DataOperation = field(default_factory=Insert)

    def __post_init__(self) -> None:
        check_rows(self.batch, "rows", where="RecordBatch")
        if not isinstance(self.operation, DataOperation):
            raise InputError(
                f"{self.operation!r} is no operation on rows",
                where="RecordBatch",
                fix="give Insert(), DeleteKey(), DeleteTimeKey(), DeleteValue() or DeleteTimeRange(...): made, by "
                "its parentheses",
            )


@dataclass(frozen=True)
class CommitData:
    """Opaque bytes of the first phase of a two-phase commit: durable with the epoch, handed back by a restore."""

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
    """The order to make an epoch durable."""

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
    """Merge the files of these tables (none named: of all) with the next checkpoint."""

    tables: tuple[str, ...] = ()


StateMessage: TypeAlias = Checkpoint | Compaction | TableData


# ---- what the engine answers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointCompleted:
    """One subtask's part of an epoch is durable and was read back; the record that names it may now be committed."""

    task: TaskInfo
    epoch: int
    reference: pb.SubtaskReference
    """What the record must name."""
    live_bytes: int
    """Of all live files."""
    written_bytes: int
    """Of the data files that this epoch added."""
    rows: int
    files: int
    watermark_us: int | None
    then_stop: bool
    commit_data: tuple[tuple[str, bytes], ...] = ()
    """Table and bytes of what was prepared for a two-phase commit in this epoch."""
