"""All tables of one subtask: registered from their configurations, restored, written, checkpointed together.

A checkpoint takes what changed and lets the operator go on. One thread per manager then does, epoch after epoch:
encode each table, upload (on a pool, with back-pressure), collect files, byte counts and schemas into the subtask's
metadata, write that and read it back, release what is held for epochs below `min_epoch`, and notify. Only then is it
acknowledged; the record that makes the epoch visible is committed by whoever runs the job, from the references of all
subtasks.

A checkpoint that fails takes the manager with it: what it should have stored is in no later one. The way on is a new
manager, restored from the last committed record.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import BoundedSemaphore, Lock
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from statebed.checkpoint.objects import fetch_subtask, store_subtask
from statebed.errors import CheckpointTimeoutError, InputError, SubtaskError, UnknownTableError
from statebed.format import checkpoint_pb2 as pb
from statebed.state.config import check_configs
from statebed.state.global_keyed import GlobalKeyedTable, GlobalKeyedView, StoredPart
from statebed.state.keyed_view import KeyedView
from statebed.state.manager_base import (
    check_stored,
    commit_data_of,
    micros,
    parts_of,
    references_of,
    same_state,
    stored_alike,
)
from statebed.state.manager_in_flight import InFlight
from statebed.state.manager_tables import ManagedKeyedTable, ManagedTable, ManagedTimeKeyedTable
from statebed.state.manager_uploads import Uploads
from statebed.state.messages import (
    Checkpoint,
    CheckpointCompleted,
    Compaction,
    StateMessage,
    TaskInfo,
)
from statebed.state.tiers import Tiers
from statebed.state.time_keyed_view import TimeKeyedView
from statebed.state.upload import Upload
from statebed.storage import ObjectStore

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T", GlobalKeyedTable, ManagedKeyedTable, ManagedTimeKeyedTable)
Notify = Callable[[CheckpointCompleted], None]


@dataclass(frozen=True)
class ManagerOptions:
    """How a manager stores its checkpoints."""

    upload_threads: int = 4
    max_upload_bytes: int = 64 << 20
    """Encoded bytes that may wait for the store."""
    max_pending: int = 2
    """Checkpoints that may be under way; the next one waits for the oldest."""
    timeout_seconds: float = 300.0
    """Of every wait."""

    def __post_init__(self) -> None:
        if min(self.upload_threads, self.max_upload_bytes, self.max_pending) < 1 or self.timeout_seconds <= 0:
            raise InputError(f"the options {self} leave no way to store anything", fix="use numbers from 1 on")


@dataclass(frozen=True)
class _Order:
    """A checkpoint that was taken and waits to be stored."""

    epoch: int
    min_epoch: int
    watermark_us: int | None
    then_stop: bool
    changes: Mapping[str, Any]


class TableManager:
    """The tables of one subtask; `store` is the job's folder, as for `Run.open`."""

    def __init__(
        self,
        task: TaskInfo,
        configs: Mapping[str, pb.TableConfig],
        store: ObjectStore,
        *,
        restore_from: pb.CheckpointMetadata | None = None,
        on_completed: Notify | None = None,
        options: ManagerOptions | None = None,
        tiers: Tiers | None = None,
    ) -> None:
        """`restore_from` is a record, of an epoch at any parallelism; None begins with empty tables. `tiers` have the
        budget of memory and the local disk; None: those that all tables of the process share.
        """
        self.task = task
        self._tiers = Tiers.shared() if tiers is None else tiers
        self._store = store
        self._options = options or ManagerOptions()
        self._on_completed = on_completed
        check_configs(configs)
        base = {} if restore_from is None else references_of(restore_from, task)
        parts = {index: fetch_subtask(store, reference) for index, reference in base.items()}
        check_stored(parts.values(), configs, task)
        self._in_flight = InFlight(store, self._tiers.memory, owner=task.operator_id)
        self._tables = {
            name: self._made(config, list(parts_of(parts, name).values())) for name, config in sorted(configs.items())
        }
        self._restored_commit_data = {name: commit_data_of(parts, name, task) for name in configs}
        self._last_epoch = 0 if restore_from is None else restore_from.epoch
        self._stored = stored_alike(base, parts, task)
        self._read: dict[str, pb.OperatorCheckpointMetadata] = {}
        self._held: dict[int, CheckpointCompleted] = {}
        self._held_lock = Lock()
        self._min_epoch = 0
        self._failure: BaseException | None = None
        self._closed = ""
        self._pending = BoundedSemaphore(self._options.max_pending)
        self._uploads = Uploads(
            self._in_flight,
            threads=self._options.upload_threads,
            max_bytes=self._options.max_upload_bytes,
            timeout_seconds=self._options.timeout_seconds,
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="statebed-checkpoint")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- tables --------------------------------------------------------------------------------------------------

    @overload
    def get_global_keyed_state(self, name: str, *, key_type: type[K], value_type: type[V]) -> GlobalKeyedView[K, V]: ...

    @overload
    def get_global_keyed_state(
        self, name: str, *, key_type: Any = Any, value_type: Any = Any
    ) -> GlobalKeyedView[Any, Any]: ...

    def get_global_keyed_state(
        self, name: str, *, key_type: Any = Any, value_type: Any = Any
    ) -> GlobalKeyedView[Any, Any]:
        """The view of a global keyed table. Dataclasses and Structs need their type declared; others may be."""
        return self._of_kind(name, GlobalKeyedTable).load_with_version(key_type, value_type)

    def get_keyed(self, name: str) -> KeyedView:
        """The view of a keyed table; it belongs to the thread that calls `checkpoint`."""
        return self._of_kind(name, ManagedKeyedTable).view

    def get_time_keyed(self, name: str) -> TimeKeyedView:
        """The view of a time-keyed table; it belongs to the thread that calls `checkpoint`."""
        return self._of_kind(name, ManagedTimeKeyedTable).view

    def commit_data(self, name: str) -> tuple[bytes, ...]:
        """What the restored epoch had prepared for a two-phase commit: to be committed (again) before going on.

        Each piece is handed to exactly one subtask, at any parallelism.
        """
        self._table(name)
        return self._restored_commit_data[name]

    def refresh(self, record: pb.CheckpointMetadata) -> None:
        """See what the other subtasks wrote up to a committed epoch of this parallelism."""
        references = references_of(record, self.task)
        if sorted(references) != list(range(self.task.parallelism)):
            raise InputError(
                f"record {record.epoch} names the subtasks {sorted(references)} of the operator",
                where=self.task.where,
                fix="give a record that was committed since all subtasks of this parallelism were restored",
            )
        self._read = {
            path: self._read[path] if path in self._read else fetch_subtask(self._store, reference)
            for reference in references.values()
            for path in [reference.path]
        }
        parts = {index: self._read[reference.path] for index, reference in references.items()}
        for name, table in self._tables.items():
            table.refresh(parts_of(parts, name))

    def send(self, message: StateMessage) -> Future[CheckpointCompleted] | None:
        """Apply a message; the order to checkpoint gives what `checkpoint` gives."""
        self._check_usable()
        if isinstance(message, Checkpoint):
            order = message.message
            return self.checkpoint(order.epoch, self._min_epoch, order.watermark, order.then_stop)
        if isinstance(message, Compaction):
            for name in message.tables or tuple(self._tables):
                self._table(name).compact_data()
            return None
        self._table(message.table).apply(message.data)
        return None

    def _made(self, config: pb.TableConfig, parts: list[StoredPart]) -> ManagedTable:
        kind = config.WhichOneof("kind")
        if kind == "keyed":
            return ManagedKeyedTable(config, self.task, self._in_flight, parts)
        if kind == "time_keyed":
            return ManagedTimeKeyedTable(config, self.task, self._in_flight, parts)
        return GlobalKeyedTable(config, self.task, self._store, parts)

    def _table(self, name: str) -> ManagedTable:
        if name not in self._tables:
            raise UnknownTableError(
                f"no table is registered as {name!r}; there are {sorted(self._tables)}",
                where=self.task.where,
                fix="pass its configuration to the TableManager",
            )
        return self._tables[name]

    def _of_kind(self, name: str, kind: type[T]) -> T:
        table = self._table(name)
        if not isinstance(table, kind):
            raise UnknownTableError(
                f"the table {name!r} is of the kind {table.config.WhichOneof('kind')}",
                where=self.task.where,
                fix="use get_global_keyed_state for global keyed tables, get_keyed and get_time_keyed for the others",
            )
        return table

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def checkpoint(
        self, epoch: int, min_epoch: int = 0, watermark: dt.datetime | None = None, then_stop: bool = False
    ) -> Future[CheckpointCompleted]:
        """Take what changed; the answer is there when it is durable and was read back.

        `epoch` is the number of the record that will name it (`run.next_epoch`). What is held for epochs below
        `min_epoch` is released. After `then_stop` no more writes are taken.
        """
        self._check_usable()
        if epoch <= self._last_epoch or min_epoch > epoch:
            raise InputError(
                f"the checkpoint of epoch {epoch} (min_epoch {min_epoch}) cannot follow epoch {self._last_epoch}",
                where=self.task.where,
                fix="give run.next_epoch; numbers grow, and min_epoch is not above them",
            )
        watermark_us = micros(watermark, where=self.task.where)
        if not self._pending.acquire(timeout=self._options.timeout_seconds):
            raise CheckpointTimeoutError(
                f"{self._options.max_pending} checkpoints are still under way "
                f"after {self._options.timeout_seconds:g} seconds",
                where=self.task.where,
                fix="see whether the store answers; nothing was taken, so this checkpoint may be asked for again",
            )
        self._last_epoch, self._min_epoch = epoch, max(self._min_epoch, min_epoch)
        changes = self._take_changes(epoch, watermark_us)
        if then_stop:
            self._shut("it was stopped with its last checkpoint")
        order = _Order(epoch, self._min_epoch, watermark_us, then_stop, changes)
        return self._thread.submit(self._run, order)

    def _take_changes(self, epoch: int, watermark_us: int | None) -> dict[str, Any]:
        try:
            return {
                name: table.take_changes(epoch=epoch, watermark_us=watermark_us) for name, table in self._tables.items()
            }
        except BaseException as error:
            # Tables before the one that failed have given their changes away.
            self._failure = error
            self._pending.release()
            raise

    @property
    def held_epochs(self) -> tuple[int, ...]:
        """The epochs whose completion is still known here; `min_epoch` of later checkpoints releases them."""
        with self._held_lock:
            return tuple(sorted(self._held))

    def completed(self, epoch: int) -> CheckpointCompleted | None:
        """What a checkpoint answered, for a coordinator that asks again; None when unknown or released."""
        with self._held_lock:
            return self._held.get(epoch)

    def close(self) -> None:
        """Finish the checkpoints under way and take no more."""
        self._shut("its manager was closed")
        self._thread.shutdown(wait=True)
        self._uploads.close()

    def _run(self, order: _Order) -> CheckpointCompleted:
        try:
            self._check_no_failure()
            completed = self._store_checkpoint(order)
        except BaseException as error:
            self._failure = self._failure or error
            raise
        finally:
            self._pending.release()
        if self._on_completed is not None:
            self._on_completed(completed)
        return completed

    def _store_checkpoint(self, order: _Order) -> CheckpointCompleted:
        written: list[int] = []

        def upload(file: Upload) -> None:
            written.append(file.size)
            self._uploads.submit(file)

        parts = {
            name: table.write(order.changes[name], epoch=order.epoch, upload=upload)
            for name, table in self._tables.items()
        }
        self._uploads.finish()
        metadata = self._metadata(order, parts)
        if self._stored is None or not same_state(self._stored[0], metadata):
            self._stored = (metadata, store_subtask(self._store, metadata))
        completed = CheckpointCompleted(
            task=self.task,
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
        with self._held_lock:
            self._held[order.epoch] = completed
            self._held = {epoch: one for epoch, one in self._held.items() if epoch >= order.min_epoch}
        return completed

    def _metadata(self, order: _Order, parts: Mapping[str, StoredPart]) -> pb.OperatorCheckpointMetadata:
        metadata = pb.OperatorCheckpointMetadata(
            job_id=self.task.job_id,
            operator_id=self.task.operator_id,
            epoch=order.epoch,
            subtask_index=self.task.subtask_index,
            parallelism=self.task.parallelism,
            owned=self.task.owned,
            watermark_us=order.watermark_us,
        )
        for name, stored in parts.items():
            metadata.tables[name].config.CopyFrom(stored.config)
            metadata.tables[name].subtasks[self.task.subtask_index].CopyFrom(stored.part)
        return metadata

    def _check_usable(self) -> None:
        self._check_no_failure()
        if self._closed:
            raise InputError(
                f"the manager takes no more: {self._closed}",
                where=self.task.where,
                fix="restore a new TableManager from the last committed record",
            )

    def _check_no_failure(self) -> None:
        if self._failure is not None:
            raise SubtaskError(
                "an earlier checkpoint of this subtask failed, so what it held is in no later one",
                where=self.task.where,
                fix="restore a new TableManager from the last committed record, and read the input after it again",
            ) from self._failure

    def _shut(self, reason: str) -> None:
        self._closed = self._closed or reason
        for table in self._tables.values():
            table.close(self._closed)
