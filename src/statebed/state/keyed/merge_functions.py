"""Merge functions defined column by column: sum, minimum, maximum, first and last value.

    view.merge(keys, values, merge_columns(trips=Merge.SUM, total=Merge.SUM, latest=Merge.MAX))

Any function of two tables can merge rows. These can also fold all rows of a key within a batch in one pass, which is
several times faster if keys repeat. Sums, minima and maxima ignore nulls, as in SQL. Minima and maxima also ignore NaN,
unless there is no other value. Sums of integers that overflow their type are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import DType, fixed_width_values, from_numpy, one_chunk, validity
from statebed.arrays.compiled import loops_for
from statebed.arrays.mutable import taken
from statebed.errors import InputError
from statebed.state.arguments import check_kind

_Rows = npt.NDArray[np.int64]
_Integers = npt.NDArray[np.signedinteger[Any] | np.unsignedinteger[Any]]


class Merge(Enum):
    """Rule to merge two values of a column, an earlier and a later one."""

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    FIRST = "first"
    LAST = "last"


def merge_columns(**columns: Merge) -> "ColumnMerges":
    """Build a merge function from a rule for each value column."""
    for name, merge in columns.items():
        fix = f"give one of {', '.join(f'Merge.{rule.name}' for rule in Merge)}"
        check_kind(merge, Merge, "merge", where=f"column {name!r}", fix=fix)
    return ColumnMerges(columns)


@dataclass(frozen=True)
class ColumnMerges:
    """Merge function with one rule per column."""

    columns: Mapping[str, Merge]

    def __call__(self, old: pa.Table, new: pa.Table) -> pa.Table:
        """Merge pairs of rows, and return one row for each pair."""
        merged = [self._pairs(field, old[field.name], new[field.name]) for field in new.schema]
        return pa.Table.from_arrays(merged, schema=new.schema)

    def fold(self, values: pa.Table, order: _Rows, starts: _Rows) -> pa.Table | None:
        """Fold groups of neighbouring rows to one row each. Rows are taken in `order`, and groups begin at `starts`.

        Return None if the columns can only be merged in pairs.
        """
        folded = []
        for field in values.schema:
            column = _folded(self.columns[field.name], one_chunk(values[field.name]), order, starts)
            if column is None:
                return None
            folded.append(column)
        return pa.Table.from_arrays(folded, schema=values.schema)

    def check(self, schema: pa.Schema) -> None:
        """Raise if the value columns cannot be merged by these rules."""
        if set(self.columns) != set(schema.names):
            raise InputError(
                f"the merge has rules for the columns {sorted(self.columns)} instead of {sorted(schema.names)}",
                fix="pass one merge rule for each value column",
            )
        for field in schema:
            merge = self.columns[field.name]
            if merge in _EXTREMES and not _has_extremes(field.type):
                raise InputError(
                    f"values of the type {field.type} cannot be merged by {merge.value}",
                    where=f"column {field.name!r}",
                    fix="cast the column to a number, a time or text, or pass your own merge function",
                )
            if merge is Merge.SUM and not _has_sums(field.type):
                raise InputError(
                    f"values of the type {field.type} have no sum",
                    where=f"column {field.name!r}",
                    fix="cast the column to an integer, float or double, or pass your own merge function",
                )

    def _pairs(self, field: pa.Field, old: pa.ChunkedArray, new: pa.ChunkedArray) -> pa.ChunkedArray:
        try:
            match self.columns[field.name]:
                case Merge.SUM:
                    sums = pc.add_checked(old, new)
                    return pc.coalesce(sums, old, new) if sums.null_count else sums
                case Merge.FIRST:
                    return old
                case Merge.LAST:
                    return new
                case extreme:
                    return _extreme_of_two(extreme, old, new)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(
                f"values of the type {field.type} cannot be merged by {self.columns[field.name].value}: {error}",
                where=f"column {field.name!r}",
                fix="use a wider type, or pass your own merge function",
            ) from error


_EXTREMES = (Merge.MIN, Merge.MAX)


def _extreme_of_two(merge: Merge, old: pa.ChunkedArray, new: pa.ChunkedArray) -> pa.ChunkedArray:
    function = pc.min_element_wise if merge is Merge.MIN else pc.max_element_wise
    kind = new.type
    if not _is_time(kind):
        return function(old, new)
    # Arrow cannot compare timestamps with a time zone here; all timestamps order like their integers.
    number = pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64()
    extremes = function(one_chunk(old).view(number), one_chunk(new).view(number))
    return pa.chunked_array([extremes.view(kind)])


def _has_extremes(kind: pa.DataType) -> bool:
    nothing = pa.chunked_array([], kind)
    try:
        return bool(_extreme_of_two(Merge.MIN, nothing, nothing).type == kind)
    except pa.ArrowNotImplementedError:
        return False


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) and not pa.types.is_interval(kind))


def _has_sums(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _folded(merge: Merge, column: pa.Array, order: _Rows, starts: _Rows) -> pa.Array | None:
    match merge:
        case Merge.FIRST:
            return taken(column, order.take(starts))
        case Merge.LAST:
            return taken(column, order.take(np.append(starts[1:], len(column)) - 1))
        case Merge.SUM:
            return _sums(column, order, starts)
        case _:
            return _extremes(merge, column, order, starts)


def _sums(column: pa.Array, order: _Rows, starts: _Rows) -> pa.Array | None:
    values = fixed_width_values(column, _numpy_type(column.type))
    valid = None
    if column.null_count:
        valid = validity(column)
        values = np.where(valid, values, np.zeros(1, dtype=values.dtype))
        valid = np.logical_or.reduceat(valid.take(order), starts)
    integers = values.dtype.kind in "iu"
    if integers and not _surely_fits(cast("_Integers", values), starts):
        return None
    if integers and (loops := loops_for(len(values))) is not None:
        sums = loops.add_up(values, order, starts)
    else:
        # Without the explicit type, numpy adds small integers up in 64 bits.
        sums = np.add.reduceat(values.take(order), starts, dtype=values.dtype)
    return from_numpy(sums, column.type, valid=valid)


def _surely_fits(values: _Integers, starts: _Rows) -> bool:
    """Return whether no sum of a group can overflow the type of the values."""
    limits = np.iinfo(values.dtype)
    highest, lowest = int(values.max()), int(values.min())

    def fit(count: int) -> bool:
        return highest * count <= limits.max and lowest * count >= limits.min

    return fit(len(values)) or fit(int(np.diff(starts, append=len(values)).max()))


def _extremes(merge: Merge, column: pa.Array, order: _Rows, starts: _Rows) -> pa.Array | None:
    kind = _ordered_type(column.type)
    if kind is None or column.null_count:
        return None
    values = fixed_width_values(column, kind).take(order)
    # These ignore NaN; for other types they are the plain minimum and maximum.
    function = np.fmin if merge is Merge.MIN else np.fmax
    return from_numpy(function.reduceat(values, starts), column.type)


def _numpy_type(kind: pa.DataType) -> DType:
    letter = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
    return np.dtype(f"{letter}{kind.bit_width // 8}")


def _ordered_type(kind: pa.DataType) -> DType | None:
    """Return the numpy type that orders like the column's bits, or None if there is none."""
    if _has_sums(kind):
        return _numpy_type(kind)
    if _is_time(kind):
        return np.dtype(f"i{kind.bit_width // 8}")
    return None
