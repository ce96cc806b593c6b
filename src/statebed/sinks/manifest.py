"""The manifest of a Parquet table: a log of small JSON entries that says which files the table consists of.

`_statebed/{number}.json`, numbers from 1 without gaps, each created by put-if-absent and never changed:

- `open`: a run begins to write; entries of older runs are refused from here on; carries the Arrow schema.
- `epoch`: the files of one epoch become visible, all at once.
- `rollback`: the files of epochs after `epoch` are visible no more.

The place of an entry in the log is the comparison: a writer that did not see the newest entry finds its number taken.
Every 32nd entry also sums up the 32 entries that end with it, every 1024th the last 1024, and so on, so that readers
need only few entries, and the log grows no faster than the table.
"""

import base64
import threading
from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

import msgspec
import pyarrow as pa

from statebed.errors import BrokenLogError, CorruptObjectError, NewerFormatError, OutcomeUnknownError
from statebed.protocol import SinkPosition
from statebed.storage import ObjectStore, PutOutcome

FOLDER = "_statebed"
VERSION = 1
SUMMARY_EVERY = 32
_DIGITS = 12
_PUT_ATTEMPTS = 10


class TableFile(msgspec.Struct, frozen=True):
    """One visible file of the table."""

    path: str
    epoch: int
    size: int
    rows: int
    crc32c: int


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """What successive entries change together."""

    since: int
    """They are the entries after this number."""
    kept: int | None = None
    """Of the files before, only those of epochs up to this stay visible; None: all of them."""
    files: tuple[TableFile, ...] = ()


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of the log."""

    version: int
    number: int
    kind: Literal["open", "epoch", "rollback"]
    owner: str
    """The job and sink that the table belongs to."""
    run: int
    epoch: int
    nonce: str
    generation: int = 0
    """Number of the newest rollback before this entry, 0 if there was none; part of the names of files after it."""
    schema: str = ""
    """Base64 of the Arrow IPC schema; in `open` entries and those with a summary."""
    files: tuple[TableFile, ...] = ()
    summary: Summary | None = None
    """Of this entry and those before it, back to a rounder number."""

    @property
    def change(self) -> Summary:
        """What this entry alone changes."""
        return Summary(self.number - 1, self.epoch if self.kind == "rollback" else None, self.files)


@dataclass(frozen=True)
class TableState:
    """What the log says up to its entry `number`."""

    number: int = 0
    owner: str = ""
    run: int = 0
    epoch: int = 0
    generation: int = 0
    schema: str = ""
    changes: tuple[Summary, ...] = ()
    """All that happened, in order: of single entries, or of several where a summary was read."""

    @property
    def position(self) -> SinkPosition | None:
        return SinkPosition(run=self.run, epoch=self.epoch) if self.number else None

    @property
    def files(self) -> tuple[TableFile, ...]:
        """Every visible file."""
        return self.changed_since(0).files

    def changed_since(self, number: int) -> Summary:
        """The changes of all entries after `number`, as one."""
        files: list[TableFile] = []
        kept: int | None = None
        for change in self.changes[bisect_left(self.changes, number, key=lambda change: change.since) :]:
            if change.kept is not None:
                kept = change.kept if kept is None else min(kept, change.kept)
                files = [file for file in files if file.epoch <= change.kept]
            files += change.files
        return Summary(number, kept, tuple(files))

    def after(self, entry: Entry, change: Summary) -> "TableState":
        """The state once the entry is in the log, with its change or its summary."""
        return TableState(
            number=entry.number,
            owner=entry.owner,
            run=entry.run,
            epoch=entry.epoch,
            generation=entry.number if entry.kind == "rollback" else entry.generation,
            schema=entry.schema or self.schema,
            changes=(*self.changes, change),
        )


class Manifest:
    """The log of one table; `store` is the table's folder. Two runs of one process may share it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.state = TableState()

    def refresh(self) -> TableState:
        """Read what was appended since the last look; only the first look lists the folder."""
        with self._lock:
            if self.state.number == 0:
                self._read_all()
            while self._store.head(_name(self.state.number + 1)) is not None:
                entry = self._read(self.state.number + 1)
                self.state = self.state.after(entry, entry.change)
            return self.state

    def append(self, entry: Entry, *, to: TableState) -> bool:
        """Put the entry, made from the state `to`; False when another one has its number, which `refresh` shows."""
        after = to.after(entry, entry.change)
        since = summarised_since(entry.number)
        if since is not None:
            entry = msgspec.structs.replace(entry, summary=after.changed_since(since), schema=after.schema)
        data = msgspec.json.encode(entry)
        with self._lock:
            put = self._put(_name(entry.number), data)
            if put is PutOutcome.EXISTS and self._read(entry.number).nonce != entry.nonce:
                return False
            if self.state.number < after.number:
                self.state = after
            return True

    def _read_all(self) -> None:
        numbers = sorted(filter(None, (_number_of(info.path) for info in self._store.list_level(FOLDER).objects)))
        number = numbers[-1] if numbers else 0
        found: list[tuple[Entry, Summary]] = []
        while number > 0:
            entry = self._read(number)
            change = entry.summary or entry.change
            found.append((entry, change))
            number = change.since
        for entry, change in reversed(found):
            self.state = self.state.after(entry, change)

    def _put(self, path: str, data: bytes) -> PutOutcome:
        for attempt in range(1, _PUT_ATTEMPTS + 1):
            try:
                return self._store.put_if_absent(path, data)
            except OutcomeUnknownError:
                if attempt == _PUT_ATTEMPTS:
                    raise
        raise AssertionError

    def _read(self, number: int) -> Entry:
        where = f"{self._store.url}/{_name(number)}"
        if self._store.head(_name(number)) is None:
            raise BrokenLogError(
                f"entry {number} of the table's manifest is not there", where=where, fix="restore it from a backup"
            )
        try:
            entry = msgspec.json.decode(self._store.get(_name(number)), type=Entry)
        except msgspec.MsgspecError as error:
            raise CorruptObjectError(
                f"entry {number} of the table's manifest cannot be read: {error}",
                where=where,
                fix="restore it from a backup",
            ) from error
        if entry.version > VERSION:
            raise NewerFormatError(
                f"the table's manifest has version {entry.version}; this statebed knows up to {VERSION}",
                where=where,
                fix="upgrade statebed on this machine: pip install --upgrade statebed",
            )
        return entry


def summarised_since(number: int) -> int | None:
    """Where the summary of this entry begins; None if it has none.

    >>> summarised_since(33), summarised_since(64), summarised_since(2048)
    (None, 32, 1024)
    """
    span = 1
    while number % (span * SUMMARY_EVERY) == 0:
        span *= SUMMARY_EVERY
    return number - span if span > 1 else None


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _name(number: int) -> str:
    return f"{FOLDER}/{number:0{_DIGITS}d}.json"


def _number_of(path: str) -> int | None:
    stem = path.rpartition("/")[2].removesuffix(".json")
    return int(stem) if stem.isdigit() else None
