"""Concatenation of the texts of a group."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.aggregates.accumulators.base import Accumulator
from statebed.arrays.columns import from_numpy, int64_values
from statebed.arrays.grouping import Grouping, Integers


@dataclass(frozen=True)
class Joined:
    """Texts that another accumulator collects, joined with a delimiter; null if there are none."""

    inner: Accumulator
    delimiter: str

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return self.inner.partial_fields

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.inner.output_field.name, pa.string())

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        return self.inner.fold(inputs, grouping, weights)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return self.inner.merge(partials, grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        lists = self.inner.finish(partials)
        some = int64_values(pc.list_value_length(lists).cast(pa.int64())) > 0
        rows = from_numpy(np.arange(len(some), dtype=np.int64), pa.int64(), valid=some)
        return pc.binary_join(lists, self.delimiter).take(rows)
