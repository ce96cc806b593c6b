"""Incremental writer of data files, with about one row group in memory.

Row groups are cut by content alone, so the bytes do not depend on how the rows were passed in:

- Row groups hold at most ROW_GROUP_ROWS rows and about ROW_GROUP_BYTES. With BIN_FIRST they are cut at bin
  edges: a row group holds rows of one bin, or several whole small bins that together have at most PACKED_ROWS
  rows.
- LZ4 (raw) and BYTE_STREAM_SPLIT for columns of signed integers, floats, dates and times; ZSTD for global keyed
  tables. No dictionaries. Other columns are PLAIN, and `_seq` is DELTA_BINARY_PACKED: Spark's vectorised reader refuses
  unsigned numbers in BYTE_STREAM_SPLIT, and DuckDB refuses decimals.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from statebed.arrays.canonical_order import first_disorder
from statebed.arrays.columns import DType, fixed_width_values
from statebed.arrays.null_structs import without_hidden_nulls
from statebed.errors import InputError
from statebed.format.checkpoint_pb2 import BIN_FIRST, KEY_ONLY, FileEntry, HashRange, SortOrder
from statebed.format.digest import RunningDigest, crc32c
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME
from statebed.format.sealed import FORMAT_VERSION
from statebed.format.segment_spec import SegmentSpec

ROW_GROUP_ROWS = 1 << 17
ROW_GROUP_BYTES = 8 << 20
PACKED_ROWS = 1 << 12

_PARQUET_TAIL = 8  # the footer's length and the closing magic
_TEXT_TYPES = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
_NESTED_BYTES = 256  # an estimate that ignores the contents of nested values


@dataclass(frozen=True)
class SegmentSummary:
    """Everything that the entry of a data file in the metadata contains."""

    size: int
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

    def file_entry(self, path: str, *, owned: HashRange, level: int = 0) -> FileEntry:
        """Return the entry of this file at `path`, for a subtask that owns `owned`."""
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


class SegmentWriter:
    """Writes one data file. `file` must be empty and open for writing and reading; it is not closed here.

    >>> with SegmentWriter(file, spec=spec) as writer:  # doctest: +SKIP
    ...     for rows in merged:
    ...         writer.write(rows)
    ...     summary = writer.finish()
    """

    def __init__(self, file: BinaryIO, *, spec: SegmentSpec) -> None:
        self._file = file
        self._spec = spec
        self._sink = _Sink(file)
        self._parquet: pq.ParquetWriter | None = None
        self._pending: list[pa.Table] = []
        self._pending_sizes: list[npt.NDArray[np.float64]] = []
        self._pending_rows = 0
        self._pending_bytes = 0.0
        self._last_row: pa.Table | None = None
        self._bounds = _Bounds()
        self.rows = 0
        """Number of rows written so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the Parquet writer. Without `finish`, the file is incomplete."""
        self._pending = []
        if self._parquet is not None:
            self._sink.discard = True
            self._parquet.close()

    @property
    def size(self) -> int:
        """Number of bytes in the file so far."""
        return self._sink.size

    def write(self, rows: pa.Table) -> None:
        """Append rows that follow the previous ones in the order of the table; raise InputError if they do not."""
        if not rows.num_rows:
            return
        rows = self._spec.conformed(rows)
        self._check_order(rows)
        self._bounds.add(rows)
        sizes = row_bytes(rows)
        self._pending.append(rows)
        self._pending_sizes.append(sizes)
        self._pending_rows += rows.num_rows
        self._pending_bytes += float(sizes.sum())
        self._last_row = rows.slice(rows.num_rows - 1).take([0])
        self.rows += rows.num_rows
        if self._pending_rows > ROW_GROUP_ROWS or self._pending_bytes > ROW_GROUP_BYTES:
            self._write_row_groups(last=False)

    def finish(self) -> SegmentSummary:
        """Complete the file and return its summary."""
        if not self.rows:
            raise InputError(
                "a segment must have at least one row",
                where=f"table {self._spec.table!r}",
                fix="write no file where there are no rows",
            )
        self._write_row_groups(last=True)
        parquet, self._parquet = self._parquet, None
        assert parquet is not None
        parquet.add_key_value_metadata(_key_value_metadata(self._spec))
        parquet.close()
        return self._summary()

    def _check_order(self, rows: pa.Table) -> None:
        columns = self._spec.sort_columns
        row = first_disorder(rows, columns)
        if self._last_row is not None and first_disorder(pa.concat_tables([self._last_row, rows.slice(0, 1)]), columns):
            row = 0
        if row is not None:
            raise InputError(
                f"row {self.rows + row} of a segment of table {self._spec.table!r} is out of order "
                f"{SortOrder.Name(self._spec.sort_order)} ({', '.join(columns)})",
                fix="sort the rows with sort_segment first",
            )

    def _write_row_groups(self, *, last: bool) -> None:
        rows = pa.concat_tables(self._pending)
        sizes = np.concatenate(self._pending_sizes)
        start = 0
        for end in _row_group_ends(rows, sizes, self._spec, last=last):
            if self._parquet is None:
                self._parquet = _parquet_writer(self._sink, self._spec)
            group = without_hidden_nulls(rows.slice(start, end - start).combine_chunks())
            self._parquet.write_table(group, row_group_size=end - start)
            start = end
        # The remaining rows share the memory of the tables they came in, until the next row group is written.
        self._pending, self._pending_sizes = [rows.slice(start)], [sizes[start:]]
        self._pending_rows, self._pending_bytes = rows.num_rows - start, float(sizes[start:].sum())

    def _summary(self) -> SegmentSummary:
        self._file.seek(0)
        footer = pq.read_metadata(self._file)
        footer_size = footer.serialized_size + _PARQUET_TAIL
        size, bounds = self._sink.size, self._bounds
        return SegmentSummary(
            size=size,
            digest=self._sink.running.digest(),
            crc32c=self._sink.running.crc32c(),
            rows=self.rows,
            min_key_hash=bounds.hashes[0],
            max_key_hash=bounds.hashes[1],
            min_time_us=bounds.times[0] if bounds.times else None,
            max_time_us=bounds.times[1] if bounds.times else None,
            min_sequence=bounds.sequences[0],
            max_sequence=bounds.sequences[1],
            schema_id=self._spec.schema_id,
            sort_order=self._spec.sort_order,
            footer_size=footer_size,
            footer_crc32c=crc32c(self._read(size - footer_size, footer_size)),
            chunk_crc32c=tuple(
                crc32c(self._read(start, length))
                for group in range(footer.num_row_groups)
                for start, length in chunk_ranges(footer, group)
            ),
        )

    def _read(self, start: int, length: int) -> bytes:
        self._file.seek(start)
        return self._file.read(length)


class _Sink(io.RawIOBase):
    """File object for the Parquet writer that counts and digests the bytes."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self.running = RunningDigest()
        self.size = 0
        self.discard = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: bytes) -> int:  # type: ignore[override] # pyarrow hands over bytes
        if not self.discard:
            self._file.write(data)
        self.running.update(data)
        self.size += len(data)
        return len(data)


class _Bounds:
    """Minimum and maximum values of the rows so far."""

    def __init__(self) -> None:
        self.hashes: tuple[int, int] = ((1 << 64) - 1, 0)
        self.sequences: tuple[int, int] = ((1 << 64) - 1, 0)
        self.times: tuple[int, int] | None = None

    def add(self, rows: pa.Table) -> None:
        hashes, sequences = _numbers(rows[KEY_HASH], np.uint64), _numbers(rows[SEQUENCE], np.uint64)
        self.hashes = (min(self.hashes[0], int(hashes.min())), max(self.hashes[1], int(hashes.max())))
        self.sequences = (min(self.sequences[0], int(sequences.min())), max(self.sequences[1], int(sequences.max())))
        if TIME in rows.column_names:
            bounds = pc.min_max(rows[TIME].cast(pa.int64())).as_py()
            if bounds["min"] is not None:
                first, last = self.times or (bounds["min"], bounds["max"])
                self.times = (min(first, bounds["min"]), max(last, bounds["max"]))


def chunk_ranges(footer: pq.FileMetaData, row_group: int) -> list[tuple[int, int]]:
    """Return start and length of each column chunk of a row group, in the order of the columns."""
    group = footer.row_group(row_group)
    chunks = [group.column(index) for index in range(group.num_columns)]
    return [(chunk.data_page_offset, chunk.total_compressed_size) for chunk in chunks]


def _parquet_writer(sink: _Sink, spec: SegmentSpec) -> pq.ParquetWriter:
    names = spec.schema.names
    return pq.ParquetWriter(
        pa.PythonFile(sink, mode="w"),
        spec.file_schema,
        compression="zstd" if spec.sort_order == KEY_ONLY else "lz4",
        use_dictionary=False,
        column_encoding=split_encodings(spec.schema) | {SEQUENCE: "DELTA_BINARY_PACKED"},
        write_page_checksum=True,
        sorting_columns=[pq.SortingColumn(names.index(name)) for name in _sorted_leaves(spec)],
        version="2.6",
        data_page_version="1.0",
    )


def _sorted_leaves(spec: SegmentSpec) -> list[str]:
    """Return the sort columns up to the first nested one, because Parquet knows nested columns only by their leaves."""
    kinds = [spec.schema.field(name).type for name in spec.sort_columns]
    nested = next((place for place, kind in enumerate(kinds) if pa.types.is_nested(kind)), len(kinds))
    return list(spec.sort_columns[:nested])


def _key_value_metadata(spec: SegmentSpec) -> dict[str, str]:
    return {
        "statebed.format": "segment",
        "statebed.version": str(FORMAT_VERSION),
        "statebed.table": spec.table,
        "statebed.schema_id": str(spec.schema_id),
        "statebed.sort_order": SortOrder.Name(spec.sort_order),
        "statebed.key_columns": json.dumps(list(spec.key_columns)),
        "statebed.state_version": str(spec.state_version),
    }


def split_encodings(schema: pa.Schema) -> dict[str, str]:
    """Return BYTE_STREAM_SPLIT for the columns in which every reader supports it: fast to write, and small."""
    return {
        field.name: "BYTE_STREAM_SPLIT"
        for field in schema
        if pa.types.is_signed_integer(field.type)
        or pa.types.is_temporal(field.type)
        or field.type in (pa.float32(), pa.float64())
    }


def _row_group_ends(
    rows: pa.Table, row_bytes: npt.NDArray[np.float64], spec: SegmentSpec, *, last: bool
) -> Iterator[int]:
    """Yield the end of each row group, which depends on the rows alone.

    Unless `last` is set, only groups that no later row could belong to are included.
    """
    sizes = np.cumsum(row_bytes)
    edges = np.array([rows.num_rows], dtype=np.int64)
    if spec.sort_order == BIN_FIRST:
        bins = _numbers(rows[BIN], np.int64)
        edges = np.append(np.flatnonzero(bins[1:] != bins[:-1]) + 1, edges)
    start = 0
    while start < rows.num_rows:
        spent = sizes[start - 1] if start else 0.0
        limit = min(int(np.searchsorted(sizes, spent + ROW_GROUP_BYTES, side="right")), start + ROW_GROUP_ROWS)
        limit = max(limit, start + 1)
        if limit >= rows.num_rows and not last:
            return
        first = int(np.searchsorted(edges, start, side="right"))
        packed = int(np.searchsorted(edges, min(limit, start + PACKED_ROWS), side="right")) - 1
        start = min(int(edges[max(first, packed)]), limit)
        yield start


def row_bytes(table: pa.Table) -> npt.NDArray[np.float64]:
    """Return the approximate size of each row from its values alone; buffers differ with the history of an array."""
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


def _numbers(column: pa.ChunkedArray, dtype: DType) -> npt.NDArray[np.generic]:
    return np.concatenate([fixed_width_values(chunk, dtype) for chunk in column.chunks])
