"""Segments as files: mapped Arrow IPC for lookups, Parquet for cold and sequential data, local or in the store.

All are checked on the first read, and damage is named. A mapped file takes no memory of the process beyond clean
pages, which the kernel drops at will. A Parquet file has the very bytes that a checkpoint of the same rows has, so it
becomes a data file of a checkpoint without being written again.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import google_crc32c
import pyarrow as pa

from statebed.checkpoint.objects import fetch
from statebed.errors import CorruptObjectError, MissingFileError, ObjectMissingError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.digest import crc32c
from statebed.format.segment import DAMAGED_FIX, SegmentSpec, encode_segment
from statebed.format.segment_reader import GetRange, SegmentReader
from statebed.state.selection import Selection
from statebed.state.spill_folder import SpillFolder, spill_error
from statebed.storage import ObjectStore

LOST_FIX = "restart from the last checkpoint, and look at the local disk"


class LocalFile(Protocol):
    """A segment's file on local disk. Thread-safe."""

    path: Path
    size: int

    def read(self, selection: Selection) -> pa.Table:
        """The wanted rows, checked."""


class MappedFile:
    """Rows as one Arrow IPC file, mapped when first read, and checked then."""

    def __init__(self, path: Path, *, size: int, checksum: int) -> None:
        self.path = path
        self.size = size
        self._checksum = checksum
        self._table: pa.Table | None = None

    def read(self, selection: Selection) -> pa.Table:
        # Two threads may both map and check it, which is harmless.
        table = self._table
        if table is None:
            table = self._table = self._open()
        return selection.apply(table)

    def _open(self) -> pa.Table:
        try:
            with pa.memory_map(str(self.path)) as file:
                data = file.read_buffer()
        except FileNotFoundError as error:
            raise _missing(self.path) from error
        if data.size != self.size or int(google_crc32c.value(data)) != self._checksum:
            raise CorruptObjectError(
                "a spilled segment has other bytes than were written", where=str(self.path), fix=LOST_FIX
            )
        return pa.ipc.open_file(data).read_all()


class ParquetFile:
    """Rows as a data file of a checkpoint, of which only needed row groups and columns are read."""

    def __init__(self, path: Path, entry: pb.FileEntry, *, digest: str) -> None:
        self.path = path
        self.size = int(entry.size)
        self.entry = entry
        self.digest = digest

    def read(self, selection: Selection) -> pa.Table:
        try:
            with self.path.open("rb") as file:

                def get_range(_: str, start: int, length: int) -> bytes:
                    return os.pread(file.fileno(), length, start)

                return read_parquet(self.entry, get_range, selection)
        except FileNotFoundError as error:
            raise _missing(self.path) from error

    def content(self) -> bytes:
        """The whole file, checked."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError as error:
            raise _missing(self.path) from error
        if len(data) != self.size or crc32c(data) != self.entry.crc32c:
            raise CorruptObjectError(
                "a spilled segment has other bytes than were written", where=str(self.path), fix=LOST_FIX
            )
        return data


class StoredFile:
    """A data file in the store, of which only needed row groups and columns are fetched."""

    def __init__(self, entry: pb.FileEntry, store: ObjectStore) -> None:
        self.entry = entry
        self.size = int(entry.size)
        self._store = store

    def read(self, selection: Selection) -> pa.Table:
        return read_parquet(self.entry, self._get_range, selection)

    def content(self) -> bytes:
        """The whole file, checked."""
        return fetch(self._store, self.entry.path, size=self.size, crc=self.entry.crc32c)

    def _get_range(self, path: str, start: int, length: int) -> bytes:
        try:
            return self._store.get_range(path, start, length)
        except ObjectMissingError as error:
            raise MissingFileError(
                "metadata names a data file that is not there", where=f"{self._store.url}/{path}", fix=DAMAGED_FIX
            ) from error


def read_parquet(entry: pb.FileEntry, get_range: GetRange, selection: Selection) -> pa.Table:
    """The wanted rows of a data file, wherever it is: footer first, then what may hold them."""
    reader = SegmentReader(entry, get_range)
    groups = reader.select_row_groups(owned=selection.owned, start_us=selection.start_us, end_us=selection.end_us)
    names = reader.metadata.schema.to_arrow_schema().names
    table = reader.read(row_groups=groups, columns=selection.needed(names))
    return selection.apply(table)


def write_mapped(table: pa.Table, folder: SpillFolder) -> MappedFile:
    """The rows as a file that can be mapped; nothing is left behind when it cannot be written."""
    path = folder.new_file(".arrow")
    written = _Checksummed()

    def write(descriptor: int) -> None:
        written.descriptor = descriptor
        with pa.PythonFile(written, mode="w") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)

    _create(path, write)
    return MappedFile(path, size=written.size, checksum=written.checksum)


def write_parquet(table: pa.Table, spec: SegmentSpec, folder: SpillFolder, *, owned: pb.HashRange) -> ParquetFile:
    """The rows as the data file that a checkpoint would write."""
    encoded = encode_segment(table, spec=spec)
    path = folder.new_file(".parquet")
    _create(path, lambda descriptor: _write_all(descriptor, encoded.data))
    return ParquetFile(path, encoded.file_entry(str(path), owned=owned), digest=encoded.digest)


def write_copy(stored: StoredFile, folder: SpillFolder) -> ParquetFile:
    """A local copy of a data file of the store."""
    data, path = stored.content(), folder.new_file(".parquet")
    _create(path, lambda descriptor: _write_all(descriptor, data))
    local = pb.FileEntry()
    local.CopyFrom(stored.entry)
    local.path = str(path)
    return ParquetFile(path, local, digest="")


def _create(path: Path, write: Callable[[int], None]) -> None:
    """A new file that only this user can read."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise spill_error("cannot write a spilled segment", path, error) from error


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class _Checksummed:
    """What pyarrow writes to, counting bytes and their checksum on the way."""

    def __init__(self) -> None:
        self.descriptor = -1
        self.size = 0
        self.checksum = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        _write_all(self.descriptor, data)
        self.checksum = int(google_crc32c.extend(self.checksum, bytes(data)))
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        self.closed = True


def _missing(path: Path) -> MissingFileError:
    return MissingFileError("a spilled segment is not there any more", where=str(path), fix=LOST_FIX)
