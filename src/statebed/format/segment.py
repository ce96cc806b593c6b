"""Segments as bytes: encodes sorted Arrow rows as Parquet, with the same bytes for the same rows, and decodes whole
files.

The bytes do not depend on the writer, the time, or how the rows were chunked: the writer's settings are fixed in
segment_writer.py, which also writes files too large for memory. (The version of the Parquet writer is part of the
bytes, as the format requires.)

Checksums: every page has its own; the file entry has those of the file, the footer and each column chunk.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from statebed.errors import CorruptObjectError
from statebed.format.checkpoint_pb2 import FileEntry
from statebed.format.digest import crc32c
from statebed.format.segment_spec import SegmentSpec, segment_schema, sort_segment
from statebed.format.segment_writer import ROW_GROUP_BYTES, SegmentSummary, SegmentWriter, chunk_ranges

__all__ = [
    "DAMAGED_FIX",
    "ROW_GROUP_BYTES",
    "EncodedSegment",
    "SegmentSpec",
    "chunk_ranges",
    "decode_segment",
    "encode_segment",
    "segment_schema",
    "sort_segment",
]

DAMAGED_FIX = "restore it from a backup, or fork to an older intact epoch: `statebed repair`"


@dataclass(frozen=True)
class EncodedSegment(SegmentSummary):
    """Bytes of a data file, and everything that its entry in the metadata contains."""

    data: bytes


def encode_segment(table: pa.Table, *, spec: SegmentSpec) -> EncodedSegment:
    """Encode a table sorted as in `spec`; raise InputError if it is not."""
    file = io.BytesIO()
    with SegmentWriter(file, spec=spec) as writer:
        writer.write(table)
        summary = writer.finish()
    return EncodedSegment(**vars(summary), data=file.getvalue())


def decode_segment(
    data: bytes,
    entry: FileEntry,
    *,
    columns: Sequence[str] | None = None,
    row_groups: Sequence[int] | None = None,
) -> pa.Table:
    """Return the rows of a whole data file, after checking its size, checksums and row count against its entry."""
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
