"""Values of one column written to local files and read back as one mapped array, for results larger than memory.

Arrow needs the items of a list next to each other, which the batches of `SpooledRows` are not. The buffers are written
as they are: one file of values, and for text and binaries a second one of offsets. The files are removed as soon as
they are mapped. Booleans, which take a bit each, and types of another layout stay in memory.
"""

from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from statebed.errors import ResultTooLargeError
from statebed.state.memory.pages import count_processed
from statebed.state.tiers.spill_folder import SpillFolder, spill_error

_WHAT = "cannot write values to the folder for spilled state"
MAX_BYTES = (1 << 31) - 1
"""Bytes of text, or number of items, that 32-bit offsets can address."""


class SpooledValues:
    """Values of one type without nulls, appended in pieces."""

    def __init__(self, folder: SpillFolder, kind: pa.DataType, *, where: str = "") -> None:
        self.kind = kind
        self.nbytes = 0
        """Bytes of values written so far."""
        self._count = 0
        self._where = where
        self._folder = folder
        self._files: list[tuple[Path, BinaryIO]] = []
        self._held: list[pa.Array] = []

    def append(self, values: pa.Array) -> None:
        """Write values behind those before them."""
        assert not values.null_count
        self._count += len(values)
        if _stays_in_memory(self.kind):
            self._held.append(values)
        elif _has_offsets(self.kind):
            offsets = _offsets(values)
            first, last = int(offsets[0]), int(offsets[-1])
            self._check(last - first)
            begins = offsets - first + self.nbytes
            self._write(1, (begins if len(self._files) <= 1 else begins[1:]).astype(np.int32))
            self.append_bytes(values.buffers()[2][first:last] if last > first else b"")
        else:
            width = self.kind.bit_width // 8
            data = values.buffers()[1]
            self.append_bytes(data[values.offset * width : (values.offset + len(values)) * width] if data else b"")

    def append_bytes(self, data: pa.Buffer | bytes) -> None:
        """Write bytes of text; the caller knows where its values end."""
        self._check(len(data))
        self._write(0, data)
        self.nbytes += len(data)

    def array(self) -> pa.Array:
        """Return all values. Nothing can be appended afterwards."""
        if _stays_in_memory(self.kind):
            return pa.concat_arrays([pa.nulls(0, self.kind), *self._held])
        data = self.buffer()
        offsets = [self._mapped(1) or pa.py_buffer(np.zeros(1, dtype=np.int32))] if _has_offsets(self.kind) else []
        return pa.Array.from_buffers(self.kind, self._count, [None, *offsets, data])

    def buffer(self) -> pa.Buffer:
        """Return the bytes of all values. Nothing can be appended afterwards."""
        return self._mapped(0) or pa.py_buffer(b"")

    def close(self) -> None:
        """Remove the files if the values were not read."""
        for path, file in self._files:
            file.close()
            path.unlink(missing_ok=True)

    def _check(self, more: int) -> None:
        if (_has_offsets(self.kind) and self.nbytes + more > MAX_BYTES) or self._count > MAX_BYTES:
            raise ResultTooLargeError(
                "a collected result has more than 2 GiB of text or 2**31 items, which one value cannot hold",
                where=self._where,
                fix="collect fewer values with `limit=`, use a window, or emit rows: group by key and value",
            )

    def _write(self, number: int, data: object) -> None:
        try:
            while len(self._files) <= number:
                path = self._folder.new_file(".values")
                self._files.append((path, path.open("wb", buffering=0)))
            view = memoryview(data).cast("B")  # type: ignore[arg-type]  # numpy arrays and Arrow buffers have one
            while len(view):
                view = view[self._files[number][1].write(view) :]
        except OSError as error:
            raise spill_error(_WHAT, self._folder.path, error) from error
        count_processed(memoryview(data).nbytes)  # type: ignore[arg-type]

    def _mapped(self, number: int) -> pa.Buffer | None:
        if len(self._files) <= number:
            return None
        path, file = self._files[number]
        try:
            file.close()
            return pa.memory_map(str(path)).read_buffer() if path.stat().st_size else None
        except OSError as error:
            raise spill_error(_WHAT, path, error) from error
        finally:
            path.unlink(missing_ok=True)


def _has_offsets(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _stays_in_memory(kind: pa.DataType) -> bool:
    fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    return pa.types.is_boolean(kind) or not (fixed or _has_offsets(kind))


def _offsets(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the offsets of text or binaries, one more than there are values."""
    buffers = values.buffers()
    if buffers[1] is None or not len(values):
        return np.zeros(1, dtype=np.int64)
    return np.frombuffer(buffers[1], dtype=np.int32, count=len(values) + 1, offset=4 * values.offset).astype(np.int64)
