"""State as a Spark table: `spark.read.format("statebed")`, and `USING statebed` in SQL.

Spark finds it automatically through the package `pyspark_statebed`. The driver finds the table, fixes its epoch when
the DataFrame is created, and passes each task the names of its files; executors read from the store. Equality on all
key columns and ranges of `_time` are pushed down if `spark.sql.python.filterPushdown.enabled` is true. Spark does not
tell Python data sources which columns a query needs; use `.schema(...)` to choose the columns to read.
"""

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from statebed.arrays.nested import is_list
from statebed.errors import InputError
from statebed.inspect import StateTable, read_state
from statebed.inspect.tables.pushdown import span_of
from statebed.inspect.tables.request import instant_us
from statebed.inspect.tables.table_shape import INTERNAL
from statebed.spark.api.change_feed import ChangeFeedReader, feed_schema
from statebed.spark.arrow_types import arrow_schema

NAME = "statebed"
OWN_OPTIONS = ("path", "job", "operator", "table", "epoch", "savepoint", "internal", "results")
FEED_OPTIONS = ("changes", "startingepoch")
"""Options of the stream of changes."""
STORAGE = "storage."
"""Prefix of options that are settings of the object store."""


class StateSource(DataSource):
    """A table of the state at one epoch."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._feed = _feed_options(options)
        self._arguments = _read_arguments(options)
        table = self._table()
        # Later reads of this DataFrame use the epoch that was the newest when it was created.
        self._arguments |= {"operator": table.operator, "table": table.table, "job": table.job}
        if self._arguments.get("savepoint") is None:
            self._arguments["epoch"] = table.record

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        rows = pa.schema([_known(field) for field in self._table().schema])
        return from_arrow_schema(rows if self._feed is None else feed_schema(rows), prefer_timestamp_ntz=True)

    def streamReader(self, schema: StructType) -> ChangeFeedReader:  # noqa: N802 - Spark's name
        if self._feed is None:
            raise InputError(
                "a stream of the state is a stream of its changes",
                where='readStream.format("statebed")',
                fix='add .option("changes", "true"), which adds the columns `change` and `_epoch`',
            )
        return ChangeFeedReader(self._arguments, schema, starting_epoch=self._feed.starting_epoch)

    def reader(self, schema: StructType) -> "StateReader":
        if self._feed is not None:
            raise InputError(
                'the option "changes" is for streams',
                where='read.format("statebed")',
                fix="use readStream, or sb.diff_state(...) for the changes between two epochs",
            )
        return StateReader(self._table(), schema)

    def _table(self) -> StateTable:
        return read_state(**self._arguments)


class StateReader(DataSourceReader):
    """Reads one table; created on the driver and sent to executors with their slices."""

    def __init__(self, table: StateTable, schema: StructType) -> None:
        self._target = arrow_schema(schema)
        # Only the columns of `.schema(...)` are read.
        self._table = table.select(*self._target.names)
        self.pushFilters = _Push(self)  # type: ignore[method-assign]  # see there

    def push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Restrict what is read and return the filters that are left to Spark."""
        left = {id(filter_): filter_ for filter_ in filters}
        for taken, narrower in (*_by_key(self._table, filters), *_by_time(self._table, filters)):
            self._table = narrower(self._table)
            for pushed in taken:
                left.pop(id(pushed), None)
        return list(left.values())

    def partitions(self) -> Sequence[InputPartition]:
        slices = [InputPartition(piece) for piece in self._table.slices()]
        return slices or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return
        for batch in partition.value.batches():
            rows = pa.Table.from_batches([batch])
            columns = [_cast(rows[field.name], field.type) for field in self._target]
            yield from pa.Table.from_arrays(columns, schema=self._target).combine_chunks().to_batches()

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get their slices; the table itself stays on the driver.
        return {"_target": self._target}


class _Push:
    """The method `pushFilters` of a reader, for sessions with and without pushdown.

    Spark refuses readers with their own `pushFilters` while pushdown is off, which is the default, and detects it by
    `__func__`. This descriptor lets reading work either way, and filters are pushed down where possible.
    """

    def __init__(self, reader: StateReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.push(filters)


def _read_arguments(options: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of `read_state`."""
    by_name = {name.lower(): value for name, value in options.items() if name.lower() not in FEED_OPTIONS}
    storage = {name.removeprefix(STORAGE): value for name, value in by_name.items() if name.startswith(STORAGE)}
    unknown = [name for name in by_name if name not in OWN_OPTIONS and not name.startswith(STORAGE)]
    if unknown or "path" not in by_name:
        raise InputError(
            f"the options {sorted(unknown)} are unknown" if unknown else "no state location is given",
            where='format("statebed")',
            fix=f"call load(location), with options {', '.join(OWN_OPTIONS[1:])}, and {STORAGE}... for the store",
        )
    epoch = by_name.get("epoch")
    if epoch is not None and not epoch.isdigit():
        raise InputError(
            f"`epoch` must be a number, got {epoch!r}", where='format("statebed")', fix="pass an epoch number"
        )
    return {
        "url": by_name["path"],
        "job": by_name.get("job"),
        "operator": by_name.get("operator"),
        "table": by_name.get("table"),
        "epoch": None if epoch is None else int(epoch),
        "savepoint": by_name.get("savepoint"),
        "internal": by_name.get("internal", "false").lower() == "true",
        "results": by_name.get("results", "false").lower() == "true",
        "storage_options": storage,
    }


@dataclass(frozen=True)
class FeedOptions:
    """Options of the stream of changes."""

    starting_epoch: int | None
    """Epoch whose changes come first; None to begin with the rows of the newest epoch."""


def _feed_options(options: dict[str, str]) -> FeedOptions | None:
    """Return the options of the stream of changes, or None if the state itself is to be read."""
    by_name = {name.lower(): value for name, value in options.items()}
    where = 'format("statebed")'
    if by_name.get("changes", "false").lower() != "true":
        if "startingepoch" in by_name:
            raise InputError(
                'the option "startingEpoch" is for streams of changes',
                where=where,
                fix='add .option("changes", "true")',
            )
        return None
    pinned = [name for name in ("epoch", "savepoint") if name in by_name]
    if pinned:
        raise InputError(
            f"a stream of changes has no {pinned[0]}", where=where, fix="use startingEpoch, or leave the option out"
        )
    epoch = by_name.get("startingepoch")
    if epoch is not None and not (epoch.isascii() and epoch.isdigit() and int(epoch)):
        raise InputError(
            f"`startingEpoch` must be the number of an epoch, got {epoch!r}", where=where, fix="pass an epoch number"
        )
    return FeedOptions(None if epoch is None else int(epoch))


# ---- filters ---------------------------------------------------------------------------------------------------------


def _by_key(table: StateTable, filters: list[Filter]) -> Iterator[tuple[list[Filter], Any]]:
    """Yield filters on all key columns, as keys."""
    wanted: dict[str, tuple[Filter, list[Any]]] = {}
    for comparison in filters:
        if isinstance(comparison, EqualTo) and len(comparison.attribute) == 1:
            wanted.setdefault(comparison.attribute[0], (comparison, [comparison.value]))
        elif isinstance(comparison, In) and len(comparison.attribute) == 1:
            wanted.setdefault(
                comparison.attribute[0], (comparison, [value for value in comparison.value if value is not None])
            )
    narrower = table.of_equal({name: values for name, (_, values) in wanted.items()})
    if narrower is not None:
        keys = [
            filter_
            for name in table.key_columns
            for filter_ in filters
            if getattr(filter_, "attribute", None) == (name,)
        ]
        taken = [wanted[name][0] for name in table.key_columns]
        yield [*taken, *(filter_ for filter_ in keys if isinstance(filter_, IsNotNull))], lambda _: narrower


def _by_time(table: StateTable, filters: list[Filter]) -> Iterator[tuple[list[Filter], Any]]:
    """Yield comparisons of the time column with constants."""
    for comparison in filters:
        named = getattr(comparison, "attribute", None)
        if table.time_column is None or named != (table.time_column,) or type(comparison) not in _SIGNS:
            continue
        value = getattr(comparison, "value", None)
        if isinstance(value, dt.datetime):
            yield [comparison], _between(*span_of(_SIGNS[type(comparison)], instant_us(value)))


_SIGNS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


def _between(start: int | None, end: int | None) -> Any:
    return lambda state_table: state_table.between(start, end)


# ---- types -----------------------------------------------------------------------------------------------------------


def _known(field: pa.Field) -> pa.Field:
    # Hashes and sequence numbers are shown as the same 64 bits, signed, like Spark's own `xxhash64`.
    kind = pa.int64() if field.name in INTERNAL else _known_type(field.type)
    return pa.field(field.name, kind, nullable=field.nullable)


def _known_type(kind: pa.DataType) -> pa.DataType:
    """Return a Spark type that holds every value."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([_known(kind.field(index)) for index in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(_known_type(kind.key_type), _known_type(kind.item_type))
    if is_list(kind):
        return pa.list_(_known(kind.value_field))
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    return pa.binary() if types.is_fixed_size_binary(kind) else _WIDER.get(kind, kind)


_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    **{pa.duration(unit): pa.duration("us") for unit in ("s", "ms", "ns")},
    **{kind: pa.time64("ns") for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"))},
}


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == pa.uint64() and kind == pa.int64():
        return pa.chunked_array([chunk.view(pa.int64()) for chunk in column.chunks], pa.int64())
    return column if column.type == kind else column.cast(kind)
