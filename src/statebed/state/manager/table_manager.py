"""Manager of all tables of one subtask: registered from their configurations, restored, written, checkpointed together.

A checkpoint takes the changes and returns to the operator. One thread per manager then processes epoch after epoch. It
encodes each table, uploads the files (on a pool, with backpressure), and writes the subtask's metadata with files, byte
counts and schemas, which it reads back. Then it releases what is held for epochs below `min_epoch`, and acknowledges
the checkpoint. The runner of the job commits the record that makes the epoch visible, from the references of all
subtasks.

After a failed checkpoint the manager cannot be used any further, because the lost changes would be missing from later
checkpoints. To continue, restore a new manager from the last committed record.
"""

import datetime as dt
import time as clock
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import BoundedSemaphore
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from statebed.checkpoint.objects import fetch_subtask
from statebed.errors import CheckpointTimeoutError, InputError, SubtaskError, UnknownTableError
from statebed.format import checkpoint_pb2 as pb
from statebed.state.arguments import check_kind
from statebed.state.deadlines import wait_until_durable, wait_until_ended
from statebed.state.global_keyed.table import GlobalKeyedTable, GlobalKeyedView
from statebed.state.host_cache import HostCache
from statebed.state.keyed.view import KeyedView
from statebed.state.manager.checkpoints import StoredCheckpoints, TakenCheckpoint
from statebed.state.manager.compaction import CompactionReport, Compactor
from statebed.state.manager.evolved_parts import by_shape, evolved
from statebed.state.manager.in_flight import InFlight
from statebed.state.manager.managed_tables import (
    ManagedKeyedTable,
    ManagedTable,
    ManagedTimeKeyedTable,
    TableClock,
    link_dependents,
    managed,
)
from statebed.state.manager.options import ManagerOptions
from statebed.state.manager.restore_base import (
    check_arguments,
    check_stored,
    checked_epochs,
    commit_data_of,
    micros,
    parts_of,
    references_of,
    restored_watermark,
    stored_alike,
)
from statebed.state.manager.uploads import Uploads
from statebed.state.messages import Checkpoint, CheckpointCompleted, Compaction, StateMessage, TableData, TaskInfo
from statebed.state.metrics import ManagerMetrics
from statebed.state.stored_edit import StoredEdit, edited, stored_edits
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.time_keyed.row_merge import Combine
from statebed.state.time_keyed.view import TimeKeyedView
from statebed.storage import ObjectStore

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T", GlobalKeyedTable, ManagedKeyedTable, ManagedTimeKeyedTable)
Notify = Callable[[CheckpointCompleted], None]
Time = dt.datetime | int | None
"""Time with zone, or microseconds since 1970, or None if unknown."""


class TableManager:
    """Tables of one subtask; `store` is the job's folder, as for `Run.open`."""

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
        combines: Mapping[str, Combine] | None = None,
        edits: Sequence[bytes] = (),
        compacting_epoch: int | None = None,
        cache: HostCache | None = None,
        earlier: Mapping[str, Sequence[pb.TableConfig]] | None = None,
    ) -> None:
        """Restore the tables from a record, or start with empty ones.

        - `restore_from`: record of an epoch at any parallelism; None starts with empty tables.
        - `tiers`: memory budget and local disk; by default those that all tables of the process share.
        - `combines`: functions that reduce rows of time-keyed tables with the same key and time in new files.
        - `edits`: results of compactions of files of this record or an earlier one; those that still apply are applied.
        - `compacting_epoch`: files of epochs up to this one are being compacted elsewhere; checkpoints leave them alone
          if they can.
        - `cache`: cache shared by the processes of this host; files are read from it, and new files are added.
        - `earlier`: keyed tables as earlier versions defined them, by name, the newest version first. If the restored
          state has such a table, it must be migrated with `upgrade` before the first checkpoint.
        """
        check_arguments(task, configs, store, combines or {})
        self.task = task
        self._tiers = Tiers.shared() if tiers is None else tiers
        self._store, self._on_completed = store, on_completed
        self._options = options or ManagerOptions()
        base = {} if restore_from is None else references_of(restore_from, task)
        parts = {index: fetch_subtask(store, reference) for index, reference in base.items()}
        check_stored(parts.values(), configs, task)
        stored = stored_alike(base, parts, task)
        parts, self.edits_applied = edited(parts, edits)
        shapes = {
            name: by_shape(parts_of(parts, name).values(), (earlier or {}).get(name, ())) for name in sorted(configs)
        }
        evolved_tables = {name: evolved(configs[name], shape.present) for name, shape in shapes.items()}
        self.evolutions = {name: table.differences for name, table in evolved_tables.items() if table.differences}
        """Accepted differences between the program's and the stored definitions, by table."""
        self._in_flight = InFlight(store, self._tiers.memory, owner=task.operator_id)
        make = partial(managed, task=task, in_flight=self._in_flight, tiers=self._tiers, cache=cache)
        combine = (combines or {}).get
        self._tables = {
            name: make(restored.config, restored.parts, combine=combine(name))
            for name, restored in evolved_tables.items()
        }
        self._earlier = {
            name: make(restored.config, restored.parts, combine=None)
            for name, shape in shapes.items()
            if shape.config is not None and shape.earlier
            for restored in [evolved(shape.config, shape.earlier)]
        }
        link_dependents(self._tables, where=task.where)
        self._moment = TableClock(None, None)
        if restore_from is not None:
            self._moment = TableClock(restored_watermark(parts.values(), task), restore_from.epoch_time_us or None)
            for table in (*self._tables.values(), *self._earlier.values()):
                table.advance(self._moment)
        if compacting_epoch is not None:
            for table in self._tables.values():
                table.reserve_for_compaction(compacting_epoch)
        self._restored_commit_data = {name: commit_data_of(parts, name, task) for name in configs}
        self._last_epoch = 0 if restore_from is None else restore_from.epoch
        self._read: dict[str, pb.OperatorCheckpointMetadata] = {}
        self._min_epoch = 0
        self._failure: BaseException | None = None
        self._closed = ""
        self._pending = BoundedSemaphore(self._options.max_pending)
        self._under_way: dict[int, Future[CheckpointCompleted]] = {}
        self._uploads = Uploads(
            self._in_flight,
            threads=self._options.upload_threads,
            max_bytes=self._options.max_upload_bytes,
            timeout_seconds=self._options.timeout_seconds,
        )
        self._checkpoints = StoredCheckpoints(task, self._tables, store, self._uploads, stored=stored)
        self._compactor = Compactor(
            tuple(self._tables.values()), self._options, compacting=self._tiers.compacting, task=task
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
        """Return the view of a global keyed table. Dataclasses and Structs must be declared; other types may be."""
        return self._of_kind(name, GlobalKeyedTable).load_with_version(key_type, value_type)

    def get_keyed(self, name: str) -> KeyedView:
        """Return the view of a keyed table; it belongs to the thread that calls `checkpoint`."""
        return self._of_kind(name, ManagedKeyedTable).view

    def get_time_keyed(self, name: str) -> TimeKeyedView:
        """Return the view of a time-keyed table; it belongs to the thread that calls `checkpoint`."""
        return self._of_kind(name, ManagedTimeKeyedTable).view

    def upgrade(self, move: Callable[[str, KeyedView], None]) -> None:
        """Migrate tables that are stored as an earlier version defined them; do nothing if there are none.

        `move` is called with the name and the view of each, and writes its rows to the current tables. The next
        checkpoint contains only these.
        """
        for name in list(self._earlier):
            table = self._earlier[name]
            assert isinstance(table, ManagedKeyedTable)
            move(name, table.view)
            table.release()
            del self._earlier[name]

    def commit_data(self, name: str) -> tuple[bytes, ...]:
        """Return what the restored epoch prepared for a two-phase commit; commit it (again) before continuing.

        Each piece is returned to exactly one subtask, at any parallelism.
        """
        self._table(name)
        return self._restored_commit_data[name]

    def refresh(self, record: pb.CheckpointMetadata) -> None:
        """Read what the other subtasks wrote up to a committed epoch of this parallelism."""
        references = references_of(record, self.task)
        if sorted(references) != list(range(self.task.parallelism)):
            raise InputError(
                f"record {record.epoch} names the subtasks {sorted(references)} of the operator",
                where=self.task.where,
                fix="pass a record that was committed after all subtasks of this parallelism were restored",
            )
        self._read = {
            path: self._read[path] if path in self._read else fetch_subtask(self._store, reference)
            for reference in references.values()
            for path in [reference.path]
        }
        parts = {index: self._read[reference.path] for index, reference in references.items()}
        for name, table in self._tables.items():
            table.refresh(parts_of(parts, name))

    @overload
    def send(self, message: Checkpoint) -> Future[CheckpointCompleted]: ...

    @overload
    def send(self, message: Compaction) -> Future[CompactionReport]: ...

    @overload
    def send(self, message: TableData) -> None: ...

    def send(self, message: StateMessage) -> Future[CheckpointCompleted] | Future[CompactionReport] | None:
        """Apply a message. Checkpoint and compaction requests return what `checkpoint` and `compact` return."""
        if isinstance(message, Checkpoint):
            order = message.message
            return self.checkpoint(order.epoch, self._min_epoch, order.watermark, order.then_stop, time=order.time)
        if isinstance(message, Compaction):
            return self.compact(*message.tables)
        self._check_usable()
        check_kind(message, TableData, "message", where=self.task.where, fix="send TableData, Checkpoint or Compaction")
        self._table(message.table).apply(message.data)
        return None

    def compact(self, *tables: str) -> Future[CompactionReport]:
        """Compact all files of these tables, or of all tables if none is named, alongside the running tables.

        The future completes when they are compacted; the next checkpoint waits for that and applies the result.
        """
        self._check_usable()
        chosen = [self._table(name) for name in tables or self._tables]
        seconds, where = self._options.timeout_seconds, self.task.where
        durable = partial(wait_until_durable, dict(self._under_way), seconds=seconds, where=where)
        return self._compactor.request(chosen, when_durable=durable)

    def compact_to_edits(self, *tables: str, run: int, max_bytes: int | None) -> tuple[StoredEdit, ...]:
        """Compact due files of these tables, or of all tables if none is named, for managers that are restored later.

        The result is passed to them as `edits`. At most about `max_bytes` are compacted; None: all files that can be
        compacted or have older columns.
        """
        self._check_usable()
        chosen = [self._table(name) for name in tables or self._tables]
        edits = self._compactor.compact_to_edits(chosen, max_bytes=max_bytes)
        live = {table.config.name: table.live_paths for table in chosen}
        return stored_edits(edits, self.task, run=run, put=self._in_flight.upload, live=live)

    @property
    def due_bytes(self) -> int:
        """Size of files that are worth compacting."""
        return sum(table.due_bytes for table in self._tables.values())

    def warm(self) -> None:
        """Copy all files into the host cache."""
        for table in self._tables.values():
            table.warm()

    @property
    def watermark_us(self) -> int | None:
        """Current watermark, or None if unknown."""
        return self._moment.watermark_us

    def advance(self, *, watermark: Time = None, time: Time = None) -> None:
        """Expire rows now, and set the processing time of rows written from now on; a checkpoint does both, too."""
        self._check_usable()
        self._moment = self._later(watermark, time)
        for table in (*self._tables.values(), *self._earlier.values()):
            table.advance(self._moment)

    def metrics(self) -> ManagerMetrics:
        """Return the current metrics of the manager and its tables; for the thread that calls `checkpoint`."""
        return ManagerMetrics(
            tables={name: table.statistics() for name, table in self._tables.items()},
            memory=self._tiers.memory.snapshot(),
            checkpoints=self._checkpoints.spans,
            pending_checkpoints=sum(not checkpoint.done() for checkpoint in self._under_way.values()),
            upload_bytes=self._uploads.in_flight_bytes,
            compaction=self._compactor.metrics(),
        )

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
                f"the table {name!r} is a {table.config.WhichOneof('kind')} table, which this method does not open",
                where=self.task.where,
                fix="use get_global_keyed_state for global keyed tables, get_keyed and get_time_keyed for the others",
            )
        return table

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def checkpoint(
        self,
        epoch: int,
        min_epoch: int = 0,
        watermark: Time = None,
        then_stop: bool = False,
        *,
        time: Time = None,
    ) -> Future[CheckpointCompleted]:
        """Take the changes and return: the manager's threads sort, encode and store them while the tables are used.

        The future completes when the checkpoint is durable and was read back. Taking copies no rows except in blocks of
        which few rows have changed; a block that is written again before it is encoded is copied then. Appended rows of
        a time-keyed table are handed over as they are.

        `epoch` is the number of the record that will name the checkpoint (`run.next_epoch`). What is held for epochs
        below `min_epoch` is released. After `then_stop`, writes are refused. `time` is the processing time of the
        epoch, by which rows of tables with that clock expire.
        """
        self._check_usable()
        if self._earlier:
            raise InputError(
                f"the tables {sorted(self._earlier)} are stored as an earlier version defined them",
                where=self.task.where,
                fix="call upgrade() before the first checkpoint; otherwise their rows would be lost",
            )
        epoch, min_epoch = checked_epochs(epoch, min_epoch, last=self._last_epoch, where=self.task.where)
        moment = self._later(watermark, time)
        self._compactor.hand_over()
        if not self._pending.acquire(timeout=self._options.timeout_seconds):
            raise CheckpointTimeoutError(
                f"{self._options.max_pending} checkpoints are still under way "
                f"after {self._options.timeout_seconds:g} seconds",
                where=self.task.where,
                fix="check that the store responds; nothing was taken, so this checkpoint may be requested again",
            )
        self._last_epoch, self._min_epoch = epoch, max(self._min_epoch, min_epoch)
        self._moment = moment
        start = clock.perf_counter()
        changes = self._take_changes(epoch, moment)
        if then_stop:
            self._shut("it was stopped with its last checkpoint")
        seconds = clock.perf_counter() - start
        order = TakenCheckpoint(epoch, self._min_epoch, moment.watermark_us, then_stop, changes, seconds)
        answer = self._thread.submit(self._run, order)
        self._under_way = {
            number: checkpoint for number, checkpoint in self._under_way.items() if not checkpoint.done()
        } | {epoch: answer}
        return answer

    def _later(self, watermark: Time, time: Time) -> TableClock:
        where = self.task.where
        return self._moment.later(micros(watermark, "watermark", where=where), micros(time, "time", where=where))

    def _take_changes(self, epoch: int, moment: TableClock) -> dict[str, Any]:
        try:
            for table in self._tables.values():
                table.advance(moment)
            max_bytes = self._options.max_compaction_bytes
            return {name: managed_table.take_changes(epoch, max_bytes) for name, managed_table in self._tables.items()}
        except BaseException as error:
            # Tables before the failed one have already handed over their changes.
            self._failure = error
            self._pending.release()
            raise

    @property
    def held_epochs(self) -> tuple[int, ...]:
        """Epochs whose completion is still held; `min_epoch` of later checkpoints releases them."""
        return self._checkpoints.held_epochs

    def completed(self, epoch: int) -> CheckpointCompleted | None:
        """Return the result of a checkpoint for a coordinator that asks again, or None if it is unknown or released."""
        return self._checkpoints.completed(epoch)

    def close(self) -> None:
        """Finish the checkpoints in progress and refuse more; release memory and local files of the tables.

        If something does not finish in time, nothing is released: close it again later.
        """
        self._shut("its manager was closed")
        self._thread.shutdown(wait=False)
        running = [(f"the checkpoint of epoch {epoch}", checkpoint) for epoch, checkpoint in self._under_way.items()]
        left = "memory and local files of its tables"
        wait_until_ended(running, seconds=self._options.timeout_seconds, where=self.task.where, left=left)
        self._compactor.close()
        self._uploads.close()
        self._in_flight.close()
        for table in self._tables.values():
            table.release()

    def _run(self, order: TakenCheckpoint) -> CheckpointCompleted:
        try:
            self._check_no_failure()
            completed = self._checkpoints.store(order)
        except BaseException as error:
            self._failure = self._failure or error
            self._checkpoints.abandon(order)
            raise
        finally:
            self._pending.release()
        if not order.then_stop:
            self._compactor.after_checkpoint()
        if self._on_completed is not None:
            self._on_completed(completed)
        return completed

    def _check_usable(self) -> None:
        self._check_no_failure()
        if self._closed:
            raise InputError(
                f"the manager accepts no more writes: {self._closed}",
                where=self.task.where,
                fix="restore a new TableManager from the last committed record",
            )

    def _check_no_failure(self) -> None:
        if self._failure is not None:
            raise SubtaskError(
                "an earlier checkpoint of this subtask failed, so its changes are missing from any later one",
                where=self.task.where,
                fix="restore a new TableManager from the last committed record, and read the input after it again",
            ) from self._failure

    def _shut(self, reason: str) -> None:
        self._closed = self._closed or reason
        for table in self._tables.values():
            table.close(self._closed)
