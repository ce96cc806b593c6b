"""Reader of a table of the state in Spark.

The driver finds the table, fixes its epoch when the DataFrame is created, and passes each task the names of its files;
executors read from the store. Equality on all key columns and ranges of `_time` are pushed down if
`spark.sql.python.filterPushdown.enabled` is true. Spark does not tell Python data sources which columns a query needs;
use `.schema(...)` to choose the columns to read.
"""

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
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
from statebed.inspect import StateTable
from statebed.inspect.tables.pushdown import span_of
from statebed.inspect.tables.request import instant_us
from statebed.inspect.tables.table_shape import INTERNAL
from statebed.spark.api.change_feed import feed_schema
from statebed.spark.arrow_types import arrow_schema


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


def schema_in_spark(stored: pa.Schema, *, changes: bool) -> StructType:
    """Return the columns of a table, or those of the stream of its changes, as Spark's."""
    rows = pa.schema([_known(field) for field in stored])
    return from_arrow_schema(feed_schema(rows) if changes else rows, prefer_timestamp_ntz=True)


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
