"""States of one key as Python values: `state.NAME` in a process that is written for one key at a time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import one_chunk
from statebed.arrays.exact_values import exact_array
from statebed.arrays.sort_order import Integers
from statebed.errors import InputError
from statebed.operators.process.context import Context
from statebed.operators.process.dict_rows import rows_as_table
from statebed.operators.process.states import KEY, VALUE, ListState, MapState, State, ValueState

READ_AT_ONCE = 65_536
"""Number of items of lists and maps of a batch's keys that are read together; a larger list or map is read alone."""
SMALL = 1024
"""Largest number of entries of a map that is read as a whole to look up one entry."""
_REMOVED = object()


class KeyStates:
    """All states of the current key, by name."""

    def __init__(self, ctx: Context, states: Mapping[str, State]) -> None:
        self._kept = {name: _of_key(ctx, state) for name, state in states.items()}

    def __getattr__(self, name: str) -> Any:
        kept = self.__dict__.get("_kept", {})
        if name not in kept:
            raise AttributeError(f"there is no state {name!r}; the process has {sorted(kept)}")
        return kept[name]

    def turn_to(self, place: int) -> None:
        """Make the key at this position the current one."""
        for state in self._kept.values():
            state.place = place

    def write(self) -> None:
        """Write all changes."""
        for state in self._kept.values():
            state.write()


class _KeyState:
    """One state of the current key. Changes are buffered until the end of the batch."""

    def __init__(self, ctx: Context, state: State) -> None:
        self._ctx = ctx
        self._where = f"{ctx.where}, state {state.name!r}"
        self.place = 0

    def write(self) -> None:
        """Write all changes."""
        raise NotImplementedError


class KeyValue(_KeyState):
    """ValueState of one key."""

    def __init__(self, ctx: Context, state: ValueState) -> None:
        super().__init__(ctx, state)
        self._state = state
        self._names = set(state.schema.names)
        self._values: list[dict[str, Any] | None] | None = None
        """Values of all keys of the batch, read on first use."""
        self._changed: set[int] = set()

    def get(self) -> dict[str, Any] | None:
        """Return the row of the key, or None."""
        row = self._rows()[self.place]
        return None if row is None else dict(row)

    def put(self, row: Mapping[str, Any] | None = None, **columns: Any) -> None:
        """Set the row of the key, with every column."""
        value = {**(row or {}), **columns}
        if value.keys() != self._names:
            raise InputError(
                f"the state {self._state.name!r} has the columns {sorted(self._names)}, got {sorted(value)}",
                fix="pass exactly the columns of the state",
            )
        self._set(value)

    def delete(self) -> None:
        """Delete the row of the key."""
        self._set(None)

    def write(self) -> None:
        rows, changed = self._rows() if self._changed else [], sorted(self._changed)
        there = [place for place in changed if rows[place] is not None]
        gone = [place for place in changed if rows[place] is None]
        if there:
            values = [row for place in there if (row := rows[place]) is not None]
            table = rows_as_table(values, self._state.schema, what="values", where=self._where)
            self._ctx.put(self._state, table, _places(there))
        if gone:
            self._ctx.delete(self._state, _places(gone))

    def _set(self, row: dict[str, Any] | None) -> None:
        self._rows()[self.place] = row
        self._changed.add(self.place)

    def _rows(self) -> list[dict[str, Any] | None]:
        if self._values is None:
            has_value = self._ctx.has(self._state).tolist()
            rows = self._ctx.get(self._state).to_pylist()
            self._values = [row if there else None for row, there in zip(rows, has_value, strict=True)]
        return self._values


class _StoredKey:
    """Stored lists or maps, read for several keys at a time, since keys are processed in order."""

    def __init__(self, ctx: Context, state: ListState | MapState) -> None:
        self._ctx = ctx
        self._state = state
        self._sizes: list[int] | None = None
        self._first = 0
        self._read: list[list[dict[str, Any]]] = []

    def is_small(self, place: int) -> bool:
        """Return whether the items of a key are few enough to read all of them for one lookup."""
        return self._size(place) <= SMALL

    def last(self, place: int, count: int) -> list[dict[str, Any]]:
        """Return the last `count` items of the list of a key."""
        if count >= self._size(place):
            return self.rows(place)[-count:]
        assert isinstance(self._state, ListState)
        return list(self._ctx.last(self._state, count, _places([place]))[0].as_py())

    def rows(self, place: int) -> list[dict[str, Any]]:
        """Return all items of a key."""
        if not self._first <= place < self._first + len(self._read):
            end, rows = place + 1, self._size(place)
            while end < self._ctx.keys.num_rows and rows + self._size(end) <= READ_AT_ONCE:
                rows += self._size(end)
                end += 1
            places = np.arange(place, end, dtype=np.int64)
            self._first, self._read = place, self._ctx.get(self._state, places).to_pylist()
        return self._read[place - self._first]

    def _size(self, place: int) -> int:
        if self._sizes is None:
            self._sizes = self._ctx.sizes(self._state, READ_AT_ONCE).tolist()
        return self._sizes[place]


class KeyList(_KeyState):
    """ListState of one key."""

    def __init__(self, ctx: Context, state: ListState) -> None:
        super().__init__(ctx, state)
        self._state = state
        self._stored = _StoredKey(ctx, state)
        self._set: dict[int, list[dict[str, Any]]] = {}
        """Lists that replace the stored ones."""
        self._appended: dict[int, list[dict[str, Any]]] = {}
        """Rows to append to the stored lists."""

    def get(self) -> list[dict[str, Any]]:
        """Return the rows of the key, in the order in which they were appended."""
        before = self._set[self.place] if self.place in self._set else self._stored.rows(self.place)
        return [dict(row) for row in (*before, *self._appended.get(self.place, ()))]

    def last(self, count: int) -> list[dict[str, Any]]:
        """Return the last `count` rows of the key, without reading the others; expired rows are left out."""
        if count < 1:
            raise InputError(
                f"`count` must be at least 1, got {count}", where=self._where, fix="pass a positive number of rows"
            )
        rows = [*self._set.get(self.place, ()), *self._appended.get(self.place, ())]
        if len(rows) < count and self.place not in self._set:
            rows = [*self._stored.last(self.place, count - len(rows)), *rows]
        return [dict(row) for row in rows[-count:]]

    def append(self, row: Mapping[str, Any] | None = None, **columns: Any) -> None:
        """Append a row without reading the stored ones."""
        rows = self._set.get(self.place)
        if rows is None:
            rows = self._appended.setdefault(self.place, [])
        rows.append({**(row or {}), **columns})

    def put(self, rows: list[dict[str, Any]]) -> None:
        """Replace all rows of the key."""
        self._appended.pop(self.place, None)
        self._set[self.place] = list(rows)

    def delete(self) -> None:
        """Delete the list of the key."""
        self.put([])

    def write(self) -> None:
        gone = [place for place, rows in self._set.items() if not rows]
        if gone:
            self._ctx.delete(self._state, _places(gone))
        filled = {place: rows for place, rows in self._set.items() if rows}
        if filled:
            offsets = pa.array(np.append(0, np.cumsum([len(rows) for rows in filled.values()])), pa.int32())
            flat = self._table(filled)
            items = pa.StructArray.from_arrays([one_chunk(column) for column in flat.columns], names=flat.column_names)
            self._ctx.put(self._state, pa.ListArray.from_arrays(offsets, items), _places(filled))
        if self._appended:
            index = np.repeat(_places(self._appended), [len(rows) for rows in self._appended.values()])
            self._ctx.append(self._state, self._table(self._appended), index)

    def _table(self, lists: Mapping[int, list[dict[str, Any]]]) -> pa.Table:
        rows = [row for rows in lists.values() for row in rows]
        return rows_as_table(rows, self._state.schema, what="items", where=self._where)


class KeyMap(_KeyState):
    """MapState of one key. A small map is read as a whole; of a large one, only the requested entries are read."""

    def __init__(self, ctx: Context, state: MapState) -> None:
        super().__init__(ctx, state)
        self._state = state
        self._stored = _StoredKey(ctx, state)
        self._maps: dict[int, dict[Any, Any]] = {}
        """Small maps as stored."""
        self._cleared: set[int] = set()
        """Keys whose stored entries are deleted."""
        self._changes: dict[int, dict[Any, Any]] = {}
        """Entries that were set, with _REMOVED for those that were removed."""

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a map key, or the default."""
        changes = self._changes.get(self.place, {})
        if key in changes:
            return default if changes[key] is _REMOVED else changes[key]
        if self.place in self._cleared:
            return default
        if self._stored.is_small(self.place):
            return self._stored_map().get(key, default)
        keys, place = _array([key], self._state.key_type, "keys", self._where), _places([self.place])
        if not self._ctx.has_items(self._state, keys, place)[0]:
            return default
        return self._ctx.get_items(self._state, keys, place)[0].as_py()

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a map key without reading the stored one."""
        self._changes.setdefault(self.place, {})[key] = value

    def remove(self, key: Any) -> None:
        """Remove a map key."""
        self.put(key, _REMOVED)

    def items(self) -> dict[Any, Any]:
        """Return all entries as a dict."""
        stored = {} if self.place in self._cleared else self._stored_map()
        both = {**stored, **self._changes.get(self.place, {})}
        return {key: value for key, value in both.items() if value is not _REMOVED}

    def delete(self) -> None:
        """Delete the map of the key."""
        self._cleared.add(self.place)
        self._changes.pop(self.place, None)

    def write(self) -> None:
        if self._cleared:
            self._ctx.delete(self._state, _places(sorted(self._cleared)))
        entries = [(place, *entry) for place, changes in self._changes.items() for entry in changes.items()]
        removed = [entry for entry in entries if entry[2] is _REMOVED]
        if removed:
            self._ctx.remove_items(self._state, self._keys(removed), _places(entry[0] for entry in removed))
        kept = [entry for entry in entries if entry[2] is not _REMOVED]
        if kept:
            values = _array([entry[2] for entry in kept], self._state.value_type, "values", self._where)
            self._ctx.put_items(self._state, self._keys(kept), values, _places(entry[0] for entry in kept))

    def _keys(self, entries: Sequence[tuple[int, Any, Any]]) -> pa.Array:
        return _array([entry[1] for entry in entries], self._state.key_type, "keys", self._where)

    def _stored_map(self) -> dict[Any, Any]:
        return {entry[KEY]: entry[VALUE] for entry in self._stored.rows(self.place)}


def _of_key(ctx: Context, state: State) -> _KeyState:
    if isinstance(state, ListState):
        return KeyList(ctx, state)
    if isinstance(state, MapState):
        return KeyMap(ctx, state)
    assert isinstance(state, ValueState)
    return KeyValue(ctx, state)


def _places(places: Iterable[int]) -> Integers:
    return np.fromiter(places, dtype=np.int64)


def _array(values: list[Any], kind: pa.DataType, what: str, where: str) -> pa.Array:
    try:
        return exact_array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError) as error:
        raise InputError(
            f"the {what} of the map do not fit the type {kind}: {error}", where=where, fix="use values of that type"
        ) from error
