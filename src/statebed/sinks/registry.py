"""Registry of sinks by name: `write("postgres", key="driver", table="minutes", dsn="host=db")`.

Each kind has a guarantee, a way to write a changelog, and options. An unknown option is refused with a list of the
known ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from statebed.errors import InputError
from statebed.format.stream_schema import WEIGHT, Changes, Output
from statebed.protocol import Guarantee
from statebed.quantities import parse_duration
from statebed.sinks.base import BaseSink
from statebed.sinks.console import DEFAULT_ROWS, ConsoleSink
from statebed.sinks.debezium import Envelope
from statebed.sinks.debezium_files import DebeziumFilesSink
from statebed.sinks.memory_sink import MemorySink
from statebed.sinks.parquet_table import ParquetTableSink
from statebed.sinks.row_shape import Form, RowShape, check_columns_free, make_shape
from statebed.sinks.sql import Database, Postgres, SQLite, SqlTable, SqlTableSink, TableName

DEFAULT_TIMEOUT = "5 minutes"


@dataclass(frozen=True)
class SinkRequest:
    """Arguments of `write`, after the checks that all sinks share."""

    sink_id: str
    job_id: str
    output: Output
    key: tuple[str, ...]
    path: str | None
    options: Mapping[str, Any] = field(repr=False)  # may contain a secret
    where: str
    show: Callable[[pa.Table], object] | None = None
    """Called with all rows of a memory sink when they change."""

    @property
    def envelope(self) -> Envelope:
        return Envelope(self.job_id, self.sink_id, self.key)

    @property
    def is_changelog(self) -> bool:
        return self.output.changes is Changes.CHANGELOG

    def option(self, name: str, kind: type, default: Any = None) -> Any:
        """Return an option of type `kind`, or its default; raise InputError if it has another type."""
        value = self.options.get(name, default)
        if value is not None and not isinstance(value, kind):
            raise InputError(
                f"`{name}` must be of type {kind.__name__}, got {value!r}",
                where=self.where,
                fix=f"pass a {kind.__name__}",
            )
        return value

    def needed(self, name: str, example: str) -> str:
        """Return an option that must be given."""
        value = self.option(name, str)
        if not value:
            raise InputError(f"the sink needs {name}=", where=self.where, fix=example)
        return str(value)

    def needed_path(self, example: str) -> str:
        if not self.path:
            raise InputError("the sink needs path=", where=self.where, fix=example)
        return self.path

    def needed_key(self, example: str) -> None:
        """Raise InputError if no key was given."""
        if not self.key:
            raise InputError(
                "the stream is a changelog, and this sink needs to know which columns identify a row",
                where=self.where,
                fix=f"write {example}",
            )

    def shape(self) -> RowShape:
        return make_shape(
            self.output,
            envelope=self.envelope,
            form=self.option("form", str),
            epoch_column=self.option("epoch_column", str),
            default=Form.WEIGHTS,
            where=self.where,
        )


@dataclass(frozen=True)
class SinkKind:
    """A kind of sink that is known by name."""

    guarantee: Guarantee
    options: frozenset[str]
    build: Callable[[SinkRequest], BaseSink]
    has_path: bool = False

    def made(self, wanted: SinkRequest) -> BaseSink:
        """Build the sink; raise InputError if an argument is invalid."""
        unknown = sorted(set(wanted.options) - self.options)
        if unknown:
            known = ", ".join(sorted(self.options)) or "it has none"
            raise InputError(
                f"unknown options: {', '.join(unknown)}", where=wanted.where, fix=f"options of this sink: {known}"
            )
        if wanted.path is not None and not self.has_path:
            raise InputError("this sink has no path", where=wanted.where, fix="leave path= out")
        return self.build(wanted)


def _parquet(wanted: SinkRequest) -> BaseSink:
    path = wanted.needed_path("write('parquet', path='out')")
    weight = [pa.field(WEIGHT, pa.int64(), nullable=False)] if wanted.is_changelog else []
    schema = pa.schema([*wanted.output.columns, *weight])
    return ParquetTableSink(sink_id=wanted.sink_id, path=path, job_id=wanted.job_id, schema=schema)


def _debezium(wanted: SinkRequest) -> BaseSink:
    example = "write('debezium', path='changes', key='driver')"
    path = wanted.needed_path(example)
    wanted.needed_key(example)
    snapshot = wanted.option("snapshot", bool, default=False)
    return DebeziumFilesSink(sink_id=wanted.sink_id, path=path, envelope=wanted.envelope, snapshot=snapshot)


def _sqlite(wanted: SinkRequest) -> BaseSink:
    path = wanted.needed_path("write('sqlite', path='results.db', table='minutes')")
    table = TableName(wanted.needed("table", "write('sqlite', path='results.db', table='minutes')"))
    return _sql_table(wanted, SQLite(path, timeout_seconds=_timeout(wanted)), table)


def _postgres(wanted: SinkRequest) -> BaseSink:
    name = wanted.needed("table", "write('postgres', table='minutes', dsn='host=db.example dbname=results')")
    schema, _, table = name.rpartition(".")
    database = Postgres(
        wanted.option("dsn", str, ""), password=wanted.option("password", str), timeout_seconds=_timeout(wanted)
    )
    return _sql_table(wanted, database, TableName(table, schema or None))


def _sql_table(wanted: SinkRequest, database: Database, name: TableName) -> BaseSink:
    if wanted.is_changelog:
        wanted.needed_key(f"write(..., table={str(name)!r}, key={wanted.output.columns.names[0]!r})")
    epoch_column = wanted.option("epoch_column", str)
    check_columns_free(wanted.output, [epoch_column] if epoch_column else [], where=wanted.where)
    table = SqlTable(name, wanted.output, wanted.key, epoch_column)
    return SqlTableSink(sink_id=wanted.sink_id, job_id=wanted.job_id, database=database, table=table)


def _timeout(wanted: SinkRequest) -> float:
    microseconds = parse_duration(wanted.option("timeout", str, DEFAULT_TIMEOUT))
    if microseconds <= 0:
        raise InputError("`timeout` must be longer than 0", where=wanted.where, fix="write timeout='5 minutes'")
    return microseconds / 1e6


def _console(wanted: SinkRequest) -> BaseSink:
    rows = wanted.option("rows", int, DEFAULT_ROWS)
    return ConsoleSink(sink_id=wanted.sink_id, shape=wanted.shape(), rows=max(rows, 0))


def _memory(wanted: SinkRequest) -> BaseSink:
    return MemorySink(wanted.sink_id, shape=wanted.shape(), show=wanted.show)


_SHAPED = frozenset({"form", "epoch_column"})
_ONCE, _AGAIN = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE
KINDS: Mapping[str, SinkKind] = {
    "parquet": SinkKind(_ONCE, frozenset(), _parquet, has_path=True),
    "debezium": SinkKind(_ONCE, frozenset({"snapshot"}), _debezium, has_path=True),
    "sqlite": SinkKind(_ONCE, frozenset({"table", "epoch_column", "timeout"}), _sqlite, has_path=True),
    "postgres": SinkKind(_ONCE, frozenset({"table", "dsn", "password", "epoch_column", "timeout"}), _postgres),
    "memory": SinkKind(_ONCE, _SHAPED, _memory),
    "console": SinkKind(_AGAIN, _SHAPED | {"rows"}, _console),
}
"""Kinds by the name that `write` takes."""
