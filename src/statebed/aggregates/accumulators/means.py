"""Means: a sum and a count, divided when the window closes.

The result is a double for integers and floats, and a decimal(p + 4, s + 4), rounded half away from zero, for decimal(p,
s), both as in Spark.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators.base import zero_for_null
from statebed.aggregates.accumulators.counts import Count
from statebed.aggregates.accumulators.sums import DecimalSum, FloatSum, IntegerSum, largest_size
from statebed.aggregates.parts import Part, PartInputs
from statebed.arrays.columns import float64_values, from_numpy, int64_values, validity
from statebed.arrays.grouping import Grouping, Integers
from statebed.arrays.sort_order import unscaled
from statebed.expressions.casts.unscaled import integers, rounded_quotient, to_decimals

MORE_DIGITS = 4
"""Number of digits that the mean of decimals has in addition to theirs."""
_TWO_64 = 2.0**64
_MOST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Mean:
    """Mean of the values that are not null."""

    name: str
    sum: IntegerSum | FloatSum | DecimalSum
    kind: pa.DataType
    changelog: bool = False

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return (*self.sum.partial_fields, self._count.output_field)

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, self.kind)

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        total, *others = self.sum.fold(inputs, grouping, weights)
        leading = zero_for_null(total) if self.changelog else total
        return (leading, *others, *self._count.fold(inputs, grouping, weights))

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return (*self.sum.merge(partials[:-1], grouping), *self._count.merge(partials[-1:], grouping))

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        total, counts = partials[0], partials[-1]
        if isinstance(self.sum, DecimalSum):
            return self._decimal(self.sum, total, counts)
        numbers = np.maximum(int64_values(counts), 1)
        has_values = int64_values(counts) > 0
        if isinstance(self.sum, FloatSum):
            sums = float64_values(self.sum.finish(partials[:-1]))
        else:
            high = np.where(validity(partials[1]), int64_values(partials[1]), np.int64(0))
            sums = int64_values(total).astype(np.float64) + high.astype(np.float64) * _TWO_64
        return from_numpy(sums / numbers, pa.float64(), valid=has_values)

    def parts(self, inputs: PartInputs) -> list[Part] | None:
        sums = None if isinstance(self.sum, FloatSum) else self.sum.parts(inputs)
        return None if sums is None else [*sums, inputs.count()]

    def from_parts(self, inputs: PartInputs, parts: Sequence[pa.Array]) -> list[pa.Array]:
        assert not isinstance(self.sum, FloatSum)
        return [*self.sum.from_parts(inputs, parts[:-1]), parts[-1]]

    def _decimal(self, decimals: DecimalSum, total: pa.Array, counts: pa.Array) -> pa.Array:
        # Use Python integers: Arrow divides some wide decimals incorrectly.
        has_values = int64_values(counts) > 0
        numbers = np.where(has_values, int64_values(counts), np.int64(1))
        scale = 10 ** (self.kind.scale - decimals.scale)
        sums = unscaled(total)
        if sums is None or 2 * scale * largest_size(sums) + largest_size(numbers) > _MOST:
            sums = integers(total)
        means, _ = to_decimals(rounded_quotient(sums * scale, numbers), self.kind, has_values)
        return means

    @property
    def _count(self) -> Count:
        return Count(name=f"_{self.name}_count")
