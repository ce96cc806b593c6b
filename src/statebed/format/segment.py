"""Segments as bytes: sorted Arrow rows to Parquet, the same bytes for the same rows, and whole files back
again.

Nothing in the bytes depends on who writes, when, or how the rows were chunked: rows are cut into row groups
by their content alone, and the writer's settings are fixed here. (Its version is part of the bytes: Parquet
asks for it.)

- LZ4 (raw) and BYTE_STREAM_SPLIT for columns of signed integers, floats, dates and times; ZSTD for global keyed
  tables. No dictionaries. Other columns are PLAIN, and `_seq` is DELTA_BINARY_PACKED: Spark's vectorised reader refuses
  unsigned numbers in BYTE_STREAM_SPLIT, and DuckDB refuses decimals.
- Row groups hold at most ROW_GROUP_ROWS rows and about ROW_GROUP_BYTES. With BIN_FIRST they are cut at bin
  edges: a row group holds rows of one bin, or several whole small bins that together have at most PACKED_ROWS
  rows.
- Checksums: every page carries its own; the file entry carries those of the file, the footer and each column
  chunk.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from statebed.errors import CorruptObjectError, InputError
from statebed.format.checkpoint_pb2 import BIN_FIRST, HASH_FIRST, KEY_ONLY, FileEntry, HashRange, SortOrder
from statebed.format.columns import fixed_width_values
from statebed.format.digest import crc32c, digest
from statebed.format.order import first_disorder, sort_indices
from statebed.format.schema import BIN, DELETED, KEY_HASH, SEQUENCE, TIME, canonical_schema, reserved_field
from statebed.format.sealed import FORMAT_VERSION

ROW_GROUP_ROWS = 1 << 17
ROW_GROUP_BYTES = 8 << 20
PACKED_ROWS = 1 << 12
DAMAGED_FIX = "restore it from a backup, or fork to an older intact epoch"

_PARQUET_TAIL = 8  # the footer's length and the closing magic
_TEXT_TYPES = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
_NESTED_BYTES = 256  # an estimate: what a nested value takes is not looked at


def segment_schema(
    columns: pa.Schema,
    *,
    sort_order: "SortOrder.ValueType",
    key_columns: Sequence[str],
    timed: bool = True,
    deletions: bool = False,
) -> pa.Schema:
    """The columns of a table's files, in their order, from the user's columns (which carry field ids).

    HASH_FIRST: `_key_hash`, keys, `_time`, `_seq`, values. BIN_FIRST: the same after `_bin`. KEY_ONLY: keys,
    `_seq`, `_key_hash`, values. `timed=False` leaves `_time` out; `deletions=True` adds `_deleted` after `_seq`.
    """
    keys = [columns.field(name) for name in key_columns]
    values = [field for field in columns if field.name not in key_columns]
    reserved = {name: reserved_field(name) for name in (BIN, KEY_HASH, TIME, SEQUENCE, DELETED)}
    marks = [reserved[DELETED]] if deletions else []
    if sort_order == KEY_ONLY:
        return canonical_schema(pa.schema([*keys, reserved[SEQUENCE], *marks, reserved[KEY_HASH], *values]))
    bins = [reserved[BIN]] if sort_order == BIN_FIRST else []
    times = [reserved[TIME]] if timed else []
    return canonical_schema(pa.schema([*bins, reserved[KEY_HASH], *keys, *times, reserved[SEQUENCE], *marks, *values]))


@dataclass(frozen=True)
class SegmentSpec:
    """What the files of one table have in common."""

    table: str
    schema_id: int
    schema: pa.Schema
    """As `segment_schema` makes it."""
    sort_order: "SortOrder.ValueType"
    key_columns: tuple[str, ...]
    state_version: int = 0

    def __post_init__(self) -> None:
        needed = {KEY_HASH, SEQUENCE, *self.key_columns} | ({BIN} if self.sort_order == BIN_FIRST else set())
        missing = sorted(needed.difference(self.schema.names))
        if missing or self.sort_order not in {HASH_FIRST, BIN_FIRST, KEY_ONLY}:
            raise InputError(
                f"no segment of table {self.table!r} can be sorted {SortOrder.Name(self.sort_order)}: "
                f"missing columns {missing}",
                fix="build the schema with segment_schema",
            )
        for field in self.schema:
            if pa.types.is_dictionary(field.type) or pa.types.is_run_end_encoded(field.type):
                raise InputError(
                    f"the column {field.name!r} of table {self.table!r} has the encoded type {field.type}",
                    fix="cast it to its value type: equal rows must have equal bytes",
                )

    @property
    def sort_columns(self) -> tuple[str, ...]:
        times = (TIME,) if TIME in self.schema.names else ()
        if self.sort_order == KEY_ONLY:
            return (*self.key_columns, SEQUENCE)
        bins = (BIN,) if self.sort_order == BIN_FIRST else ()
        return (*bins, KEY_HASH, *self.key_columns, *times, SEQUENCE)


@dataclass(frozen=True)
class EncodedSegment:
    """The bytes of a data file, and all that its entry in the metadata says of them."""

    data: bytes
    digest: str
    crc32c: int
    rows: int
    min_key_hash: int
    max_key_hash: int
    min_time_us: int | None
    max_time_us: int | None
    min_sequence: int
    max_sequence: int
    schema_id: int
    sort_order: "SortOrder.ValueType"
    footer_size: int
    footer_crc32c: int
    chunk_crc32c: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.data)

    def file_entry(self, path: str, *, owned: HashRange, level: int = 0) -> FileEntry:
        """The entry that names this file at `path` for a subtask that owns `owned`."""
        return FileEntry(
            path=path,
            size=self.size,
            rows=self.rows,
            crc32c=self.crc32c,
            owned=owned,
            min_key_hash=self.min_key_hash,
            max_key_hash=self.max_key_hash,
            min_time_us=self.min_time_us,
            max_time_us=self.max_time_us,
            min_sequence=self.min_sequence,
            max_sequence=self.max_sequence,
            schema_id=self.schema_id,
            sort_order=self.sort_order,
            level=level,
            footer_size=self.footer_size,
            footer_crc32c=self.footer_crc32c,
            chunk_crc32c=self.chunk_crc32c,
        )


def sort_segment(table: pa.Table, *, spec: SegmentSpec) -> pa.Table:
    """The rows in the order of the table; nulls after values, NaN after numbers. Equal rows keep their
    order.
    """
    return table.take(sort_indices(table, spec.sort_columns))


def encode_segment(table: pa.Table, *, spec: SegmentSpec) -> EncodedSegment:
    """The data file of a table that is sorted as `spec` says; refuses any other."""
    table = _conform(table, spec)
    row = first_disorder(table, spec.sort_columns)
    if row is not None:
        raise InputError(
            f"row {row} of a segment of table {spec.table!r} is out of order "
            f"{SortOrder.Name(spec.sort_order)} ({', '.join(spec.sort_columns)})",
            fix="sort the rows with sort_segment first",
        )
    data = _write(table, spec)
    footer = pq.read_metadata(pa.BufferReader(data))
    footer_size = footer.serialized_size + _PARQUET_TAIL
    hashes, sequences = _numbers(table[KEY_HASH], np.uint64), _numbers(table[SEQUENCE], np.uint64)
    times = (
        pc.min_max(table[TIME].cast(pa.int64())).as_py() if TIME in table.column_names else {"min": None, "max": None}
    )
    return EncodedSegment(
        data=data,
        digest=digest(data),
        crc32c=crc32c(data),
        rows=table.num_rows,
        min_key_hash=int(hashes.min()),
        max_key_hash=int(hashes.max()),
        min_time_us=times["min"],
        max_time_us=times["max"],
        min_sequence=int(sequences.min()),
        max_sequence=int(sequences.max()),
        schema_id=spec.schema_id,
        sort_order=spec.sort_order,
        footer_size=footer_size,
        footer_crc32c=crc32c(data[-footer_size:]),
        chunk_crc32c=tuple(
            crc32c(data[start : start + length])
            for group in range(footer.num_row_groups)
            for start, length in chunk_ranges(footer, group)
        ),
    )


def decode_segment(
    data: bytes,
    entry: FileEntry,
    *,
    columns: Sequence[str] | None = None,
    row_groups: Sequence[int] | None = None,
) -> pa.Table:
    """The rows of a whole data file, once its size, checksums and row count agree with its entry."""
    if len(data) != entry.size:
        raise CorruptObjectError(
            f"a data file has {len(data)} bytes instead of {entry.size}", where=entry.path, fix=DAMAGED_FIX
        )
    if crc32c(data) != entry.crc32c:
        raise CorruptObjectError(
            "the checksum of a data file does not match its bytes", where=entry.path, fix=DAMAGED_FIX
        )
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        chosen = range(file.num_row_groups) if row_groups is None else row_groups
        table = file.read_row_groups(list(chosen), columns=None if columns is None else list(columns))
        table = table if columns is None else table.select(list(columns))
    except (pa.ArrowException, OSError) as error:
        raise CorruptObjectError(f"a data file does not decode: {error}", where=entry.path, fix=DAMAGED_FIX) from error
    if file.metadata.num_rows != entry.rows:
        raise CorruptObjectError(
            f"a data file holds {file.metadata.num_rows} rows instead of {entry.rows}",
            where=entry.path,
            fix=DAMAGED_FIX,
        )
    return table.replace_schema_metadata(None)


def chunk_ranges(footer: pq.FileMetaData, row_group: int) -> list[tuple[int, int]]:
    """Start and length of each column chunk of a row group, in the order of the columns."""
    group = footer.row_group(row_group)
    chunks = [group.column(index) for index in range(group.num_columns)]
    return [(chunk.data_page_offset, chunk.total_compressed_size) for chunk in chunks]


def _conform(table: pa.Table, spec: SegmentSpec) -> pa.Table:
    """The table with exactly the columns, types and metadata of the spec, or an error that names the
    difference.
    """
    where = f"table {spec.table!r}"
    if table.num_rows == 0:
        raise InputError("a segment has at least one row", where=where, fix="write no file where there are no rows")
    if sorted(table.column_names) != sorted(spec.schema.names):
        raise InputError(f"a segment has the columns {table.column_names} instead of {spec.schema.names}", where=where)
    table = table.select(spec.schema.names)
    for field, column in zip(spec.schema, table.columns, strict=True):
        if column.type != field.type:
            raise InputError(
                f"the column {field.name!r} has the type {column.type} instead of {field.type}", where=where
            )
        if column.null_count and not field.nullable:
            raise InputError(f"the column {field.name!r} holds nulls, which it may not", where=where)
    return pa.Table.from_arrays(table.columns, schema=canonical_schema(spec.schema))


def _write(table: pa.Table, spec: SegmentSpec) -> bytes:
    sink = pa.BufferOutputStream()
    names = table.column_names
    writer = pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd" if spec.sort_order == KEY_ONLY else "lz4",
        use_dictionary=False,
        column_encoding=_encodings(table.schema),
        write_page_checksum=True,
        sorting_columns=[pq.SortingColumn(names.index(name)) for name in spec.sort_columns],
        version="2.6",
        data_page_version="1.0",
    )
    ends = _row_group_ends(table, spec)
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        writer.write_table(table.slice(start, end - start).combine_chunks(), row_group_size=end - start)
    writer.add_key_value_metadata(
        {
            "statebed.format": "segment",
            "statebed.version": str(FORMAT_VERSION),
            "statebed.table": spec.table,
            "statebed.schema_id": str(spec.schema_id),
            "statebed.sort_order": SortOrder.Name(spec.sort_order),
            "statebed.key_columns": json.dumps(list(spec.key_columns)),
            "statebed.state_version": str(spec.state_version),
        }
    )
    writer.close()
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _encodings(schema: pa.Schema) -> dict[str, str]:
    encodings = {
        field.name: "BYTE_STREAM_SPLIT"
        for field in schema
        if pa.types.is_signed_integer(field.type)
        or pa.types.is_temporal(field.type)
        or field.type in (pa.float32(), pa.float64())
    }
    return encodings | {SEQUENCE: "DELTA_BINARY_PACKED"}


def _row_group_ends(table: pa.Table, spec: SegmentSpec) -> list[int]:
    """The row after the last of each row group: a function of the rows alone."""
    sizes = np.cumsum(_row_bytes(table))
    edges = np.array([table.num_rows], dtype=np.int64)
    if spec.sort_order == BIN_FIRST:
        bins = _numbers(table[BIN], np.int64)
        edges = np.append(np.flatnonzero(bins[1:] != bins[:-1]) + 1, edges)
    ends: list[int] = []
    start = 0
    while start < table.num_rows:
        spent = sizes[start - 1] if start else 0.0
        limit = min(int(np.searchsorted(sizes, spent + ROW_GROUP_BYTES, side="right")), start + ROW_GROUP_ROWS)
        limit = max(limit, start + 1)
        first = int(np.searchsorted(edges, start, side="right"))
        packed = int(np.searchsorted(edges, min(limit, start + PACKED_ROWS), side="right")) - 1
        start = min(int(edges[max(first, packed)]), limit)
        ends.append(start)
    return ends


def _row_bytes(table: pa.Table) -> npt.NDArray[np.float64]:
    """About how many bytes each row has, by values alone (buffers differ with the history of an array)."""
    sizes = np.zeros(table.num_rows)
    for column in table.columns:
        kind = column.type
        if pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
            sizes += kind.bit_width / 8
        elif kind in _TEXT_TYPES:
            lengths = pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
            sizes += _numbers(lengths, np.int64) + 4
        else:
            sizes += _NESTED_BYTES
    return sizes


def _numbers(column: pa.ChunkedArray, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    return np.concatenate([fixed_width_values(chunk, dtype) for chunk in column.chunks])
