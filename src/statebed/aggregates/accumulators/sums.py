"""Sums that are exact in any order.

- a sum of integers is a 128-bit number: the column `{name}` holds it modulo 2**64 as int64, and `_{name}_high` the
  multiple of 2**64 to add (null if zero, which is nearly always);
- a sum of doubles is exact and rounded once, when it is read (`doubles`);
- a sum of decimals has 38 digits; more raise an error as soon as a partial has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.aggregates.accumulators.base import check_weights
from statebed.aggregates.accumulators.doubles import DoubleSum, as_doubles
from statebed.aggregates.parts import Part, PartInputs, Reduce
from statebed.arrays.columns import float64_values, from_numpy, int64_values, validity
from statebed.arrays.grouping import Flags, Grouping, Integers
from statebed.arrays.sort_order import unscaled
from statebed.errors import SumOverflowError

_LOW_BITS = np.int64((1 << 32) - 1)
_WORD = np.int64(32)
_MOST = np.iinfo(np.int64).max
_MAX_HALVES = 1 << 31
"""Number of halves of 64-bit numbers whose sum, without signs, fits into 64 bits."""
_MAX_DIGITS = 28
"""Maximum precision of decimals in parts; ten more digits leave room for the sum of all rows of a batch."""


@dataclass(frozen=True)
class IntegerSum:
    """Sum of integers: exact in 128 bits while the window is open, checked against 64 bits when it closes."""

    name: str
    changelog: bool = False

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return (self.output_field, pa.field(f"_{self.name}_high", pa.int64()))

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, pa.int64())

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        check_weights(weights, self.name, changelog=self.changelog)
        (values,) = inputs
        column = values if values.type.equals(pa.int64()) else pc.cast(values, pa.int64())
        return self._add(column, None, grouping, weights)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return self._add(partials[0], partials[1], grouping, None)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        low, high = partials
        if high.null_count < len(high):
            raise SumOverflowError(
                "a sum of integers does not fit into 64 bits",
                where=f"aggregate {self.name!r}",
                fix="cast its input before the sum: to decimal(38, 0), or to double",
            )
        return low

    def parts(self, inputs: PartInputs) -> list[Part] | None:
        if not pa.types.is_signed_integer(inputs.kinds[0]):
            return None
        if inputs.kinds[0].bit_width < _WORD * 2:
            return [Part(inputs.part_name("s"), Reduce.SUM, pa.int64(), inputs.factors)]
        return [
            Part(inputs.part_name("l"), Reduce.LOW_SUM, pa.int64(), inputs.factors),
            Part(inputs.part_name("h"), Reduce.HIGH_SUM, pa.int64(), inputs.factors),
        ]

    def from_parts(self, inputs: PartInputs, parts: Sequence[pa.Array]) -> list[pa.Array]:  # noqa: ARG002 - interface
        if len(parts) == 1:
            return [parts[0], pa.nulls(len(parts[0]), pa.int64())]
        valid = validity(parts[0])
        lower, upper = (np.where(valid, int64_values(part), np.int64(0)) for part in parts)
        total, excess = _joined_halves(lower, upper)
        return [
            from_numpy(total, pa.int64(), valid=None if bool(valid.all()) else valid),
            from_numpy(excess, pa.int64(), valid=excess != 0),
        ]

    def _add(
        self, low: pa.Array, high: pa.Array | None, grouping: Grouping, weights: Integers | None
    ) -> tuple[pa.Array, ...]:
        valid = validity(low)
        values = int64_values(low) if low.null_count == 0 else np.where(valid, int64_values(low), np.int64(0))
        total, excess = _add_wide(values, grouping, weights)
        if high is not None and high.null_count < len(high):
            excess = excess + grouping.add(np.where(validity(high), int64_values(high), np.int64(0)))
        return (
            from_numpy(total, pa.int64(), valid=None if low.null_count == 0 else grouping.any(valid)),
            from_numpy(excess, pa.int64(), valid=excess != 0),
        )


def _add_wide(values: Integers, grouping: Grouping, weights: Integers | None) -> tuple[Integers, Integers]:
    """Return the sums modulo 2**64 as int64, and the multiples of 2**64 to add."""
    times = grouping.largest * (1 if weights is None else largest_size(weights))
    if largest_size(values) * times <= _MOST:
        totals = grouping.add(values if weights is None else values * weights)
        return totals, np.zeros(grouping.groups, dtype=np.int64)
    if times >= _MAX_HALVES:
        return _add_any(values, grouping, weights)
    # The halves are added separately, because neither overflows.
    lower, upper = values & _LOW_BITS, values >> _WORD
    if weights is not None:
        lower, upper = lower * weights, upper * weights
    return _joined_halves(grouping.add(lower), grouping.add(upper))


def _joined_halves(lower: Integers, upper: Integers) -> tuple[Integers, Integers]:
    """Return `upper * 2**32 + lower` modulo 2**64 as int64, and the multiples of 2**64 to add."""
    upper = upper + (lower >> _WORD)
    excess = (upper + np.int64(1 << 31)) >> _WORD
    return ((upper - (excess << _WORD)) << _WORD) | (lower & _LOW_BITS), excess


def _decimals(low: Integers, high: Integers, valid: Flags, kind: pa.DataType) -> pa.Array:
    """Return decimals of integers, passed modulo 2**64 with the multiple of 2**64 to add."""
    words = np.stack([low, high + (low >> np.int64(63))], axis=1)
    words[~valid] = 0
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(low), [bitmap, pa.py_buffer(words)])


def largest_size(values: Integers) -> int:
    """Return the largest absolute value."""
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))


def _add_any(values: Integers, grouping: Grouping, weights: Integers | None) -> tuple[Integers, Integers]:
    """Return the same as `_add_wide`, for weights of any size, with Python's integers."""
    products = values.astype(object) * (1 if weights is None else weights.astype(object))
    sums = [int(total) for total in np.add.reduceat(products[grouping.order], grouping.starts)]
    excess = [(total + (1 << 63)) >> 64 for total in sums]
    totals = [total - (high << 64) for total, high in zip(sums, excess, strict=True)]
    return np.array(totals, dtype=np.int64), np.array(excess, dtype=np.int64)


@dataclass(frozen=True)
class FloatSum:
    """Sum of floats as doubles, correctly rounded once, when its window closes."""

    name: str
    changelog: bool = False

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return self._sum.partial_fields

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, pa.float64())

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        check_weights(weights, self.name, changelog=self.changelog)
        column = as_doubles(inputs[0])
        return self._sum.fold([float64_values(column)], validity(column), grouping, weights)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return self._sum.merge(partials, grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        return from_numpy(self._sum.rounded(partials), pa.float64(), valid=validity(partials[0]))

    @property
    def _sum(self) -> DoubleSum:
        return DoubleSum(self.name, f"_{self.name}", changelog=self.changelog)


@dataclass(frozen=True)
class DecimalSum:
    """Sum of decimals of one scale."""

    name: str
    precision: int
    scale: int
    changelog: bool = False

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(self.name, pa.decimal128(38, self.scale)),)

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, pa.decimal128(self.precision, self.scale))

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        check_weights(weights, self.name, changelog=self.changelog)
        if grouping.groups == 0:
            return (pa.nulls(0, self.partial_fields[0].type),)
        small = unscaled(inputs[0])
        if small is not None and grouping.largest * (1 if weights is None else largest_size(weights)) < _MAX_HALVES:
            valid = validity(inputs[0])
            sums = _add_wide(np.where(valid, small, np.int64(0)), grouping, weights)
            return (_decimals(*sums, grouping.any(valid), self.partial_fields[0].type),)
        wide = pc.cast(inputs[0], pa.decimal256(38, self.scale))
        if weights is not None:
            wide = pc.multiply(wide, from_numpy(weights, pa.int64()).cast(pa.decimal256(19, 0)))
        wide = pc.cast(wide, pa.decimal256(76, self.scale))
        table = pa.table({"group": from_numpy(grouping.group_of_rows(), pa.int64()), "value": wide})
        options = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
        sums = table.group_by("group", use_threads=False).aggregate([("value", "sum", options)])
        column = sums.sort_by("group").column("value_sum").combine_chunks()
        return (self._narrow(column, self.partial_fields[0].type),)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return self.fold(partials, grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        return self._narrow(partials[0], self.output_field.type)

    def parts(self, inputs: PartInputs) -> list[Part] | None:
        part = Part(inputs.part_name("s"), Reduce.SUM, pa.decimal128(38, self.scale), inputs.factors)
        return [part] if inputs.kinds[0].precision <= _MAX_DIGITS else None

    def from_parts(self, inputs: PartInputs, parts: Sequence[pa.Array]) -> list[pa.Array]:  # noqa: ARG002 - interface
        return list(parts)

    def _narrow(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        try:
            return pc.cast(column, kind)
        except pa.ArrowInvalid as error:
            raise SumOverflowError(
                f"a sum of decimals does not fit into {kind}",
                where=f"aggregate {self.name!r}",
                fix="cast its input before the sum: to a decimal of smaller scale, or to double",
            ) from error
