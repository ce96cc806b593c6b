"""Entries of multisets as rows of the state, for aggregates whose result changes with single entries.

A distinct count, a mode, a percentile, and the smallest or largest value of a changelog need all values of a group only
to know which of them are added and removed. Each value is a row of a multiset table with its count, and the result is
in the group's own row, so adding a value looks up and writes one row. `entry_results` defines how the result is
computed.

Counts are signed sums. An entry with count 0 is deleted; an entry with a negative count waits for the rows that it
retracts, and is not part of the result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators import Accumulator, Multiset
from statebed.aggregates.accumulators.multisets import multisets_of, present
from statebed.arrays.columns import from_numpy, int64_values, one_chunk
from statebed.arrays.grouping import Flags, Integers
from statebed.arrays.key_hash import is_key_type
from statebed.operators.keyed_rows import taken, unused_name
from statebed.operators.time_to_live import multiset_config
from statebed.operators.updating.entry_results import Changed, Columns, Entries, EntryResult, entry_result
from statebed.state import KeyedView, TableConfig

COUNT = "_count"


def entry_accumulator(accumulator: Accumulator) -> Multiset | None:
    """Return the accumulator if its entries can be separate rows; None if its result needs all of them."""
    if not isinstance(accumulator, Multiset) or entry_result(accumulator) is None:
        return None
    return accumulator if all(is_key_type(column.kind) for column in accumulator.columns) else None


@dataclass(frozen=True)
class EntryTable:
    """Table of the entries of one aggregate."""

    position: int
    """Position of the aggregate among those of its operator."""
    accumulator: Multiset
    keys: tuple[pa.Field, ...]

    @property
    def name(self) -> str:
        return f"values_{self.position}"

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Columns of the group's row: the result, and what else decides it."""
        return self._results.fields

    def named(self, columns: Columns) -> dict[str, pa.Array]:
        """Return the columns by the names of `fields`."""
        return {field.name: column for field, column in zip(self.fields, columns, strict=True)}

    @cached_property
    def config(self) -> TableConfig:
        description = f"distinct values of {self.accumulator.name} by key, with their counts"
        counts = [pa.field(COUNT, pa.int64(), nullable=False)]
        return multiset_config(self.name, description, self.keys, self._elements, counts, ttl=None)

    @cached_property
    def _results(self) -> EntryResult:
        made = entry_result(self.accumulator)
        assert made is not None
        return made

    @cached_property
    def _elements(self) -> tuple[pa.Field, ...]:
        """Columns of an entry: `_value`, preceded by the columns that order the values."""
        names = [key.name for key in self.keys]
        *others, value = self.accumulator.columns
        fields = []
        for word, kind in [*((f"_{column.word}", column.kind) for column in others), ("_value", value.kind)]:
            fields.append(pa.field(unused_name(word, names), kind))
            names.append(fields[-1].name)
        return tuple(fields)

    def apply(
        self, view: KeyedView, keys: pa.Table, folded: Sequence[pa.Array], before: Columns, kept: Flags
    ) -> Columns:
        """Add the partials of an epoch to the groups that are kept, and return the `fields` of each group.

        `before` has the stored fields, null for a new group. Entries of groups that are not kept are deleted.
        """
        sets = multisets_of(folded)
        entries = Entries(sets.owners, sets.columns, sets.counts).where(kept[sets.owners])
        old, new = self._add(view, self._rows(keys, entries.owners, entries.columns), entries.counts)
        if not kept.all():
            view.delete_elements(taken(keys, np.flatnonzero(~kept)))
        changed = Changed(keys.num_rows, Entries(entries.owners, entries.columns, new), old)

        def pages(groups: Integers) -> Iterator[Entries]:
            return self._present(view, keys, groups)

        return self._results.updated(changed, before, pages)

    def put_all(self, view: KeyedView, keys: pa.Table, partials: Sequence[pa.Array]) -> Columns:
        """Write the entries of groups that have none yet, and return the `fields` of each group."""
        sets = multisets_of(partials)
        rows = self._rows(keys, sets.owners, sets.columns)
        view.upsert(rows, pa.table({COUNT: from_numpy(sets.counts, pa.int64())}))
        return self._results.of_sets(present(sets))

    def _rows(self, keys: pa.Table, owners: Integers, columns: Columns) -> pa.Table:
        schema = pa.schema([*self.keys, *self._elements])
        return pa.Table.from_arrays([*taken(keys, owners).columns, *columns], schema=schema)

    def _present(self, view: KeyedView, keys: pa.Table, groups: Integers) -> Iterator[Entries]:
        """Yield the entries of some groups that count, page by page."""
        names = [element.name for element in self._elements]
        for page in view.elements(taken(keys, groups)):
            columns = tuple(one_chunk(page.rows[name]) for name in names)
            counts = int64_values(page.rows[COUNT])
            yield Entries(groups[page.groups], columns, counts).where(counts > 0)

    def _add(self, view: KeyedView, elements: pa.Table, counts: Integers) -> tuple[Integers, Integers]:
        """Add to the counts of entries; return those before and after."""
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
