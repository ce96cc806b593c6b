"""Aggregates that need all values: multisets, as lists of distinct entries with their counts.

`_{name}_values` lists the distinct values of a group in order, `_{name}_counts` their counts. If an entry is a pair,
another list has its other half (`_{name}_by`, `_{name}_times`). This is exact, mergeable, and independent of the order
of rows; it grows with the number of distinct entries. Values are equal as keys are: NaN equals NaN, and -0.0 equals
0.0.

Over a changelog, counts are added with their signs, and an entry with count 0 is dropped. A negative count waits for
the rows that it retracts; results ignore it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.aggregates.accumulators.base import Accumulator, check_weights, weight_of
from statebed.arrays.columns import from_numpy, int64_values, validity
from statebed.arrays.grouping import Grouping, Integers
from statebed.arrays.key_hash import normalise_key
from statebed.arrays.sort_order import total_order
from statebed.errors import ResultTooLargeError

_COUNTS = "counts"


@dataclass(frozen=True)
class Limit:
    """Largest number of values of a group, and at which end of their order they are kept."""

    count: int
    last: bool = False

    def sizes(self, sizes: Integers) -> Integers:
        """Return how many values of each group are kept."""
        return np.minimum(sizes, self.count)

    def kept(self, sizes: Integers) -> Integers:
        """Return the positions of the kept values, of groups with these sizes one after the other."""
        ends = np.cumsum(sizes)
        kept = self.sizes(sizes)
        starts = ends - kept if self.last else ends - sizes
        before = np.cumsum(kept) - kept
        positions: Integers = np.arange(int(kept.sum()), dtype=np.int64) + np.repeat(starts - before, kept)
        return positions


@dataclass(frozen=True)
class Multisets:
    """Multisets of all groups."""

    columns: tuple[pa.Array, ...]
    """Distinct entries, group after group, sorted by the columns from left to right."""
    counts: Integers
    """Count of each entry in its group."""
    sizes: Integers
    """Number of distinct entries of each group."""

    @property
    def values(self) -> pa.Array:
        """Values of the aggregate, which are the last column."""
        return self.columns[-1]

    @property
    def offsets(self) -> Integers:
        return np.concatenate(([0], np.cumsum(self.sizes)))

    @property
    def owners(self) -> Integers:
        """Group of each entry."""
        return np.repeat(np.arange(len(self.sizes), dtype=np.int64), self.sizes)


class EntryAccumulator(Accumulator, Protocol):
    """Accumulator whose state is a multiset of entries, which can also be stored as one row per entry."""

    @property
    def name(self) -> str:
        """Name of the result."""

    @property
    def columns(self) -> tuple["EntryColumn", ...]:
        """Columns of the entries, in sort order."""

    def entries(self, partials: Sequence[pa.Array]) -> Multisets:
        """Return the entries in partials, each with its count."""

    def result(self, sets: Multisets) -> pa.Array:
        """Return the result of each group from all its entries; counts are positive."""


class Finish(Protocol):
    """Computes the result from the multisets of groups."""

    def kind(self, values: pa.DataType) -> pa.DataType:
        """Return the type of the result."""

    def result(self, sets: Multisets) -> pa.Array:
        """Return the result of each group."""


@dataclass(frozen=True)
class EntryColumn:
    """One column of the entries."""

    word: str
    """Word in the name of the column of state."""
    kind: pa.DataType
    input: int
    """Index of the aggregate's input that it holds."""
    needed: bool = True
    """Whether rows in which it is null are ignored."""


@dataclass(frozen=True)
class Multiset:
    """An aggregate over the multiset of its entries."""

    name: str
    columns: tuple[EntryColumn, ...]
    """Columns in sort order; the last one holds the values of the aggregate."""
    finishing: Finish
    limit: Limit | None = None
    """Distinct entries of a group that are kept; all if None. Only for rows that are never retracted."""

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        kinds = {column.word: column.kind for column in self.columns} | {_COUNTS: pa.int64()}
        return tuple(
            pa.field(f"_{self.name}_{word}", pa.list_(pa.field("element", kind)), nullable=False)
            for word, kind in kinds.items()
        )

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, self.finishing.kind(self.columns[-1].kind))

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        entries = [normalise_key(inputs[column.input]) for column in self.columns]
        needed = [validity(values) for column, values in zip(self.columns, entries, strict=True) if column.needed]
        counts = weight_of(weights, np.logical_and.reduce(needed))
        counted = np.flatnonzero(counts)
        rows = from_numpy(counted, pa.int64())
        owners = grouping.group_of_rows()[counted]
        return self._lists([values.take(rows) for values in entries], counts[counted], owners, grouping)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        sets = multisets_of(partials)
        return self._lists(sets.columns, sets.counts, np.repeat(grouping.group_of_rows(), sets.sizes), grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        return self.result(present(self.entries(partials)))

    def entries(self, partials: Sequence[pa.Array]) -> Multisets:
        return multisets_of(partials)

    def result(self, sets: Multisets) -> pa.Array:
        return self.finishing.result(sets).cast(self.output_field.type)

    def _lists(
        self, columns: Sequence[pa.Array], counts: Integers, owners: Integers, grouping: Grouping
    ) -> tuple[pa.Array, ...]:
        """Build lists in which equal entries of one group are combined."""
        sets = combined_sets(owners, columns, counts, groups=grouping.groups)
        if self.limit is not None:
            kept = self.limit.kept(sets.sizes)
            rows, sizes = from_numpy(kept, pa.int64()), self.limit.sizes(sets.sizes)
            sets = Multisets(tuple(column.take(rows) for column in sets.columns), sets.counts[kept], sizes)
        return tuple(
            list_array(field.type, sets.offsets, column)
            for field, column in zip(
                self.partial_fields, [*sets.columns, from_numpy(sets.counts, pa.int64())], strict=True
            )
        )


def multiset_of(name: str, value: pa.DataType, finishing: Finish) -> Multiset:
    """Return an aggregate over the values of one column; nulls are ignored."""
    return Multiset(name, (EntryColumn("values", value, 0),), finishing)


def combined_sets(owners: Integers, columns: Sequence[pa.Array], counts: Integers, *, groups: int) -> Multisets:
    """Build the multiset of each group from entries in any order: counts of equal entries are added, and entries with
    count 0 are dropped.
    """
    order, starts = distinct_entries(owners, columns)
    summed = np.add.reduceat(counts[order], starts) if len(starts) else counts[:0]
    kept = order[starts[summed != 0]]
    sizes = np.bincount(owners[kept], minlength=groups).astype(np.int64)
    rows = from_numpy(kept, pa.int64())
    return Multisets(tuple(values.take(rows) for values in columns), summed[summed != 0], sizes)


def distinct_entries(owners: Integers, columns: Sequence[pa.Array]) -> tuple[Integers, Integers]:
    """Return rows in the order of owners and columns, and the positions at which a different entry begins."""
    order, begins = total_order([owners], columns)
    return order, np.flatnonzero(begins)


def sorted_sets(owners: Integers, columns: Sequence[pa.Array], counts: Integers, *, groups: int) -> Multisets:
    """Build the multiset of each group from distinct entries in any order."""
    order, _ = total_order([owners], columns)
    rows = from_numpy(order, pa.int64())
    sizes = np.bincount(owners, minlength=groups).astype(np.int64)
    return Multisets(tuple(column.take(rows) for column in columns), counts[order], sizes)


def multisets_of(partials: Sequence[pa.Array]) -> Multisets:
    """Return the multisets that partials hold."""
    lengths = int64_values(pc.list_value_length(partials[0]).cast(pa.int64()))
    *columns, counts = (column.flatten() for column in partials)
    return Multisets(tuple(columns), int64_values(counts), lengths)


def present(sets: Multisets) -> Multisets:
    """Return only entries with a positive count, without those retracted before they arrived."""
    there = sets.counts > 0
    if there.all():
        return sets
    rows = from_numpy(np.flatnonzero(there), pa.int64())
    sizes = np.bincount(sets.owners[there], minlength=len(sets.sizes)).astype(np.int64)
    return Multisets(tuple(values.take(rows) for values in sets.columns), sets.counts[there], sizes)


@dataclass(frozen=True)
class CollectedList:
    """All values that are not null, by event time and then by value; an empty list if there are none."""

    name: str
    value: pa.DataType
    time: pa.DataType
    limit: Limit | None = None
    """Values of a group that are kept; all if None."""

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        times = pa.list_(pa.field("element", self.time))
        return self.output_field, pa.field(f"_{self.name}_times", times, nullable=False)

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, pa.list_(pa.field("element", self.value)), nullable=False)

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        check_weights(weights, self.name)
        values, times = inputs
        valid_rows = np.flatnonzero(validity(values) & validity(times))
        rows = from_numpy(valid_rows, pa.int64())
        return self._lists(values.take(rows), times.take(rows), grouping.group_of_rows()[valid_rows], grouping)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        lengths = int64_values(pc.list_value_length(partials[0]).cast(pa.int64()))
        owners = np.repeat(grouping.group_of_rows(), lengths)
        return self._lists(partials[0].flatten(), partials[1].flatten(), owners, grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        return partials[0]

    @property
    def columns(self) -> tuple[EntryColumn, ...]:
        """Columns of the entries, with the bits of floats, because the result keeps -0.0 and 0.0 apart."""
        bits = [] if self._bits is None else [EntryColumn("bits", self._bits, 0)]
        return (EntryColumn("times", self.time, 1), EntryColumn("values", self.value, 0), *bits)

    def entries(self, partials: Sequence[pa.Array]) -> Multisets:
        values, times = (column.flatten() for column in partials)
        lengths = int64_values(pc.list_value_length(partials[0]).cast(pa.int64()))
        owners = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        bits = [] if self._bits is None else [values.view(self._bits)]
        columns = [times, normalise_key(values), *bits]
        return combined_sets(owners, columns, np.ones(len(owners), dtype=np.int64), groups=len(lengths))

    def result(self, sets: Multisets) -> pa.Array:
        repeated, offsets = repeated_values(sets)
        return list_array(
            self.output_field.type, offsets, repeated if self._bits is None else repeated.view(self.value)
        )

    @property
    def _bits(self) -> pa.DataType | None:
        """Type with the bits of the values, if equal values may differ in them."""
        if not pa.types.is_floating(self.value):
            return None
        return pa.int64() if pa.types.is_float64(self.value) else pa.int32()

    def _lists(self, values: pa.Array, times: pa.Array, owners: Integers, grouping: Grouping) -> tuple[pa.Array, ...]:
        rows, _ = total_order([owners], [times, values])
        sizes = np.bincount(owners, minlength=grouping.groups).astype(np.int64)
        if self.limit is not None:
            rows, sizes = rows[self.limit.kept(sizes)], self.limit.sizes(sizes)
        order, offsets = from_numpy(rows, pa.int64()), np.concatenate(([0], np.cumsum(sizes)))
        sorted_columns = (values.take(order), times.take(order))
        return tuple(
            list_array(field.type, offsets, column)
            for field, column in zip(self.partial_fields, sorted_columns, strict=True)
        )


def repeated_values(sets: Multisets) -> tuple[pa.Array, Integers]:
    """Return the values of all groups, each as often as it counts, and the offset at which each group begins."""
    if (sets.counts == 1).all():
        return sets.values, sets.offsets
    before = np.concatenate(([0], np.cumsum(sets.counts)))
    rows = np.repeat(np.arange(len(sets.counts), dtype=np.int64), sets.counts)
    return sets.values.take(from_numpy(rows, pa.int64())), before[sets.offsets]


def list_array(kind: pa.DataType, offsets: Integers, values: pa.Array) -> pa.Array:
    """Build lists from consecutive slices of `values`."""
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ResultTooLargeError(
            f"lists of {offsets[-1]} values are too many for one column",
            fix="collect fewer values with `limit=`, use a window, or emit rows: group by key and value",
        )
    buffers = [None, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[values])


@dataclass(frozen=True)
class Joined:
    """Texts that another accumulator collects, joined with a delimiter; null if there are none."""

    inner: "Multiset | CollectedList"
    delimiter: str

    @property
    def limit(self) -> Limit | None:
        return self.inner.limit

    @property
    def name(self) -> str:
        return self.inner.name

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
        return self._joined(self.inner.finish(partials))

    @property
    def columns(self) -> tuple[EntryColumn, ...]:
        return self.inner.columns

    def entries(self, partials: Sequence[pa.Array]) -> Multisets:
        return self.inner.entries(partials)

    def result(self, sets: Multisets) -> pa.Array:
        return self._joined(self.inner.result(sets))

    def _joined(self, lists: pa.Array) -> pa.Array:
        has_values = int64_values(pc.list_value_length(lists).cast(pa.int64())) > 0
        rows = from_numpy(np.arange(len(has_values), dtype=np.int64), pa.int64(), valid=has_values)
        return pc.binary_join(lists, self.delimiter).take(rows)
