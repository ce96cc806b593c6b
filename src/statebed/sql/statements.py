"""Statements of a SQL text, with the place of every part."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from statebed.sql.source_text import SqlSpan
from statebed.sql.sql_tokens import SqlToken


@dataclass(frozen=True)
class PlacedText:
    """A name or a value, and where it stands."""

    text: str
    span: SqlSpan

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class QueryText:
    """A SELECT, VALUES or WITH as tokens."""

    tokens: tuple[SqlToken, ...]
    span: SqlSpan


@dataclass(frozen=True)
class ColumnDefinition:
    """A column of CREATE TABLE: with a type, or computed from others."""

    name: PlacedText
    type_text: PlacedText | None
    expression: QueryText | None = None
    is_nullable: bool = True


@dataclass(frozen=True)
class WatermarkDefinition:
    """`WATERMARK FOR column AS column - INTERVAL ...`."""

    column: PlacedText
    delay_us: int


@dataclass(frozen=True)
class CreateTable:
    """A table of the outside world that is read as a stream, or written."""

    span: SqlSpan
    name: PlacedText
    columns: tuple[ColumnDefinition, ...]
    watermark: WatermarkDefinition | None
    primary_key: tuple[PlacedText, ...]
    options: Mapping[str, PlacedText] = field(repr=False)  # may contain a secret
    option_names: Mapping[str, SqlSpan]
    if_not_exists: bool = False
    """Whether it does nothing if the name is defined already."""


@dataclass(frozen=True)
class CreateView:
    """A query under a name."""

    span: SqlSpan
    name: PlacedText
    columns: tuple[PlacedText, ...]
    query: QueryText
    is_replacement: bool
    if_not_exists: bool = False
    """Whether it does nothing if the name is defined already."""


@dataclass(frozen=True)
class CreateFunction:
    """A Python function under the name by which queries call it."""

    span: SqlSpan
    name: PlacedText
    target: PlacedText
    """`module:function`."""
    returns: PlacedText | None
    if_not_exists: bool = False
    """Whether it does nothing if the name is defined already."""


@dataclass(frozen=True)
class InsertInto:
    """A query whose rows are written to a table."""

    span: SqlSpan
    table: PlacedText
    columns: tuple[PlacedText, ...]
    query: QueryText


@dataclass(frozen=True)
class SetOption:
    """`SET 'name' = 'value'`."""

    span: SqlSpan
    name: PlacedText
    value: PlacedText


@dataclass(frozen=True)
class SelectQuery:
    """A query whose rows are shown."""

    span: SqlSpan
    query: QueryText


Statement = CreateTable | CreateView | CreateFunction | InsertInto | SetOption | SelectQuery
