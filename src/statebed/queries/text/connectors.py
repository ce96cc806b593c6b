"""Connectors of CREATE TABLE ... WITH (connector = '...'): how a table is read as a stream, and how it is written.

A connector is one entry in `CONNECTORS`: its options, a function that reads, and one that writes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, _parse_datatype_string

from statebed.errors import InputError
from statebed.queries.text.spark_errors import nearest
from statebed.sql.source_text import SqlSpan, SqlText
from statebed.sql.statements import CreateTable

CONNECTOR = "connector"
BROADCAST = "broadcast"
DELETED = "deleted"
COMMON_OPTIONS = (CONNECTOR, BROADCAST, DELETED)
"""Options of every connector."""
_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class TableOption:
    """An option of a connector; `kind` is str, int, float or bool."""

    kind: type = str
    is_required: bool = False
    choices: tuple[str, ...] = ()
    example: str = ""

    @property
    def values(self) -> tuple[str, ...]:
        """Values that the option can have, if they are known."""
        return ("true", "false") if self.kind is bool else self.choices


@dataclass(frozen=True)
class SinkCall:
    """Arguments of `stream.write` for a table."""

    sink: Any
    path: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    takes_key: bool = False
    """Whether the sink is updated by the table's primary key."""


@dataclass(frozen=True)
class SqlTableRequest:
    """A table definition whose options have been checked."""

    source: SqlText
    statement: CreateTable
    session: SparkSession
    options: Mapping[str, Any] = field(repr=False)  # may contain a secret

    @property
    def name(self) -> str:
        return self.statement.name.text

    @property
    def physical_schema(self) -> StructType | None:
        """Columns that are stored, without computed ones; None if the table declares none."""
        columns = [
            entry for entry in self.statement.columns if entry.type_text is not None and entry.expression is None
        ]
        fields = []
        for column in columns:
            assert column.type_text is not None
            try:
                kind = _parse_datatype_string(column.type_text.text)
            except PySparkException as error:
                raise self.source.mistake(
                    f"{self.source.slice(column.type_text.span)} is not a type",
                    column.type_text.span,
                    fix="write a type such as BIGINT, STRING, DOUBLE, TIMESTAMP or DECIMAL(10, 2)",
                ) from error
            fields.append((column.name.text, kind, column.is_nullable))
        schema = StructType()
        for name, kind, is_nullable in fields:
            schema = schema.add(name, kind, is_nullable)
        return schema if fields else None

    def span_of(self, option: str) -> SqlSpan:
        """Return the place of an option's value, or of the table's name if it is not given."""
        supplied = self.statement.options.get(option)
        return self.statement.name.span if supplied is None else supplied.span

    def span_of_type(self, column: str) -> SqlSpan:
        """Return the place of the type of a declared column."""
        return next(
            entry.type_text.span
            for entry in self.statement.columns
            if entry.name.text == column and entry.type_text is not None
        )

    def mistake(self, what: str, option: str, *, fix: str) -> InputError:
        """Return the error for an option."""
        return self.source.mistake(what, self.span_of(option), fix=fix)


@dataclass(frozen=True)
class Connector:
    """A kind of table; `read` or `write` is None if it cannot be read or written."""

    options: Mapping[str, TableOption]
    read: Callable[[SqlTableRequest], DataFrame] | None = None
    write: Callable[[SqlTableRequest], SinkCall] | None = None
    prefixes: tuple[str, ...] = ()
    """Beginnings of options that are passed on as they are."""
    options_by_column: tuple[str, ...] = ()
    """Options of each column, with `*` for its name."""

    def request(self, source: SqlText, statement: CreateTable, session: SparkSession) -> SqlTableRequest:
        """Check the options of a table; raise InputError at the first that is wrong."""
        name = statement.options[CONNECTOR].text
        values: dict[str, Any] = {}
        for option, value in statement.options.items():
            if option in COMMON_OPTIONS:
                continue
            known = self.options.get(option)
            if known is None and option.startswith(self.prefixes or ("\0",)):
                values[option] = value.text
                continue
            if known is None:
                raise source.mistake(
                    f"the connector {name!r} has no option {option!r}",
                    statement.option_names[option],
                    fix=self._fix_of_option(option),
                )
            values[option] = _converted(source, option, value.text, value.span, known)
        for option, known in self.options.items():
            if known.is_required and option not in values:
                raise source.mistake(
                    f"the connector {name!r} needs the option {option!r}",
                    statement.options[CONNECTOR].span,
                    fix=f"add {option} = {known.example or '...'!r}",
                )
        return SqlTableRequest(source, statement, session, values)

    def _fix_of_option(self, option: str) -> str:
        fix = _OTHER_OPTIONS.get(option.lower())
        if fix is not None and (fix[0] is None or fix[0] in self.options):
            return fix[1]
        return nearest(option, [*self.options, *(f"{entry}*" for entry in self.prefixes)], what="options")


_SERVERS = ("servers", "write servers = 'host:9092'")
_STARTING = ("starting", "write starting = 'earliest' or 'latest'")
_GROUP = ("servers", "leave it out: the job keeps the offsets in its own state")
_VALUE = ("value", "leave it out for messages of JSON, or write value = '...'")
_OTHER_OPTIONS: dict[str, tuple[str | None, str]] = {
    "bootstrap.servers": _SERVERS,
    "bootstrap_servers": _SERVERS,
    "format": _VALUE,
    "properties.bootstrap.servers": _SERVERS,
    "properties.group.id": _GROUP,
    "scan.startup.mode": _STARTING,
    "source.group_id": _GROUP,
    "source.offset": _STARTING,
    "type": (None, "leave it out: a table that INSERT INTO names is written, others are read"),
    "value.format": _VALUE,
}
"""Options of other systems: the option that connectors have instead, and what to write."""

_OTHER_CONNECTORS = {
    "impulse": "write connector = 'datagen', with rows-per-second for event_rate, and fields.counter.kind = 'sequence'",
    "jdbc": "write connector = 'postgres' or 'sqlite', which write tables; tables are read with job.source(df)",
    "nexmark": "see the pipelines in examples/nexmark/sql, which read generated files",
    "single_file": "write connector = 'filesystem', path = 'folder', format = 'json'",
    "stdout": "write connector = 'print', without format",
    "upsert-kafka": "write connector = 'kafka', and declare a PRIMARY KEY: rows are written as upserts",
}
"""Connectors of other systems, and what to write instead."""


def connector_of(source: SqlText, statement: CreateTable, known: Mapping[str, Connector]) -> Connector:
    """Return the connector of a table; raise InputError if it has none that is known."""
    supplied = statement.options.get(CONNECTOR)
    if supplied is None:
        raise source.mistake(
            f"the table {statement.name} has no connector",
            statement.name.span,
            fix=f"add connector = '...' to its options; the connectors are {', '.join(sorted(known))}",
        )
    result = known.get(supplied.text.lower())
    if result is None:
        raise source.mistake(
            f"there is no connector {supplied.text!r}",
            supplied.span,
            fix=_OTHER_CONNECTORS.get(supplied.text.lower()) or nearest(supplied.text, list(known), what="connectors"),
        )
    return result


def _converted(source: SqlText, name: str, text: str, span: SqlSpan, option: TableOption) -> Any:
    try:
        value = {"true": True, "false": False}[text.lower()] if option.kind is bool else option.kind(text)
    except (ValueError, KeyError) as error:
        raise source.mistake(
            f"{name} must be {_KINDS[option.kind]}, got {text!r}",
            span,
            fix=f"write {name} = {option.example or '1'!r}",
        ) from error
    if option.choices and text not in option.choices:
        raise source.mistake(
            f"{name} must be one of {', '.join(option.choices)}, got {text!r}",
            span,
            fix=nearest(text, list(option.choices), what="choices"),
        )
    return value
