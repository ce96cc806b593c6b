"""Sums: exact, whatever the order.

- a sum of integers is a 128-bit number: the column `{name}` holds it modulo 2**64 as int64, and `_{name}_high` how many
  times 2**64 is to be added (null for none, which is nearly always);
- a sum of doubles is a list of doubles: `{name}` is the exact sum rounded to the nearest double, and `_{name}_rest` the
  little-endian doubles of the remainder, each the nearest to what is left (null when nothing is). NaN and the
  infinities stand alone. Negative zero is zero;
- a sum of decimals has 38 digits; more raise an error as soon as a partial has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.errors import SumOverflowError
from statebed.format.columns import float64_values, from_numpy, int64_values, validity
from statebed.operators.exact import Doubles, exact_group_parts, rounded
from statebed.operators.grouping import Grouping

_LOW_BITS = np.int64((1 << 32) - 1)
_WORD = np.int64(32)
_DOUBLE_BYTES = 8


@dataclass(frozen=True)
class IntegerSum:
    """Sum of integers: exact in 128 bits while the window is open, checked against 64 bits when it closes."""

    name: str

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return (self.output_field, pa.field(f"_{self.name}_high", pa.int64()))

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, pa.int64())

    def fold(self, inputs: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        (values,) = inputs
        column = values if values.type.equals(pa.int64()) else pc.cast(values, pa.int64())
        return self._add(column, None, grouping)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return self._add(partials[0], partials[1], grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        low, high = partials
        if high.null_count < len(high):
            raise SumOverflowError(
                "a sum of integers does not fit 64 bits",
                where=f"aggregate {self.name!r}",
                fix="cast its input before the sum: to decimal(38, 0), or to double",
            )
        return low

    def _add(self, low: pa.Array, high: pa.Array | None, grouping: Grouping) -> tuple[pa.Array, ...]:
        valid = validity(low)
        values = np.where(valid, int64_values(low), np.int64(0))
        # Halves are added apart: neither overflows below 2**31 rows.
        lower = grouping.add(values & _LOW_BITS)
        upper = grouping.add(values >> _WORD) + (lower >> _WORD)
        excess = (upper + np.int64(1 << 31)) >> _WORD
        total = ((upper - (excess << _WORD)) << _WORD) | (lower & _LOW_BITS)
        if high is not None and high.null_count < len(high):
            excess = excess + grouping.add(np.where(validity(high), int64_values(high), np.int64(0)))
        any_value = grouping.any(valid)
        return (
            from_numpy(total, pa.int64(), valid=any_value),
            from_numpy(excess, pa.int64(), valid=excess != 0),
        )


@dataclass(frozen=True)
class FloatSum:
    """Sum of floats as doubles, correctly rounded once, when its window closes."""

    name: str

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return (self.output_field, pa.field(f"_{self.name}_rest", pa.binary()))

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, pa.float64())

    def fold(self, inputs: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        (values,) = inputs
        column = values if values.type.equals(pa.float64()) else pc.cast(values, pa.float64())
        return fold_doubles((float64_values(column),), validity(column), grouping)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return merge_doubles(partials[0], partials[1], grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        leading, rest = partials
        results = float64_values(leading).copy()
        # The leading part is the rounded sum already, unless the sum is beyond the largest double.
        at_the_edge = np.abs(results) == np.finfo(np.float64).max
        for row in np.flatnonzero(at_the_edge & validity(rest)):
            results[row] = rounded([float(results[row]), *np.frombuffer(rest[int(row)].as_py(), dtype="<f8").tolist()])
        return from_numpy(results, pa.float64(), valid=validity(leading))


@dataclass(frozen=True)
class DecimalSum:
    """Sum of decimals of one scale."""

    name: str
    precision: int
    scale: int

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(self.name, pa.decimal128(38, self.scale)),)

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, pa.decimal128(self.precision, self.scale))

    def fold(self, inputs: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return self.merge(inputs, grouping)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        if grouping.groups == 0:
            return (pa.nulls(0, self.partial_fields[0].type),)
        wide = pc.cast(partials[0], pa.decimal256(76, self.scale))
        table = pa.table({"group": from_numpy(grouping.group_of_rows(), pa.int64()), "value": wide})
        options = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
        sums = table.group_by("group", use_threads=False).aggregate([("value", "sum", options)])
        column = sums.sort_by("group").column("value_sum").combine_chunks()
        return (self._narrow(column, self.partial_fields[0].type),)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        return self._narrow(partials[0], self.output_field.type)

    def _narrow(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        try:
            return pc.cast(column, kind)
        except pa.ArrowInvalid as error:
            raise SumOverflowError(
                f"a sum of decimals does not fit {kind}",
                where=f"aggregate {self.name!r}",
                fix="cast its input before the sum: to a decimal of smaller scale, or to double",
            ) from error


def fold_doubles(
    terms: Sequence[Doubles], valid: npt.NDArray[np.bool_], grouping: Grouping
) -> tuple[pa.Array, pa.Array]:
    """The exact sum of each group, leading part and rest; each row's value is the sum of its `terms`, where valid."""
    owners = grouping.group_of_rows()[valid]
    values = np.concatenate([term[valid] for term in terms])
    return _summed(values, np.tile(owners, len(terms)), grouping.any(valid))


def merge_doubles(leading: pa.Array, rest: pa.Array, grouping: Grouping) -> tuple[pa.Array, pa.Array]:
    """The exact sums of groups of exact sums."""
    groups = grouping.group_of_rows()
    valid = validity(leading)
    others, per_row = _unpack(rest)
    values = np.concatenate([float64_values(leading)[valid], others])
    owners = np.concatenate([groups[valid], np.repeat(groups, per_row)])
    return _summed(values, owners, grouping.any(valid))


def second_parts(rest: pa.Array) -> Doubles:
    """The largest part of each rest, zero where there is none: with the leading part, about 107 bits of a sum."""
    values, per_row = _unpack(rest)
    seconds = np.zeros(len(rest))
    some = per_row > 0
    seconds[some] = values[(np.cumsum(per_row) - per_row)[some]]
    return seconds


def _summed(
    values: Doubles, owners: npt.NDArray[np.int64], any_value: npt.NDArray[np.bool_]
) -> tuple[pa.Array, pa.Array]:
    order = np.argsort(owners, kind="stable")
    parts = exact_group_parts(values[order], np.bincount(owners, minlength=len(any_value)))
    return from_numpy(parts.leading, pa.float64(), valid=any_value), _pack(parts.rest, parts.rest_counts)


def _unpack(column: pa.Array) -> tuple[Doubles, npt.NDArray[np.int64]]:
    """The doubles in a binary column, and how many each row holds."""
    lengths = int64_values(pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()))
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    whole = np.frombuffer(data if data is not None else b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return np.frombuffer(whole.tobytes(), dtype="<f8"), lengths // _DOUBLE_BYTES


def _pack(values: Doubles, counts: npt.NDArray[np.int64]) -> pa.Array:
    """A binary column with `counts` doubles in each row, null for none."""
    offsets = np.concatenate([[0], np.cumsum(counts * _DOUBLE_BYTES)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise OverflowError("the rests of float sums of one batch exceed 2 GB")
    buffers = [
        pa.py_buffer(np.packbits(counts > 0, bitorder="little")),
        pa.py_buffer(offsets.astype(np.int32)),
        pa.py_buffer(values.astype("<f8")),
    ]
    return pa.Array.from_buffers(pa.binary(), len(counts), buffers)
