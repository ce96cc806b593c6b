"""New files of keyed tables, written piece by piece to local disk and cut by size."""

from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import int64_values, uint64_values
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import KEY_HASH
from statebed.format.segment import SegmentSpec
from statebed.state.tiers.spill_files import ParquetFile, ParquetSpill
from statebed.state.tiers.spill_folder import SpillFolder

_TEXT_TYPES = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
_OTHER_BYTES = 64


class RangeFiles:
    """Local files that together cover a range of hashes, each with at most about `file_bytes` of rows.

    The boundaries depend on the rows alone, not on the pieces in which they are written. Unless `finish` is called, all
    files are removed at the end.
    """

    def __init__(
        self, spec: SegmentSpec, folder: SpillFolder, *, owned: pb.HashRange, level: int, file_bytes: int
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._owned = owned
        self._level = level
        self._file_bytes = file_bytes
        self._open: ParquetSpill | None = None
        self._spent = 0.0
        self._done: list[ParquetFile] = []
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._open is not None:
            self._open.__exit__(kind, error, at)
        if not self._finished:
            for file in self._done:
                file.path.unlink(missing_ok=True)

    def write(self, rows: pa.Table) -> None:
        """Append rows in the order of hashes. All rows of a hash have to be in one piece."""
        hashes = uint64_values(rows[KEY_HASH])
        sizes = np.cumsum(row_bytes(rows))
        start = 0
        while start < rows.num_rows:
            before = sizes[start - 1] if start else 0.0
            full = int(np.searchsorted(sizes, before + self._file_bytes - self._spent, side="right"))
            full = max(full, start if self._spent else start + 1)
            # All rows of a hash stay in one file.
            end = int(np.searchsorted(hashes, hashes[full - 1], side="right")) if full > start else start
            if end > start:
                self._writer().write(rows.slice(start, end - start))
                self._spent += float(sizes[end - 1] - before)
            if end < rows.num_rows:
                self._close()
            start = end

    def finish(self) -> tuple[ParquetFile, ...]:
        """Close and return the files; there are none if there were no rows."""
        self._close()
        firsts = [self._owned.first, *(int(file.entry.min_key_hash) for file in self._done[1:])]
        lasts = [*(first - 1 for first in firsts[1:]), self._owned.last]
        for file, first, last in zip(self._done, firsts, lasts, strict=bool(self._done)):
            file.entry.owned.CopyFrom(pb.HashRange(first=first, last=last))
        self._finished = True
        return tuple(self._done)

    def _writer(self) -> ParquetSpill:
        if self._open is None:
            self._open = ParquetSpill(self._spec, self._folder, owned=self._owned, level=self._level)
        return self._open

    def _close(self) -> None:
        if self._open is not None:
            with self._open as spill:
                self._done.append(spill.finish())
            self._open, self._spent = None, 0.0


def row_bytes(rows: pa.Table) -> npt.NDArray[np.float64]:
    """Return the approximate size of each row, which depends on its values alone."""
    sizes = np.zeros(rows.num_rows)
    for column in rows.columns:
        if column.type in _TEXT_TYPES:
            sizes += int64_values(pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()))
        else:
            sizes += column.type.bit_width / 8 if pa.types.is_primitive(column.type) else _OTHER_BYTES
    return sizes
