"""Lists and maps of keys: each item and each entry is a separate row of a multiset table.

Adding an item costs one row, however many items the key has. A list also keeps the position of its next item in a
second table; items are read back in the order of their positions, entries of a map in the order of their keys.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, one_chunk
from statebed.arrays.sort_order import Flags, Integers, sorted_by, total_keys
from statebed.format.schema import TIME
from statebed.operators.keyed_rows import taken
from statebed.operators.operator import Tables
from statebed.operators.process.items import Items
from statebed.operators.process.states import ITEM, KEY, MAP_KEY, MAP_VALUE, NEXT, POSITION, VALUE, ListState, MapState
from statebed.operators.time_to_live import by_event_time
from statebed.state import ElementPage, KeyedView


@dataclass(frozen=True)
class ListTables:
    """Lists of a subtask. Key tables hold distinct keys; `times` are the event times of the keys, None without event
    time.
    """

    state: ListState
    tables: Tables

    @property
    def _items(self) -> KeyedView:
        return self.tables.get_keyed(self.state.name)

    @property
    def _ends(self) -> KeyedView:
        return self.tables.get_keyed(self.state.ends)

    def has(self, keys: pa.Table) -> Flags:
        """Return which keys have a list, which may be empty."""
        return self._ends.get(keys)[1]

    def sizes(self, keys: pa.Table, limit: int) -> Integers:
        """Return the number of items of each key, or any number above `limit`; expired items may be counted."""
        return np.minimum(self._next(keys), limit + 1)

    def read(self, keys: pa.Table) -> Items:
        """Return the items of each key, in the order in which they were appended."""
        index, rows = _read(self._items.elements(keys), [POSITION, ITEM], self.state.item_table)
        order = np.lexsort((int64_values(rows[POSITION]), index))
        items = one_chunk(rows[ITEM]).take(from_numpy(order, pa.int64()))
        return Items(index[order], pa.Table.from_arrays(items.flatten(), names=self.state.schema.names))

    def last(self, keys: pa.Table, count: int) -> Items:
        """Return those of the last `count` items of each key that have not expired, in order; no others are read."""
        end = self._next(keys)
        sizes = np.minimum(end, count)
        index = np.repeat(np.arange(keys.num_rows, dtype=np.int64), sizes)
        positions = (end - np.cumsum(sizes))[index] + np.arange(len(index), dtype=np.int64)
        places = taken(keys, index).append_column(POSITION, from_numpy(positions, pa.int64()))
        values, present = self._items.get(places)
        items = one_chunk(values[ITEM]).filter(pa.array(present))
        return Items(index[present], pa.Table.from_arrays(items.flatten(), names=self.state.schema.names))

    def append(self, keys: pa.Table, items: Items, times: pa.Array | None) -> None:
        """Append items; the items of a key keep their order."""
        before = self._next(keys)
        order = np.argsort(items.index, kind="stable")
        index = items.index[order]
        counts = np.bincount(index, minlength=keys.num_rows).astype(np.int64)
        ranks = np.arange(len(index), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        columns = [one_chunk(column).take(from_numpy(order, pa.int64())) for column in items.rows.columns]
        value = pa.StructArray.from_arrays(columns, fields=list(self.state.list_type.value_type))
        places = taken(keys, index).append_column(POSITION, from_numpy(before[index] + ranks, pa.int64()))
        self._items.upsert(places, pa.table({ITEM: value}), times=_of_each(times, index))
        self._ends.upsert(keys, pa.table({NEXT: from_numpy(before + counts, pa.int64())}), times=times)

    def put(self, keys: pa.Table, items: Items, times: pa.Array | None) -> None:
        """Replace the lists of keys."""
        self.delete(keys)
        self.append(keys, items, times)

    def delete(self, keys: pa.Table) -> None:
        """Delete the lists of keys."""
        self._items.delete_elements(keys)
        self._ends.delete(keys)

    def _next(self, keys: pa.Table) -> Integers:
        values, has_list = self._ends.get(keys)
        return np.where(has_list, int64_values(one_chunk(values[NEXT])), 0)


@dataclass(frozen=True)
class MapTables:
    """Maps of a subtask. Key tables hold distinct keys; `times` are the event times of the keys, None without event
    time.
    """

    state: MapState
    tables: Tables

    @property
    def _entries(self) -> KeyedView:
        return self.tables.get_keyed(self.state.name)

    def has(self, keys: pa.Table) -> Flags:
        """Return which keys have an entry."""
        return self.sizes(keys, 0) > 0

    def sizes(self, keys: pa.Table, limit: int) -> Integers:
        """Return the number of entries of each key, or any number above `limit`."""
        return self._entries.count_elements(keys, np.full(keys.num_rows, limit, dtype=np.int64))

    def read(self, keys: pa.Table) -> Items:
        """Return the entries of each key, in the order of their map keys."""
        index, rows = _read(self._entries.elements(keys), [MAP_KEY, MAP_VALUE], self.state.item_table)
        order = sorted_by([index, *total_keys(rows, [MAP_KEY])])
        return Items(index[order], taken(rows, order).rename_columns([KEY, VALUE]))

    def find(self, keys: pa.Table, index: Integers, map_keys: pa.Array) -> tuple[pa.Array, Flags]:
        """Return the value of each map key of the key at `index`, null if there is none, and which map keys are
        present.
        """
        values, has_entry = self._entries.get(taken(keys, index).append_column(MAP_KEY, map_keys))
        return one_chunk(values[MAP_VALUE]), has_entry

    def merge(self, keys: pa.Table, entries: Items, times: pa.Array | None) -> None:
        """Set entries; if a map key occurs several times, the last value wins."""
        places = taken(keys, entries.index).append_column(MAP_KEY, one_chunk(entries.rows[KEY]))
        values = pa.table({MAP_VALUE: one_chunk(entries.rows[VALUE])})
        self._entries.upsert(places, values, times=_of_each(times, entries.index))

    def remove(self, keys: pa.Table, index: Integers, map_keys: pa.Array) -> None:
        """Remove the entry of each map key of the key at `index`."""
        self._entries.delete(taken(keys, index).append_column(MAP_KEY, map_keys))

    def put(self, keys: pa.Table, entries: Items, times: pa.Array | None) -> None:
        """Replace the maps of keys."""
        self.delete(keys)
        self.merge(keys, entries, times)

    def delete(self, keys: pa.Table) -> None:
        """Delete the maps of keys."""
        self._entries.delete_elements(keys)


def collection(state: ListState | MapState, tables: Tables) -> ListTables | MapTables:
    """Return the tables of a list or map state."""
    return ListTables(state, tables) if isinstance(state, ListState) else MapTables(state, tables)


def upgrade_lists(state: ListState | MapState, earlier: KeyedView, tables: Tables) -> None:
    """Write lists and maps that earlier versions stored as one value per key as separate rows."""
    for rows in earlier.scan():
        keys = rows.select(earlier.table.key_schema.names)
        items = Items.of(one_chunk(rows[state.fields[0].name]))
        collection(state, tables).put(keys, items, one_chunk(rows[TIME]) if by_event_time(state.time_to_live) else None)


def _read(pages: Iterable[ElementPage], columns: Sequence[str], schema: pa.Schema) -> tuple[Integers, pa.Table]:
    """Return the rows of all pages, and the group of each row."""
    all_pages = list(pages)
    index = np.concatenate([np.zeros(0, dtype=np.int64), *(page.groups for page in all_pages)])
    return index, pa.concat_tables(
        [schema.empty_table(), *(page.rows.select(columns).cast(schema) for page in all_pages)]
    )


def _of_each(times: pa.Array | None, index: Integers) -> pa.Array | None:
    return None if times is None else times.take(from_numpy(index, pa.int64()))
