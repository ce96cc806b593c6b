"""Rows of one side of an updating join: the distinct rows of each key with their weights, one state row each.

The state is a multiset table. The non-key columns of a row and its event time are the element; its weight is the value.
So an epoch looks up and writes only the rows that it changes. Columns of types without a key hash, such as maps, are
stored as values next to the weight; the element contains their encoding instead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.canonical_order import is_sortable, sortable
from statebed.arrays.columns import from_numpy, int64_values, one_chunk
from statebed.arrays.grouping import group_rows
from statebed.arrays.hash_order import is_ascending
from statebed.arrays.key_hash import hash_columns, is_key_type, normalise_key
from statebed.arrays.mutable import taken as taken_values
from statebed.errors import InputError
from statebed.format.schema import TIME, TIMESTAMP
from statebed.format.stream_schema import WEIGHT, Input, weights_of
from statebed.operators.changelog import group_equal
from statebed.operators.keyed_rows import state_keys, taken, unused_name
from statebed.operators.operator import Clock
from statebed.operators.time_to_live import TimeToLive, by_event_time, multiset_config
from statebed.operators.weighted_lists import WeightedLists
from statebed.state import KeyedView, TableConfig
from statebed.state.live.row_set import ascending

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TouchedKeys:
    """Distinct keys of the rows of an epoch; a join without key columns has one key."""

    keys: Sequence[pa.Array]
    count: int


@dataclass(frozen=True)
class WeightedRows:
    """Rows of touched keys."""

    rows: pa.Table
    """Columns of the input, and `_time`."""
    places: Integers
    """Position among the touched keys of the key of each row."""
    weights: Integers

    @cached_property
    def by_key(self) -> Integers | None:
        """Positions of the rows in the order of their keys, or None if they are in that order."""
        return None if is_ascending(self.places) else np.argsort(self.places, kind="stable")


@dataclass(frozen=True)
class ChangedRows:
    """Distinct rows whose weight changes in an epoch, in the order of the state table."""

    rows: pa.Table
    elements: pa.Table
    """Keys of the rows in the state table."""
    places: Integers
    before: Integers
    """Weight of each row before the epoch."""
    after: Integers
    """Weight of each row after the epoch."""
    unknown: int
    """Number of retractions that matched no row."""

    @cached_property
    def change(self) -> Integers:
        return self.after - self.before

    @cached_property
    def keys(self) -> Integers:
        """Positions of the keys with changed rows, ascending."""
        return ascending(self.places)

    @cached_property
    def stored(self) -> "ChangedRows":
        """Changed rows that were in the state before the epoch."""
        at = np.flatnonzero(self.before > 0)
        return self if len(at) == len(self.before) else self.take(at)

    def take(self, at: Integers) -> "ChangedRows":
        """Return the changed rows at some positions, ascending."""
        rows, elements = taken(self.rows, at), taken(self.elements, at)
        return ChangedRows(rows, elements, self.places[at], self.before[at], self.after[at], self.unknown)

    def weighted(self) -> WeightedRows:
        """Return the rows with their weight changes as weights."""
        return WeightedRows(self.rows, self.places, self.change)


@dataclass(frozen=True)
class ArrivedRows:
    """Rows that were not there before, with their distinct keys."""

    touched: TouchedKeys
    rows: ChangedRows


@dataclass(frozen=True)
class WeightedTable:
    """Table of one side."""

    name: str
    input: Input
    ttl: TimeToLive | None
    expires_with: str | None = None
    """Table whose rows delete those of their key here when they expire."""

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of rows: those of the input, and `_time`."""
        return pa.schema([*self.input.columns, pa.field(TIME, TIMESTAMP)])

    @cached_property
    def values(self) -> list[str]:
        """Columns of rows that are not keys."""
        return [name for name in self.schema.names if name not in self.input.keys]

    @cached_property
    def keys(self) -> tuple[pa.Field, ...]:
        """Key columns of the table."""
        return state_keys(self.input)

    @cached_property
    def elements(self) -> tuple[pa.Field, ...]:
        """Columns that identify a row among those of its key."""
        for name in self._encoded:
            if not is_sortable(self.schema.field(name).type):
                raise InputError(
                    f"rows cannot be compared by the column {name!r} of type {self.schema.field(name).type}",
                    where=f"input {self.input.name!r}",
                    fix="cast the column, or drop it with `select` before the join",
                )
        encoded = [pa.field(self._encoded_name, pa.large_binary())] if self._encoded else []
        return (*(self._stored(name) for name in self.values if name not in self._encoded), *encoded)

    @cached_property
    def config(self) -> TableConfig:
        weights = [*(self._stored(name) for name in self._encoded), pa.field(WEIGHT, pa.int64(), nullable=False)]
        description = f"rows of {self.input.name} by key, with their weights"
        return multiset_config(
            self.name, description, self.keys, self.elements, weights, ttl=self.ttl, expires_with=self.expires_with
        )

    @cached_property
    def _encoded(self) -> list[str]:
        """Columns that cannot be part of a key; the element contains their encoding instead."""
        return [name for name in self.values if not is_key_type(self.schema.field(name).type)]

    @cached_property
    def _time_name(self) -> str:
        """Name of the rows' event time in the table, where `_time` is the time by which they expire."""
        return unused_name("_row_time", self.schema.names)

    @cached_property
    def _encoded_name(self) -> str:
        return unused_name("_row", self.schema.names)

    def _stored(self, name: str) -> pa.Field:
        field = self.schema.field(name)
        return field.with_name(self._time_name) if name == TIME else field

    # ---- what an epoch changes -----------------------------------------------------------------------------------

    def changed(self, view: KeyedView, new: pa.Table, places: Integers) -> ChangedRows:
        """Return the changes that rows of an epoch make; `places` are the positions of their keys among the touched
        keys.
        """
        rows = new.select(self.schema.names).cast(self.schema)
        keys = [one_chunk(rows[name]) for name in self.input.keys]
        elements, grouping = view.distinct(self._element_keys(keys, rows))
        change = grouping.add(weights_of(new)) if WEIGHT in new.schema.names else grouping.sizes
        before = _weights(view, elements)
        after = np.maximum(before + change, 0)
        unknown = int(np.maximum(-(before + change), 0).sum())
        changed, firsts = np.flatnonzero(before != after), grouping.first_rows
        if len(changed) < len(before):
            elements, firsts = taken(elements, changed), firsts[changed]
            before, after = before[changed], after[changed]
        # Equal rows may differ in the bits of a zero or a NaN, and any of them may be the first, so the values are
        # normalised, as those of elements are.
        columns = {
            name: normalise_key(taken_values(one_chunk(rows[name]), firsts))
            if name in self._encoded
            else one_chunk(elements[self._stored(name).name])
            for name in self.schema.names
        }
        rows = pa.Table.from_arrays(list(columns.values()), schema=self.schema)
        return ChangedRows(rows, elements, places[firsts], before, after, unknown)

    def store(self, view: KeyedView, changed: ChangedRows) -> None:
        """Write changed rows to the state."""
        there, gone = np.flatnonzero(changed.after > 0), np.flatnonzero(changed.after == 0)
        if len(there):
            rows, elements = changed.rows, changed.elements
            if len(gone):
                rows, elements = taken(rows, there), taken(elements, there)
            columns = {name: rows[name] for name in self._encoded}
            values = pa.table({**columns, WEIGHT: from_numpy(changed.after[there], pa.int64())})
            view.upsert(elements, values, times=one_chunk(rows[TIME]) if by_event_time(self.ttl) else None)
        if len(gone):
            view.delete(taken(changed.elements, gone))

    def pages(self, view: KeyedView, touched: TouchedKeys, places: Integers) -> Iterator[WeightedRows]:
        """Yield all stored rows of the keys at `places`, ascending by key."""
        for page in view.elements(self._group_keys(touched, places)):
            at, stored = places[page.groups], page.rows
            if not is_ascending(at):
                order = np.argsort(at, kind="stable")
                at, stored = at[order], taken(stored, order)
            columns = {name: one_chunk(stored[self._stored(name).name]) for name in self.values}
            for name, key in zip(self.input.keys, touched.keys, strict=True):
                columns[name] = taken_values(key, at)
            rows = pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
            yield WeightedRows(rows, at, int64_values(stored[WEIGHT]))

    def among(self, rows: WeightedRows, changed: ChangedRows) -> Flags:
        """Return which rows of the state are among the changed ones.

        Only rows of keys that both have are compared.
        """
        stored, is_changed = changed.stored, np.zeros(len(rows.places), dtype=np.bool_)
        if not len(stored.places) or not len(rows.places):
            return is_changed
        count = 1 + max(int(rows.places.max()), int(stored.places.max()))
        ours, theirs = (np.zeros(count, dtype=np.bool_) for _ in range(2))
        ours[rows.places] = theirs[stored.places] = True
        at, changed_at = np.flatnonzero(theirs[rows.places]), np.flatnonzero(ours[stored.places])
        if not len(at):
            return is_changed
        parts = (taken(rows.rows.select(self.values), at), taken(stored.rows.select(self.values), changed_at))
        grouping = group_equal(pa.concat_tables(parts), np.concatenate([rows.places[at], stored.places[changed_at]]))
        has_changed = grouping.any(np.arange(len(at) + len(changed_at)) >= len(at))
        is_changed[at] = has_changed[grouping.group_of_rows()][: len(at)]
        return is_changed

    def arrived(self, stored: pa.Table, touched: TouchedKeys | None = None) -> "ArrivedRows":
        """Return rows of the state table as if they had just arrived, with their keys unless these are given."""
        keys = [one_chunk(stored[name]) for name in self.input.keys]
        places = np.zeros(stored.num_rows, dtype=np.int64)
        if touched is None:
            hashes = hash_columns(keys) if keys else np.zeros(stored.num_rows, dtype=np.uint64)
            grouping = group_rows(None, hashes, keys)
            firsts, places = from_numpy(grouping.first_rows, pa.int64()), grouping.group_of_rows()
            touched = TouchedKeys([key.take(firsts) for key in keys], grouping.groups)
        order = np.argsort(places, kind="stable")
        stored, places = taken(stored, order), places[order]
        columns = {name: one_chunk(stored[self._stored(name).name]) for name in self.schema.names}
        rows = pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        weights = int64_values(stored[WEIGHT])
        elements = stored.select([field.name for field in (*self.keys, *self.elements)])
        changed = ChangedRows(rows, elements, places, np.zeros_like(weights), weights, 0)
        return ArrivedRows(touched, changed)

    def counts(self, view: KeyedView, touched: TouchedKeys, places: Integers, limits: Integers) -> Integers:
        """Count the distinct stored rows of the keys at `places`; counting stops once it exceeds the limits."""
        return view.count_elements(self._group_keys(touched, places), limits)

    # ---- state of earlier versions -------------------------------------------------------------------------------

    @cached_property
    def lists(self) -> WeightedLists:
        """Table in the layout of earlier versions."""
        return WeightedLists(self.name, self.keys, [self.schema.field(name) for name in self.values], self.ttl)

    def put_lists(self, view: KeyedView, lists: pa.Table, clock: Clock) -> None:
        """Write the rows of a table of an earlier version."""
        keys, values, weights = self.lists.rows(lists, clock)
        places = np.arange(keys.num_rows, dtype=np.int64)
        touched = TouchedKeys([one_chunk(keys[name]) for name in keys.column_names], keys.num_rows)
        columns = {**{name: keys[name] for name in self.input.keys}, **{name: values[name] for name in self.values}}
        rows = pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        elements = self._element_keys(touched.keys, rows)
        self.store(view, ChangedRows(rows, elements, places, np.zeros_like(weights), weights, 0))

    # ---- inside --------------------------------------------------------------------------------------------------

    def _group_keys(self, touched: TouchedKeys, places: Integers) -> pa.Table:
        arrays = [taken_values(key, places) for key in touched.keys] or [pa.nulls(len(places), self.keys[0].type)]
        return pa.Table.from_arrays(arrays, schema=pa.schema(self.keys))

    def _element_keys(self, keys: Sequence[pa.Array], rows: pa.Table) -> pa.Table:
        """Return the keys of rows in the state table; `keys` are those of the join."""
        groups = keys or [pa.nulls(rows.num_rows, self.keys[0].type)]
        columns = [one_chunk(rows[name]) for name in self.values if name not in self._encoded]
        if self._encoded:
            parts = [one_chunk(rows[name]) for name in self._encoded]
            columns.append(sortable(pa.StructArray.from_arrays(parts, names=self._encoded)))
        return pa.Table.from_arrays([*groups, *columns], schema=pa.schema([*self.keys, *self.elements]))


def _weights(view: KeyedView, elements: pa.Table) -> Integers:
    """Return the stored weights of rows, 0 for rows that are not stored."""
    if not elements.num_rows:
        return np.zeros(0, dtype=np.int64)
    values, is_stored = view.get(elements)
    return np.where(is_stored, int64_values(values[WEIGHT]), 0)
