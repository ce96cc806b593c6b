"""The manifest of a Parquet table: a log of small JSON entries that says which files the table consists of.

`_statebed/{number}.json`, numbers from 1 without gaps, each created by put-if-absent and never changed:

- `open`: a run begins to write; entries of older runs are refused from here on; carries the Arrow schema.
- `epoch`: the files of one epoch become visible, all at once.
- `rollback`: the files of epochs after `epoch` are visible no more.

The place of an entry in the log is the comparison: a writer that did not see the newest entry finds its number taken.
Every SNAPSHOT_EVERY-th entry repeats all visible files, so that readers need not go back to the beginning.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec
import pyarrow as pa

from statebed.errors import BrokenLogError, CorruptObjectError, NewerFormatError, OutcomeUnknownError
from statebed.protocol import SinkPosition
from statebed.storage import ObjectStore, PutOutcome

FOLDER = "_statebed"
VERSION = 1
SNAPSHOT_EVERY = 32
_DIGITS = 12
_PUT_ATTEMPTS = 10


class TableFile(msgspec.Struct, frozen=True):
    """One visible file of the table."""

    path: str
    epoch: int
    size: int
    rows: int
    crc32c: int


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
    """Base64 of the Arrow IPC schema; in `open` entries."""
    files: tuple[TableFile, ...] = ()
    snapshot: tuple[TableFile, ...] | None = None
    """Every visible file after this entry."""


@dataclass(frozen=True)
class TableState:
    """What the log says up to its entry `number`."""

    number: int = 0
    owner: str = ""
    run: int = 0
    epoch: int = 0
    generation: int = 0
    schema: str = ""
    files: tuple[TableFile, ...] = ()

    @property
    def position(self) -> SinkPosition | None:
        return SinkPosition(run=self.run, epoch=self.epoch) if self.number else None

    def after(self, entry: Entry) -> "TableState":
        """The state once the entry is in the log."""
        files = entry.snapshot if entry.snapshot is not None else self._files_after(entry)
        return TableState(
            number=entry.number,
            owner=entry.owner,
            run=entry.run,
            epoch=entry.epoch,
            generation=entry.number if entry.kind == "rollback" else entry.generation,
            schema=entry.schema or self.schema,
            files=files,
        )

    def _files_after(self, entry: Entry) -> tuple[TableFile, ...]:
        if entry.kind == "rollback":
            return tuple(file for file in self.files if file.epoch <= entry.epoch)
        return self.files + entry.files


class Manifest:
    """The log of one table; `store` is the table's folder."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.state = TableState()

    def refresh(self) -> TableState:
        """Read what was appended since the last look; only the first look lists the folder."""
        if self.state.number == 0:
            numbers = sorted(filter(None, (_number_of(info.path) for info in self._store.list_level(FOLDER).objects)))
            self._apply(self._new_entries(numbers[-1] if numbers else 0))
        while self._store.head(_name(self.state.number + 1)) is not None:
            self._apply([self._read(self.state.number + 1)])
        return self.state

    def append(self, entry: Entry) -> bool:
        """Put the entry at its number; False when another one is there, which `refresh` then shows."""
        after = self.state.after(entry)
        if entry.number % SNAPSHOT_EVERY == 0:
            entry = msgspec.structs.replace(entry, snapshot=after.files, schema=after.schema)
        data = msgspec.json.encode(entry)
        if self._put(_name(entry.number), data) is PutOutcome.EXISTS and self._read(entry.number).nonce != entry.nonce:
            return False
        self.state = after
        return True

    def _put(self, path: str, data: bytes) -> PutOutcome:
        for attempt in range(1, _PUT_ATTEMPTS + 1):
            try:
                return self._store.put_if_absent(path, data)
            except OutcomeUnknownError:
                if attempt == _PUT_ATTEMPTS:
                    raise
        raise AssertionError

    def _new_entries(self, last: int) -> list[Entry]:
        """Entries after the known state, ascending, or from the newest snapshot on where that is shorter."""
        found: list[Entry] = []
        for number in range(last, self.state.number, -1):
            found.append(self._read(number))
            if found[-1].snapshot is not None:
                break
        return found[::-1]

    def _apply(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.state = self.state.after(entry)

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


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _name(number: int) -> str:
    return f"{FOLDER}/{number:0{_DIGITS}d}.json"


def _number_of(path: str) -> int | None:
    stem = path.rpartition("/")[2].removesuffix(".json")
    return int(stem) if stem.isdigit() else None
