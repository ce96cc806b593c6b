"""Columns in a mapped file on local disk. Each column is contiguous, although all of them are written piece by piece.

    columns of fixed width | an Arrow IPC stream of the others | directory | tail

A fixed-width column has room for the maximum number of its values; the unused part stays a hole, which takes no disk
space. Columns of other types follow as one Arrow IPC stream with a record batch for each piece. The directory (msgpack)
holds the label of the file, and the position and CRC-32C of each part. The tail holds the size and checksum of the
directory, and a magic word. A file is complete if its tail, directory and size agree. All other bytes can be verified
too; those of a spilled file are verified when it is first read.
"""

import contextlib
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import DType
from statebed.errors import CorruptObjectError
from statebed.state.tiers.spill_files import LOST_FIX, ChecksummedWriter, new_descriptor, spill_errors
from statebed.state.tiers.spill_folder import SpillFolder

Values = npt.NDArray[np.generic]
_RESTORE_FIX = "restore the state from the last committed record, and check the local disk"
_ALIGNED = 64
_MAGIC = b"SBCOLS01"
_TAIL = struct.Struct("<II8s")
"""Size of the directory, its checksum, and the magic word."""


class _ColumnPart(msgspec.Struct, array_like=True, frozen=True):
    start: int
    size: int
    checksum: int
    kind: str
    """Numpy type, or an empty string for the Arrow IPC stream."""


class _ColumnDirectory(msgspec.Struct, array_like=True, frozen=True):
    label: str
    parts: dict[str, _ColumnPart]
    others: _ColumnPart | None


@dataclass(frozen=True)
class ColumnFile:
    """A mapped file. It takes no memory of the process but clean pages, which the kernel can drop at any time."""

    path: Path
    size: int
    """Bytes on disk, without holes."""
    fixed: Mapping[str, Values]
    others: pa.Table | None


class SpilledColumns:
    """A file written by this process. It is mapped immediately, but opened and verified when it is first read.

    Once found to be damaged, it is not read again.
    """

    def __init__(self, data: mmap.mmap, path: Path, *, size: int, label: str) -> None:
        self.path = path
        self.size = size
        """Bytes on disk, without holes."""
        self._data = data
        self._label = label
        self._columns: ColumnFile | None = None
        self.damaged = False
        """Whether the file was read and found to be damaged."""

    def read(self) -> ColumnFile:
        """Return the columns, verified on the first call."""
        # Two threads may both open and verify it, which is harmless.
        columns = self._columns
        if columns is None:
            self.check_sound()
            try:
                columns = self._columns = self._open()
            except CorruptObjectError as error:
                self.damaged = True
                raise self._damage() from error
        return columns

    def check_sound(self) -> None:
        """Raise if the file was found to be damaged. Does not read it."""
        if self.damaged:
            raise self._damage()

    def _open(self) -> ColumnFile:
        # Reading mapped pages beyond the end of a file kills the process.
        if self._data.size() != len(self._data):
            raise _damaged(self.path)
        return column_file(pa.py_buffer(self._data), self.path, label=self._label, check=True)

    def _damage(self) -> CorruptObjectError:
        what = f"a spilled file of {self._label} is damaged: its bytes differ from those written"
        return CorruptObjectError(what, where=str(self.path), fix=_RESTORE_FIX)

    def remove(self) -> None:
        """Remove the file. Readers that have it mapped can continue."""
        self.path.unlink(missing_ok=True)


class ColumnFileWriter:
    """Writes a column file. If it is left unfinished, the file is removed."""

    def __init__(self, path: Path, kinds: Mapping[str, DType], *, max_rows: int, label: str = "") -> None:
        """Create a file whose fixed-width columns have at most `max_rows` values each."""
        self._path = path
        self._label = label
        self._finished = False
        with spill_errors(path):
            self.descriptor = new_descriptor(path, os.O_RDWR)
        self._kinds = {name: np.dtype(kind) for name, kind in kinds.items()}
        self._fixed: dict[str, ChecksummedWriter] = {}
        end = 0
        for name, kind in self._kinds.items():
            self._fixed[name] = ChecksummedWriter(self.descriptor, end)
            end += -(-max_rows * kind.itemsize // _ALIGNED) * _ALIGNED
        self._stream = ChecksummedWriter(self.descriptor, end)
        self._others: pa.RecordBatchStreamWriter | None = None

    @classmethod
    def in_folder(cls, folder: SpillFolder, kinds: Mapping[str, DType], *, max_rows: int, label: str) -> Self:
        """Create a file that lives no longer than this process. The label names its owner in errors about damage."""
        return cls(folder.new_file(".columns"), kinds, max_rows=max_rows, label=label)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)
        if not self._finished:
            self._path.unlink(missing_ok=True)

    def append(self, name: str, values: Values) -> None:
        """Append values to a fixed-width column."""
        data = np.ascontiguousarray(values, dtype=self._kinds[name]).view(np.uint8)
        with spill_errors(self._path):
            self._fixed[name].write(data.data)

    def append_others(self, rows: pa.Table) -> None:
        """Append rows of the other columns."""
        with spill_errors(self._path):
            if self._others is None:
                self._others = pa.ipc.new_stream(pa.PythonFile(self._stream, mode="w"), rows.schema)
            self._others.write_table(rows)

    def count(self, name: str) -> int:
        """Return the number of values in a fixed-width column so far."""
        return self._fixed[name].size // self._kinds[name].itemsize

    def written(self, name: str) -> Values:
        """Map the values that a fixed-width column has so far."""
        start, kind, count = self._fixed[name].start, self._kinds[name], self.count(name)
        if not count:
            return np.zeros(0, dtype=kind)
        with spill_errors(self._path):
            return np.asarray(np.memmap(self._path, kind, mode="r", offset=start, shape=(count,)))

    def seal(self) -> None:
        """Write the directory, which completes the file: from now on it is kept."""
        with spill_errors(self._path):
            if self._others is not None:
                self._others.close()
            stream = self._stream
            directory = msgspec.msgpack.encode(
                _ColumnDirectory(
                    label=self._label,
                    parts={
                        name: _ColumnPart(part.start, part.size, part.checksum, self._kinds[name].str)
                        for name, part in self._fixed.items()
                    },
                    others=None
                    if self._others is None
                    else _ColumnPart(stream.start, stream.size, stream.checksum, ""),
                )
            )
            tail = _TAIL.pack(len(directory), int(google_crc32c.value(directory)), _MAGIC)
            ChecksummedWriter(self.descriptor, stream.start + stream.size).write(directory + tail)
        self._finished = True

    def finish(self) -> SpilledColumns:
        """Complete the file and map it."""
        self.seal()
        try:
            data = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size, access=mmap.ACCESS_READ)
        except BaseException:
            self._finished = False
            raise
        size = self._stream.size + sum(part.size for part in self._fixed.values())
        return SpilledColumns(data, self._path, size=size, label=self._label)


def mapped(descriptor: int) -> pa.Buffer:
    """Map the bytes of an open file. They stay readable after it is closed or removed."""
    size = os.fstat(descriptor).st_size
    return pa.py_buffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b"")


def column_file(data: pa.Buffer, path: Path, *, label: str, check: bool) -> ColumnFile:
    """Return the columns in a buffer, after checking that it is complete. With `check`, verify the checksum of every
    part.
    """
    directory = _directory(data, path, label=label)
    fixed = {
        name: np.frombuffer(_part(data, part, path, check=check), np.dtype(part.kind))
        for name, part in directory.parts.items()
    }
    others = None
    if directory.others is not None:
        others = pa.ipc.open_stream(_part(data, directory.others, path, check=check)).read_all()
    every = [*directory.parts.values(), *([] if directory.others is None else [directory.others])]
    return ColumnFile(path=path, size=sum(part.size for part in every), fixed=fixed, others=others)


def _directory(data: pa.Buffer, path: Path, *, label: str) -> _ColumnDirectory:
    if data.size < _TAIL.size:
        raise _damaged(path)
    size, checksum, magic = _TAIL.unpack(data.slice(data.size - _TAIL.size))
    start = data.size - _TAIL.size - size
    if magic != _MAGIC or start < 0 or int(google_crc32c.value(data.slice(start, size))) != checksum:
        raise _damaged(path)
    try:
        directory = msgspec.msgpack.decode(data.slice(start, size), type=_ColumnDirectory)
    except msgspec.DecodeError as error:
        raise _damaged(path) from error
    if directory.label != label:
        raise _damaged(path)
    return directory


def _part(data: pa.Buffer, part: _ColumnPart, path: Path, *, check: bool) -> pa.Buffer:
    if not part.size:
        return pa.py_buffer(b"")
    if part.start + part.size > data.size:
        raise _damaged(path)
    content = data.slice(part.start, part.size)
    if check and int(google_crc32c.value(content)) != part.checksum:
        raise _damaged(path)
    return content


def _damaged(path: Path) -> CorruptObjectError:
    return CorruptObjectError(
        "a spilled segment is damaged: its bytes differ from those written", where=str(path), fix=LOST_FIX
    )
