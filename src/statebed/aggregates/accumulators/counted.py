"""Invertible aggregates over a changelog, with a count of values so that the result is null when none is left.

Without the count, a sum whose values were all retracted could not be distinguished from a sum of zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators.base import Accumulator, zero_for_null
from statebed.aggregates.accumulators.counts import Count
from statebed.arrays.columns import from_numpy, int64_values
from statebed.arrays.grouping import Grouping, Integers


@dataclass(frozen=True)
class Counted:
    """Another accumulator with one input, and `_{name}_count`, the number of values that are not null."""

    inner: Accumulator

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return (*self.inner.partial_fields, self._count.output_field)

    @property
    def output_field(self) -> pa.Field:
        return self.inner.output_field

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        value, *others = self.inner.fold(inputs, grouping, weights)
        return (zero_for_null(value), *others, *self._count.fold(inputs, grouping, weights))

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return (*self.inner.merge(partials[:-1], grouping), *self._count.merge(partials[-1:], grouping))

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        left = int64_values(partials[-1]) > 0
        rows = from_numpy(np.flatnonzero(left), pa.int64())
        # A partial that waits for rows it has already retracted may be out of range.
        found = self.inner.finish([column.take(rows) for column in partials[:-1]])
        return found.take(from_numpy(np.cumsum(left) - 1, pa.int64(), valid=left))

    @property
    def _count(self) -> Count:
        return Count(f"_{self.output_field.name}_count")
