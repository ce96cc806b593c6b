"""Groups of multiset tables whose key has several groups, such as one per window.

The key decides which subtask owns a row, so it alone is the prefix of such a table; what distinguishes the groups of a
key is the first column of the elements. A group is then read by reading the elements of its key. Keys with such tables
have few groups in them at a time, because only groups with many elements are stored there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import boolean_values, one_chunk
from statebed.arrays.grouping import Integers, group_rows
from statebed.arrays.key_hash import hash_columns, normalise_key
from statebed.operators.input_rows import filtered
from statebed.operators.keyed_rows import taken
from statebed.state import KeyedView


@dataclass(frozen=True)
class ElementGroups:
    """Columns that identify the groups of a multiset table."""

    keys: tuple[pa.Field, ...]
    within: pa.Field | None = None
    """Column that distinguishes the groups of a key; None if each key is one group."""

    @property
    def columns(self) -> tuple[pa.Field, ...]:
        return self.keys if self.within is None else (*self.keys, self.within)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def pages(self, view: KeyedView, groups: pa.Table, at: Integers) -> Iterator[tuple[Integers, pa.Table]]:
        """Yield rows of the groups at some positions, page by page, and the position of the group of each row.

        If keys have several groups, these come in the order of `at`, one after the other.
        """
        if self.within is None:
            for page in view.elements(taken(groups, at)):
                yield at[page.groups], page.rows
                del page  # before the next one is built, so that only one is in memory
            return
        for place in at.tolist():
            group = taken(groups, np.array([place], dtype=np.int64))
            for page in view.elements(group.select(self.names[:-1])):
                is_of_group = pc.equal(one_chunk(page.rows[self.within.name]), group[self.within.name][0])
                rows = filtered(page.rows, boolean_values(is_of_group))
                del page
                if rows.num_rows:
                    yield np.full(rows.num_rows, place, dtype=np.int64), rows
                del rows  # before the next page is built

    def delete(self, view: KeyedView, groups: pa.Table, at: Integers) -> None:
        """Delete all rows of the groups at some positions."""
        if self.within is None:
            view.delete_elements(taken(groups, at))
            return
        keys, elements = groups.select(self.names[:-1]), view.table.key_schema.names[len(self.keys) :]
        for places, rows in self.pages(view, groups, at):
            columns = [*taken(keys, places).columns, *(rows[name] for name in elements)]
            view.delete(pa.Table.from_arrays(columns, schema=view.table.key_schema))

    def places(self, rows: pa.Table, groups: pa.Table) -> Integers:
        """Return the position of the group of each row; -1 if it is in none of the groups, which are distinct."""
        count = groups.num_rows
        both = [
            normalise_key(
                pa.concat_arrays([one_chunk(groups[column.name]).cast(column.type), one_chunk(rows[column.name])])
            )
            for column in self.columns
        ]
        grouping = group_rows(None, hash_columns(both), both)
        place_of = np.full(grouping.groups, -1, dtype=np.int64)
        group_of_rows = grouping.group_of_rows()
        place_of[group_of_rows[:count]] = np.arange(count)
        return place_of[group_of_rows[count:]]
