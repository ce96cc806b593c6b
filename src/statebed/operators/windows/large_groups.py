"""Windows with many values, whose values are rows of their own.

The partials of a window list its values (`accumulators.multisets`). A list is read, merged and written as a whole,
which is the fastest way for the few values that most windows have. If a window that emits updates has more than
`LISTED_ENTRIES` of them, they move to the tables of entries that aggregates without a window use
(`updating.entry_tables`): one more value then changes one row. The row of such a window in the table `large_windows`
has its results so far, or what decides them.

A window stays large until it is deleted. Its rows in the table of partials then list no more values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.aggregates.accumulators.multisets import list_array
from statebed.aggregates.aggregate import BoundAggregate
from statebed.arrays.columns import from_numpy, int64_values, one_chunk
from statebed.arrays.grouping import Flags, Grouping, Integers
from statebed.operators.element_groups import ElementGroups
from statebed.operators.keyed_rows import taken
from statebed.operators.operator import Elements, Tables
from statebed.operators.updating.entry_results import Entries
from statebed.operators.updating.entry_tables import EntryTable, entry_accumulator
from statebed.state import TableConfig, multiset_table_config

LARGE = "large_windows"
LISTED_ENTRIES = 1 << 10
"""Number of values of one aggregate up to which a window lists them."""
MERGED_ENTRIES = 1 << 14
"""Number of values up to which partials of a pane are merged when files are compacted."""

Results = Mapping[str, pa.Array]
"""Results of aggregates by name."""


@dataclass(frozen=True)
class LargeGroups:
    """Tables of the groups of an operator that have many values. A group is a window or session of a key."""

    groups: ElementGroups
    entries: Mapping[int, EntryTable]
    """Tables of entries by position of the aggregate."""

    @classmethod
    def of(
        cls, keys: tuple[pa.Field, ...], within: pa.Field, aggregates: Sequence[BoundAggregate]
    ) -> "LargeGroups | None":
        """Return the tables for some aggregates; None if all their partials are small."""
        groups = ElementGroups(keys, within)
        accumulators = enumerate(entry_accumulator(aggregate.accumulator) for aggregate in aggregates)
        entries = {
            position: EntryTable(position, accumulator, groups)
            for position, accumulator in accumulators
            if accumulator is not None
        }
        return cls(groups, entries) if entries else None

    @cached_property
    def configs(self) -> Mapping[str, TableConfig]:
        keys, (within,) = self.groups.names[:-1], self.groups.columns[-1:]
        fields = [field.with_nullable(True) for table in self.entries.values() for field in table.fields]
        large = multiset_table_config(
            LARGE,
            "results of windows with many values by key",
            keys,
            [within.name],
            pa.schema([*self.groups.columns, *fields]),
        )
        return {
            LARGE: large,
            **{name: config for table in self.entries.values() for name, config in table.configs.items()},
        }

    @property
    def collects(self) -> bool:
        """Whether a result contains all values of its group."""
        return any(table.collects for table in self.entries.values())

    # ---- lists -----------------------------------------------------------------------------------------------

    def entry_counts(self, partials: pa.Table) -> Integers:
        """Return how many entries each row of partials lists, for the aggregate that has the most of them."""
        lengths = [
            int64_values(pc.list_value_length(one_chunk(partials[names[0]])).cast(pa.int64())) for names in self._lists
        ]
        counts: Integers = np.max(lengths, axis=0)
        return counts

    def are_many(self, counts: Integers) -> Flags:
        """Return which of these numbers of entries are too many for lists."""
        return counts > LISTED_ENTRIES

    def cut(self, grouping: Grouping, rows: pa.Table) -> Grouping:
        """Return a grouping of rows of partials in which no group lists more than about `MERGED_ENTRIES`, except in one
        row.
        """
        counts = self.entry_counts(rows)[grouping.order]
        before = np.cumsum(counts) - counts
        owners = np.repeat(np.arange(grouping.groups, dtype=np.int64), grouping.sizes)
        parts = (before - before[grouping.starts][owners]) // MERGED_ENTRIES
        if not parts.any():
            return grouping
        begins = (np.diff(owners, prepend=-1) != 0) | (np.diff(parts, prepend=-1) != 0)
        return Grouping(order=grouping.order, starts=np.flatnonzero(begins))

    def without_entries(self, rows: pa.Table, emptied: Flags) -> pa.Table:
        """Return rows of partials with empty lists where the flag is set."""
        if not emptied.any():
            return rows
        kept = from_numpy(np.flatnonzero(~emptied), pa.int64())
        for name in (name for names in self._lists for name in names):
            lists = one_chunk(rows[name])
            lengths = np.where(emptied, 0, int64_values(pc.list_value_length(lists).cast(pa.int64())))
            values = lists.take(kept).flatten()
            at = rows.schema.get_field_index(name)
            emptied_lists = list_array(lists.type, np.concatenate(([0], np.cumsum(lengths))), values)
            rows = rows.set_column(at, rows.schema.field(at), emptied_lists)
        return rows

    @property
    def _lists(self) -> Iterator[list[str]]:
        """Names of the columns that list the entries of each aggregate."""
        return ([field.name for field in table.accumulator.partial_fields] for table in self.entries.values())

    # ---- state -----------------------------------------------------------------------------------------------

    def stored(self, tables: Tables, groups: pa.Table) -> tuple[pa.Table, Flags]:
        """Return the rows of groups, and which of the groups are large."""
        return tables.get_keyed(LARGE).get(groups)

    def put(self, tables: Tables, groups: pa.Table, partials: pa.Table) -> None:
        """Make groups large whose entries are listed in partials."""
        fields: dict[str, pa.Array] = {}
        for table in self.entries.values():
            fields |= table.named(table.put_all(tables.get_keyed(table.name), groups, _listed(table, partials)))
        self._upsert(tables, groups, fields)

    def changed(self, tables: Tables, groups: pa.Table, change: pa.Table) -> tuple[Results, Results]:
        """Add partials of an epoch to large groups, and return their results before and after."""
        stored, _ = self.stored(tables, groups)
        kept = np.ones(groups.num_rows, dtype=np.bool_)
        before: dict[str, pa.Array] = {}
        after: dict[str, pa.Array] = {}
        fields: dict[str, pa.Array] = {}
        for table in self.entries.values():
            name, entries = table.result_name, _listed(table, change)
            old = _fields_of(table, stored)
            if table.collects:
                view = tables.get_keyed(table.name)
                before[name], after[name] = table.collected_before_and_after(view, groups, entries, kept)
            new = table.apply(tables, groups, entries, old, kept)
            if not table.collects:
                before[name], after[name] = table.finish(old), table.finish(new)
            fields |= table.named(new)
        self._upsert(tables, groups, fields)
        return before, after

    def absorb(self, tables: Tables, absorbed: pa.Table, group: pa.Table) -> None:
        """Move the entries of a large group to another one."""
        stored, _ = self.stored(tables, group)
        fields: dict[str, pa.Array] = {}
        for table in self.entries.values():
            fields |= table.named(table.absorb(tables, absorbed, group, _fields_of(table, stored)))
        self._upsert(tables, group, fields)
        tables.get_keyed(LARGE).delete(absorbed)

    def add(self, tables: Tables, groups: pa.Table, change: pa.Table) -> None:
        """Add partials of an epoch to large groups."""
        stored, _ = self.stored(tables, groups)
        kept = np.ones(groups.num_rows, dtype=np.bool_)
        fields: dict[str, pa.Array] = {}
        for table in self.entries.values():
            fields |= table.named(table.apply(tables, groups, _listed(table, change), _fields_of(table, stored), kept))
        self._upsert(tables, groups, fields)

    def add_all(self, tables: Tables, groups: pa.Table, entries: Callable[[EntryTable], Iterable[Entries]]) -> None:
        """Add any number of entries to large groups; `entries` returns those of a table."""
        stored, _ = self.stored(tables, groups)
        fields: dict[str, pa.Array] = {}
        for table in self.entries.values():
            fields |= table.named(table.add_all(tables, groups, entries(table), _fields_of(table, stored)))
        self._upsert(tables, groups, fields)

    def results(self, tables: Tables, groups: pa.Table) -> Results:
        """Return the results of large groups."""
        stored, _ = self.stored(tables, groups)
        return {
            table.result_name: table.collected(tables.get_keyed(table.name), groups, normal=False)
            if table.collects
            else table.finish(_fields_of(table, stored))
            for table in self.entries.values()
        }

    def delete(self, tables: Tables, groups: pa.Table) -> None:
        """Delete groups, each of which is passed once."""
        for table in self.entries.values():
            table.delete(tables, groups)
        tables.get_keyed(LARGE).delete(groups)

    def _upsert(self, tables: Tables, groups: pa.Table, fields: Mapping[str, pa.Array]) -> None:
        names = [field.name for table in self.entries.values() for field in table.fields]
        tables.get_keyed(LARGE).upsert(groups, pa.table({name: fields[name] for name in names}))

    # ---- results from files ----------------------------------------------------------------------------------

    def stored_in(self, rows: Iterable[pa.Table], groups: pa.Table) -> tuple[pa.Table, Integers]:
        """Return the rows of the table of large groups that belong to `groups`, and the group of each; `rows` may have
        others, too.
        """
        parts = [(part, self.groups.places(part, groups)) for part in rows]
        large = [(taken(part, np.flatnonzero(places >= 0)), places[places >= 0]) for part, places in parts]
        if not large:
            return groups.slice(0, 0), np.zeros(0, dtype=np.int64)
        return pa.concat_tables([part for part, _ in large]), np.concatenate([places for _, places in large])

    def finished(self, stored: pa.Table, elements: Elements) -> Results:
        """Return the results of rows of the table of large groups; `elements` reads the tables of entries."""
        groups = stored.select(self.groups.names)
        keys = groups.select(self.groups.names[:-1])
        return {
            table.result_name: table.collected_from(elements(table.name, keys), groups)
            if table.collects
            else table.finish(_fields_of(table, stored))
            for table in self.entries.values()
        }


def _listed(table: EntryTable, partials: pa.Table) -> list[pa.Array]:
    return [one_chunk(partials[field.name]) for field in table.accumulator.partial_fields]


def _fields_of(table: EntryTable, rows: pa.Table) -> tuple[pa.Array, ...]:
    return tuple(one_chunk(rows[field.name]) for field in table.fields)
