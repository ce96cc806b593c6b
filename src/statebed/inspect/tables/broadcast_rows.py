"""Rows of broadcast tables with the columns that their operator declares, not as encoded keys and values.

The columns are in the definition of the operator, which every record has.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from statebed.errors import InputError
from statebed.expressions.type_text import type_from_arrow_text
from statebed.inspect.tables.json_text import json_text

Key = tuple[Any, ...]


@dataclass(frozen=True)
class BroadcastColumns:
    """Columns of a broadcast table, in the order in which they were declared."""

    keys: tuple[str, ...]
    types: tuple[tuple[str, str], ...]
    """Name and Arrow type of each column, as text."""

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns as shown: those of nested types are JSON."""
        return pa.schema([pa.field(name, _type(text) or pa.string()) for name, text in self.types])

    @property
    def key_schema(self) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in self.keys])

    def arrays(self, rows: Iterable[tuple[Key, Mapping[str, Any]]]) -> list[pa.Array]:
        """Return the columns of decoded keys and values."""
        values = [{**value, **dict(zip(self.keys, key, strict=True))} for key, value in rows]
        return [
            pa.array([_shown(value.get(name), text) for value in values], self.schema.field(name).type)
            for name, text in self.types
        ]


def broadcast_columns(definition: str, table: str) -> BroadcastColumns | None:
    """Return the columns of a table from the definition of its operator; None if it is not a broadcast table."""
    content = json.loads(definition) if definition else {}
    if not isinstance(content, dict):
        return None
    if content.get("kind") == "lookup_join":
        return _columns(content["table"]["keys"], content["columns"])
    broadcasts = content.get("broadcasts")
    if not isinstance(broadcasts, dict) or table not in broadcasts:
        return None
    return _columns(broadcasts[table]["keys"], broadcasts[table]["columns"])


def _columns(keys: list[str], columns: list[list[str]]) -> BroadcastColumns:
    return BroadcastColumns(tuple(keys), tuple((name, text) for name, text in columns))


def _type(text: str) -> pa.DataType | None:
    """Return a type that is not nested, or None."""
    try:
        return type_from_arrow_text(text)
    except InputError:
        return None


def _shown(value: Any, text: str) -> Any:
    return value if value is None or _type(text) is not None else json_text(value)
