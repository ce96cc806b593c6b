"""Compaction of one subtask's files as separate work, alongside the epochs, on any machine.

A subtask of an epoch is short, so reducing the number of files and removing outdated rows is done separately, from the
files of a committed epoch, which never change. The outputs are written to the folder of the run's compactions, under
names that are digests of their bytes; they are invisible until a record names them. The result is a list of edits. They
are passed to the subtasks of a later epoch, which apply those whose inputs are all still live. A lost edit wastes its
work and has no other effect.
"""

from dataclasses import dataclass

import msgspec

from statebed.format import checkpoint_pb2 as pb
from statebed.operators.operator import Operator, earlier_tables
from statebed.state import CompactionMode, ManagerOptions, StoredEdit, TableManager, TaskInfo, Tiers
from statebed.state.host_cache import HostCache
from statebed.storage import ObjectStore

DEFAULT_BYTES = 256 << 20
MAX_WARMED = 4
"""State larger than this many times `max_bytes` is not copied to the host cache."""


@dataclass(frozen=True)
class CompactionTask:
    """Compaction of the files of one subtask at a committed epoch; picklable."""

    job_id: str
    run: int
    epoch: int
    """Base epoch, whose record names the subtask's metadata."""
    operator: Operator
    parallelism: int
    """Parallelism of the operator at that epoch."""
    reference: bytes
    """Serialized SubtaskReference."""
    epoch_time_us: int
    """Processing time of the base; together with its watermark it determines which rows have expired."""
    max_bytes: int = DEFAULT_BYTES
    """Approximate limit on the bytes that are compacted; a single larger compaction runs alone."""
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
    """Result of a subtask's compaction; equal for every attempt."""

    operator_id: str
    subtask_index: int
    edits: tuple[bytes, ...]
    """Edits for `SubtaskTask.edits` of later epochs."""
    read_bytes: int
    written_bytes: int

    @property
    def outputs(self) -> frozenset[str]:
        """Return the files that must be kept as long as the edits may be applied."""
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
    """Compact what is due in each table, within the memory of `tiers`; `store` is the job's folder.

    Runs at most one compaction per table, and returns no edit if nothing is worth it. With the `cache` of a host, later
    readers on this host find the outputs there.
    """
    with _manager(task, store, tiers) as manager:
        # Tables whose columns differ from their definition are refused by the next epoch, not rewritten here.
        edits = () if manager.evolutions else manager.compact_to_edits(run=task.run, max_bytes=task.max_bytes)
        metrics = manager.metrics()
    compacted = CompactedSubtask(
        operator_id=task.operator.operator_id,
        subtask_index=task.info.subtask_index,
        edits=tuple(edit.to_bytes() for edit in edits),
        read_bytes=metrics.compaction.read_bytes,
        written_bytes=metrics.compaction.written_bytes,
    )
    live_bytes = sum(table.store_bytes for table in metrics.tables.values())
    if cache is not None and edits and live_bytes <= MAX_WARMED * task.max_bytes:
        with _manager(task, store, tiers, cache=cache, edits=compacted.edits) as manager:
            manager.warm()
    return compacted


def _manager(
    task: CompactionTask,
    store: ObjectStore,
    tiers: Tiers | None,
    *,
    cache: HostCache | None = None,
    edits: tuple[bytes, ...] = (),
) -> TableManager:
    """Open the subtask's tables as of the base."""
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
