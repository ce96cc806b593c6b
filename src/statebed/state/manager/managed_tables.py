"""Adapters of all kinds of tables to the interface that their manager uses."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, assert_never

import pyarrow as pa

from statebed.errors import InputError, UnknownTableError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.schema import TIME
from statebed.state.compaction import CompactionJob, Edit, NameOf
from statebed.state.config import TimeToLiveClock
from statebed.state.global_keyed.held_bytes import HeldBytes
from statebed.state.global_keyed.table import GlobalKeyedTable, StoredPart
from statebed.state.host_cache import HostCache
from statebed.state.keyed.view import KeyedView
from statebed.state.manager.in_flight import InFlight
from statebed.state.messages import (
    CommitData,
    DeleteKey,
    DeleteTimeKey,
    DeleteTimeRange,
    DeleteValue,
    Insert,
    KeyedData,
    RecordBatch,
    TaskInfo,
)
from statebed.state.metrics import TableStatistics
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.time_keyed.row_merge import Combine
from statebed.state.time_keyed.view import TimeKeyedView
from statebed.state.upload import Upload
from statebed.storage import ObjectStore

Data = RecordBatch | CommitData | KeyedData
V = TypeVar("V", bound=KeyedView | TimeKeyedView)


@dataclass(frozen=True)
class TableClock:
    """Watermark and processing time in microseconds; None if unknown."""

    watermark_us: int | None
    time_us: int | None
    """Processing time."""

    def later(self, watermark_us: int | None, time_us: int | None) -> "TableClock":
        """Return the clock advanced to these times; neither goes back."""
        return TableClock(_latest(self.watermark_us, watermark_us), _latest(self.time_us, time_us))


def _latest(*moments: int | None) -> int | None:
    return max((moment for moment in moments if moment is not None), default=None)


def owner_of(task: TaskInfo, table: str) -> str:
    """Return the name to which the memory of a table is charged."""
    return f"{task.operator_id}-{table}-{task.subtask_index}"


class ManagedTable(Protocol):
    """Interface of a table for its manager.

    `write` runs on the checkpoint thread, `plan_compaction` on the compaction thread, the rest on the operator's.
    """

    config: pb.TableConfig

    def apply(self, data: Data) -> None:
        """Apply the data of a message."""

    def plan_compaction(self, max_bytes: int | None, alone: bool, often: bool, /) -> CompactionJob | None:
        """Return the compaction that is due, of at most `max_bytes` (None: everything that can be compacted), or None.

        `alone`: no other table is compacted in this round, so return at least the smallest compaction, however large.
        `often`: this is called after each checkpoint, so leave out what can wait.
        """

    def offer_edit(self, edit: Edit) -> None:
        """Offer the result of a compaction to the next checkpoint."""

    @property
    def live_paths(self) -> frozenset[str]:
        """Paths of its live files."""

    @property
    def due_bytes(self) -> int:
        """Size of files that are worth compacting."""

    def reserve_for_compaction(self, epoch: int) -> None:
        """Leave files of epochs up to `epoch` to a compaction elsewhere, unless a checkpoint finds far too many."""

    def warm(self) -> None:
        """Copy all its files into the host cache, if there is one."""

    def refresh(self, parts: Mapping[int, StoredPart]) -> None:
        """Read what other subtasks wrote, if the table shows it."""

    def close(self, reason: str) -> None:
        """Refuse later writes."""

    def release(self) -> None:
        """Release memory and local files of a table that is no longer used."""

    def advance(self, moment: TableClock) -> None:
        """Expire rows."""

    def take_changes(self, epoch: int, max_compacted_bytes: int, /) -> Any:
        """Take the immutable changes, with an attribute `commit_data`, that the checkpoint of an epoch stores.

        If the checkpoint has to compact files itself, it is limited to about `max_compacted_bytes`.
        """

    def write(self, changes: Any, *, epoch: int, upload: Callable[[Upload], None]) -> StoredPart:
        """Encode and upload the changes, and return this subtask's part of the epoch."""

    def abandon(self, changes: Any, /) -> None:
        """Give up changes that will not be written because an earlier checkpoint failed."""

    def statistics(self) -> TableStatistics:
        """Return the table's statistics."""


class ManagedGlobalTable(GlobalKeyedTable):
    """A global keyed table: small, entirely in memory, and compacted when it is written."""

    def __init__(
        self, config: pb.TableConfig, task: TaskInfo, store: ObjectStore, parts: Sequence[StoredPart], *, tiers: Tiers
    ) -> None:
        super().__init__(config, task, store, parts, held=HeldBytes(tiers.memory, owner_of(task, config.name)))

    def plan_compaction(self, max_bytes: int | None, _alone: bool, _often: bool, /) -> CompactionJob | None:
        if max_bytes is None:
            self.compact_data()
        return None

    def offer_edit(self, edit: Edit) -> None:
        """Do nothing: a global keyed table has no edits."""

    def warm(self) -> None:
        """Do nothing: the table is in memory."""

    @property
    def live_paths(self) -> frozenset[str]:
        return frozenset()  # they are not compacted elsewhere

    @property
    def due_bytes(self) -> int:
        return 0

    def reserve_for_compaction(self, epoch: int) -> None:
        """Do nothing: its files are not compacted elsewhere."""

    def advance(self, moment: TableClock) -> None:
        """Do nothing: rows do not expire."""

    def abandon(self, _changes: Any, /) -> None:
        """Do nothing: changes hold no resources beyond the table's."""

    def release(self) -> None:
        self._held.release()

    def statistics(self) -> TableStatistics:
        files = self._live.files
        return TableStatistics(
            rows=len(self),
            memory_bytes=self._held.nbytes,
            disk_bytes=0,
            store_bytes=sum(file.size for file in files),
            files=Counter(file.level for file in files),
        )


@dataclass(frozen=True)
class RowChanges:
    """Changes of a keyed or time-keyed table for a checkpoint; they take no part in two-phase commits."""

    write: Callable[[], tuple[pb.TableSubtaskCheckpointMetadata, tuple[Upload, ...]]]
    """Writes the files and returns the metadata that names them, with the uploads."""
    abandon: Callable[[], None]
    commit_data: tuple[bytes, ...] = ()


class _RowTable(ABC, Generic[V]):
    """Common base of keyed and time-keyed tables."""

    def __init__(self, view: V, config: pb.TableConfig, task: TaskInfo, store: InFlight) -> None:
        self.view = view
        self.config = config
        self._task = task
        self._store = store

    def apply(self, data: Data) -> None:
        if not isinstance(data, RecordBatch):
            raise self._not_taken(data)
        keys, values = self._names()
        match data.operation:
            case Insert():
                self._insert(data)
            case DeleteKey():
                self.view.delete(self._columns(data, keys))
            case DeleteTimeKey():
                self.view.delete_at(self._columns(data, keys), self._columns(data, [TIME]).column(0))
            case DeleteValue():
                self.view.delete_values(self._columns(data, keys), self._columns(data, values))
            case DeleteTimeRange(start_us, end_us):
                self.view.delete_times(start_us, end_us)
            case _:
                assert_never(data.operation)

    @abstractmethod
    def _insert(self, data: RecordBatch) -> None:
        """Add the rows of a batch."""

    @abstractmethod
    def _names(self) -> tuple[list[str], list[str]]:
        """Return the names of the key columns and of the value columns."""

    def plan_compaction(self, max_bytes: int | None, alone: bool, often: bool, /) -> CompactionJob | None:
        limit, everything = max_bytes or 1, max_bytes is None
        if isinstance(self.view, KeyedView):
            return self.view.plan_compaction(max_bytes=limit, everything=everything, alone=alone, often=often)
        return self.view.plan_compaction(max_bytes=limit, everything=everything, alone=alone)

    def offer_edit(self, edit: Edit) -> None:
        self.view.offer_edit(edit)

    def warm(self) -> None:
        self.view.warm()

    @property
    def live_paths(self) -> frozenset[str]:
        return frozenset(file.path for file in self.view.metadata().files)

    @property
    def due_bytes(self) -> int:
        return self.view.due_bytes

    def reserve_for_compaction(self, epoch: int) -> None:
        """Do nothing: files are compacted whenever there are too many."""

    def refresh(self, parts: Mapping[int, StoredPart]) -> None:
        """Do nothing: the table shows only the keys of its own subtask."""

    def close(self, reason: str) -> None:
        self.view.close(reason)

    def take_changes(self, epoch: int, max_compacted_bytes: int, /) -> RowChanges:
        view, name_of, index = self.view, self._namer(epoch), self._task.subtask_index
        if isinstance(view, KeyedView):
            taken = view.take()

            def write() -> tuple[pb.TableSubtaskCheckpointMetadata, tuple[Upload, ...]]:
                done = taken.write(name_of, announce=self._store.announce, subtask_index=index)
                return done.metadata, done.uploads

            return RowChanges(write, taken.abandon)
        rows = view.take()
        write_rows = partial(view.write, rows, name_of, announce=self._store.announce)
        return RowChanges(
            lambda: write_rows(max_bytes=max_compacted_bytes, subtask_index=index), partial(view.abandon, rows)
        )

    def write(self, changes: RowChanges, *, epoch: int, upload: Callable[[Upload], None]) -> StoredPart:  # noqa: ARG002 - names are given already
        metadata, uploads = changes.write()
        for file_upload in uploads:
            upload(file_upload)
        return StoredPart(self.config, metadata)

    def abandon(self, changes: RowChanges, /) -> None:
        changes.abandon()

    def _namer(self, epoch: int) -> NameOf:
        task, table = self._task, self.config.name

        def name_of(digest: str) -> str:
            return names.data_file(epoch, task.operator_id, table, task.subtask_index, digest)

        return name_of

    def _columns(self, data: RecordBatch, wanted: Sequence[str]) -> pa.RecordBatch:
        missing = [name for name in wanted if name not in data.batch.schema.names]
        if missing:
            raise InputError(
                f"a batch for the table {self.config.name!r} lacks the columns {missing}",
                where=self._task.where,
                fix="add the columns that the operation needs: keys, values, and `_time` if rows have one",
            )
        return data.batch.select(list(wanted))

    def _not_taken(self, data: CommitData | KeyedData) -> UnknownTableError:
        return UnknownTableError(
            f"the table {self.config.name!r} ({self.config.WhichOneof('kind')}) does not accept {type(data).__name__}",
            where=self._task.where,
            fix="send a RecordBatch",
        )


class ManagedTimeKeyedTable(_RowTable[TimeKeyedView]):
    """A time-keyed table: its view, checkpointed and compacted with the other tables of its subtask."""

    def __init__(
        self,
        config: pb.TableConfig,
        task: TaskInfo,
        store: InFlight,
        parts: Sequence[StoredPart],
        *,
        tiers: Tiers,
        combine: Combine | None = None,
        cache: HostCache | None = None,
    ) -> None:
        view = TimeKeyedView(
            config,
            owned=task.owned,
            store=store,
            parts=[stored_part.part for stored_part in parts],
            tiers=tiers,
            owner=owner_of(task, config.name),
            combine=combine,
            cache=cache,
        )
        super().__init__(view, config, task, store)

    def _insert(self, data: RecordBatch) -> None:
        self.view.append(data.batch)

    def _names(self) -> tuple[list[str], list[str]]:
        table = self.view.table
        return [key.name for key in table.keys], [value.name for value in table.values]

    def advance(self, moment: TableClock) -> None:
        if moment.watermark_us is not None:
            self.view.advance(moment.watermark_us)

    def release(self) -> None:
        self.view.release()

    def statistics(self) -> TableStatistics:
        applied, discarded = self.view.edits
        return replace(self.view.statistics(), edits_applied=applied, edits_discarded=discarded)


class ManagedKeyedTable(_RowTable[KeyedView]):
    """A keyed table: its view, checkpointed and compacted with the other tables of its subtask."""

    def __init__(
        self,
        config: pb.TableConfig,
        task: TaskInfo,
        store: InFlight,
        parts: Sequence[StoredPart],
        *,
        tiers: Tiers,
        cache: HostCache | None = None,
    ) -> None:
        stored = [stored_part.part for stored_part in parts]
        owner = owner_of(task, config.name)
        view = KeyedView(config, owned=task.owned, store=store, parts=stored, tiers=tiers, owner=owner, cache=cache)
        super().__init__(view, config, task, store)

    def _insert(self, data: RecordBatch) -> None:
        keys, values = self._names()
        timed = self.view.table.clock is TimeToLiveClock.EVENT_TIME
        times = self._columns(data, [TIME]).column(0) if timed else None
        self.view.upsert(self._columns(data, keys), self._columns(data, values), times=times)

    def _names(self) -> tuple[list[str], list[str]]:
        table = self.view.table
        return list(table.key_schema.names), list(table.value_schema.names)

    def reserve_for_compaction(self, epoch: int) -> None:
        self.view.reserve_for_compaction(epoch)

    def release(self) -> None:
        self.view.give_up()

    def advance(self, moment: TableClock) -> None:
        clock = self.view.table.clock
        now_us = moment.watermark_us if clock is TimeToLiveClock.EVENT_TIME else moment.time_us
        if clock is not None and now_us is not None:
            self.view.advance(now_us)

    def statistics(self) -> TableStatistics:
        return self.view.statistics()


def managed(
    config: pb.TableConfig,
    parts: Sequence[StoredPart],
    *,
    task: TaskInfo,
    in_flight: InFlight,
    tiers: Tiers,
    cache: HostCache | None,
    combine: Combine | None,
) -> ManagedTable:
    """Return the table that a configuration describes, restored from parts."""
    match config.WhichOneof("kind"):
        case "keyed":
            return ManagedKeyedTable(config, task, in_flight, parts, tiers=tiers, cache=cache)
        case "time_keyed":
            return ManagedTimeKeyedTable(config, task, in_flight, parts, tiers=tiers, combine=combine, cache=cache)
        case _:
            return ManagedGlobalTable(config, task, in_flight, parts, tiers=tiers)


def link_dependents(tables: Mapping[str, ManagedTable], *, where: str) -> None:
    """Connect the tables that expire with another one to it (`expires_with` of their configurations)."""
    for name, table in tables.items():
        source = table.config.keyed.expires_with if table.config.WhichOneof("kind") == "keyed" else ""
        if not source:
            continue
        other = tables.get(source)
        assert isinstance(table, ManagedKeyedTable)
        if not isinstance(other, ManagedKeyedTable) or other.view.table.key_schema != table.view.table.group_schema:
            raise InputError(
                f"the table {name!r} expires with {source!r}, which must be a keyed table of the same operator "
                f"with the keys {table.view.table.group_schema.names}",
                where=where,
                fix=f"configure {source!r} with these keys, or leave `expires_with` out",
            )
        other.view.dependents.append(table.view)
