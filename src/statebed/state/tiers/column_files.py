"""Columns in one mapped file on local disk: each lies in one piece, though all of them grow piece by piece.

A column of fixed width has room for the most values that it can get; what it does not use stays a hole, which takes no
disk. Columns of other types follow as one Arrow IPC stream with a record batch for each piece. All bytes are checked
when the file is mapped.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.errors import CorruptObjectError
from statebed.state.tiers.spill_files import LOST_FIX, Checksummed, new_descriptor, spill_errors
from statebed.state.tiers.spill_folder import SpillFolder

Values = npt.NDArray[np.generic]
_ALIGNED = 64


@dataclass(frozen=True)
class ColumnFile:
    """A mapped file: no memory of the process beyond clean pages, which the kernel drops at will."""

    path: Path
    size: int
    """Bytes of disk, without holes."""
    fixed: Mapping[str, Values]
    others: pa.Table | None

    def remove(self) -> None:
        """Remove the file; whoever reads it at the moment reads on."""
        self.path.unlink(missing_ok=True)


class ColumnFileWriter:
    """A file in the making; left unfinished, it is removed."""

    def __init__(self, folder: SpillFolder, kinds: Mapping[str, npt.DTypeLike], *, most: int) -> None:
        """Fixed-width columns of at most so many values."""
        self._path = folder.new_file(".columns")
        self._finished = False
        with spill_errors(self._path):
            self._descriptor = new_descriptor(self._path, os.O_RDWR)
        self._kinds = {name: np.dtype(kind) for name, kind in kinds.items()}
        self._fixed: dict[str, Checksummed] = {}
        end = 0
        for name, kind in self._kinds.items():
            self._fixed[name] = Checksummed(self._descriptor, end)
            end += -(-most * kind.itemsize // _ALIGNED) * _ALIGNED
        self._stream = Checksummed(self._descriptor, end)
        self._others: pa.RecordBatchStreamWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        if not self._finished:
            self._path.unlink(missing_ok=True)

    def append(self, name: str, values: Values) -> None:
        """More values of a fixed-width column."""
        data = np.ascontiguousarray(values, dtype=self._kinds[name]).view(np.uint8)
        with spill_errors(self._path):
            self._fixed[name].write(data.data)

    def append_others(self, rows: pa.Table) -> None:
        """More rows of the other columns."""
        with spill_errors(self._path):
            if self._others is None:
                self._others = pa.ipc.new_stream(pa.PythonFile(self._stream, mode="w"), rows.schema)
            self._others.write_table(rows)

    def count(self, name: str) -> int:
        """How many values a fixed-width column has so far."""
        return self._fixed[name].size // self._kinds[name].itemsize

    def written(self, name: str) -> Values:
        """The values that a fixed-width column has so far, mapped."""
        start, kind, count = self._fixed[name].start, self._kinds[name], self.count(name)
        if not count:
            return np.zeros(0, dtype=kind)
        with spill_errors(self._path):
            return np.asarray(np.memmap(self._path, kind, mode="r", offset=start, shape=(count,)))

    def finish(self) -> ColumnFile:
        """Map the file, checked."""
        with spill_errors(self._path):
            if self._others is not None:
                self._others.close()
            data = pa.py_buffer(b"")
            if os.fstat(self._descriptor).st_size:
                with pa.memory_map(str(self._path)) as file:
                    data = file.read_buffer()
        fixed = {
            name: np.frombuffer(self._checked(data, part), self._kinds[name]) for name, part in self._fixed.items()
        }
        others = self._checked(data, self._stream)
        self._finished = True
        return ColumnFile(
            path=self._path,
            size=self._stream.size + sum(part.size for part in self._fixed.values()),
            fixed=fixed,
            others=None if self._others is None else pa.ipc.open_stream(others).read_all(),
        )

    def _checked(self, data: pa.Buffer, written: Checksummed) -> pa.Buffer:
        there = max(min(data.size - written.start, written.size), 0)
        part = data.slice(written.start, there) if there else pa.py_buffer(b"")
        if there != written.size or int(google_crc32c.value(part)) != written.checksum:
            raise CorruptObjectError(
                "a spilled segment has other bytes than were written", where=str(self._path), fix=LOST_FIX
            )
        return part
