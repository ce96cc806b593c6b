"""States of a process: one row, a list of rows, or a map for each key. Each state has its own table.

    class Fraud(Process):
        last = ValueState("amount double, at timestamp", ttl="1 day")
        recent = ListState("amount double")
        by_shop = MapState(key="string", value="double")

A state and its table are named after the attribute that the state is assigned to. A value is one row of a keyed table;
each item of a list and each entry of a map is a row of a multiset table, so adding one costs one row.
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
"""Fields of a map entry, as a process sees it."""
POSITION, ITEM = "_position", "_item"
"""Columns of a list's table: the position of an item in the list, and the item."""
NEXT = "_next"
"""Column of the auxiliary table of a list: the position of the next item."""
MAP_KEY, MAP_VALUE = "_map_key", "_map_value"
"""Columns of a map's table."""
_ITEMS = "_items"
"""Column in which earlier versions stored a list or map as one value."""


@dataclass(frozen=True)
class State:
    """Base class of states. Without a time to live, state is kept until it is deleted."""

    ttl: Duration | None = field(default=None, kw_only=True)
    ttl_clock: TimeToLiveClock | str = field(default=TimeToLiveClock.EVENT_TIME, kw_only=True)
    name: str = field(default="", init=False)

    def __set_name__(self, owner: type, name: str) -> None:
        if self.name not in {"", name}:
            raise InputError(
                f"one state is assigned to both {self.name!r} and {name!r}",
                where=f"class {owner.__qualname__}",
                fix="create a separate state for each attribute",
            )
        object.__setattr__(self, "name", name)

    @cached_property
    def time_to_live(self) -> TimeToLive | None:
        return time_to_live(self.ttl, self.ttl_clock)

    @cached_property
    def fields(self) -> list[pa.Field]:
        """Value columns of the state, with one row per key."""
        raise NotImplementedError

    def tables(self, keys: tuple[pa.Field, ...]) -> dict[str, TableConfig]:
        """Return the tables of the state by name."""
        raise NotImplementedError

    def check_names(self, keys: tuple[pa.Field, ...], *, where: str) -> None:
        """Raise InputError if a column has the name of a key column."""
        taken = sorted({key.name for key in keys} & {value.name for value in self.fields})
        if taken:
            raise InputError(
                f"the columns {taken} of the state {self.name!r} have the names of key columns",
                where=where,
                fix="rename them, or leave them out: the key is stored anyway",
            )

    def table_of_values(self, keys: tuple[pa.Field, ...]) -> TableConfig:
        """Return the configuration of a keyed table with one row per key."""
        return keyed_config(self.name, self._description, keys, self.fields, self.time_to_live)

    @property
    def _description(self) -> str:
        return f"{type(self).__name__} {self.name}"


@dataclass(frozen=True)
class ValueState(State):
    """One row per key; `columns` is SQL text such as 'amount double, at timestamp', or a schema.

    >>> class Totals(sb.Process):
    ...     total = sb.ValueState("n bigint, fare double", ttl="30 days")
    >>> Totals.total.columns
    'n bigint, fare double'
    """

    columns: str | pa.Schema

    @cached_property
    def fields(self) -> list[pa.Field]:
        # All columns are nullable, whatever the schema says, because the columns of a missing row are read as nulls.
        return [column.with_nullable(True) for column in self.schema]

    @cached_property
    def schema(self) -> pa.Schema:
        return schema_of(self.columns, where=f"state {self.name!r}")

    def tables(self, keys: tuple[pa.Field, ...]) -> dict[str, TableConfig]:
        return {self.name: self.table_of_values(keys)}


@dataclass(frozen=True)
class ListState(State):
    """Rows per key in the order in which they were appended; with a time to live, each row expires separately.

    >>> class Basket(sb.ProcessKey):
    ...     items = sb.ListState("article string, price double", ttl="1 day")
    >>> Basket.items.columns
    'article string, price double'
    """

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
        """Name of the table with the next position of each list."""
        return f"{self.name}__end"

    @cached_property
    def item_table(self) -> pa.Schema:
        """Columns of the table after the key."""
        return pa.schema([pa.field(POSITION, pa.int64()), pa.field(ITEM, self.list_type.value_type)])

    @cached_property
    def schema(self) -> pa.Schema:
        return schema_of(self.columns, where=f"state {self.name!r}")

    @cached_property
    def list_type(self) -> pa.DataType:
        return _list_of([column.with_nullable(True) for column in self.schema])


@dataclass(frozen=True)
class MapState(State):
    """Map of values per key; `key` and `value` are types, such as 'string' and 'double'.

    With a time to live, each entry expires separately.

    >>> class Seen(sb.ProcessKey):
    ...     pages = sb.MapState(key="string", value="timestamp")
    >>> Seen.pages.key
    'string'
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
        """Columns of the table after the key."""
        return pa.schema([pa.field(MAP_KEY, self.key_type), pa.field(MAP_VALUE, self.value_type)])

    @cached_property
    def key_type(self) -> pa.DataType:
        kind = type_of(self.key, where=f"state {self.name!r}")
        check_key_type(pa.field(self.name, kind))
        if pa.types.is_nested(kind):
            raise InputError(
                f"values of type {kind} cannot be keys of a map",
                where=f"state {self.name!r}",
                fix="use a string or number built from the parts: Python dicts accept no lists or dicts as keys",
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
