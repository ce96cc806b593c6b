"""Window functions, evaluated for each row among the rows of its key and window.

row_number, rank, dense_rank, percent_rank, cume_dist and ntile number rows in their order; lag and lead read rows
before and after; first_value and last_value read the ends of the whole window; running aggregates cover the rows from
the first up to the row itself. As in SQL, running aggregates skip nulls. A running sum of integers that overflows 64
bits is an error; a running sum of floats adds row by row, in order.
"""

import enum
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from statebed.argument_checks import check_whole_number
from statebed.arrays.columns import float64_values, from_numpy, int64_values, one_chunk, validity
from statebed.arrays.key_hash import normalise_key
from statebed.arrays.row_numbers import Doubles, Numbering, Partitions
from statebed.arrays.sort_order import Flags, Integers, codes
from statebed.errors import InputError, SumOverflowError

_LARGE = 64
"""Partitions with more rows are summed one by one; smaller ones together, position by position."""


class WindowFunction(enum.Enum):
    """Window function."""

    ROW_NUMBER = "row_number"
    RANK = "rank"
    DENSE_RANK = "dense_rank"
    PERCENT_RANK = "percent_rank"
    CUME_DIST = "cume_dist"
    NTILE = "ntile"
    LAG = "lag"
    LEAD = "lead"
    FIRST_VALUE = "first_value"
    LAST_VALUE = "last_value"
    RUNNING_COUNT = "running_count"
    RUNNING_SUM = "running_sum"
    RUNNING_MIN = "running_min"
    RUNNING_MAX = "running_max"
    RUNNING_AVG = "running_avg"


_NUMBERINGS = {
    WindowFunction.ROW_NUMBER: Numbering.ROW_NUMBER,
    WindowFunction.RANK: Numbering.RANK,
    WindowFunction.DENSE_RANK: Numbering.DENSE_RANK,
}
_SHARES = {WindowFunction.PERCENT_RANK, WindowFunction.CUME_DIST}
_MOVED = {WindowFunction.LAG, WindowFunction.LEAD}
_ADDED = {WindowFunction.RUNNING_SUM, WindowFunction.RUNNING_AVG}


@dataclass(frozen=True, repr=False)
class WindowCall:
    """Call of a window function, with a column if it takes one."""

    call: WindowFunction
    column: str | None = None
    number: int = 1
    """Number of buckets of ntile; distance in rows of lag and lead."""
    default: Any = None
    """Value of lag and lead if there is no such row."""

    BELONGS: ClassVar[str] = (
        'pass the window function to over: group_by(...).over("ts", place=sb.row_number()); '
        "an aggregate in agg is for example sb.count()"
    )

    def __repr__(self) -> str:
        """Return the call as users write it: `lag('fare', 2)`."""
        moved = self.call in _MOVED
        takes_number = self.call is WindowFunction.NTILE or (moved and (self.number != 1 or self.default is not None))
        values = [
            *([] if self.column is None else [self.column]),
            *([self.number] if takes_number else []),
            *([self.default] if moved and self.default is not None else []),
        ]
        return f"{self.call.value}({', '.join(map(repr, values))})"

    def __post_init__(self) -> None:
        check_whole_number(
            self.number,
            "buckets" if self.call is WindowFunction.NTILE else "rows",
            where=self.call.value,
            fix="pass an int, for example 2",
        )
        if self.number < 1 and self.call is WindowFunction.NTILE:
            raise InputError(
                f"the number of buckets of ntile must be at least 1, got {self.number}", fix="use at least 1 bucket"
            )
        if self.number < 0:
            raise InputError(
                f"the number of rows of {self.call.value} must not be negative, got {self.number}",
                fix="use lead to look ahead, lag to look back",
            )

    def type_in(self, columns: pa.Schema) -> pa.DataType:
        """Return the type of the result; raise InputError if the column does not exist or has an unsuitable type."""
        if self.call in _NUMBERINGS or self.call is WindowFunction.NTILE:
            return pa.int32()
        if self.call in _SHARES:
            return pa.float64()
        if self.call is WindowFunction.RUNNING_COUNT and self.column is None:
            return pa.int64()
        if self.column not in columns.names:
            raise InputError(
                f"the column {self.column!r} of {self.call.value} does not exist", fix=f"use one of {columns.names}"
            )
        kind = columns.field(self.column).type
        if self.call is WindowFunction.RUNNING_COUNT:
            return pa.int64()
        if self.call not in _ADDED:
            return kind
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) or pa.types.is_uint64(kind):
            raise InputError(
                f"{self.call.value} needs a signed integer or float column, got {self.column!r} of type {kind}",
                fix="cast it to bigint or double first",
            )
        whole = pa.types.is_integer(kind) and self.call is WindowFunction.RUNNING_SUM
        return pa.int64() if whole else pa.float64()

    def evaluate(self, rows: pa.Table, shape: Partitions) -> pa.Array:
        """Return the result for each of the sorted rows."""
        if self.call in _NUMBERINGS:
            return from_numpy(shape.numbers(_NUMBERINGS[self.call]).astype(np.int32), pa.int32())
        if self.call is WindowFunction.NTILE:
            return from_numpy(shape.ntile(self.number).astype(np.int32), pa.int32())
        if self.call in _SHARES:
            return from_numpy(
                shape.percent_rank() if self.call is WindowFunction.PERCENT_RANK else shape.cume_dist(), pa.float64()
            )
        if self.column is None:
            return from_numpy(shape.place + 1, pa.int64())
        return self._of_column(one_chunk(rows[self.column]), shape)

    def _of_column(self, column: pa.Array, shape: Partitions) -> pa.Array:
        match self.call:
            case WindowFunction.LAG | WindowFunction.LEAD:
                return self._away(column, shape)
            case WindowFunction.FIRST_VALUE:
                return column.take(from_numpy(shape.starts[shape.partition], pa.int64()))
            case WindowFunction.LAST_VALUE:
                return column.take(from_numpy(shape.starts[shape.partition] + shape.size - 1, pa.int64()))
            case WindowFunction.RUNNING_MIN | WindowFunction.RUNNING_MAX:
                return _running_extreme(column, shape, greatest=self.call is WindowFunction.RUNNING_MAX)
            case _:
                return self._running(column, shape)

    def _away(self, column: pa.Array, shape: Partitions) -> pa.Array:
        away = self.number if self.call is WindowFunction.LEAD else -self.number
        place = shape.place + away
        there = (place >= 0) & (place < shape.size)
        at = np.where(there, shape.starts[shape.partition] + place, len(column))
        beyond = pa.array([self.default], column.type)
        return pa.concat_arrays([column, beyond]).take(from_numpy(at, pa.int64()))

    def _running(self, column: pa.Array, shape: Partitions) -> pa.Array:
        valid = validity(column)
        counts = _since_start(np.cumsum(valid.astype(np.int64)), valid.astype(np.int64), shape)
        if self.call is WindowFunction.RUNNING_COUNT:
            return from_numpy(counts, pa.int64())
        has_values = counts > 0
        if pa.types.is_integer(column.type):
            whole = _running_integers(column.cast(pa.int64()), valid, shape, name=str(self.column))
            if self.call is WindowFunction.RUNNING_SUM:
                return from_numpy(whole, pa.int64(), valid=has_values)
            return from_numpy(whole / np.maximum(counts, 1), pa.float64(), valid=has_values)
        sums = _running_floats(np.where(valid, float64_values(column.cast(pa.float64())), 0.0), shape)
        if self.call is WindowFunction.RUNNING_AVG:
            sums = sums / np.maximum(counts, 1)
        return from_numpy(sums, pa.float64(), valid=has_values)


def _since_start(totals: Integers, values: Integers, shape: Partitions) -> Integers:
    """Turn running totals over all rows into running totals of each partition."""
    before = totals[shape.starts] - values[shape.starts]
    return totals - before[shape.partition]


def _running_integers(column: pa.Array, valid: Flags, shape: Partitions, *, name: str) -> Integers:
    values = np.where(valid, int64_values(column), 0)
    # The halves are added separately: neither overflows below 2**31 rows.
    low, high = values & 0xFFFFFFFF, values >> 32
    lows, highs = (_since_start(np.cumsum(half), half, shape) for half in (low, high))
    highs = highs + (lows >> 32)
    if len(highs) and (int(highs.max()) >= 1 << 31 or int(highs.min()) < -(1 << 31)):
        raise SumOverflowError(
            f"a running sum of the column {name!r} overflows 64 bits",
            fix="cast the column to double, or divide it first",
        )
    return (highs << 32) + (lows & 0xFFFFFFFF)


def _running_floats(values: Doubles, shape: Partitions) -> Doubles:
    """Return sums from the first row of each partition, added row by row."""
    sums = values.copy()
    large = shape.sizes > _LARGE
    for start, size in zip(shape.starts[large].tolist(), shape.sizes[large].tolist(), strict=True):
        sums[start : start + size] = np.cumsum(values[start : start + size])
    starts, sizes = shape.starts[~large], shape.sizes[~large]
    for place in range(1, int(sizes.max(initial=0))):
        at = starts[sizes > place] + place
        sums[at] = sums[at - 1] + values[at]
    return sums


def _running_extreme(column: pa.Array, shape: Partitions, *, greatest: bool) -> pa.Array:
    """Return the least or greatest value so far; its row is found by its rank among all rows."""
    valid = validity(column)
    count = len(column)
    # NaN counts as the greatest number, and the first of equal values is taken.
    values = codes(normalise_key(column))
    order = np.lexsort((np.arange(count), ~values if greatest else values, ~valid)).astype(np.int64)
    ranks = np.empty(count, dtype=np.int64)
    ranks[order] = np.arange(count, dtype=np.int64)
    # Later partitions have smaller numbers throughout, so the running minimum restarts with each partition.
    shifted = ranks - shape.partition * np.int64(count)
    lowest = np.minimum.accumulate(shifted) + shape.partition * np.int64(count) if count else ranks
    return column.take(from_numpy(order[lowest], pa.int64()))
