"""Outbox files: output rows as plain Parquet, the same bytes for the same rows.

They may become the files of a user's table, so they hold the output columns and nothing of ours, in settings that every
reader knows.
"""

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_ROWS = 1 << 17


def encode_outbox(rows: pa.Table) -> bytes:
    """The bytes of an outbox file."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows.replace_schema_metadata(None).combine_chunks(),
        sink,
        row_group_size=ROW_GROUP_ROWS,
        compression="zstd",
        write_page_checksum=True,
        version="2.6",
        data_page_version="1.0",
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data
