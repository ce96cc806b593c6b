"""Counts of rows, and of the values of invertible aggregates over a changelog.

Without such a count, a sum whose values were all retracted could not be distinguished from a sum of zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators.base import Accumulator, weight_of, zero_for_null
from statebed.aggregates.parts import Part, PartInputs
from statebed.arrays.columns import from_numpy, int64_values, validity
from statebed.arrays.grouping import Grouping, Integers


@dataclass(frozen=True)
class Count:
    """Number of rows, or of non-null inputs."""

    name: str

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return (self.output_field,)

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, pa.int64(), nullable=False)

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        if inputs and inputs[0].null_count:
            counts = grouping.add(weight_of(weights, validity(inputs[0])))
        else:
            counts = grouping.sizes if weights is None else grouping.add(weights)
        return (from_numpy(counts, pa.int64()),)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return (from_numpy(grouping.add(int64_values(partials[0])), pa.int64()),)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        counts = int64_values(partials[0])
        # Rows may be retracted before they arrive.
        return from_numpy(np.maximum(counts, 0), pa.int64()) if counts.min(initial=0) < 0 else partials[0]

    def parts(self, inputs: PartInputs) -> list[Part]:
        return [inputs.count()]

    def from_parts(self, inputs: PartInputs, parts: Sequence[pa.Array]) -> list[pa.Array]:  # noqa: ARG002 - interface
        return list(parts)


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
        results = self.inner.finish([column.take(rows) for column in partials[:-1]])
        return results.take(from_numpy(np.cumsum(left) - 1, pa.int64(), valid=left))

    @property
    def _count(self) -> Count:
        return Count(f"_{self.output_field.name}_count")
