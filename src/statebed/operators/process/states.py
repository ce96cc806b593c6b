"""What a process can keep for each key: one row, a list of rows, or a map. Each is in a table of its own.

    class Fraud(Process):
        last = ValueState("amount double, at timestamp", ttl="1 day")
        recent = ListState("amount double")
        by_shop = MapState(key="string", value="double")

A state is named by the attribute that it is assigned to, and so is its table. A value is one row of a keyed table; each
item of a list and each entry of a map is a row of a multiset table, so one more costs one row.
"""

from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from statebed.arrays.key_hash import check_key_type
from statebed.errors import InputError
from statebed.expressions.type_text import schema_of, type_of
from statebed.operators.time_to_live import TimeToLive, keyed_config, multiset_config, time_to_live
from statebed.quantities import Duration
from statebed.state import TableConfig, TimeToLiveClock

KEY, VALUE = "key", "value"
"""What an entry of a map is made of, as a process sees it."""
POSITION, ITEM = "_position", "_item"
"""Columns of a list's table: the place of an item in the list, and the item."""
NEXT = "_next"
"""Column of the table beside a list: the position of the next item."""
MAP_KEY, MAP_VALUE = "_map_key", "_map_value"
"""Columns of a map's table."""
_ITEMS = "_items"
"""Column in which earlier versions kept a list or map as one value."""


@dataclass(frozen=True)
class State:
    """What every kind of state has; without a time to live, a key keeps it until it is deleted."""

    ttl: Duration | None = field(default=None, kw_only=True)
    ttl_clock: TimeToLiveClock | str = field(default=TimeToLiveClock.EVENT_TIME, kw_only=True)
    name: str = field(default="", init=False)

    def __set_name__(self, owner: type, name: str) -> None:
        if self.name not in {"", name}:
            raise InputError(
                f"one state is both {self.name!r} and {name!r}",
                where=f"class {owner.__qualname__}",
                fix="make a state for each attribute",
            )
        object.__setattr__(self, "name", name)

    @cached_property
    def time_to_live(self) -> TimeToLive | None:
        return time_to_live(self.ttl, self.ttl_clock)

    @cached_property
    def fields(self) -> list[pa.Field]:
        """What a key has, as value columns with one row for each key."""
        raise NotImplementedError

    def tables(self, keys: tuple[pa.Field, ...]) -> dict[str, TableConfig]:
        """The tables that it is kept in, by name."""
        raise NotImplementedError

    def check_names(self, keys: tuple[pa.Field, ...], *, where: str) -> None:
        """Refuse columns that have the name of a key column."""
        taken = sorted({key.name for key in keys} & {value.name for value in self.fields})
        if taken:
            raise InputError(
                f"the state {self.name!r} has the columns {taken}, and so has the key",
                where=where,
                fix="give them other names in the state: the key is there anyway",
            )

    def table_of_values(self, keys: tuple[pa.Field, ...]) -> TableConfig:
        """A keyed table with one row for each key."""
        return keyed_config(self.name, self._description, keys, self.fields, self.time_to_live)

    @property
    def _description(self) -> str:
        return f"{type(self).__name__} {self.name}"


@dataclass(frozen=True)
class ValueState(State):
    """One row for each key; `columns` is SQL text such as 'amount double, at timestamp', or a schema."""

    columns: str | pa.Schema

    @cached_property
    def fields(self) -> list[pa.Field]:
        # A row that is there may hold nulls, whatever the schema says: what is not there is null, too.
        return [one.with_nullable(True) for one in self.schema]

    @cached_property
    def schema(self) -> pa.Schema:
        return schema_of(self.columns, where=f"state {self.name!r}")

    def tables(self, keys: tuple[pa.Field, ...]) -> dict[str, TableConfig]:
        return {self.name: self.table_of_values(keys)}


@dataclass(frozen=True)
class ListState(State):
    """Rows for each key, in the order in which they were appended; with a time to live each expires by itself."""

    columns: str | pa.Schema

    @cached_property
    def fields(self) -> list[pa.Field]:
        return [pa.field(_ITEMS, self.list_type)]

    def tables(self, keys: tuple[pa.Field, ...]) -> dict[str, TableConfig]:
        position, item = self.item_table
        items = multiset_config(self.name, self._description, keys, [position], [item], ttl=self.time_to_live)
        ends = keyed_config(
            self.ends, f"next position of {self.name}", keys, [pa.field(NEXT, pa.int64())], self.time_to_live
        )
        return {self.name: items, self.ends: ends}

    @property
    def ends(self) -> str:
        """The name of the table with the next position of each list."""
        return f"{self.name}__end"

    @cached_property
    def item_table(self) -> pa.Schema:
        """The columns of its table behind the key."""
        return pa.schema([pa.field(POSITION, pa.int64()), pa.field(ITEM, self.list_type.value_type)])

    @cached_property
    def schema(self) -> pa.Schema:
        return schema_of(self.columns, where=f"state {self.name!r}")

    @cached_property
    def list_type(self) -> pa.DataType:
        return _list_of([one.with_nullable(True) for one in self.schema])


@dataclass(frozen=True)
class MapState(State):
    """Values by a second key, for each key; `key` and `value` are types, such as 'string' and 'double'.

    With a time to live each entry expires by itself.
    """

    key: str | pa.DataType = field(kw_only=True)
    value: str | pa.DataType = field(kw_only=True)

    @cached_property
    def fields(self) -> list[pa.Field]:
        return [pa.field(_ITEMS, self.list_type)]

    def tables(self, keys: tuple[pa.Field, ...]) -> dict[str, TableConfig]:
        key, value = self.item_table
        return {self.name: multiset_config(self.name, self._description, keys, [key], [value], ttl=self.time_to_live)}

    @cached_property
    def item_table(self) -> pa.Schema:
        """The columns of its table behind the key."""
        return pa.schema([pa.field(MAP_KEY, self.key_type), pa.field(MAP_VALUE, self.value_type)])

    @cached_property
    def key_type(self) -> pa.DataType:
        kind = type_of(self.key, where=f"state {self.name!r}")
        check_key_type(pa.field(self.name, kind))
        if pa.types.is_nested(kind):
            raise InputError(
                f"the keys of the type {kind} cannot be part of a key of a map",
                where=f"state {self.name!r}",
                fix="use a text or number that is made of the parts: Python's dictionaries take no lists and dicts",
            )
        return kind

    @cached_property
    def value_type(self) -> pa.DataType:
        return type_of(self.value, where=f"state {self.name!r}")

    @cached_property
    def list_type(self) -> pa.DataType:
        return _list_of([pa.field(KEY, self.key_type), pa.field(VALUE, self.value_type)])


def _list_of(fields: list[pa.Field]) -> pa.DataType:
    return pa.list_(pa.field("element", pa.struct(fields)))
