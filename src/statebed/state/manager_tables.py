"""Tables as their manager handles them: one interface for every kind."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from statebed.errors import InputError, UnknownTableError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.schema import TIME
from statebed.state.config import TimeToLiveClock
from statebed.state.global_keyed import StoredPart
from statebed.state.keyed_durable import NameOf
from statebed.state.keyed_view import KeyedCheckpoint, KeyedView
from statebed.state.manager_in_flight import InFlight
from statebed.state.messages import CommitData, DeleteKey, DeleteTimeRange, Insert, KeyedData, RecordBatch, TaskInfo
from statebed.state.time_keyed import MAX_FILES
from statebed.state.time_keyed_view import TimeKeyedView
from statebed.state.upload import Upload

_COMPACTED_BLOCKS = 1
"""How many blocks of a keyed table an epoch writes again at most, unless a compaction was asked for."""
_ALL_BLOCKS = 1 << 30


class ManagedTable(Protocol):
    """What a manager asks of a table. `write` runs on the thread that checkpoints, the rest on the operator's."""

    config: pb.TableConfig

    def apply(self, data: RecordBatch | CommitData | KeyedData) -> None:
        """Do what a message says."""

    def compact_data(self) -> None:
        """Merge files with the next checkpoint."""

    def refresh(self, parts: Mapping[int, StoredPart]) -> None:
        """See what other subtasks wrote, where the table shows it."""

    def close(self, reason: str) -> None:
        """Refuse later writes where the table can."""

    def take_changes(self, *, epoch: int, watermark_us: int | None) -> Any:
        """What the checkpoint of an epoch has to store: immutable, with an attribute `commit_data`."""

    def write(self, changes: Any, *, epoch: int, upload: Callable[[Upload], None]) -> StoredPart:
        """Upload it, and give this subtask's part of the epoch."""


class KeyedChanges(KeyedCheckpoint):
    """A checkpoint of a keyed table; it takes no part in two-phase commits."""

    commit_data: tuple[bytes, ...] = ()


class ManagedTimeKeyedTable:
    """A time-keyed table: its view, checkpointed and merged with the other tables of its subtask."""

    def __init__(self, config: pb.TableConfig, task: TaskInfo, store: InFlight, parts: Sequence[StoredPart]) -> None:
        self.config = config
        self._task = task
        self._store = store
        self._most_files = MAX_FILES
        self.view = TimeKeyedView(config, owned=task.owned, store=store, parts=[stored.part for stored in parts])

    def apply(self, data: RecordBatch | CommitData | KeyedData) -> None:
        if isinstance(data, RecordBatch) and isinstance(data.operation, Insert):
            self.view.append(data.batch)
        elif isinstance(data, RecordBatch) and isinstance(data.operation, DeleteTimeRange):
            self.view.delete(data.operation.start_us, data.operation.end_us)
        else:
            raise _not_taken(self.config, self._task, data, fix="Insert or DeleteTimeRange")

    def compact_data(self) -> None:
        self._most_files = 1

    def refresh(self, parts: Mapping[int, StoredPart]) -> None:
        """A time-keyed table shows the keys of its own subtask alone."""

    def close(self, reason: str) -> None:
        """Its view may be read on."""

    def take_changes(self, *, epoch: int, watermark_us: int | None) -> KeyedChanges:
        if watermark_us is not None:
            self.view.advance(watermark_us)
        uploads = self.view.checkpoint(_namer(self.config, self._task, epoch), most_files=self._most_files)
        self._most_files = MAX_FILES
        for one in uploads:
            self._store.announce(one)
        return KeyedChanges(self.view.metadata(subtask_index=self._task.subtask_index), uploads)

    def write(self, changes: KeyedChanges, *, epoch: int, upload: Callable[[Upload], None]) -> StoredPart:  # noqa: ARG002 - names are given already
        for one in changes.uploads:
            upload(one)
        return StoredPart(self.config, changes.metadata)


class ManagedKeyedTable:
    """A keyed table: its view, checkpointed and compacted with the other tables of its subtask."""

    def __init__(self, config: pb.TableConfig, task: TaskInfo, store: InFlight, parts: Sequence[StoredPart]) -> None:
        self.config = config
        self._task = task
        self._store = store
        self._compact = False
        self.view = KeyedView(config, owned=task.owned, store=store, parts=[stored.part for stored in parts])

    def apply(self, data: RecordBatch | CommitData | KeyedData) -> None:
        table = self.view.table
        if isinstance(data, RecordBatch) and isinstance(data.operation, DeleteKey):
            self.view.delete(self._columns(data, table.key_schema.names))
        elif isinstance(data, RecordBatch) and isinstance(data.operation, Insert):
            keys, values = (
                self._columns(data, list(schema.names)) for schema in (table.key_schema, table.value_schema)
            )
            timed = table.clock is TimeToLiveClock.EVENT_TIME
            times = self._columns(data, [TIME]).column(0) if timed else None
            self.view.upsert(keys, values, times=times)
        else:
            raise _not_taken(self.config, self._task, data, fix="Insert or DeleteKey")

    def compact_data(self) -> None:
        self._compact = True

    def refresh(self, parts: Mapping[int, StoredPart]) -> None:
        """A keyed table shows the keys of its own subtask alone."""

    def close(self, reason: str) -> None:
        """Its view may be read on."""

    def take_changes(self, *, epoch: int, watermark_us: int | None) -> KeyedChanges:
        if self.view.table.clock is TimeToLiveClock.EVENT_TIME and watermark_us is not None:
            self.view.advance(watermark_us)
        name_of = _namer(self.config, self._task, epoch)
        index = self._task.subtask_index
        written = self.view.checkpoint(name_of, subtask_index=index).uploads
        self._announce(written)
        compacted = self.view.compact(name_of, max_blocks=_ALL_BLOCKS if self._compact else _COMPACTED_BLOCKS)
        self._announce(compacted)
        self._compact = False
        metadata = self.view.metadata(subtask_index=index)
        named = {file.path for file in metadata.files}
        for one in (*written, *compacted):
            if one.path not in named:
                self._store.withdraw(one.path)
        return KeyedChanges(metadata, tuple(one for one in (*written, *compacted) if one.path in named))

    def write(self, changes: KeyedChanges, *, epoch: int, upload: Callable[[Upload], None]) -> StoredPart:  # noqa: ARG002 - names are given already
        for one in changes.uploads:
            upload(one)
        return StoredPart(self.config, changes.metadata)

    def _announce(self, uploads: Sequence[Upload]) -> None:
        for one in uploads:
            self._store.announce(one)

    def _columns(self, data: RecordBatch, wanted: Sequence[str]) -> Any:
        missing = [name for name in wanted if name not in data.batch.schema.names]
        if missing:
            raise InputError(
                f"a batch for the table {self.config.name!r} lacks the columns {missing}",
                where=self._task.where,
                fix="give the key columns; to insert, the value columns too, and `_time` where rows expire by it",
            )
        return data.batch.select(list(wanted))


def _namer(config: pb.TableConfig, task: TaskInfo, epoch: int) -> NameOf:
    def name_of(digest: str) -> str:
        return names.data_file(epoch, task.operator_id, config.name, task.subtask_index, digest)

    return name_of


def _not_taken(
    config: pb.TableConfig, task: TaskInfo, data: RecordBatch | CommitData | KeyedData, *, fix: str
) -> UnknownTableError:
    what = type(data.operation if isinstance(data, RecordBatch) else data).__name__
    return UnknownTableError(
        f"the table {config.name!r} ({config.WhichOneof('kind')}) takes no {what}",
        where=task.where,
        fix=f"send a RecordBatch with the operation {fix}",
    )
