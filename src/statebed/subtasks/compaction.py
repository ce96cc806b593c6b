"""Compaction of one subtask's files as work of its own, beside the epochs, on any machine.

A subtask of an epoch is short: what makes files fewer and removes what is outdated is done apart, from the files of a
committed epoch, which never change. The outputs are put into the folder of the run's compactions, under names that are
digests of their bytes; nobody sees them before a record names them. What comes back are edits. They are handed to the
subtasks of a later epoch, which apply those whose inputs are all still there; a lost one costs its work and nothing
else.
"""

from dataclasses import dataclass

import msgspec

from statebed.format import checkpoint_pb2 as pb
from statebed.operators.operator import Operator, earlier_tables
from statebed.state import CompactionMode, ManagerOptions, StoredEdit, TableManager, TaskInfo, Tiers
from statebed.state.host_cache import HostCache
from statebed.storage import ObjectStore

DEFAULT_BYTES = 256 << 20
MOST_WARMED = 4
"""State of more than so many times what is merged at once is not copied to the host's cache."""


@dataclass(frozen=True)
class CompactionTask:
    """Which files are to be merged: those of one subtask at a committed epoch; picklable."""

    job_id: str
    run: int
    epoch: int
    """The base: of the record that names the subtask's metadata."""
    operator: Operator
    parallelism: int
    """Of the operator at that epoch."""
    reference: bytes
    """The serialised SubtaskReference."""
    epoch_time_us: int
    """Of the base; by it and by the base's watermark rows have expired."""
    most_bytes: int = DEFAULT_BYTES
    """Of files that are merged, about; a single merge that is larger goes alone."""
    timeout_seconds: float = 300.0

    @property
    def info(self) -> TaskInfo:
        index = pb.SubtaskReference.FromString(self.reference).subtask_index
        return TaskInfo(self.job_id, self.operator.operator_id, index, self.parallelism)


class _CompactionWire(msgspec.Struct, array_like=True, frozen=True):
    operator_id: str
    subtask_index: int
    edits: list[bytes]
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class CompactedSubtask:
    """What a compaction of a subtask made; equal for every attempt."""

    operator_id: str
    subtask_index: int
    edits: tuple[bytes, ...]
    """For `SubtaskTask.edits` of later epochs."""
    read_bytes: int
    written_bytes: int

    @property
    def outputs(self) -> frozenset[str]:
        """The files that must stay as long as the edits may be applied."""
        return frozenset(file.path for data in self.edits for file in StoredEdit.from_bytes(data).outputs)

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(
            _CompactionWire(self.operator_id, self.subtask_index, list(self.edits), self.read_bytes, self.written_bytes)
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "CompactedSubtask":
        wire = msgspec.msgpack.decode(data, type=_CompactionWire)
        return cls(wire.operator_id, wire.subtask_index, tuple(wire.edits), wire.read_bytes, wire.written_bytes)


def compact_subtask(
    task: CompactionTask, store: ObjectStore, *, tiers: Tiers | None = None, cache: HostCache | None = None
) -> CompactedSubtask:
    """Merge what is due in each table, within the memory of `tiers`; `store` is the job's folder.

    At most one merge for each table. No edit where nothing is worth it. With the `cache` of a host, whoever reads the
    outputs on this host finds them there.
    """
    with _manager(task, store, tiers) as manager:
        # What has other columns than its definition is refused by the next epoch, not rewritten here.
        edits = () if manager.evolutions else manager.merge_apart(run=task.run, most_bytes=task.most_bytes)
        metrics = manager.metrics()
    made = CompactedSubtask(
        operator_id=task.operator.operator_id,
        subtask_index=task.info.subtask_index,
        edits=tuple(edit.to_bytes() for edit in edits),
        read_bytes=metrics.compaction.read_bytes,
        written_bytes=metrics.compaction.written_bytes,
    )
    live_bytes = sum(table.store_bytes for table in metrics.tables.values())
    if cache is not None and edits and live_bytes <= MOST_WARMED * task.most_bytes:
        with _manager(task, store, tiers, cache=cache, edits=made.edits) as manager:
            manager.warm()
    return made


def _manager(
    task: CompactionTask,
    store: ObjectStore,
    tiers: Tiers | None,
    *,
    cache: HostCache | None = None,
    edits: tuple[bytes, ...] = (),
) -> TableManager:
    """The subtask's tables as the base has them."""
    entry = pb.OperatorEntry(
        operator_id=task.operator.operator_id, subtasks=[pb.SubtaskReference.FromString(task.reference)]
    )
    return TableManager(
        task.info,
        task.operator.tables,
        store,
        restore_from=pb.CheckpointMetadata(
            job_id=task.job_id, epoch=task.epoch, operators=[entry], epoch_time_us=task.epoch_time_us
        ),
        options=ManagerOptions(compaction=CompactionMode.OFF, timeout_seconds=task.timeout_seconds),
        tiers=tiers,
        combines=task.operator.combines,
        cache=cache,
        edits=edits,
        earlier=earlier_tables(task.operator),
    )
