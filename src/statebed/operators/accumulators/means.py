"""Means: a sum and a count, divided when the window closes.

Of integers and floats a double; of decimal(p, s) a decimal(p + 4, s + 4), rounded half away from zero, both as Spark's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.format.columns import float64_values, from_numpy, int64_values, validity
from statebed.operators.accumulators.base import zero_for_null
from statebed.operators.accumulators.counts import Count
from statebed.operators.accumulators.sums import DecimalSum, FloatSum, IntegerSum
from statebed.operators.grouping import Grouping, Integers

MORE_DIGITS = 4
"""How many more digits the mean of decimals has than they."""
_TWO_64 = 2.0**64


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
        some = int64_values(counts) > 0
        if isinstance(self.sum, FloatSum):
            sums = float64_values(self.sum.finish(partials[:-1]))
        else:
            high = np.where(validity(partials[1]), int64_values(partials[1]), np.int64(0))
            sums = int64_values(total).astype(np.float64) + high.astype(np.float64) * _TWO_64
        return from_numpy(sums / numbers, pa.float64(), valid=some)

    def _decimal(self, decimals: DecimalSum, total: pa.Array, counts: pa.Array) -> pa.Array:
        # Arrow keeps twenty digits more than the sum has, and cuts off the rest: enough to round by.
        divisor = pc.if_else(pc.greater(counts, 0), counts, 1).cast(pa.decimal256(19, 0))
        quotient = pc.divide(total.cast(pa.decimal256(38, decimals.scale)), divisor)
        rounded = pc.round(quotient, ndigits=self.kind.scale, round_mode="half_towards_infinity")
        rows = np.arange(len(counts), dtype=np.int64)
        return rounded.cast(self.kind).take(from_numpy(rows, pa.int64(), valid=int64_values(counts) > 0))

    @property
    def _count(self) -> Count:
        return Count(name=f"_{self.name}_count")
