"""Data files of lakehouse tables: Parquet bytes, and the statistics that their logs list."""

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statebed.errors import SinkError
from statebed.sinks.base import not_utf8

MAX_TEXT = 64
"""Longest text that becomes a bound; a longer one leaves its column without bounds."""


def footer(data: bytes) -> pq.FileMetaData:
    """Return the footer of a Parquet file."""
    return pq.ParquetFile(pa.BufferReader(data)).metadata


def bounds_of(metadata: pq.FileMetaData) -> dict[str, tuple[Any, Any]]:
    """Return smallest and largest value of each column of integers, dates, times or short text.

    A column is left out if a row group lacks its statistics, or if readers disagree about their order, as for NaN.
    """
    by_column: dict[str, tuple[Any, Any]] = {}
    schema = metadata.schema.to_arrow_schema()
    for index, field in _leaves(metadata, schema):
        if not _has_bounds(field.type):
            continue
        bounds = [_statistics(metadata, group, index) for group in range(metadata.num_row_groups)]
        known = [(low, high) for low, high, _ in filter(None, bounds) if low is not None]
        if None in bounds or not known or any(isinstance(v, str) and len(v) > MAX_TEXT for pair in known for v in pair):
            continue
        by_column[field.name] = (min(low for low, _ in known), max(high for _, high in known))
    return by_column


def check_values(metadata: pq.FileMetaData, *, where: str) -> None:
    """Raise SinkError for times and texts that Python does not have, for formats whose library reads the bounds."""
    for index, field in _leaves(metadata, metadata.schema.to_arrow_schema()):
        try:
            for group in range(metadata.num_row_groups):
                statistics = metadata.row_group(group).column(index).statistics
                _ = statistics is not None and statistics.has_min_max and (statistics.min, statistics.max)
        except OverflowError as error:
            raise far_year(field.name, where=where) from error
        except UnicodeDecodeError as error:
            raise not_utf8(field.name, where=where) from error


def far_year(column: str, *, where: str) -> SinkError:
    """Return the error for a date or time that a format cannot have there."""
    return SinkError(
        f"a row has a date or time in the column {column} that is not in the years 1 to 9999",
        where=where,
        fix=f"filter such rows before the sink: where('year({column}) between 1 and 9999')",
    )


def partition_values(values: pa.Table, *, names: Sequence[str], where: str) -> dict[str, Any]:
    """Return the only row of a table; raise SinkError for values that Python does not have, by the names of the columns
    that they come from.
    """
    row = {}
    for column, name in zip(values.schema.names, names, strict=True):
        try:
            row[column] = values[column][0].as_py()
        except OverflowError as error:
            raise far_year(name, where=where) from error
    return row


def null_counts(metadata: pq.FileMetaData) -> dict[str, int]:
    """Return the number of nulls of each column that is not nested."""
    counts = {}
    for index, field in _leaves(metadata, metadata.schema.to_arrow_schema()):
        columns = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if all(statistics is not None and statistics.has_null_count for statistics in columns):
            counts[field.name] = sum(statistics.null_count for statistics in columns)
    return counts


def delta_statistics(metadata: pq.FileMetaData) -> str:
    """Return the statistics of a file as the JSON text of Delta's protocol."""
    bounds = {name: pair for name, pair in bounds_of(metadata).items() if not isinstance(pair[0], bytes)}
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": {name: _json(low) for name, (low, _) in bounds.items()},
            "maxValues": {name: _json(high) for name, (_, high) in bounds.items()},
            "nullCount": null_counts(metadata),
        }
    )


def _leaves(metadata: pq.FileMetaData, schema: pa.Schema) -> list[tuple[int, pa.Field]]:
    """Return the columns that are not nested, with their number among the leaves of the file's schema."""
    leaves, index = [], 0
    for field in schema:
        width = _width(field.type)
        if not pa.types.is_nested(field.type):
            leaves.append((index, field))
        index += width
    return leaves if index == metadata.num_columns else []


def _width(kind: pa.DataType) -> int:
    """Return the number of leaves of a type in Parquet."""
    if pa.types.is_map(kind):
        return _width(kind.key_type) + _width(kind.item_type)
    if pa.types.is_struct(kind):
        return sum(_width(kind.field(index).type) for index in range(kind.num_fields))
    return _width(kind.value_type) if pa.types.is_list(kind) or pa.types.is_large_list(kind) else 1


def _has_bounds(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )


def _statistics(metadata: pq.FileMetaData, group: int, index: int) -> tuple[Any, Any, bool] | None:
    """Return smallest and largest value of a column chunk, both None if it has only nulls; None if unknown, or if
    Python's datetime does not have the year.
    """
    chunk = metadata.row_group(group).column(index)
    statistics = chunk.statistics
    if statistics is None:
        return None
    if statistics.has_min_max:
        try:
            return statistics.min, statistics.max, True
        except OverflowError:
            return None
        except UnicodeDecodeError as error:
            raise not_utf8(chunk.path_in_schema, where="the bounds of a file") from error
    return (None, None, False) if statistics.has_null_count and statistics.null_count == chunk.num_values else None


def _json(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        text = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
        return text.isoformat(timespec="microseconds") + ("Z" if value.tzinfo else "")
    return value.isoformat() if isinstance(value, dt.date) else value
