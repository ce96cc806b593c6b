"""Columns of numbers, times and booleans: numpy arrays of their bits, so that a write is a scatter."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import boolean_values, fixed_width_values, from_numpy, validity
from statebed.arrays.mutable.column import AnyColumn, Mask, Places, Rows, equal_where, equal_words, taken

_BITS: dict[int, type[np.unsignedinteger[Any]]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


class FixedColumn:
    """Values of a fixed width, zero at nulls.

    A column without values takes no memory: its arrays repeat one element, and it is copied without touching its rows.
    """

    def __init__(self, kind: pa.DataType, bits: npt.NDArray[np.generic], valid: Mask | None) -> None:
        self.kind = kind
        self.bits = bits
        self.valid = valid

    @classmethod
    def nulls(cls, kind: pa.DataType, count: int) -> "FixedColumn":
        """Return a column without values."""
        dtype = np.uint8 if pa.types.is_boolean(kind) else _BITS[kind.bit_width]
        return cls(kind, *_without_values(dtype, count))

    @classmethod
    def over(cls, array: pa.Array) -> "FixedColumn":
        """Return a read-only column over the values, without a copy if possible."""
        return cls(array.type, *_parts(array))

    @classmethod
    def of(cls, array: pa.Array) -> "FixedColumn":
        return cls(array.type, *_parts(array)).copied()

    def __len__(self) -> int:
        return len(self.bits)

    @property
    def all_null(self) -> bool:
        """Whether the column has no values."""
        return _repeats_one(self.valid)

    @property
    def held_bytes(self) -> int:
        if self.all_null:
            return 0
        return self.bits.nbytes + (0 if self.valid is None else self.valid.nbytes)

    def take(self, rows: Rows) -> pa.Array:
        """Return the values in some rows."""
        return self.select(rows).array()

    def array(self) -> pa.Array:
        """Return all values, without a copy if possible; the column must not be written while they are used."""
        if self.all_null:
            return pa.nulls(len(self), self.kind)
        if not pa.types.is_boolean(self.kind):
            return from_numpy(self.bits, self.kind, valid=self.valid)
        packed = pa.py_buffer(np.packbits(self.bits.astype(np.bool_), bitorder="little"))
        bitmap = None if self.valid is None else pa.py_buffer(np.packbits(self.valid, bitorder="little"))
        return pa.Array.from_buffers(self.kind, len(self), [bitmap, packed])

    def put(self, rows: Rows, array: pa.Array) -> "FixedColumn":
        """Write values in place, and return the column to use from then on."""
        bits, valid = _parts(array)
        if self.all_null:
            if _repeats_one(valid):
                return self
            self.bits, self.valid = self.bits.copy(), self.filled_validity().copy()
        self.bits[rows] = bits
        if valid is not None and self.valid is None:
            self.valid = np.ones(len(self.bits), dtype=np.bool_)
        if self.valid is not None:
            self.valid[rows] = True if valid is None else valid
        return self

    def equals(self, rows: Rows, array: pa.Array) -> Mask:
        """Return whether the value in each row equals the one in the array: nulls and equal bits are equal."""
        every = np.arange(len(rows), dtype=np.int64)
        return self.matches(rows, FixedColumn.over(array), every, np.ones(len(rows), dtype=np.bool_))

    def matches(self, rows: Rows, other: AnyColumn, others: Rows, maybe: Mask) -> Mask:
        """Return, where `maybe` is set, whether the value in each row equals that of the other column."""
        assert isinstance(other, FixedColumn)
        equal = maybe
        if not (self.all_null or other.all_null):
            equal = equal_words((self.bits,), rows, (other.bits,), others, maybe)
        if other.valid is None and self.valid is None:
            return equal
        return equal_where(equal, rows, others, lambda ours, theirs: self.valid_at(ours) == other.valid_at(theirs))

    def repeats(self, maybe: Mask) -> Mask:
        """Return, where `maybe` is set, whether each row from the second on equals the row before it."""
        equal: Mask = self.bits[1:] == self.bits[:-1]
        equal &= maybe
        if self.valid is not None:
            equal &= self.valid[1:] == self.valid[:-1]
        return equal

    def select(self, rows: Rows) -> "FixedColumn":
        if self.all_null:
            return FixedColumn.nulls(self.kind, len(rows))
        return FixedColumn(self.kind, self.bits.take(rows), None if self.valid is None else self.valid.take(rows))

    def where(self, wanted: Mask) -> "FixedColumn":
        """Return a read-only column that is null in the other rows as well."""
        if self.all_null:
            return self
        return FixedColumn(self.kind, self.bits, wanted if self.valid is None else self.valid & wanted)

    def copied(self) -> "FixedColumn":
        """Return a copy that may be written."""
        if self.all_null:
            return FixedColumn.nulls(self.kind, len(self))
        return FixedColumn(self.kind, self.bits.copy(), None if self.valid is None else self.valid.copy())

    def slice(self, start: int, end: int) -> "FixedColumn":
        """Return a read-only view of adjacent rows."""
        return FixedColumn(self.kind, self.bits[start:end], None if self.valid is None else self.valid[start:end])

    def merged(self, others: Sequence[AnyColumn], places: Places) -> "FixedColumn":
        """Merge this column and others."""
        columns = [self, *(other for other in others if isinstance(other, FixedColumn))]
        if all(column.all_null for column in columns):
            return FixedColumn.nulls(self.kind, sum(map(len, columns)))
        valid = None
        if any(column.valid is not None for column in columns):
            valid = places.merge([column.filled_validity() for column in columns])
        return FixedColumn(self.kind, places.merge([column.bits for column in columns]), valid)

    def valid_at(self, rows: Rows) -> Mask:
        """Return whether some rows are not null."""
        return np.ones(len(rows), dtype=np.bool_) if self.valid is None else self.valid.take(rows)

    def filled_validity(self) -> Mask:
        return np.ones(len(self.bits), dtype=np.bool_) if self.valid is None else self.valid


def is_fixed(kind: pa.DataType) -> bool:
    """Return whether values of the type have a fixed width that a numpy array supports."""
    return pa.types.is_boolean(kind) or (pa.types.is_primitive(kind) and kind.bit_width in _BITS)


def with_values(array: pa.Array, rows: Rows, values: pa.Array) -> pa.Array:
    """Return the array with other values in some rows."""
    if is_fixed(array.type) and not pa.types.is_boolean(array.type) and not array.null_count and not values.null_count:
        bits = _parts(array)[0].copy()
        bits[rows] = _parts(values)[0]
        return from_numpy(bits, array.type)
    source = np.arange(len(array), dtype=np.int64)
    source[rows] = len(array) + np.arange(len(rows), dtype=np.int64)
    return taken(pa.concat_arrays([array, values]), source)


def _parts(array: pa.Array) -> tuple[npt.NDArray[np.generic], Mask | None]:
    """Return the bits of each value, zero at nulls, and the validity (None if there are no nulls)."""
    if len(array) and array.null_count == len(array):
        column = FixedColumn.nulls(array.type, len(array))
        return column.bits, column.valid
    if pa.types.is_boolean(array.type):
        bits: npt.NDArray[np.generic] = boolean_values(array).astype(np.uint8)
    else:
        bits = fixed_width_values(array, _BITS[array.type.bit_width])
    if not array.null_count:
        return bits, None
    valid = validity(array)
    return np.where(valid, bits, np.zeros(1, dtype=bits.dtype)), valid


def _without_values(dtype: type[np.generic], count: int) -> tuple[npt.NDArray[np.generic], Mask]:
    return np.broadcast_to(np.zeros((), dtype=dtype), count), np.broadcast_to(np.False_, count)


def _repeats_one(valid: Mask | None) -> bool:
    return valid is not None and valid.strides == (0,)
