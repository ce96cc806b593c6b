"""Entries of multisets as rows of the state: for aggregates whose result changes with single entries.

A distinct count, and the smallest or largest value of a changelog, need all values of a group only to know which of
them come and go. Each value is a row of a multiset table with its count, and the result stands in the group's own row:
one more value looks up and writes one row. When the smallest or largest value leaves, the group's values are read, in
pages, to find the next.

Counts add up with their signs. An entry with the count 0 is dropped; a negative one waits for the rows that it takes
back, and is no part of the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators import Accumulator, Multiset
from statebed.aggregates.accumulators.extremes import Extreme
from statebed.aggregates.accumulators.finishes import AtEnd, DistinctCount
from statebed.aggregates.accumulators.multisets import multisets_of
from statebed.arrays.columns import from_numpy, int64_values, one_chunk
from statebed.arrays.grouping import Flags, Grouping, Integers
from statebed.arrays.key_hash import is_key_type
from statebed.arrays.mutable import column_over
from statebed.operators.keyed_rows import taken, unused_name
from statebed.operators.time_to_live import multiset_config
from statebed.state import KeyedView, TableConfig

COUNT = "_count"


def entry_accumulator(accumulator: Accumulator) -> Multiset | None:
    """The accumulator, if its entries can be rows of their own; None: its result needs all of them."""
    if not isinstance(accumulator, Multiset) or len(accumulator.columns) > 1:
        return None
    if not isinstance(accumulator.finishing, DistinctCount | AtEnd):
        return None
    return accumulator if is_key_type(accumulator.columns[0].kind) else None


@dataclass(frozen=True)
class EntryTable:
    """The entries of one aggregate."""

    position: int
    """Of the aggregate among those of its operator."""
    accumulator: Multiset
    keys: tuple[pa.Field, ...]

    @property
    def name(self) -> str:
        return f"values_{self.position}"

    @property
    def result(self) -> pa.Field:
        """The column of the group's row that has the result."""
        return self.accumulator.output_field

    @cached_property
    def config(self) -> TableConfig:
        description = f"distinct values of {self.accumulator.name} by key, with their counts"
        counts = [pa.field(COUNT, pa.int64(), nullable=False)]
        return multiset_config(self.name, description, self.keys, [self._element], counts, ttl=None)

    @cached_property
    def _element(self) -> pa.Field:
        return pa.field(unused_name("_value", [key.name for key in self.keys]), self.accumulator.columns[0].kind)

    def apply(
        self, view: KeyedView, keys: pa.Table, folded: Sequence[pa.Array], before: pa.Array, kept: Flags
    ) -> pa.Array:
        """Add the partials of an epoch to the groups that are kept, and give the result of each group.

        `before` has the results so far, null for a new group. Groups that are not kept lose their entries.
        """
        sets = multisets_of(folded)
        some = np.flatnonzero(kept[sets.owners])
        owners, counts = sets.owners[some], sets.counts[some]
        values = sets.values if len(some) == len(sets.counts) else sets.values.take(from_numpy(some, pa.int64()))
        old, new = self._add(view, self._elements(keys, owners, values), counts)
        if not kept.all():
            view.delete_elements(taken(keys, np.flatnonzero(~kept)))
        came, left = (old <= 0) & (new > 0), (old > 0) & (new <= 0)
        if isinstance(self.accumulator.finishing, DistinctCount):
            change = np.bincount(owners[came], minlength=keys.num_rows) - np.bincount(
                owners[left], minlength=keys.num_rows
            )
            return from_numpy(int64_values(before.fill_null(0)) + change, pa.int64())
        return self._end(view, keys, before, _Values(owners, values).where(came), _Values(owners, values).where(left))

    def put_all(self, view: KeyedView, keys: pa.Table, partials: Sequence[pa.Array]) -> pa.Array:
        """Write the entries of groups that have none yet, and give the result of each."""
        sets = multisets_of(partials)
        elements = self._elements(keys, sets.owners, sets.values)
        view.upsert(elements, pa.table({COUNT: from_numpy(sets.counts, pa.int64())}))
        return self.accumulator.finish(partials)

    def _elements(self, keys: pa.Table, owners: Integers, values: pa.Array) -> pa.Table:
        columns = [*taken(keys, owners).columns, values]
        return pa.Table.from_arrays(columns, schema=pa.schema([*self.keys, self._element]))

    def _add(self, view: KeyedView, elements: pa.Table, counts: Integers) -> tuple[Integers, Integers]:
        """Counts of entries before and after."""
        if not elements.num_rows:
            return counts, counts
        stored, found = view.get(elements)
        old = np.where(found, int64_values(stored[COUNT]), 0)
        new = old + counts
        there, gone = np.flatnonzero(new), np.flatnonzero(found & (new == 0))
        if len(there):
            kept = elements if len(there) == len(new) else taken(elements, there)
            view.upsert(kept, pa.table({COUNT: from_numpy(new[there], pa.int64())}))
        if len(gone):
            view.delete(taken(elements, gone))
        return old, new

    def _end(self, view: KeyedView, keys: pa.Table, before: pa.Array, came: "_Values", left: "_Values") -> pa.Array:
        """The smallest or largest values of groups, from those so far and what came and left."""
        best = self._best(keys.num_rows, _Values.of_groups(before), came)
        lost = np.zeros(keys.num_rows, dtype=np.bool_)
        if len(left.owners):
            known = before.take(from_numpy(left.owners, pa.int64()))
            lost[left.owners[column_over(known).equals(np.arange(len(known), dtype=np.int64), left.values)]] = True
        if not lost.any():
            return best
        groups = np.flatnonzero(lost)
        found = _Values.of_groups(before.slice(0, 0))
        for page in view.elements(taken(keys, groups)):
            there = np.flatnonzero(int64_values(page.rows[COUNT]) > 0)
            values = one_chunk(page.rows[self._element.name]).take(from_numpy(there, pa.int64()))
            best_of_page = self._best(keys.num_rows, found, _Values(groups[page.groups[there]], values))
            found = _Values.of_groups(best_of_page)
        anew = self._best(keys.num_rows, found)
        rows = np.where(lost, np.arange(len(lost)) + len(lost), np.arange(len(lost)))
        return pa.concat_arrays([best, anew]).take(from_numpy(rows, pa.int64()))

    def _best(self, groups: int, *parts: "_Values") -> pa.Array:
        """The first value of each group in the order that counts; null for none."""
        assert isinstance(self.accumulator.finishing, AtEnd)
        # A null for each group, so that all of them have a row.
        nothing = pa.nulls(groups, self._element.type)
        owners = np.concatenate([np.arange(groups, dtype=np.int64), *(part.owners for part in parts)])
        values = pa.concat_arrays([nothing, *(part.values for part in parts)])
        order = np.argsort(owners, kind="stable")
        starts = np.searchsorted(owners[order], np.arange(groups, dtype=np.int64))
        extreme = Extreme(self.accumulator.name, self._element.type, self.accumulator.finishing.end)
        return extreme.fold([values], Grouping(order=order, starts=starts))[0]


@dataclass(frozen=True)
class _Values:
    """Values of groups; `owners` has the number of the group of each."""

    owners: Integers
    values: pa.Array

    @classmethod
    def of_groups(cls, values: pa.Array) -> "_Values":
        """One value for each group."""
        return cls(np.arange(len(values), dtype=np.int64), values)

    def where(self, flags: Flags) -> "_Values":
        at = np.flatnonzero(flags)
        return _Values(self.owners[at], self.values.take(from_numpy(at, pa.int64())))
