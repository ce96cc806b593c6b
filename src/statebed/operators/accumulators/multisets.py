"""Aggregates that need all values: distinct counts, percentiles, collected sets and lists.

Partials of most are multisets: `_{name}_values` lists the distinct values of a group in order, `_{name}_counts` how
often each stands there. That is exact, mergeable, and the same in any order of rows; it grows with the distinct values.
Values are equal as keys are: NaN equals NaN, and -0.0 equals 0.0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.format.columns import float64_values, from_numpy, int64_values, one_chunk, validity
from statebed.format.keyhash import normalise_key
from statebed.operators.accumulators.extremes import ordered
from statebed.operators.grouping import Grouping, equal_neighbours

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Multisets:
    """One multiset per group, all of them together."""

    values: pa.Array
    counts: Integers
    """How often each value stands in its group."""
    sizes: Integers
    """Distinct values of each group."""

    @property
    def offsets(self) -> Integers:
        return np.concatenate(([0], np.cumsum(self.sizes)))


class Finish(Protocol):
    """What is made of the multisets of groups."""

    def kind(self, values: pa.DataType) -> pa.DataType:
        """The type of the result."""

    def result(self, sets: Multisets) -> pa.Array:
        """The result of each group."""


@dataclass(frozen=True)
class Multiset:
    """An aggregate over the multiset of its values; nulls are ignored."""

    name: str
    value: pa.DataType
    finishing: Finish

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        element = pa.field("element", self.value)
        return (
            pa.field(f"_{self.name}_values", pa.list_(element), nullable=False),
            pa.field(f"_{self.name}_counts", pa.list_(pa.field("element", pa.int64())), nullable=False),
        )

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, self.finishing.kind(self.value))

    def fold(self, inputs: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        values = normalise_key(inputs[0])
        some = np.flatnonzero(validity(values))
        owners = grouping.group_of_rows()[some]
        return self._lists(values.take(from_numpy(some, pa.int64())), np.ones(len(some), np.int64), owners, grouping)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        sets = self._sets(partials)
        owners = np.repeat(grouping.group_of_rows(), sets.sizes)
        return self._lists(sets.values, sets.counts, owners, grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        return self.finishing.result(self._sets(partials)).cast(self.output_field.type)

    def _sets(self, partials: Sequence[pa.Array]) -> Multisets:
        lengths = int64_values(pc.list_value_length(partials[0]).cast(pa.int64()))
        return Multisets(partials[0].flatten(), int64_values(partials[1].flatten()), lengths)

    def _lists(self, values: pa.Array, counts: Integers, owners: Integers, grouping: Grouping) -> tuple[pa.Array, ...]:
        """Equal values of one group become one."""
        columns = {"owner": from_numpy(owners, pa.int64()), "value": ordered(values)}
        keys = [("owner", "ascending"), ("value", "ascending")]
        order = int64_values(pc.sort_indices(pa.table(columns), sort_keys=keys))
        owners, values = owners[order], values.take(from_numpy(order, pa.int64()))
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = ~((owners[1:] == owners[:-1]) & equal_neighbours(values)) if len(order) else new[1:]
        starts = np.flatnonzero(new)
        summed = np.add.reduceat(counts[order], starts) if len(starts) else counts[:0]
        offsets = np.concatenate(([0], np.cumsum(np.bincount(owners[starts], minlength=grouping.groups))))
        distinct = values.take(from_numpy(starts, pa.int64()))
        return tuple(
            _list_array(field.type, offsets, column)
            for field, column in zip(self.partial_fields, (distinct, from_numpy(summed, pa.int64())), strict=True)
        )


@dataclass(frozen=True)
class DistinctCount:
    """How many distinct values there are; 0 for none."""

    def kind(self, values: pa.DataType) -> pa.DataType:  # noqa: ARG002 - the same for all
        return pa.int64()

    def result(self, sets: Multisets) -> pa.Array:
        return from_numpy(sets.sizes, pa.int64())


@dataclass(frozen=True)
class CollectedSet:
    """The distinct values, in order; empty for none."""

    def kind(self, values: pa.DataType) -> pa.DataType:
        return pa.list_(values)

    def result(self, sets: Multisets) -> pa.Array:
        return _list_array(self.kind(sets.values.type), sets.offsets, sets.values)


@dataclass(frozen=True)
class Percentile:
    """The value below which the share `at` of all values lies, between two values in proportion; null for none."""

    at: float

    def kind(self, values: pa.DataType) -> pa.DataType:  # noqa: ARG002 - the same for all
        return pa.float64()

    def result(self, sets: Multisets) -> pa.Array:
        some = sets.sizes > 0
        before = np.concatenate(([0], np.cumsum(sets.counts)))
        first, total = before[sets.offsets[:-1]], np.diff(before[sets.offsets])
        values = np.append(float64_values(one_chunk(sets.values.cast(pa.float64()))), np.nan)
        place = np.maximum(total - 1, 0) * self.at
        low = np.floor(place).astype(np.int64)
        # Which distinct value stands at a place among all values of all groups.
        lower, upper = (
            values[np.searchsorted(before, first + position, side="right") - 1]
            for position in (low, np.minimum(low + 1, np.maximum(total - 1, 0)))
        )
        share = place - low
        with np.errstate(invalid="ignore"):
            between = np.where((share == 0.0) | (lower == upper), lower, (1.0 - share) * lower + share * upper)
        return from_numpy(between, pa.float64(), valid=some)


@dataclass(frozen=True)
class CollectedList:
    """All values that are not null, by event time and then by value; empty for none."""

    name: str
    value: pa.DataType
    time: pa.DataType

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        times = pa.list_(pa.field("element", self.time))
        return self.output_field, pa.field(f"_{self.name}_times", times, nullable=False)

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, pa.list_(pa.field("element", self.value)), nullable=False)

    def fold(self, inputs: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        values, times = inputs
        some = np.flatnonzero(validity(values) & validity(times))
        rows = from_numpy(some, pa.int64())
        return self._lists(values.take(rows), times.take(rows), grouping.group_of_rows()[some], grouping)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        lengths = int64_values(pc.list_value_length(partials[0]).cast(pa.int64()))
        owners = np.repeat(grouping.group_of_rows(), lengths)
        return self._lists(partials[0].flatten(), partials[1].flatten(), owners, grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        return partials[0]

    def _lists(self, values: pa.Array, times: pa.Array, owners: Integers, grouping: Grouping) -> tuple[pa.Array, ...]:
        columns = {"owner": from_numpy(owners, pa.int64()), "time": times, "value": ordered(values)}
        order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
        offsets = np.concatenate(([0], np.cumsum(np.bincount(owners, minlength=grouping.groups))))
        sorted_columns = (values.take(order), times.take(order))
        return tuple(
            _list_array(field.type, offsets, column)
            for field, column in zip(self.partial_fields, sorted_columns, strict=True)
        )


def _list_array(kind: pa.DataType, offsets: Integers, values: pa.Array) -> pa.Array:
    if offsets[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"lists of {offsets[-1]} values are too many for one column")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[values])
