"""Outbox files of wide rows: a row group has a bounded size, because it is encoded in memory."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unit.subtasks.subtask_world import SubtaskWorld

import statebed as sb
from statebed.arrays.columns import from_numpy
from statebed.flow.graph import OperatorNode
from statebed.format.schema import TIMESTAMP
from statebed.state import Purpose, Reservation
from statebed.subtasks.outbox import ROW_GROUP_BYTES, encode_outbox_pieces, row_groups


def lists_of(length: int, count: int) -> pa.Table:
    values = pa.array(np.random.default_rng(5).integers(0, 1 << 60, length * count))
    offsets = pa.array(np.arange(count + 1) * length, pa.int32())
    return pa.table({"k": np.arange(count), "all": pa.ListArray.from_arrays(offsets, values)})


def test_p4_a_row_group_of_wide_rows_has_a_bounded_size(tmp_path: Path) -> None:
    rows = lists_of(ROW_GROUP_BYTES // 24, 7)
    data = encode_outbox_pieces(row_groups(rows))
    file = pq.ParquetFile(io.BytesIO(data))
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [2, 2, 2, 1]
    assert file.read().equals(rows)
    assert encode_outbox_pieces(row_groups(rows), tmp_path / "rows") == data
    # A row wider than a row group has one of its own.
    assert [group.num_rows for group in row_groups(lists_of(ROW_GROUP_BYTES // 4, 2))] == [1, 1]


def test_integers_and_times_are_packed_and_come_back_as_they_were() -> None:
    least, most = -(1 << 63), (1 << 63) - 1
    rows = pa.table(
        {
            "i64": pa.array([least, None, most, -1], pa.int64()),
            "i8": pa.array([-128, 127, None, 0], pa.int8()),
            "date": pa.array([-719_162, None, 2_932_896, 0], pa.int32()).cast(pa.date32()),
            "time": pa.array([least, None, most, 0], pa.int64()).cast(TIMESTAMP),
            "u64": pa.array([1 << 63, None, 0, 1], pa.uint64()),
            "double": [0.5, None, -0.0, 1e300],
            "text": ["a", None, "", "a"],
        }
    )
    file = pq.ParquetFile(io.BytesIO(encode_outbox_pieces([rows])))
    assert file.read().equals(rows)
    group = file.metadata.row_group(0)
    columns = {name: set(group.column(place).encodings) for place, name in enumerate(rows.column_names)}
    assert {name for name, used in columns.items() if "DELTA_BINARY_PACKED" in used} == {"i64", "i8", "date", "time"}
    assert {name for name, used in columns.items() if "RLE_DICTIONARY" in used} == {"u64", "text"}


def test_text_has_a_dictionary_only_if_it_repeats() -> None:
    count = 40_000
    number = np.arange(count)
    columns = {
        "distinct": [f"user {n}" for n in number],
        "binary": [f"{n}".encode() for n in number],
        "repeated": [f"country {n}" for n in number % 200],
        "missing": [f"{n}" if n % 4 == 0 else None for n in number],
    }
    rows = pa.table(columns)
    data = encode_outbox_pieces([rows])
    file = pq.ParquetFile(io.BytesIO(data))
    assert file.read().equals(rows)
    assert encode_outbox_pieces([pa.table(columns)]) == data
    group = file.metadata.row_group(0)
    with_dictionary = [group.column(place).has_dictionary_page for place in range(len(columns))]
    assert with_dictionary == [False, False, True, True]


def test_p4_the_memory_for_encoding_wide_rows_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    flow, count = sb.Flow("wide"), 60_000
    source = flow.source("rows", "k bigint, v bigint, ts timestamp", watermark=("ts", "0s"))
    source.key_by("k", name="result").agg(all=sb.collect_list("v"))
    (node,) = (node for node in flow.graph.nodes if isinstance(node, OperatorNode))
    charged: list[int] = []
    original = Reservation.resize

    def watched(self: Any, nbytes: int) -> None:
        if self._account == ("result", Purpose.WRITES):
            charged.append(nbytes)
        original(self, nbytes)

    monkeypatch.setattr(Reservation, "resize", watched)
    times = from_numpy(np.arange(count), TIMESTAMP)
    rows = pa.table({"k": np.zeros(count, dtype=np.int64), "v": np.arange(count), "ts": times, "_time": times})
    world = SubtaskWorld(node)
    world.epoch([rows], watermark_us=None)
    (report,) = world.reports
    (file,) = report.outbox
    assert max(charged) >= 3 * 8 * count
    assert file.size in charged


def test_other_rows_are_one_row_group() -> None:
    rows = lists_of(100, 5_000)
    (group,) = row_groups(rows)
    assert group.equals(rows)
    assert list(row_groups(rows.slice(0, 0))) == []
