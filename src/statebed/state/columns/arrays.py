"""What all kinds of columns share: rows by number, where rows of two runs go, arrays compared and changed."""

from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.format.columns import boolean_values, fixed_width_values, from_numpy, one_chunk, validity
from statebed.format.order import sortable

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

N = TypeVar("N", bound=np.generic)

_WIDE = 64


class AnyColumn(Protocol):
    """What every kind of column offers to the others."""

    def __len__(self) -> int: ...

    def take(self, rows: Rows) -> pa.Array:
        """The values in some rows."""

    def equals(self, rows: Rows, array: pa.Array) -> Mask:
        """Whether the value in each row is the one of the array."""


class Places:
    """Where the rows of two sorted runs go when they become one."""

    def __init__(self, before: Rows, count: int) -> None:
        """The other run's row i goes right before our row `before[i]`; we have `count` rows."""
        self._theirs = before + np.arange(len(before), dtype=np.int64)
        ours = np.ones(count + len(before), dtype=np.bool_)
        ours[self._theirs] = False
        self._ours = np.flatnonzero(ours)

    def merge(self, ours: npt.NDArray[N], theirs: npt.NDArray[N]) -> npt.NDArray[N]:
        merged = np.empty(len(self._ours) + len(self._theirs), dtype=ours.dtype)
        merged[self._ours] = ours
        merged[self._theirs] = theirs
        return merged


def equal_values(ours: pa.Array, theirs: pa.Array) -> Mask:
    """Whether values are equal, one by one; null equals null."""
    ours, theirs = sortable(ours), sortable(theirs)
    if pa.types.is_null(ours.type):
        return np.ones(len(ours), dtype=np.bool_)
    equal = boolean_values(pc.equal(ours, theirs))
    if ours.null_count and theirs.null_count:
        equal |= ~validity(ours) & ~validity(theirs)
    return equal


def plain(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """The column as one array of exactly this type."""
    array = one_chunk(column)
    return array if array.type == kind else array.cast(kind)


def taken(array: pa.Array, rows: Rows) -> pa.Array:
    """Some rows of an array, in the order given."""
    if pa.types.is_primitive(array.type) and array.type.bit_width == _WIDE and not array.null_count:
        return from_numpy(fixed_width_values(array, np.uint64).take(rows), array.type)
    return array.take(from_numpy(rows, pa.int64()))
