"""Outbox files of wide rows: a row group has a bounded size, because it is encoded in memory."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statebed.subtasks.outbox import ROW_GROUP_BYTES, encode_outbox_pieces, row_groups


def lists_of(length: int, count: int) -> pa.Table:
    values = pa.array(np.random.default_rng(5).integers(0, 1 << 60, length * count))
    offsets = pa.array(np.arange(count + 1) * length, pa.int32())
    return pa.table({"k": np.arange(count), "all": pa.ListArray.from_arrays(offsets, values)})


def test_p4_a_row_group_of_wide_rows_has_a_bounded_size() -> None:
    rows = lists_of(ROW_GROUP_BYTES // 24, 7)
    data = encode_outbox_pieces(row_groups(rows))
    file = pq.ParquetFile(io.BytesIO(data))
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [2, 2, 2, 1]
    assert file.read().equals(rows)
    # A row wider than a row group has one of its own.
    assert [group.num_rows for group in row_groups(lists_of(ROW_GROUP_BYTES // 4, 2))] == [1, 1]


def test_other_rows_are_one_row_group() -> None:
    rows = lists_of(100, 5_000)
    (group,) = row_groups(rows)
    assert group.equals(rows)
    assert list(row_groups(rows.slice(0, 0))) == []
