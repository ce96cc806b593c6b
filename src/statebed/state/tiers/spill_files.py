"""Segments as files: Parquet on local disk or in the store, and mapped Arrow IPC files for rows set aside temporarily.

All are verified when first read, and damage is reported. A mapped file takes no memory of the process but clean pages,
which the kernel can drop at any time. A Parquet file has the same bytes as the data file of a checkpoint of the same
rows, so it becomes one without being rewritten.
"""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import google_crc32c
import pyarrow as pa

from statebed.checkpoint.objects import fetch, fetch_range
from statebed.errors import CorruptObjectError, MissingFileError, SpillError, StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.digest import crc32c
from statebed.format.segment import SegmentSpec
from statebed.format.segment_reader import Forget, GetRange, SegmentReader
from statebed.format.segment_writer import SegmentWriter
from statebed.state.memory.pages import count_processed
from statebed.state.tiers.fetched_ranges import FetchedRanges
from statebed.state.tiers.selection import Selection
from statebed.state.tiers.spill_folder import SpillFolder, spill_error
from statebed.storage import ObjectStore

RowGroups: TypeAlias = Iterator[tuple[int, Callable[[], pa.Table]]]
"""Approximate memory and read function of each row group that may hold selected rows."""

LOST_FIX = "restart from the last checkpoint, and check the local disk"


class MappedFile:
    """Rows in one Arrow IPC file, mapped and verified when first read."""

    def __init__(self, path: Path, *, size: int, checksum: int) -> None:
        self.path = path
        self.size = size
        self._checksum = checksum
        self._table: pa.Table | None = None

    def read(self) -> pa.Table:
        """Return all rows, verified on the first call."""
        # Two threads may both map and verify it, which is harmless.
        table = self._table
        if table is None:
            table = self._table = self._open()
        return table

    def _open(self) -> pa.Table:
        with _reading(self.path), pa.memory_map(str(self.path)) as file:
            data = file.read_buffer()
        if data.size != self.size or int(google_crc32c.value(data)) != self._checksum:
            raise CorruptObjectError(
                "a spilled segment is damaged: its bytes differ from those written", where=str(self.path), fix=LOST_FIX
            )
        return pa.ipc.open_file(data).read_all()


class ParquetFile:
    """Rows in a data file of a checkpoint on local disk. Only the row groups and columns needed are read."""

    def __init__(self, path: Path, entry: pb.FileEntry, *, digest: str) -> None:
        self.path = path
        self.size = int(entry.size)
        self.entry = entry
        self.digest = digest

    def read(self, selection: Selection) -> pa.Table:
        with _reading(self.path), self.path.open("rb") as file:

            def get_range(_: str, start: int, length: int) -> bytes:
                return os.pread(file.fileno(), length, start)

            return read_parquet(self.entry, get_range, selection)

    def row_groups(self, selection: Selection) -> RowGroups:
        """Return the selected rows by row group, verified. The file is opened immediately, and may be removed
        afterwards.
        """
        with _reading(self.path):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

        def get_range(_: str, start: int, length: int) -> bytes:
            with _reading(self.path):
                return os.pread(descriptor, length, start)

        groups = parquet_row_groups(self.entry, get_range, selection)
        # The iterator may be dropped at any time, even before its first step.
        weakref.finalize(groups, os.close, descriptor)
        return groups

    def content(self) -> bytes:
        """Return the whole file, verified."""
        with _reading(self.path):
            data = self.path.read_bytes()
        if len(data) != self.size or crc32c(data) != self.entry.crc32c:
            raise CorruptObjectError(
                "a spilled segment is damaged: its bytes differ from those written", where=str(self.path), fix=LOST_FIX
            )
        return data


class StoredFile:
    """A data file in the store. Only the row groups and columns needed are fetched."""

    def __init__(self, entry: pb.FileEntry, store: ObjectStore, ranges: FetchedRanges | None = None) -> None:
        """Refer to a file in the store. `ranges` keeps the parts fetched by reads by key, since the next keys are
        likely to need them.
        """
        self.entry = entry
        self.size = int(entry.size)
        self._store = store
        self._ranges = ranges

    @property
    def is_near(self) -> bool:
        """Whether a copy on this host can be mapped, which makes reading it cheap."""
        return False

    def read(self, selection: Selection) -> pa.Table:
        return read_parquet(self.entry, self._get_range(selection), selection, forget=self._forget)

    def row_groups(self, selection: Selection) -> RowGroups:
        """Return the selected rows by row group, verified."""
        return parquet_row_groups(self.entry, self._get_range(selection), selection, forget=self._forget)

    def _forget(self, path: str, start: int, length: int) -> None:
        if self._ranges is not None:
            self._ranges.forget(self._store, path, start, length)

    def _get_range(self, selection: Selection) -> GetRange:
        if self._ranges is None or selection.hashes is None:
            return partial(fetch_range, self._store)
        return partial(self._ranges.fetch, self._store)

    def content(self) -> bytes:
        """Return the whole file, verified."""
        return fetch(self._store, self.entry.path, size=self.size, crc=self.entry.crc32c)


def read_parquet(
    entry: pb.FileEntry, get_range: GetRange, selection: Selection, *, forget: Forget | None = None
) -> pa.Table:
    """Return the selected rows of a data file: read its footer first, then the row groups that may hold them."""
    reader = SegmentReader(entry, get_range, forget=forget)
    return _read_groups(reader, _chosen_groups(reader, selection), selection)


def parquet_row_groups(
    entry: pb.FileEntry, get_range: GetRange, selection: Selection, *, forget: Forget | None = None
) -> RowGroups:
    """Yield the same rows as `read_parquet`, one row group at a time."""
    reader = SegmentReader(entry, get_range, forget=forget)
    for group in _chosen_groups(reader, selection):
        nbytes = int(reader.metadata.row_group(group).total_byte_size)
        yield nbytes, partial(_read_groups, reader, [group], selection)


def _chosen_groups(reader: SegmentReader, selection: Selection) -> list[int]:
    start, end = selection.start_us, selection.end_us
    groups = set(reader.select_row_groups(owned=selection.owned, start_us=start, end_us=end))
    if selection.hashes is not None:
        wanted = selection.hash_ranges()
        groups &= {group for hash_range in wanted for group in reader.select_row_groups(owned=hash_range)}
    return sorted(groups)


def _read_groups(reader: SegmentReader, groups: list[int], selection: Selection) -> pa.Table:
    names = reader.metadata.schema.to_arrow_schema().names
    rows = reader.read(row_groups=groups, columns=selection.needed(names))
    count_processed(rows.nbytes)
    return selection.apply(rows)


def write_mapped(pieces: Iterable[pa.Table], schema: pa.Schema, folder: SpillFolder) -> MappedFile:
    """Write rows that come in pieces to a file that can be mapped. Leaves nothing behind if the disk fails."""
    path = folder.new_file(".arrow")
    size = checksum = 0

    def write(descriptor: int) -> None:
        nonlocal size, checksum
        written = ChecksummedWriter(descriptor, 0)
        with pa.PythonFile(written, mode="w") as sink, pa.ipc.new_file(sink, schema) as writer:
            for table in pieces:
                writer.write_table(table)
        size, checksum = written.size, written.checksum

    _create(path, write)
    return MappedFile(path, size=size, checksum=checksum)


def write_parquet(table: pa.Table, spec: SegmentSpec, folder: SpillFolder, *, owned: pb.HashRange) -> ParquetFile:
    """Write the rows as the data file that a checkpoint would write."""
    with ParquetSpill(spec, folder, owned=owned) as spill:
        spill.write(table)
        return spill.finish()


class ParquetSpill:
    """Writes a data file to local disk in parts. If it is left unfinished, the file is removed."""

    def __init__(self, spec: SegmentSpec, folder: SpillFolder, *, owned: pb.HashRange, level: int = 0) -> None:
        self._path = folder.new_file(".parquet")
        self._owned = owned
        self._level = level
        with spill_errors(self._path):
            self._file = os.fdopen(new_descriptor(self._path, os.O_RDWR), "w+b")
        self._writer = SegmentWriter(self._file, spec=spec)
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._writer.__exit__(kind, error, at)
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._finished:
            self._path.unlink(missing_ok=True)

    def write(self, rows: pa.Table) -> None:
        """Append rows in sort order."""
        with spill_errors(self._path):
            self._writer.write(rows)
        count_processed(rows.nbytes)

    def finish(self) -> ParquetFile:
        with spill_errors(self._path):
            summary = self._writer.finish()
            self._file.close()
        self._finished = True
        entry = summary.file_entry(str(self._path), owned=self._owned, level=self._level)
        return ParquetFile(self._path, entry, digest=summary.digest)


def write_copy(stored: StoredFile, folder: SpillFolder) -> ParquetFile:
    """Copy a data file of the store to local disk."""
    data, path = stored.content(), folder.new_file(".parquet")
    _create(path, lambda descriptor: _write_all(descriptor, data))
    local = pb.FileEntry()
    local.CopyFrom(stored.entry)
    local.path = str(path)
    return ParquetFile(path, local, digest="")


def _create(path: Path, write: Callable[[int], None]) -> None:
    """Create a file that only this user can read, and remove it if writing fails."""
    with spill_errors(path):
        try:
            descriptor = new_descriptor(path, os.O_WRONLY)
            try:
                write(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise


def new_descriptor(path: Path, access: int) -> int:
    """Create and open a file that only this user can read."""
    return os.open(path, access | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def spill_errors(path: Path) -> Iterator[None]:
    """Turn disk errors into a SpillError."""
    try:
        yield
    except OSError as error:
        raise spill_error("cannot write a spilled segment", path, error) from error


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn a missing file into a MissingFileError, and other disk errors into a SpillError."""
    try:
        yield
    except StatebedError:
        raise
    except FileNotFoundError as error:
        raise _missing(path) from error
    except OSError as error:
        raise SpillError(f"cannot read a spilled segment: {error}", where=str(path), fix=LOST_FIX) from error


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class ChecksummedWriter:
    """A part of a file that grows from `start` on, with the checksum of its bytes. pyarrow can write to it."""

    def __init__(self, descriptor: int, start: int) -> None:
        self._descriptor = descriptor
        self.start = start
        self.size = 0
        self.checksum = 0
        self.closed = False

    def write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._descriptor, rest, self.start + self.size)
            self.size += written
            rest = rest[written:]
        self.checksum = int(google_crc32c.extend(self.checksum, pa.py_buffer(data)))
        return len(data)

    def flush(self) -> None:
        """Do nothing, because nothing is buffered."""

    def close(self) -> None:
        self.closed = True


def _missing(path: Path) -> MissingFileError:
    return MissingFileError("a spilled segment no longer exists", where=str(path), fix=LOST_FIX)
