"""Columns of keyed state in memory: read, written in place and grown by row number.

A `FixedColumn` holds numbers, times and booleans as a numpy array, so that a write is a scatter. A `HeapColumn` holds
everything else (text, binary, decimals, nested types) as pieces of Arrow arrays, and for each row its place in them: a
write appends the new values and repoints the rows, and what no row points to any more is left behind until it outweighs
the rest.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.format.columns import boolean_values, fixed_width_values, from_numpy, one_chunk, validity

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

N = TypeVar("N", bound=np.generic)

_BITS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_SPARE_HEAP_ROWS = 4096
_SMALL_AGAINST = 5


class FixedColumn:
    """Values of one fixed width, zero where they are null."""

    def __init__(self, kind: pa.DataType, bits: npt.NDArray[np.generic], valid: Mask | None) -> None:
        self.kind = kind
        self.bits = bits
        self.valid = valid

    @classmethod
    def of(cls, array: pa.Array) -> "FixedColumn":
        bits, valid = _fixed_parts(array)
        return cls(array.type, bits.copy(), None if valid is None else valid.copy())

    @property
    def held_bytes(self) -> int:
        return self.bits.nbytes + (0 if self.valid is None else self.valid.nbytes)

    def take(self, rows: Rows) -> pa.Array:
        valid = None if self.valid is None else self.valid[rows]
        bits = self.bits[rows]
        if not pa.types.is_boolean(self.kind):
            return from_numpy(bits, self.kind, valid=valid)
        packed = pa.py_buffer(np.packbits(bits.astype(np.bool_), bitorder="little"))
        bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(self.kind, len(rows), [bitmap, packed])

    def put(self, rows: Rows, array: pa.Array) -> None:
        bits, valid = _fixed_parts(array)
        self.bits[rows] = bits
        if valid is not None and self.valid is None:
            self.valid = np.ones(len(self.bits), dtype=np.bool_)
        if self.valid is not None:
            self.valid[rows] = True if valid is None else valid

    def equals(self, rows: Rows, array: pa.Array) -> Mask:
        """Whether the value in each row is the one of the array: nulls and equal bits are equal."""
        bits, valid = _fixed_parts(array)
        equal: Mask = self.bits[rows] == bits
        if valid is None and self.valid is None:
            return equal
        ours = np.ones(len(rows), dtype=np.bool_) if self.valid is None else self.valid[rows]
        equal &= ours if valid is None else ours == valid
        return equal

    def select(self, rows: Rows) -> "FixedColumn":
        return FixedColumn(self.kind, self.bits[rows], None if self.valid is None else self.valid[rows])

    def merged(self, other: "FixedColumn", places: "Places") -> "FixedColumn":
        valid = None
        if self.valid is not None or other.valid is not None:
            valid = places.merge(self.filled_validity(), other.filled_validity())
        return FixedColumn(self.kind, places.merge(self.bits, other.bits), valid)

    def filled_validity(self) -> Mask:
        return np.ones(len(self.bits), dtype=np.bool_) if self.valid is None else self.valid


class HeapColumn:
    """Values of any type, as places in Arrow arrays."""

    def __init__(self, pieces: Sequence[pa.Array], at: Rows) -> None:
        self.pieces = list(pieces)
        self.at = at

    @classmethod
    def of(cls, array: pa.Array) -> "HeapColumn":
        # Concatenating copies: a slice would pin its parent.
        return cls([pa.concat_arrays([array])], np.arange(len(array), dtype=np.int64))

    @property
    def held_bytes(self) -> int:
        return self.at.nbytes + sum(int(piece.nbytes) for piece in self.pieces)

    def take(self, rows: Rows) -> pa.Array:
        at = self.at[rows]
        if len(self.pieces) == 1:
            return self.pieces[0].take(from_numpy(at, pa.int64()))
        starts = self._starts()
        piece_of = np.searchsorted(starts, at, side="right") - 1
        order = np.argsort(piece_of, kind="stable")
        parts = [
            piece.take(from_numpy(at[piece_of == index] - starts[index], pa.int64()))
            for index, piece in enumerate(self.pieces)
        ]
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order), dtype=np.int64)
        return pa.concat_arrays(parts).take(from_numpy(back, pa.int64()))

    def put(self, rows: Rows, array: pa.Array) -> None:
        if not len(rows):
            return
        self.at[rows] = self._add([pa.concat_arrays([array])]) + np.arange(len(array), dtype=np.int64)
        if self._heap_rows() > 2 * len(self.at) + _SPARE_HEAP_ROWS:
            self.pieces = [self.take(np.arange(len(self.at), dtype=np.int64))]
            self.at = np.arange(len(self.at), dtype=np.int64)

    def equals(self, rows: Rows, array: pa.Array) -> Mask:
        return _equal_values(self.take(rows), array)

    def select(self, rows: Rows) -> "HeapColumn":
        return HeapColumn([self.take(rows)], np.arange(len(rows), dtype=np.int64))

    def merged(self, other: "HeapColumn", places: "Places") -> "HeapColumn":
        at = places.merge(self.at, other.at + self._heap_rows())
        if len(self.at) > _SMALL_AGAINST * len(other.at):
            # Little is added to an overlay, batch after batch: copying all of it each time would cost most.
            column = HeapColumn(self.pieces, at)
            column._add(other.pieces)
            return column
        # Large runs are merged seldom and read often: one piece is read fastest.
        return HeapColumn([pa.concat_arrays([*self.pieces, *other.pieces])], at)

    def _add(self, pieces: Sequence[pa.Array]) -> int:
        """Append pieces, keep each one at least as large as all after it, and give the place of the first new value."""
        first = self._heap_rows()
        self.pieces = [piece for piece in (*self.pieces, *pieces) if len(piece)] or list(pieces[:1])
        while len(self.pieces) > 1 and len(self.pieces[-2]) < 2 * len(self.pieces[-1]):
            last = self.pieces.pop()
            self.pieces[-1] = pa.concat_arrays([self.pieces[-1], last])
        return first

    def _heap_rows(self) -> int:
        return sum(len(piece) for piece in self.pieces)

    def _starts(self) -> Rows:
        return np.cumsum([0, *(len(piece) for piece in self.pieces[:-1])], dtype=np.int64)


Column = FixedColumn | HeapColumn


class Places:
    """Where the rows of two sorted runs go when they become one."""

    def __init__(self, before: Rows, count: int) -> None:
        """The other run's row i goes right before our row `before[i]`; we have `count` rows."""
        self._theirs = before + np.arange(len(before), dtype=np.int64)
        gaps = np.diff(before, prepend=0, append=count)
        gaps[:-1] += 1
        # For each row of the result one of ours: its own, or any (even one too far) where theirs goes.
        self._ours = np.arange(count + len(before), dtype=np.int64)
        self._ours -= np.repeat(np.arange(len(gaps), dtype=np.int64), gaps)
        self._count = count

    def merge(self, ours: npt.NDArray[N], theirs: npt.NDArray[N]) -> npt.NDArray[N]:
        if not self._count:
            return theirs.copy()
        merged = ours.take(self._ours, mode="clip")
        merged[self._theirs] = theirs
        return merged


def column_of(array: pa.Array) -> Column:
    """A column that holds a copy of the array's values."""
    return FixedColumn.of(array) if _is_fixed(array.type) else HeapColumn.of(array)


def equal_rows(array: pa.Array, some: Rows, others: Rows) -> Mask:
    """Whether the values in some rows are those in others, as columns compare them."""
    if not _is_fixed(array.type):
        return _equal_values(array.take(from_numpy(some, pa.int64())), array.take(from_numpy(others, pa.int64())))
    bits, valid = _fixed_parts(array)
    equal: Mask = bits[some] == bits[others]
    return equal if valid is None else equal & (valid[some] == valid[others])


def with_values(array: pa.Array, rows: Rows, values: pa.Array) -> pa.Array:
    """The array, with other values in some rows."""
    if _is_fixed(array.type) and not pa.types.is_boolean(array.type) and not array.null_count and not values.null_count:
        bits = _fixed_parts(array)[0].copy()
        bits[rows] = _fixed_parts(values)[0]
        return from_numpy(bits, array.type)
    source = np.arange(len(array), dtype=np.int64)
    source[rows] = len(array) + np.arange(len(rows), dtype=np.int64)
    return pa.concat_arrays([array, values]).take(from_numpy(source, pa.int64()))


def _equal_values(ours: pa.Array, theirs: pa.Array) -> Mask:
    equal = boolean_values(pc.equal(ours, theirs))
    if ours.null_count and theirs.null_count:
        equal |= ~validity(ours) & ~validity(theirs)
    return equal


def plain(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """The column as one array of exactly this type."""
    array = one_chunk(column)
    return array if array.type == kind else array.cast(kind)


def _is_fixed(kind: pa.DataType) -> bool:
    return pa.types.is_boolean(kind) or (pa.types.is_primitive(kind) and kind.bit_width in _BITS)


def _fixed_parts(array: pa.Array) -> tuple[npt.NDArray[np.generic], Mask | None]:
    """The bits of each value, zero at nulls, and where there are values (None: everywhere)."""
    if pa.types.is_boolean(array.type):
        bits: npt.NDArray[np.generic] = boolean_values(array).astype(np.uint8)
    else:
        bits = fixed_width_values(array, _BITS[array.type.bit_width])
    if not array.null_count:
        return bits, None
    valid = validity(array)
    return np.where(valid, bits, np.zeros(1, dtype=bits.dtype)), valid
