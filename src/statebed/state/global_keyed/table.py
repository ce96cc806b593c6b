"""Global keyed tables: small and dict-like, one writer per key, read by every subtask.

A subtask writes the keys whose hash it owns, and sees its own writes immediately. It sees keys of other subtasks as of
the epoch passed to the last `refresh`. Contents are held encoded, so changing a value that was read does not change the
table, and a restart reads exactly what was there before.

An epoch adds at most one file: its changed keys, compacted with the newest files when there are too many. Other files
are carried forward. A deletion is a row until a compaction reaches the oldest file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from statebed.errors import InputError, MigrationError, NotOwnerError, UnknownTableError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.ranges import overlaps
from statebed.state.codec import Codec
from statebed.state.global_keyed.files import (
    KEY,
    check_files,
    clip,
    encode_rows,
    newest,
    read_file,
    rows_of,
    values_of,
    without_deleted,
)
from statebed.state.global_keyed.hash import hash_of
from statebed.state.global_keyed.held_bytes import HeldBytes, contents_bytes, entry_bytes
from statebed.state.live.files import LiveFiles
from statebed.state.messages import CommitData, KeyedData, RecordBatch, TaskInfo
from statebed.state.upload import Upload
from statebed.state.value_versions import Decode, check_declared, check_not_newer, decoder
from statebed.storage import ObjectStore

K = TypeVar("K")
V = TypeVar("V")

MAX_FILES = 8
"""Maximum number of files of a subtask's part of a table."""
_MERGE_FACTOR = 2
"""A compaction includes the next older file while that is at most this many times as large as the files before it."""


@dataclass(frozen=True)
class StoredPart:
    """One subtask's part of a table at an epoch, as stored in its metadata."""

    config: pb.TableConfig
    part: pb.TableSubtaskCheckpointMetadata


@dataclass(frozen=True)
class PendingChanges:
    """Changes of a table since the last checkpoint: immutable, so the table can be written while they are stored."""

    config: pb.TableConfig
    """Configuration with the version that the table's files will have."""
    rows: Mapping[bytes, bytes | None] = field(default_factory=dict)
    rewrite: bool = False
    """Whether the rows are the whole contents and replace all files, which have an older version."""
    compact: bool = False
    commit_data: tuple[bytes, ...] = ()


@dataclass
class _OtherPart:
    """Part of another subtask: the files that were read, and their contents."""

    config: pb.TableConfig
    files: frozenset[str]
    values: dict[bytes, bytes]
    nbytes: int


class GlobalKeyedTable:
    """A table of one subtask: contents in memory, files in the store.

    `write` is called on the checkpoint thread, everything else on the operator's.
    """

    def __init__(
        self,
        config: pb.TableConfig,
        task: TaskInfo,
        store: ObjectStore,
        parts: Sequence[StoredPart] = (),
        *,
        held: HeldBytes,
    ) -> None:
        """Create the table; `parts` are those of all subtasks of the restored epoch. Nothing is read yet."""
        self.config, self.task = config, task
        self._store, self._held = store, held
        self._parts = [stored for stored in parts if stored.part.files]
        for stored in parts:
            check_files(stored.part, where=self.where)
            check_not_newer(stored.config.state_version, current=config.state_version, where=self.where)
        self._live = LiveFiles.restore([stored.part for stored in parts], owned=task.owned)
        self._versions = {
            stored.config.state_version for stored in self._parts if overlaps(stored.part.owned, task.owned)
        }
        self._declared: tuple[Any, Any] | None = None
        self._own: dict[bytes, bytes] = {}
        self._others: dict[int, _OtherPart] = {}
        self._dirty: dict[bytes, bytes | None] = {}
        self._rewrite = False
        self._compact = False
        self._commit_data: list[bytes] = []
        self._closed = ""

    @property
    def where(self) -> str:
        return f"{self.task.where}, table {self.config.name!r}"

    # ---- contents ----------------------------------------------------------------------------------------------

    def load_with_version(self, key_type: Any = Any, value_type: Any = Any) -> "GlobalKeyedView[Any, Any]":
        """Read all keys, migrate older versions, and return a view; loads once per table."""
        if self._declared is None:
            check_declared(value_type, current=self.config.state_version, where=self.where)
            decoders = [self._decoder(stored.config, value_type) for stored in self._parts]
            with self._held.reading(file for stored in self._parts for file in stored.part.files):
                loaded = [
                    self._load(stored, decode, Codec(value_type))
                    for stored, decode in zip(self._parts, decoders, strict=True)
                ]
            self._held.change(sum(contents_bytes(own) + other.nbytes for own, other in loaded))
            for number, (own, other) in enumerate(loaded):
                self._own |= own
                self._others[-1 - number] = other
            self._rewrite = bool(self._versions - {self.config.state_version})
            self._declared = (key_type, value_type)
            self._parts = []
        elif self._declared != (key_type, value_type):
            raise InputError(
                f"the table is in use with {_types_text(*self._declared)}, but is now opened with "
                f"{_types_text(key_type, value_type)}",
                where=self.where,
                fix="declare the same types wherever the table is opened",
            )
        return GlobalKeyedView(self, Codec(key_type), Codec(value_type))

    def refresh(self, parts: Mapping[int, StoredPart]) -> None:
        """Read what other subtasks wrote up to an epoch; `parts` are those of all its subtasks, by index."""
        if self._declared is None:
            self._parts = [stored for stored in parts.values() if stored.part.files]
            return
        value_type = self._declared[1]
        others: dict[int, _OtherPart] = {}
        for index, stored in parts.items():
            if index == self.task.subtask_index:
                continue
            check_files(stored.part, where=self.where)
            decode = self._decoder(stored.config, value_type)
            with self._held.reading(stored.part.files):
                others[index] = self._read_other(self._others.get(index), stored, decode, Codec(value_type))
        before = sum(other.nbytes for other in self._others.values())
        self._held.change(sum(other.nbytes for other in others.values()) - before)
        self._others = others

    def get(self, key: bytes) -> bytes | None:
        if key in self._own:
            return self._own[key]
        return next((other.values[key] for other in self._others.values() if key in other.values), None)

    def put(self, key: bytes, value: bytes | None) -> bytes | None:
        """Write an encoded value, or delete the key if it is None; return the previous value."""
        self._check_open()
        if key not in self._own:
            self._check_owner(key)
        before = self._own.get(key)
        self._held.change(entry_bytes(key, value) - entry_bytes(key, before))
        self._own.pop(key, None)
        if value is not None:
            self._own[key] = value
        if value is not None or before is not None:
            self._dirty[key] = value
        return before

    def apply(self, data: RecordBatch | CommitData | KeyedData) -> None:
        """Write the data of a message after checking that it is an encoded key and value."""
        if isinstance(data, CommitData):
            self.add_commit_data(data.data)
            return
        if isinstance(data, RecordBatch):
            raise UnknownTableError(
                "a global keyed table does not accept record batches",
                where=self.where,
                fix="send KeyedData with keys and values from statebed.state.Codec, or write through its view",
            )
        if self._declared is None:
            self.load_with_version()
        for part in (data.key, data.value):
            if part is not None:
                Codec().decode(part)
        self.put(data.key, data.value)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys and values, sorted by encoded key."""
        everything = {key: value for other in self._others.values() for key, value in other.values.items()}
        yield from sorted((everything | self._own).items())

    def __len__(self) -> int:
        return len(self._own) + sum(len(other.values) for other in self._others.values())

    def owns(self, key: bytes) -> bool:
        return self.task.owned.first <= hash_of(key) <= self.task.owned.last

    def add_commit_data(self, data: bytes) -> None:
        """Store bytes prepared for a two-phase commit with the next checkpoint."""
        self._check_open()
        if not self.config.global_keyed.uses_two_phase_commit:
            raise InputError(
                "the table does not take part in two-phase commits",
                where=self.where,
                fix="configure it with phases=CommitPhases.TWO",
            )
        self._commit_data.append(data)

    def compact_data(self) -> None:
        """Compact all files of this subtask with the next checkpoint; superseded rows and deletions are removed."""
        self._check_open()
        self._compact = True

    def close(self, reason: str) -> None:
        """Refuse all later writes, because they could not become durable."""
        self._closed = reason

    def _load(self, stored: StoredPart, decode: Decode, codec: Codec[Any]) -> tuple[dict[bytes, bytes], _OtherPart]:
        """Return the keys of this subtask, and those of others."""
        rows = without_deleted(newest(read_file(self._store, file) for file in stored.part.files))
        values = self._migrated(values_of(rows), stored.config, decode, codec)
        own = {key: values[key] for key in values_of(clip(rows, self.task.owned))}
        rest = {key: value for key, value in values.items() if key not in own}
        return own, _OtherPart(stored.config, frozenset(), rest, contents_bytes(rest))

    def _read_other(
        self, before: _OtherPart | None, stored: StoredPart, decode: Decode, codec: Codec[Any]
    ) -> _OtherPart:
        files = {file.path: file for file in stored.part.files}
        # Added files can be read alone only if no file was removed: a compaction may have dropped deletions that were
        # never read here.
        added = before is not None and before.config == stored.config and before.files <= set(files)
        seen = before.files if before is not None and added else frozenset()
        values = dict(before.values) if before is not None and added else {}
        nbytes = before.nbytes if before is not None and added else 0
        rows = newest(read_file(self._store, file) for path, file in files.items() if path not in seen)
        for key in rows[KEY].to_pylist():
            nbytes -= entry_bytes(key, values.pop(key, None))
        new = self._migrated(values_of(without_deleted(rows)), stored.config, decode, codec)
        values |= new
        return _OtherPart(stored.config, frozenset(files), values, nbytes + contents_bytes(new))

    def _decoder(self, stored: pb.TableConfig, value_type: Any) -> Decode:
        return decoder(value_type, stored=stored.state_version, current=self.config.state_version, where=self.where)

    def _migrated(
        self, values: dict[bytes, bytes], stored: pb.TableConfig, decode: Decode, codec: Codec[Any]
    ) -> dict[bytes, bytes]:
        if stored.state_version == self.config.state_version:
            return values
        return {key: codec.encode(decode(value)) for key, value in values.items()}

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(
                f"the table accepts no more writes: {self._closed}",
                where=self.where,
                fix="restore a new TableManager from the last committed record",
            )

    def _check_owner(self, key: bytes) -> None:
        if not self.owns(key):
            raise NotOwnerError(
                f"the key {Codec().decode(key)!r} belongs to another subtask",
                where=self.where,
                fix="send each key to its owner (see view.owns(key)); every subtask may read it",
            )

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def take_changes(self, _epoch: int, _max_compacted_bytes: int, /) -> PendingChanges:
        """Take all changes since the last call, to be written; the table continues with none."""
        changes = PendingChanges(
            config=self._stored_config(),
            rows=dict(self._own) if self._rewrite else self._dirty,
            rewrite=self._rewrite,
            compact=self._compact and self._declared is not None,
            commit_data=tuple(self._commit_data),
        )
        self._dirty, self._rewrite, self._compact, self._commit_data = {}, False, False, []
        return changes

    def write(self, changes: PendingChanges, *, epoch: int, upload: Callable[[Upload], None]) -> StoredPart:
        """Encode and upload the changes; return this subtask's part of the epoch, whose files may be unchanged."""
        config = changes.config
        live = replace(self._live, files=()) if changes.rewrite else self._live
        merged = _to_compact(live, changes)
        if changes.rows or merged:
            delta = rows_of(changes.rows, sequence=live.next_sequence)
            with self._held.reading(merged, compacting=True):
                rows = newest([delta, *(read_file(self._store, file) for file in merged)])
            kept = tuple(file for file in live.files if file not in merged)
            live = replace(live, files=kept, next_sequence=live.next_sequence + 1)
            # With no older file left, a deletion has nothing to hide.
            rows = rows if kept else without_deleted(rows)
            if rows.num_rows:
                segment, schemas = encode_rows(rows, live.schemas, config)
                task = self.task
                path = names.data_file(epoch, task.operator_id, config.name, task.subtask_index, segment.digest)
                upload(Upload.of_bytes(path, segment.data))
                level = max((file.level + 1 for file in merged), default=0)
                entry = segment.file_entry(path, owned=live.owned, level=level)
                live = replace(live, files=(*kept, entry), schemas=schemas)
        self._live = live
        return StoredPart(config, self._part(live, changes.commit_data))

    def _stored_config(self) -> pb.TableConfig:
        """Return the configuration with the version that the files really have."""
        if self._declared is not None or not self._versions:
            return self.config
        if len(self._versions) > 1:
            raise MigrationError(
                f"the restored state has the versions {sorted(self._versions)} and was not migrated",
                where=self.where,
                fix="open the table with get_global_keyed_state before the first checkpoint",
            )
        config = pb.TableConfig()
        config.CopyFrom(self.config)
        config.state_version = min(self._versions)
        return config

    def _part(self, live: LiveFiles, commit_data: tuple[bytes, ...]) -> pb.TableSubtaskCheckpointMetadata:
        index = self.task.subtask_index
        return pb.TableSubtaskCheckpointMetadata(
            subtask_index=index,
            owned=live.owned,
            next_sequence=live.next_sequence,
            files=live.files,
            schemas=live.schemas,
            commit_data=[pb.CommitData(subtask_index=index, data=data) for data in commit_data],
            bytes=sum(file.size for file in live.files),
            rows=sum(file.rows for file in live.files),
        )


def _to_compact(live: LiveFiles, changes: PendingChanges) -> list[pb.FileEntry]:
    """Return the files that the next one replaces, newest first: all if requested, some if there are too many."""
    by_age = sorted(live.files, key=lambda file: (-file.max_sequence, file.path))
    added = 1 if changes.rows else 0
    if changes.compact:
        single = len(by_age) == 1 and not added and by_age[0].level and by_age[0].owned == live.owned
        return [] if single else by_age
    surplus = len(by_age) + added - MAX_FILES
    if surplus <= 0:
        return []
    count = surplus + MAX_FILES // 2
    size = sum(file.size for file in by_age[:count])
    while count < len(by_age) and by_age[count].size <= _MERGE_FACTOR * size:
        size += by_age[count].size
        count += 1
    return by_age[:count]


def _types_text(key_type: Any, value_type: Any) -> str:
    """Return the types of keys and values as the program declares them."""
    texts = (getattr(kind, "__name__", str(kind)) for kind in (key_type, value_type))
    return "key_type={}, value_type={}".format(*texts)


class GlobalKeyedView(Generic[K, V]):
    """View of a global keyed table with typed keys and values, used by an operator."""

    def __init__(self, table: GlobalKeyedTable, keys: Codec[K], values: Codec[V]) -> None:
        self._table = table
        self._keys = keys
        self._values = values

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        return self._decoded(self._table.get(self._keys.encode_key(key)))

    def insert(self, key: K, value: V) -> None:
        """Write a value, which becomes durable with the next committed checkpoint."""
        self._table.put(self._keys.encode_key(key), self._values.encode(value))

    def remove(self, key: K) -> V | None:
        """Delete a key; return the value that it had, or None."""
        return self._decoded(self._table.put(self._keys.encode_key(key), None))

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield all keys and values: of this subtask as they are now, of others as of the last refreshed epoch."""
        for key, value in self._table.items():
            yield self._keys.decode(key), self._values.decode(value)

    def owns(self, key: K) -> bool:
        """Return whether this subtask writes the key."""
        return self._table.owns(self._keys.encode_key(key))

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, key: K) -> bool:
        return self._table.get(self._keys.encode_key(key)) is not None

    def _decoded(self, data: bytes | None) -> V | None:
        return None if data is None else self._values.decode(data)
