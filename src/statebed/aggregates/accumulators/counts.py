"""Counts of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators.base import weight_of
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
