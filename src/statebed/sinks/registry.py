"""Registry of sinks by name: `write("postgres", key="driver", table="minutes", dsn="host=db")`.

Each kind has a guarantee, a way to write a changelog, and options. An unknown option is refused with a list of the
known ones.
"""

import re
from collections.abc import Callable, Mapping, Sequence
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
from statebed.sinks.kafka import Encoding, KafkaCluster, KafkaTopicSink, MessageEncoder, TopicLayout
from statebed.sinks.kafka.topic import Topic
from statebed.sinks.lake import (
    DeltaLakeTable,
    IcebergLakeTable,
    LakeRows,
    LakeSink,
    LakeTable,
    TableLayout,
    catalog_of,
    check_identifier,
)
from statebed.sinks.memory_sink import MemorySink
from statebed.sinks.parquet_table import ParquetTableSink
from statebed.sinks.places import Holding, Place, needed_local_path
from statebed.sinks.row_shape import Form, RowShape, check_columns_free, make_shape
from statebed.sinks.sql import Database, Postgres, SQLite, SqlTable, SqlTableSink, TableName

DEFAULT_TIMEOUT = "5 minutes"
_TYPE_NAMES: Mapping[type, str] = {str: "text", int: "an integer", bool: "True or False", dict: "a dict"}
"""Types of options, in words."""


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
    one_row: bool = False
    """Whether the stream has at most one row at a time, so that no column is needed to identify it."""
    show: Callable[[pa.Table], object] | None = None
    """Called with all rows of a memory sink when they change."""

    @property
    def envelope(self) -> Envelope:
        return Envelope(self.job_id, self.sink_id, self.key, self.one_row)

    @property
    def is_changelog(self) -> bool:
        return self.output.changes is Changes.CHANGELOG

    def option(self, name: str, kind: type, default: Any = None) -> Any:
        """Return an option of type `kind`, or its default; raise InputError if it has another type."""
        value = self.options.get(name, default)
        if value is not None and not isinstance(value, kind):
            raise InputError(
                f"`{name}` must be {_TYPE_NAMES[kind]}, got {value!r}",
                where=self.where,
                fix=f"pass {_TYPE_NAMES[kind]}",
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
        if not self.key and not self.one_row:
            raise InputError(
                "the stream is a changelog, and this sink needs to know which columns identify a row",
                where=self.where,
                fix=f"{example}; or key=[] if it has one row, as an aggregate without key has",
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

    def make(self, wanted: SinkRequest) -> BaseSink:
        """Build the sink; raise InputError if an argument is invalid."""
        unknown = sorted(set(wanted.options) - self.options)
        if unknown:
            known = ", ".join(sorted(self.options)) or "none"
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


def _delta(wanted: SinkRequest) -> BaseSink:
    path = wanted.needed_path("write('delta', path='lake/minutes')")
    rows = _lake_rows(wanted)
    layout = _layout(wanted, rows, partitions=rows.columns.names)
    table = DeltaLakeTable(path, layout=layout, storage_options=_texts(wanted, "storage_options"))
    return _lake(wanted, table, rows)


def _iceberg(wanted: SinkRequest) -> BaseSink:
    example = "write('iceberg', path='lake', table='rides.minutes'), or catalog={'type': 'rest', 'uri': '...'}"
    name = wanted.needed("table", example)
    check_identifier(name, where=wanted.where)
    rows = _lake_rows(wanted)
    layout = _layout(wanted, rows, partitions=None)
    option = wanted.options.get("catalog")
    properties = option if option is None or isinstance(option, str) else _texts(wanted, "catalog")
    path = None if wanted.path is None else needed_local_path(wanted.path, where=wanted.where, fix=example)
    catalog = catalog_of(path, properties, where=wanted.where, fix=example)
    return _lake(wanted, IcebergLakeTable(name, catalog=catalog, layout=layout, folder=path), rows)


def _lake(wanted: SinkRequest, table: LakeTable, rows: LakeRows) -> BaseSink:
    compact = wanted.option("compact", bool, default=True)
    return LakeSink(sink_id=wanted.sink_id, job_id=wanted.job_id, table=table, rows=rows, compact=compact)


def _lake_rows(wanted: SinkRequest) -> LakeRows:
    """Return the rows of a lakehouse table: one per key if a key and no form is given, else appended rows."""
    if (wanted.key or wanted.one_row) and wanted.option("form", str) is None:
        epoch_column = wanted.option("epoch_column", str)
        check_columns_free(wanted.output, [epoch_column] if epoch_column else [], where=wanted.where)
        return LakeRows(RowShape(wanted.output, Form.ROWS, wanted.envelope, epoch_column), wanted.key, wanted.one_row)
    return LakeRows(wanted.shape(), ())


def _layout(wanted: SinkRequest, rows: LakeRows, *, partitions: Sequence[str] | None) -> TableLayout:
    """Return the layout of a table; `partitions` are the valid texts of `partition_by`, None if the table checks."""
    lists = []
    for option, known in (("partition_by", partitions), ("sort_by", rows.columns.names)):
        value = wanted.options.get(option, ())
        names = (value,) if isinstance(value, str) else tuple(value)
        unknown = [name for name in names if known is not None and name not in known]
        if unknown:
            raise InputError(
                f"{option}= names {unknown}, but the columns are {rows.columns.names}",
                where=wanted.where,
                fix="use some of these columns",
            )
        lists.append(names)
    return TableLayout(*lists)


def _texts(wanted: SinkRequest, name: str) -> dict[str, str]:
    """Return an option that is a mapping from text to text. Its values may be secrets, so no message shows them."""
    value = wanted.options.get(name) or {}
    if not isinstance(value, Mapping) or not all(isinstance(part, str) for pair in value.items() for part in pair):
        raise InputError(
            f"`{name}` must be a dict whose keys and values are all text",
            where=wanted.where,
            fix="write numbers and booleans as text, too: '30', 'true'",
        )
    return dict(value)


def _sqlite(wanted: SinkRequest) -> BaseSink:
    example = "write('sqlite', path='results.db', table='minutes')"
    path = needed_local_path(wanted.needed_path(example), where=wanted.where, fix=example)
    if path == ":memory:":
        raise InputError(
            "path=':memory:' would keep no rows: every transaction opens a new database",
            where=wanted.where,
            fix=example,
        )
    table = TableName(wanted.needed("table", example))
    sink = _sql_table(wanted, SQLite(path, timeout_seconds=_timeout(wanted)), table)
    sink.place = Place(path, Holding.DATABASE)
    return sink


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
    table = SqlTable(name, wanted.output, wanted.key, epoch_column, wanted.one_row)
    return SqlTableSink(sink_id=wanted.sink_id, job_id=wanted.job_id, database=database, table=table)


def _kafka(wanted: SinkRequest) -> BaseSink:
    example = "write('kafka', servers='broker:9092', topic='minutes')"
    servers, topic = wanted.needed("servers", example), wanted.needed("topic", example)
    if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise InputError(
            f"`topic` must have 1 to 249 letters without accents, digits, '.', '_' and '-', got {topic!r}",
            where=wanted.where,
            fix=example,
        )
    values = [encoding.value for encoding in Encoding]
    value = wanted.option("value", str, Encoding.JSON.value)
    if value not in values:
        raise InputError(
            f"`value` must be one of {', '.join(values)}, got {value!r}", where=wanted.where, fix="choose one of them"
        )
    layout = TopicLayout(
        create=wanted.option("create", bool, default=True),
        partitions=wanted.option("partitions", int, 1),
        replication=wanted.option("replication", int, -1),
    )
    if layout.partitions < 1:
        raise InputError(f"`partitions` must be at least 1, got {layout.partitions}", where=wanted.where, fix=example)
    cluster = KafkaCluster(servers, wanted.option("kafka", dict, {}), _timeout(wanted))
    schema_id = wanted.option("schema_id", int)
    if schema_id is not None and value != Encoding.AVRO.value:
        raise InputError(f"schema_id= needs value='avro', got value={value!r}", where=wanted.where, fix="leave it out")
    encoder = MessageEncoder(
        wanted.output,
        encoding=Encoding(value),
        envelope=wanted.envelope,
        schema_id=schema_id,
        where=wanted.where,
    )
    return KafkaTopicSink(
        sink_id=wanted.sink_id, job_id=wanted.job_id, topic=Topic(cluster, topic), encoder=encoder, layout=layout
    )


def _timeout(wanted: SinkRequest) -> float:
    microseconds = parse_duration(wanted.option("timeout", str, DEFAULT_TIMEOUT))
    if microseconds <= 0:
        raise InputError(
            f"`timeout` must be longer than 0, got {wanted.option('timeout', str)!r}",
            where=wanted.where,
            fix="write timeout='5 minutes'",
        )
    return microseconds / 1e6


def _console(wanted: SinkRequest) -> BaseSink:
    rows = wanted.option("rows", int, DEFAULT_ROWS)
    return ConsoleSink(sink_id=wanted.sink_id, shape=wanted.shape(), rows=max(rows, 0))


def _memory(wanted: SinkRequest) -> BaseSink:
    return MemorySink(wanted.sink_id, shape=wanted.shape(), show=wanted.show)


_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SHAPED = frozenset({"form", "epoch_column"})
_LAKE = _SHAPED | {"partition_by", "sort_by", "compact"}
_ONCE, _AGAIN = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE
KINDS: Mapping[str, SinkKind] = {
    "parquet": SinkKind(_ONCE, frozenset(), _parquet, has_path=True),
    "debezium": SinkKind(_ONCE, frozenset({"snapshot"}), _debezium, has_path=True),
    "delta": SinkKind(_ONCE, _LAKE | {"storage_options"}, _delta, has_path=True),
    "iceberg": SinkKind(_ONCE, _LAKE | {"table", "catalog"}, _iceberg, has_path=True),
    "sqlite": SinkKind(_ONCE, frozenset({"table", "epoch_column", "timeout"}), _sqlite, has_path=True),
    "postgres": SinkKind(_ONCE, frozenset({"table", "dsn", "password", "epoch_column", "timeout"}), _postgres),
    "memory": SinkKind(_ONCE, _SHAPED, _memory),
    "console": SinkKind(_AGAIN, _SHAPED | {"rows"}, _console),
    "kafka": SinkKind(
        _ONCE,
        frozenset(
            {"servers", "topic", "value", "schema_id", "create", "partitions", "replication", "kafka", "timeout"}
        ),
        _kafka,
    ),
}
"""Kinds by the name that `write` takes."""
