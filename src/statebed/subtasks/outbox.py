"""Outbox files: output rows as plain Parquet, the same bytes for the same rows.

They may become files of a user's table, so they hold only the output columns, in encodings that every reader supports.
These are packed differences for integers and times, plain values for floating-point numbers and text that hardly
repeats, and dictionaries for the other columns. Packed differences take half the processor time of plain values, which
leave all the work to the compression. Spark's vectorised reader has no byte stream split before 4.3, which state files
use.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROW_GROUP_ROWS = 1 << 17
FILE_ROWS = 8 * ROW_GROUP_ROWS
"""Number of output rows in one file; more are divided into several files."""

WIDE_ROW_BYTES = 1 << 16
"""Rows of at least this size on average, such as collected lists, are divided into row groups by their size."""
ROW_GROUP_BYTES = 8 << 20
"""Size of row groups of wide rows, because several copies of a row group are in memory while it is encoded."""

_SAMPLE_ROWS = 1 << 14
"""First rows of a file, which show whether a dictionary of a column would be worth its making."""
_ENCODING_COPIES = 4
"""Memory that encoding a row group takes, in sizes of it: values, levels, pages, and compressed pages."""


def encoding_bytes(rows: pa.Table) -> int:
    """Return the memory to charge for encoding a row group: none for the usual one, which every process takes beyond
    its budget.
    """
    return _ENCODING_COPIES * int(rows.nbytes) if rows.nbytes >= WIDE_ROW_BYTES * max(rows.num_rows, 1) else 0


def row_groups(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of each row group; `rows` are at most ROW_GROUP_ROWS."""
    width = rows.nbytes // max(rows.num_rows, 1)
    count = max(ROW_GROUP_BYTES // width, 1) if width >= WIDE_ROW_BYTES else max(rows.num_rows, 1)
    for first in range(0, rows.num_rows, count):
        yield rows.slice(first, count)


def encode_outbox(rows: pa.Table) -> bytes:
    """Encode rows as an outbox file."""
    return encode_outbox_pieces([rows])


def encode_outbox_pieces(pieces: Iterable[pa.Table], path: Path | None = None) -> bytes:
    """Encode rows as an outbox file. They are passed in pieces, each of which becomes its own row groups.

    With `path`, the bytes are collected in a local file, because a growing buffer takes up to three times their size.
    """
    sink = pa.BufferOutputStream() if path is None else pa.OSFile(str(path), "wb")
    writer: pq.ParquetWriter | None = None
    for rows in pieces:
        plain = rows.replace_schema_metadata(None)
        if writer is None:
            packed, plainly = _packed(plain.schema), _floating(plain.schema) | _varied(plain)
            writer = pq.ParquetWriter(
                sink,
                plain.schema,
                compression="zstd",
                use_dictionary=[name for name in plain.schema.names if name not in packed | plainly],
                column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
                write_page_checksum=True,
                version="2.6",
                data_page_version="1.0",
            )
        writer.write_table(plain.combine_chunks(), row_group_size=ROW_GROUP_ROWS)
    assert writer is not None, "an outbox file has rows"
    writer.close()
    if path is None:
        data: bytes = sink.getvalue().to_pybytes()
        return data
    sink.close()
    return path.read_bytes()


def _packed(schema: pa.Schema) -> set[str]:
    """Return the columns of signed integers and of times."""
    return {
        field.name for field in schema if pa.types.is_signed_integer(field.type) or pa.types.is_temporal(field.type)
    }


def _floating(schema: pa.Schema) -> set[str]:
    return {field.name for field in schema if pa.types.is_floating(field.type)}


def _varied(rows: pa.Table) -> set[str]:
    """Return the columns of text and binary values of which most differ: a dictionary of them would repeat them all."""
    sample = rows.slice(0, _SAMPLE_ROWS)
    return {
        field.name
        for field in rows.schema
        if (pa.types.is_string(field.type) or pa.types.is_binary(field.type))
        and 2 * pc.count_distinct(sample[field.name]).as_py() > sample.num_rows
    }
