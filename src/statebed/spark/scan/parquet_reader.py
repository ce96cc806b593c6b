"""Reads columns of Parquet files exactly as Spark's reader does, or refuses.

The types of a file may differ from those of the stream. The reader makes only conversions for which Arrow and Spark
are known to produce the same values. Everything else raises ScanRefusedError, and Spark reads the files of the query
from then on: Spark has its own rules for old calendars, unsigned numbers and nanoseconds, and its errors are what users
expect.
"""

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from statebed.format.schema import TIMESTAMP

ROWS_AT_ONCE = 1 << 16
_FEW_ROWS = 64
_BATCH_BYTES = 8 << 20
"""Bytes of the rows of a file that are in memory at once."""
_BUFFER_BYTES = 1 << 20
"""Bytes of a column that are read at once; without a bound, Arrow reads the whole column of a row group."""
_WRITER = b"org.apache.spark.version"
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_FIRST_MODERN_WRITER = (3, 1)
_FIRST_DAY = dt.date(1582, 10, 15)
_FIRST_INSTANT = dt.datetime(1900, 1, 1, tzinfo=dt.UTC)
"""Earlier dates and times mean other days in old files; Spark then asks for a setting."""
_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_SIMPLE = (*_SIGNED, pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32())
_WIDENED = (
    *((narrow, wide) for narrow in _SIGNED[:3] for wide in _SIGNED[2:] if narrow.bit_width < wide.bit_width),
    (pa.float32(), pa.float64()),
)


class ScanRefusedError(Exception):
    """Arrow might read a file differently from Spark."""


@dataclass(frozen=True)
class FileColumn:
    """A column that a scan reads."""

    name: str
    """Name in the files, in the spelling of the stream."""
    field: pa.Field
    """Name and type in the batches of the scan."""


@dataclass(frozen=True)
class FilePart:
    """The row groups of a file whose middle is in a range of bytes, as Spark divides files."""

    path: str
    start: int
    end: int
    values: Mapping[str, str | None]
    """Values of the partition columns, from the path."""

    def batches(self, columns: Sequence[FileColumn], *, case_sensitive: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the part, with the columns in this order; a column that the file lacks is null."""
        return batches_of(self, columns, case_sensitive=case_sensitive)


def batches_of(
    part: FilePart, columns: Sequence[FileColumn], *, case_sensitive: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, with the columns in this order; a column that the file lacks is null."""
    try:
        with pq.ParquetFile(
            part.path, pre_buffer=False, buffer_size=_BUFFER_BYTES, coerce_int96_timestamp_unit="us"
        ) as file:
            yield from _batches(file, part, columns, case_sensitive=case_sensitive)
    except (pa.ArrowException, OSError) as error:
        raise ScanRefusedError(f"{part.path}: {error}") from error


def _batches(
    file: pq.ParquetFile, part: FilePart, columns: Sequence[FileColumn], *, case_sensitive: bool
) -> Iterator[pa.RecordBatch]:
    groups = _row_groups(file.metadata, part)
    if not groups:
        return
    schema = file.schema_arrow
    sources = {
        column.name: _source(column, schema, part, case_sensitive=case_sensitive)
        for column in columns
        if column.name not in part.values
    }
    fields = {name: schema.field(own_name) for name, own_name in sources.items() if own_name is not None}
    for column in columns:
        if column.name in fields:
            _check(column, fields[column.name], file, part)
    is_checked = _is_modern(file.metadata.metadata or {}, [column.field.type for column in columns], part)
    wanted = sorted({field.name for field in fields.values()})
    if not wanted:
        for group in groups:
            yield from _without_columns(file.metadata.row_group(group).num_rows, part, columns)
        return
    rows = _rows_at_once(file, groups, wanted)
    for batch in file.iter_batches(rows, row_groups=groups, columns=wanted, use_threads=False):
        arrays = [
            _partition_column(column, part.values[column.name], batch.num_rows)
            if column.name in part.values
            else _conformed(batch, fields.get(column.name), column, part, is_checked=is_checked)
            for column in columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=_schema(columns))


def _rows_at_once(file: pq.ParquetFile, groups: Sequence[int], wanted: Sequence[str]) -> int:
    """Return how many rows fit the bound of a batch, by the width of the first ones if rows may be wide."""
    if not any(_may_be_wide(file.schema_arrow.field(name).type) for name in wanted):
        return ROWS_AT_ONCE
    first = next(iter(file.iter_batches(_FEW_ROWS, row_groups=groups[:1], columns=wanted, use_threads=False)))
    stored = [file.metadata.row_group(group) for group in groups]
    width = max(first.nbytes // first.num_rows, *(group.total_byte_size // group.num_rows for group in stored), 1)
    return max(1, min(ROWS_AT_ONCE, _BATCH_BYTES // int(width)))


def _may_be_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind)))


def _schema(columns: Sequence[FileColumn]) -> pa.Schema:
    return pa.schema([column.field for column in columns])


def _without_columns(rows: int, part: FilePart, columns: Sequence[FileColumn]) -> Iterator[pa.RecordBatch]:
    """Yield rows of which the file has none of the columns."""
    for start in range(0, rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, rows - start)
        arrays = [
            _partition_column(column, part.values[column.name], count)
            if column.name in part.values
            else pa.nulls(count, column.field.type)
            for column in columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=_schema(columns))


def _row_groups(metadata: pq.FileMetaData, part: FilePart) -> list[int]:
    """Return the row groups whose middle is in the range, so that each belongs to exactly one part."""
    chosen = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            continue
        chunks = [group.column(place) for place in range(group.num_columns)]
        begin = min(_first_byte(chunk) for chunk in chunks)
        middle = begin + sum(chunk.total_compressed_size for chunk in chunks) // 2
        if part.start <= middle < part.end:
            chosen.append(number)
    return chosen


def _first_byte(chunk: pq.ColumnChunkMetaData) -> int:
    pages = (chunk.dictionary_page_offset, chunk.data_page_offset)
    return int(min(offset for offset in pages if offset))


def _source(column: FileColumn, schema: pa.Schema, part: FilePart, *, case_sensitive: bool) -> str | None:
    """Return the file's name for a column, or None if it has no such column."""
    same = [
        name
        for name in schema.names
        if name == column.name or (not case_sensitive and name.lower() == column.name.lower())
    ]
    if len(same) > 1:
        raise ScanRefusedError(f"{part.path} has several columns called {column.name}")
    if same and "." in same[0]:
        raise ScanRefusedError(f"{part.path} has a column with a dot in its name: {same[0]}")
    return same[0] if same else None


def _check(column: FileColumn, field: pa.Field, file: pq.ParquetFile, part: FilePart) -> None:
    """Refuse a column that Spark might convert differently."""
    if not _reads_alike(field.type, column.field.type, is_int96=_is_int96(file, field.name)):
        raise ScanRefusedError(f"{part.path}: {field.name} has the type {field.type}, the stream {column.field.type}")


def _reads_alike(stored: pa.DataType, wanted: pa.DataType, *, is_int96: bool = False) -> bool:
    """Return whether Arrow and Spark read the same values of the wanted type."""
    kinds = pa.types
    if kinds.is_timestamp(stored) and wanted == TIMESTAMP:
        return is_int96 or (stored.tz is not None and stored.unit in {"us", "ms"})
    if kinds.is_struct(stored) and kinds.is_struct(wanted):
        ours, theirs = list(stored), list(wanted)
        return [field.name for field in ours] == [field.name for field in theirs] and all(
            _reads_alike(a.type, b.type) for a, b in zip(ours, theirs, strict=True)
        )
    if kinds.is_list(stored) and kinds.is_list(wanted):
        return _reads_alike(stored.value_type, wanted.value_type)
    text = stored.value_type if kinds.is_dictionary(stored) else stored
    if kinds.is_string(wanted) and (kinds.is_string(text) or kinds.is_large_string(text)):
        return True
    if stored == wanted:
        return not is_int96 and (stored in _SIMPLE or kinds.is_decimal128(stored) or kinds.is_timestamp(stored))
    return (stored, wanted) in _WIDENED


def _is_int96(file: pq.ParquetFile, name: str) -> bool:
    leaves = (file.schema.column(place) for place in range(len(file.schema.names)))
    return any(leaf.path == name and leaf.physical_type == "INT96" for leaf in leaves)


def _is_modern(metadata: Mapping[bytes, bytes], kinds: Sequence[pa.DataType], part: FilePart) -> bool:
    """Return whether dates and times of the file are known to follow the proleptic Gregorian calendar."""
    if not any(_has_times(kind) for kind in kinds):
        return True
    writer = metadata.get(_WRITER, b"").decode(errors="replace")
    if any(key in metadata for key in _LEGACY) or (writer and _version(writer) < _FIRST_MODERN_WRITER):
        raise ScanRefusedError(f"{part.path} was written by Spark {writer}, with the calendar of old versions")
    if not writer and any(_has_times(kind) and pa.types.is_nested(kind) for kind in kinds):
        raise ScanRefusedError(f"{part.path} has times in nested columns, and does not name its writer")
    return bool(writer)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split("-", maxsplit=1)[0].split(".")[:2] if number.isdigit())


def _has_times(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_times(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _conformed(
    batch: pa.RecordBatch, field: pa.Field | None, column: FileColumn, part: FilePart, *, is_checked: bool
) -> pa.Array:
    kind = column.field.type
    if field is None:
        return pa.nulls(batch.num_rows, kind)
    values = batch.column(field.name)
    if values.type != kind:
        if pa.types.is_timestamp(kind) and values.type.tz is None:
            values = values.cast(pa.timestamp("us")).view(pa.int64()).view(kind)  # INT96 is an instant
        values = values.cast(kind)
    if not is_checked and (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        earliest = pc.min(values)
        bound = pa.scalar(_FIRST_DAY if pa.types.is_date(kind) else _first_instant(kind), kind)
        if earliest.is_valid and pc.less(earliest, bound).as_py():
            raise ScanRefusedError(f"{part.path}: {column.name} has values of another calendar")
    return values


def _first_instant(kind: pa.TimestampType) -> dt.datetime:
    return _FIRST_INSTANT if kind.tz else _FIRST_INSTANT.replace(tzinfo=None)


PARTITION_TYPES = (pa.string(), pa.int32(), pa.int64())
"""Types of partition columns whose values are read from paths as Spark reads them."""


def _partition_column(column: FileColumn, text: str | None, rows: int) -> pa.Array:
    kind = column.field.type
    try:
        value = text if text is None or pa.types.is_string(kind) else int(text)
        return pa.repeat(pa.scalar(value, kind), rows)
    except (ValueError, pa.ArrowException) as error:
        raise ScanRefusedError(f"the partition {column.name}={json.dumps(text)} is no {kind}") from error
