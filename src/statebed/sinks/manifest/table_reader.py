"""Reads a table while it is written: the files of one state, each checked."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from statebed.errors import CorruptObjectError, MissingFileError, ObjectMissingError
from statebed.format.digest import crc32c
from statebed.sinks.manifest.entries import TableFile
from statebed.sinks.manifest.manifest import Manifest
from statebed.sinks.manifest.table_state import TableState
from statebed.storage import ObjectStore

RESTORE = "restore it from a backup, or from the outbox of its epoch while that is retained"
_ATTEMPTS = 10
"""Number of attempts to read when the writer removes files or pages that are about to be read."""

T = TypeVar("T")


def read_consistently(store: ObjectStore, read: Callable[[TableState, Iterator[TableFile]], T]) -> T:
    """Call `read` with the newest state and its files; retry if files disappear because the table changed."""
    number = -1
    for attempt in range(1, _ATTEMPTS + 1):
        manifest = Manifest(store)
        state = manifest.refresh()
        try:
            return read(state, manifest.files(state))
        except MissingFileError:
            if state.number == number or attempt == _ATTEMPTS:
                raise
        number = state.number
    raise AssertionError


def read_file(store: ObjectStore, file: TableFile) -> bytes:
    """Return the bytes of a data file after checking size and checksum."""
    where = f"{store.url}/{file.path}"
    try:
        data = store.get(file.path)
    except ObjectMissingError as error:
        raise MissingFileError("a file of the table is missing", where=where, fix=RESTORE) from error
    if len(data) != file.size:
        raise CorruptObjectError(
            f"a file of the table has {len(data)} bytes, but its manifest says {file.size}", where=where, fix=RESTORE
        )
    if crc32c(data) != file.crc32c:
        raise CorruptObjectError(
            "the checksum of a file of the table differs from the one in its manifest", where=where, fix=RESTORE
        )
    return data
