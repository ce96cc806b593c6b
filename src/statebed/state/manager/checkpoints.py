"""Storing of checkpoints, one after the other: encode, upload, write the metadata and read it back."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from statebed.checkpoint.objects import store_subtask
from statebed.format import checkpoint_pb2 as pb
from statebed.state.global_keyed.table import StoredPart
from statebed.state.manager.managed_tables import ManagedTable
from statebed.state.manager.restore_base import same_state
from statebed.state.manager.uploads import Uploads
from statebed.state.messages import CheckpointCompleted, TaskInfo
from statebed.state.metrics import CheckpointSpans
from statebed.state.upload import Upload
from statebed.storage import ObjectStore

_REMEMBERED_SPANS = 16
Stored = tuple[pb.OperatorCheckpointMetadata, pb.SubtaskReference]


@dataclass(frozen=True)
class TakenCheckpoint:
    """A checkpoint that was taken and waits to be stored."""

    epoch: int
    min_epoch: int
    watermark_us: int | None
    then_stop: bool
    changes: Mapping[str, Any]
    """Changes by table."""
    take_seconds: float = 0.0


class StoredCheckpoints:
    """Checkpoints that a manager has stored. `store` is for one thread, the rest for any."""

    def __init__(
        self,
        task: TaskInfo,
        tables: Mapping[str, ManagedTable],
        store: ObjectStore,
        uploads: Uploads,
        *,
        stored: Stored | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Create it; `stored` is what the restored epoch names, which is reused while nothing changes."""
        self._task = task
        self._tables = tables
        self._store = store
        self._uploads = uploads
        self._stored = stored
        self._clock = clock
        self._lock = Lock()
        self._held: dict[int, CheckpointCompleted] = {}
        self._spans: deque[CheckpointSpans] = deque(maxlen=_REMEMBERED_SPANS)

    @property
    def held_epochs(self) -> tuple[int, ...]:
        with self._lock:
            return tuple(sorted(self._held))

    @property
    def spans(self) -> tuple[CheckpointSpans, ...]:
        with self._lock:
            return tuple(self._spans)

    def completed(self, epoch: int) -> CheckpointCompleted | None:
        with self._lock:
            return self._held.get(epoch)

    def store(self, order: TakenCheckpoint) -> CheckpointCompleted:
        """Store a checkpoint; return when it is durable and was read back."""
        written: list[int] = []

        def upload(file: Upload) -> None:
            written.append(file.size)
            self._uploads.submit(file)

        moments = [self._clock()]
        parts = {name: self._written(name, order, upload) for name in self._tables}
        moments.append(self._clock())
        self._uploads.finish()
        moments.append(self._clock())
        metadata = self._metadata(order, parts)
        if self._stored is None or not same_state(self._stored[0], metadata):
            self._stored = (metadata, store_subtask(self._store, metadata))
        moments.append(self._clock())
        completed = CheckpointCompleted(
            task=self._task,
            epoch=order.epoch,
            reference=self._stored[1],
            live_bytes=sum(stored.part.bytes for stored in parts.values()),
            written_bytes=sum(written),
            rows=sum(stored.part.rows for stored in parts.values()),
            files=sum(len(stored.part.files) for stored in parts.values()),
            watermark_us=order.watermark_us,
            then_stop=order.then_stop,
            commit_data=tuple((name, data) for name, changes in order.changes.items() for data in changes.commit_data),
        )
        spans = [later - earlier for earlier, later in itertools.pairwise(moments)]
        with self._lock:
            self._held[order.epoch] = completed
            self._held = {epoch: checkpoint for epoch, checkpoint in self._held.items() if epoch >= order.min_epoch}
            self._spans.append(CheckpointSpans(order.epoch, order.take_seconds, *spans))
        return completed

    def abandon(self, order: TakenCheckpoint) -> None:
        """Give up a checkpoint that was taken and cannot be stored."""
        for name, changes in order.changes.items():
            self._tables[name].abandon(changes)

    def _written(self, name: str, order: TakenCheckpoint, upload: Callable[[Upload], None]) -> StoredPart:
        try:
            return self._tables[name].write(order.changes[name], epoch=order.epoch, upload=upload)
        except Exception as error:
            error.add_note(f"while table {name!r} of epoch {order.epoch} was written ({self._task.where})")
            raise

    def _metadata(self, order: TakenCheckpoint, parts: Mapping[str, StoredPart]) -> pb.OperatorCheckpointMetadata:
        metadata = pb.OperatorCheckpointMetadata(
            job_id=self._task.job_id,
            operator_id=self._task.operator_id,
            epoch=order.epoch,
            subtask_index=self._task.subtask_index,
            parallelism=self._task.parallelism,
            owned=self._task.owned,
            watermark_us=order.watermark_us,
        )
        for name, stored in parts.items():
            metadata.tables[name].config.CopyFrom(stored.config)
            metadata.tables[name].subtasks[self._task.subtask_index].CopyFrom(stored.part)
        return metadata
