"""The states of one key, as Python values: what `state.NAME` is in a process that is written for one key at a time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from statebed.errors import InputError
from statebed.operators.process.context import Context
from statebed.operators.process.dict_rows import rows_as_table
from statebed.operators.process.states import KEY, VALUE, ListState, MapState, State, ValueState


class KeyStates:
    """All states of the key whose turn it is, by name."""

    def __init__(self, ctx: Context, states: Mapping[str, State]) -> None:
        self._kept: dict[str, _KeyState] = {name: _kind_of(one)(ctx, one) for name, one in states.items()}

    def __getattr__(self, name: str) -> Any:
        kept = self.__dict__.get("_kept", {})
        if name not in kept:
            raise AttributeError(f"there is no state {name!r}; there are {sorted(kept)}")
        return kept[name]

    def turn_to(self, place: int) -> None:
        """Be about the key at this place."""
        for one in self._kept.values():
            one.place = place

    def write(self) -> None:
        """Write what has changed."""
        for one in self._kept.values():
            one.write()


class _KeyState:
    """One state: the values of all keys of the batch, read when the first is asked for."""

    def __init__(self, ctx: Context, state: State) -> None:
        self._ctx = ctx
        self._state = state
        self._values: list[Any] | None = None
        self._changed: set[int] = set()
        self.place = 0

    @property
    def _own(self) -> Any:
        if self._values is None:
            self._values = self._read()
        return self._values[self.place]

    def _set(self, value: Any) -> None:
        _ = self._own
        assert self._values is not None
        self._values[self.place] = value
        self._changed.add(self.place)

    def write(self) -> None:
        if self._values is None:
            return
        changed = sorted(self._changed)
        there = [place for place in changed if self._values[place]]
        gone = [place for place in changed if not self._values[place]]
        if there:
            self._put([self._values[place] for place in there], np.array(there, dtype=np.int64))
        if gone:
            self._ctx.delete(self._state, np.array(gone, dtype=np.int64))

    def delete(self) -> None:
        """Let the key have nothing."""
        self._set(None)

    def _read(self) -> list[Any]:
        raise NotImplementedError

    def _put(self, values: list[Any], places: Any) -> None:
        raise NotImplementedError


class KeyValue(_KeyState):
    """A ValueState of one key."""

    def __init__(self, ctx: Context, state: State) -> None:
        super().__init__(ctx, state)
        assert isinstance(state, ValueState)
        self._names = set(state.schema.names)

    def get(self) -> dict[str, Any] | None:
        """Its row, or None."""
        return None if self._own is None else dict(self._own)

    def put(self, row: Mapping[str, Any] | None = None, **columns: Any) -> None:
        """Set its row, every column of it."""
        value = {**(row or {}), **columns}
        if value.keys() != self._names:
            raise InputError(
                f"the state {self._state.name!r} is set to {sorted(value)} instead of {sorted(self._names)}",
                fix="give every column of the state, and no other",
            )
        self._set(value)

    def _read(self) -> list[Any]:
        found = self._ctx.has(self._state).tolist()
        rows = self._ctx.get(self._state).to_pylist()
        return [row if there else None for row, there in zip(rows, found, strict=True)]

    def _put(self, values: list[Any], places: Any) -> None:
        assert isinstance(self._state, ValueState)
        where = f"{self._ctx.where}, state {self._state.name!r}"
        table = rows_as_table(values, self._state.schema, what="values", where=where)
        self._ctx.put(self._state, table, places)


class KeyList(_KeyState):
    """A ListState of one key."""

    def get(self) -> list[dict[str, Any]]:
        """Its rows, in the order in which they were appended."""
        return [dict(row) for row in self._own or ()]

    def append(self, row: Mapping[str, Any] | None = None, **columns: Any) -> None:
        """Append a row."""
        rows = self._own or []
        rows.append({**(row or {}), **columns})
        self._set(rows)

    def put(self, rows: list[dict[str, Any]]) -> None:
        """Set all rows."""
        self._set(list(rows))

    def _read(self) -> list[Any]:
        return list(self._ctx.get(self._state).to_pylist())

    def _put(self, values: list[Any], places: Any) -> None:
        assert isinstance(self._state, ListState)
        where = f"{self._ctx.where}, state {self._state.name!r}"
        flat = rows_as_table([row for rows in values for row in rows], self._state.schema, what="items", where=where)
        offsets = pa.array(np.append(0, np.cumsum([len(rows) for rows in values])), pa.int32())
        items = pa.StructArray.from_arrays(
            [column.combine_chunks() for column in flat.columns], names=flat.column_names
        )
        self._ctx.put(self._state, pa.ListArray.from_arrays(offsets, items), places)


class KeyMap(_KeyState):
    """A MapState of one key."""

    def get(self, key: Any, default: Any = None) -> Any:
        """The value under a map key."""
        return (self._own or {}).get(key, default)

    def put(self, key: Any, value: Any) -> None:
        """Set the value under a map key."""
        entries = self._own or {}
        entries[key] = value
        self._set(entries)

    def remove(self, key: Any) -> None:
        """Let there be nothing under a map key."""
        entries = self._own or {}
        entries.pop(key, None)
        self._set(entries)

    def items(self) -> dict[Any, Any]:
        """All of it."""
        return dict(self._own or {})

    def _read(self) -> list[Any]:
        return [{entry[KEY]: entry[VALUE] for entry in entries} for entries in self._ctx.get(self._state).to_pylist()]

    def _put(self, values: list[Any], places: Any) -> None:
        assert isinstance(self._state, MapState)
        lists = [[{KEY: key, VALUE: value} for key, value in entries.items()] for entries in values]
        self._ctx.put(self._state, pa.array(lists, self._state.list_type), places)


def _kind_of(state: State) -> type[_KeyState]:
    if isinstance(state, ValueState):
        return KeyValue
    return KeyList if isinstance(state, ListState) else KeyMap
