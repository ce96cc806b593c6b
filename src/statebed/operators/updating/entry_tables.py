"""Entries of multisets as rows of the state, for aggregates that have to know all values of a group.

Distinct counts and sums, modes, percentiles, collected lists and sets, and the smallest or largest value of a changelog
need all values of a group, but a row changes only one of them. Each value is a row of a multiset table with its count,
so adding a value looks up and writes one row. `entry_results` defines what the group's own row holds, and how the
result is computed. If groups have a time to live, their entries are deleted when they expire.

Counts are signed sums. An entry with count 0 is deleted; an entry with a negative count waits for the rows that it
retracts, and is not part of the result.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.aggregates.accumulators import (
    Accumulator,
    AllValues,
    CollectedList,
    CollectedSet,
    DistinctSum,
    EntryAccumulator,
    Joined,
    Multiset,
    Percentile,
)
from statebed.aggregates.accumulators.multisets import Multisets, present, sorted_sets
from statebed.arrays.columns import from_numpy, int64_values, one_chunk
from statebed.arrays.grouping import Flags, Integers
from statebed.arrays.key_hash import is_key_type
from statebed.arrays.sort_order import total_order
from statebed.operators.element_groups import ElementGroups
from statebed.operators.external_sort import ExternalSort
from statebed.operators.keyed_rows import taken, unused_name
from statebed.operators.operator import Tables
from statebed.operators.time_to_live import multiset_config
from statebed.operators.updating.collected_results import (
    ResultFile,
    ResultSpace,
    SortedEntries,
    results_before_and_after,
    results_so_far,
)
from statebed.operators.updating.entry_results import (
    ChangedEntries,
    Columns,
    Entries,
    EntryReads,
    EntryResult,
    computed_fields,
    entry_result,
)
from statebed.operators.updating.percentile_windows import StoredWindows, WindowTable
from statebed.state import KeyedView, TableConfig

COUNT = "_count"
_COPIES = 6
"""Copies of the rows of a chunk that sorting it takes."""
_SIGN = np.uint64(1 << 63)


def entry_accumulator(accumulator: Accumulator) -> EntryAccumulator | None:
    """Return the accumulator if its entries can be separate rows, else None."""
    if not isinstance(accumulator, Multiset | CollectedList | Joined) or accumulator.limit is not None:
        return None
    return accumulator if all(is_key_type(column.kind) for column in accumulator.columns) else None


@dataclass(frozen=True)
class EntryTable:
    """Table of the entries of one aggregate."""

    position: int
    """Position of the aggregate among those of its operator."""
    accumulator: EntryAccumulator
    groups: ElementGroups
    expires_with: str | None = None
    """Table of the groups, if they have a time to live."""

    @property
    def name(self) -> str:
        return f"values_{self.position}"

    @property
    def result_name(self) -> str:
        return self.accumulator.name

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Columns of the group's row: the result, or what decides it or changes with it."""
        return self._results.fields

    @property
    def collects(self) -> bool:
        """Whether the result contains all entries, so that it is not stored in the group's row."""
        return self._results.finish(tuple(pa.nulls(0, field.type) for field in self.fields)) is None

    @property
    def was_list(self) -> bool:
        """Whether the entries were still a list in the group's row when those of other aggregates were rows already."""
        return not isinstance(self.accumulator, Multiset) or isinstance(
            self.accumulator.finishing, AllValues | CollectedSet | DistinctSum
        )

    def finish(self, fields: Columns) -> pa.Array:
        """Return the result of each group from its `fields`; not for results that contain all entries."""
        result = self._results.finish(fields)
        assert result is not None
        return result

    def named(self, columns: Columns) -> dict[str, pa.Array]:
        """Return the columns by the names of `fields`."""
        return {field.name: column for field, column in zip(self.fields, columns, strict=True)}

    @cached_property
    def config(self) -> TableConfig:
        description = f"distinct values of {self.result_name} by key, with their counts"
        counts = [pa.field(COUNT, pa.int64(), nullable=False)]
        keys = self.groups.keys
        elements = [*self.groups.columns[len(keys) :], *self._elements]
        return multiset_config(self.name, description, keys, elements, counts, ttl=None, expires_with=self.expires_with)

    @cached_property
    def _results(self) -> EntryResult:
        return entry_result(self.accumulator)

    @cached_property
    def _elements(self) -> tuple[pa.Field, ...]:
        """Columns of an entry: `_value`, preceded by the columns that order the values."""
        names = self.groups.names
        fields = []
        for column in self.accumulator.columns:
            word = "_value" if column.word == "values" else f"_{column.word}"
            fields.append(pa.field(unused_name(word, names), column.kind))
            names.append(fields[-1].name)
        return tuple(fields)

    @cached_property
    def configs(self) -> Mapping[str, TableConfig]:
        """Configurations of the table of entries, and of another one for percentiles, by name."""
        more = () if self._windows is None else (self._windows,)
        return {self.name: self.config, **{table.name: table.config for table in more}}

    @cached_property
    def _windows(self) -> WindowTable | None:
        """Table of values around percentiles."""
        is_percentile = isinstance(self.accumulator, Multiset) and isinstance(self.accumulator.finishing, Percentile)
        return WindowTable(self.position, self.groups, self.expires_with) if is_percentile else None

    def apply(
        self, tables: Tables, keys: pa.Table, folded: Sequence[pa.Array], before: Columns, kept: Flags
    ) -> Columns:
        """Add the partials of an epoch to the groups that are kept, and return the `fields` of each group.

        `before` has the stored fields, null for a new group. Entries of groups that are not kept are deleted.
        """
        return self._apply(tables, keys, _entries(self.accumulator.entries(folded)), before, kept)

    def add_all(self, tables: Tables, keys: pa.Table, entries: Iterable[Entries], before: Columns) -> Columns:
        """Add any number of entries to groups, and return the `fields` of each group.

        Entries are added in the order of the table, which is that of hashes. A page of them then changes neighbouring
        rows of the table, and is a sample of all values. Pages of ascending values would each move the median beyond
        the values that are stored around it, so that every page would read all values.
        """
        view, names = tables.get_keyed(self.name), [element.name for element in self._elements]
        numbers = [pa.field(unused_name(word, names), pa.int64()) for word in ("hash", "owner", "count")]
        hash_name, owner_name, count_name = (field.name for field in numbers)
        schema = pa.schema([*numbers, *self._elements])

        def order_of(rows: pa.Table) -> Integers:
            leading = [int64_values(rows[name]) for name in (hash_name, owner_name)]
            return total_order(leading, [one_chunk(rows[name]) for name in names])[0]

        every, fields = np.ones(keys.num_rows, dtype=np.bool_), before
        with ExternalSort(schema, order_of, view, copies=_COPIES) as sort:
            for part in entries:
                rows_of_part = self._rows(keys, part.owners, part.columns)
                hashes = view.table.hash_keys([one_chunk(column) for column in rows_of_part.columns])
                # With its first bit flipped, the order of signed numbers is that of unsigned ones.
                leading = ((hashes ^ _SIGN).view(np.int64), part.owners, part.counts)
                sort.add(pa.Table.from_arrays([*map(_int64_array, leading), *part.columns], schema=schema))
            for page in sort.pages():
                columns = tuple(one_chunk(page[name]) for name in names)
                rows = Entries(int64_values(page[owner_name]), columns, int64_values(page[count_name]))
                fields = self._apply(tables, keys, _entries(rows.added_up().sets(keys.num_rows)), fields, every)
        return fields

    def absorb(self, tables: Tables, absorbed: pa.Table, keys: pa.Table, before: Columns) -> Columns:
        """Move the entries of a group to another one, and return the `fields` of that."""
        view, every, fields = tables.get_keyed(self.name), np.zeros(1, dtype=np.int64), before
        for page in self._stored(view, absorbed, every):
            fields = self._apply(tables, keys, page, fields, np.ones(1, dtype=np.bool_))
        self.delete(tables, absorbed)
        return fields

    def delete(self, tables: Tables, keys: pa.Table) -> None:
        """Delete the entries of groups."""
        every = np.arange(keys.num_rows, dtype=np.int64)
        for name in self.configs:
            self.groups.delete(tables.get_keyed(name), keys, every)

    def _apply(self, tables: Tables, keys: pa.Table, entries: Entries, before: Columns, kept: Flags) -> Columns:
        view = tables.get_keyed(self.name)
        windows = None
        if self._windows is not None:
            windows = StoredWindows(self._windows, tables.get_keyed(self._windows.name), keys)
        entries = entries.where(kept[entries.owners])
        old, new = self._add(view, self._rows(keys, entries.owners, entries.columns), entries.counts)
        if not kept.all():
            self.groups.delete(view, keys, np.flatnonzero(~kept))
            if windows is not None:
                windows.delete(np.flatnonzero(~kept))
        changed = ChangedEntries(keys.num_rows, Entries(entries.owners, entries.columns, new), old)

        def pages(groups: Integers) -> Iterator[Entries]:
            return map(Entries.present, self._stored(view, keys, groups))

        return self._results.updated(changed, before, EntryReads(pages, windows, view.reservation))

    def put_all(self, view: KeyedView, keys: pa.Table, partials: Sequence[pa.Array]) -> Columns:
        """Write the entries of groups that have none yet, and return the `fields` of each group."""
        sets = self.accumulator.entries(partials)
        rows = self._rows(keys, sets.owners, sets.columns)
        view.upsert(rows, pa.table({COUNT: from_numpy(sets.counts, pa.int64())}))
        return self._results.of_sets(present(sets))

    # ---- results that contain all entries ------------------------------------------------------------------------

    def collected_before_and_after(
        self, view: KeyedView, keys: pa.Table, folded: Sequence[pa.Array], kept: Flags
    ) -> tuple[pa.Array, pa.Array]:
        """Return the result of each group before and after the partials of an epoch, which are not yet applied.

        The entries are read and sorted once for both.
        """
        with SortedEntries([column.kind for column in self.accumulator.columns], keys.num_rows, view) as entries:
            for page in self._stored(view, keys, np.arange(keys.num_rows, dtype=np.int64)):
                entries.add(page, change=False)
            entries.add(_entries(self.accumulator.entries(folded)), change=True)
            return results_before_and_after(self.accumulator, entries, view, kept=kept)

    def collected(self, view: KeyedView, keys: pa.Table, *, normal: bool) -> pa.Array:
        """Return the result of each group from its stored entries; with `normal` values, as a changelog has them."""
        with SortedEntries([column.kind for column in self.accumulator.columns], keys.num_rows, view) as entries:
            for page in self._stored(view, keys, np.arange(keys.num_rows, dtype=np.int64)):
                entries.add(page, change=False)
            return results_so_far(self.accumulator, entries, view, groups=keys.num_rows, normal=normal)

    def result_of(self, pages: Callable[[], Iterator[Entries]], space: ResultSpace) -> pa.Array:
        """Return the result of one group, whose distinct entries are read in order, page by page."""
        if not self.collects:
            reads = EntryReads(lambda _: pages(), None, space.reservation)
            return self.finish(computed_fields(self._results, reads))
        file = ResultFile(self.accumulator, 1, space, normal=False)
        try:
            for page in pages():
                file.add(page.sets(1))
            return file.result()
        finally:
            file.close()

    def entry_counts(self, stored: pa.Table, folded: pa.Table) -> Integers:
        """Return at least the number of entries of each group, from its row and the partials of an epoch."""
        lists = one_chunk(folded[self.accumulator.partial_fields[0].name])
        added = int64_values(pc.list_value_length(lists).cast(pa.int64()))
        counts: Integers = int64_values(one_chunk(stored[self.fields[0].name]).fill_null(0)) + added
        return counts

    def collected_from(self, rows: Iterable[pa.Table], keys: pa.Table) -> pa.Array:
        """Return the result of each group from rows of this table, which may include other groups."""
        return self._collected((self._matched(piece, keys) for piece in rows), keys.num_rows)

    def _collected(self, pages: Iterable[Entries], groups: int) -> pa.Array:
        held = _all(map(Entries.present, pages), self.accumulator)
        return self.accumulator.result(sorted_sets(held.owners, held.columns, held.counts, groups=groups))

    def _matched(self, rows: pa.Table, keys: pa.Table) -> Entries:
        """Return the rows of some groups as entries."""
        owners = self.groups.places(rows, keys)
        columns = tuple(one_chunk(rows[element.name]) for element in self._elements)
        return Entries(owners, columns, int64_values(rows[COUNT])).where(owners >= 0)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _rows(self, keys: pa.Table, owners: Integers, columns: Columns) -> pa.Table:
        schema = pa.schema([*self.groups.columns, *self._elements])
        return pa.Table.from_arrays([*taken(keys, owners).columns, *columns], schema=schema)

    def _stored(self, view: KeyedView, keys: pa.Table, groups: Integers) -> Iterator[Entries]:
        """Yield the stored entries of some groups, page by page."""
        names = [element.name for element in self._elements]
        for owners, rows in self.groups.pages(view, keys, groups):
            columns = tuple(one_chunk(rows[name]) for name in names)
            counts = int64_values(rows[COUNT])
            del rows
            yield Entries(owners, columns, counts)
            del owners, columns, counts  # before the next page is built

    def _add(self, view: KeyedView, elements: pa.Table, counts: Integers) -> tuple[Integers, Integers]:
        """Add to the counts of entries; return those before and after."""
        if not elements.num_rows:
            return counts, counts
        stored, is_stored = view.get(elements)
        old = np.where(is_stored, int64_values(stored[COUNT]), 0)
        new = old + counts
        there, gone = np.flatnonzero(new), np.flatnonzero(is_stored & (new == 0))
        if len(there):
            kept = elements if len(there) == len(new) else taken(elements, there)
            view.upsert(kept, pa.table({COUNT: from_numpy(new[there], pa.int64())}))
        if len(gone):
            view.delete(taken(elements, gone))
        return old, new


def _int64_array(values: Integers) -> pa.Array:
    return from_numpy(values, pa.int64())


def _entries(sets: Multisets) -> Entries:
    return Entries(sets.owners, sets.columns, sets.counts)


def _all(pages: Iterable[Entries], accumulator: EntryAccumulator) -> Entries:
    """Concatenate pages of entries."""
    nothing = tuple(pa.nulls(0, column.kind) for column in accumulator.columns)
    all_pages = [Entries(np.zeros(0, dtype=np.int64), nothing, np.zeros(0, dtype=np.int64)), *pages]
    columns = tuple(
        pa.concat_arrays(list(arrays)) for arrays in zip(*(page.columns for page in all_pages), strict=True)
    )
    owners, counts = (
        np.concatenate(arrays) for arrays in zip(*((page.owners, page.counts) for page in all_pages), strict=True)
    )
    return Entries(owners, columns, counts)
