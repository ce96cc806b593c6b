"""Files written piece by piece: the bytes of one written at once, checked as it goes, in bounded memory."""

import io
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import segment_writer
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.segment import decode_segment, encode_segment
from statebed.format.segment_reader import SegmentReader
from statebed.format.segment_writer import SegmentWriter

ORDERS = [pb.HASH_FIRST, pb.BIN_FIRST]


def written(pieces: list[pa.Table], file: Any, spec: Any) -> segment_writer.SegmentSummary:
    with SegmentWriter(file, spec=spec) as writer:
        for piece in pieces:
            writer.write(piece)
        return writer.finish()


def cut(table: pa.Table, cuts: list[int]) -> list[pa.Table]:
    edges = [0, *sorted(cuts), table.num_rows]
    return [table.slice(a, b - a) for a, b in itertools.pairwise(edges)]


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(0, 400), max_size=40),
    order=st.sampled_from(ORDERS),
    limits=st.tuples(
        st.sampled_from([7, 64, 1000]), st.sampled_from([300, 5000, 1 << 20]), st.sampled_from([1, 40, 1000])
    ),
    bins=st.sampled_from([1, 7, 200]),
)
def test_p6_pieces_make_the_bytes_of_the_whole(
    segments: Any, cuts: list[int], order: Any, limits: tuple[int, int, int], bins: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for name, limit in zip(("ROW_GROUP_ROWS", "ROW_GROUP_BYTES", "PACKED_ROWS"), limits, strict=True):
            patched.setattr(segment_writer, name, limit)
        table, spec = segments.table(400, sort_order=order, bins=bins), segments.spec(order)
        expected = encode_segment(table, spec=spec)
        file = io.BytesIO()
        summary = written(cut(table, cuts), file, spec)
    assert file.getvalue() == expected.data
    entry = summary.file_entry("f", owned=WHOLE_SPACE, level=2)
    assert entry == expected.file_entry("f", owned=WHOLE_SPACE, level=2)


@pytest.mark.parametrize("order", ORDERS)
def test_a_file_on_disk_is_written_in_pieces_and_read_in_parts(segments: Any, order: Any, tmp_path: Path) -> None:
    table, spec = segments.table(150_000, sort_order=order, bins=3), segments.spec(order)
    path = tmp_path / "segment.parquet"
    with path.open("w+b") as file:
        summary = written(cut(table, [10, 60_000, 130_000]), file, spec)
    data = path.read_bytes()
    entry = summary.file_entry("f", owned=WHOLE_SPACE)
    assert data == encode_segment(table, spec=spec).data
    assert decode_segment(data, entry).num_rows == 150_000
    reader = SegmentReader(entry, lambda _, start, length: data[start : start + length])
    assert reader.row_group_count > 1
    assert reader.read(row_groups=[1], columns=["trips"]).num_rows > 0


def test_p4_only_about_one_row_group_waits_in_memory(segments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 100)
    table, spec = segments.table(5000, sort_order=pb.HASH_FIRST), segments.spec(pb.HASH_FIRST)
    file = io.BytesIO()
    with SegmentWriter(file, spec=spec) as writer:
        for start in range(0, 5000, 50):
            writer.write(table.slice(start, 50))
            assert writer.rows == start + 50
            in_file = len(file.getvalue())
            assert writer.size == in_file
            # Rows go to the file as soon as the next row group has begun.
            assert (in_file > 0) == (start + 50 > 100)
        before = writer.size
        summary = writer.finish()
    # The end of the file is one row group and the footer, which names fifty.
    assert before > 0.6 * summary.size


@pytest.mark.parametrize("order", ORDERS)
def test_rows_out_of_order_between_two_pieces_are_refused(segments: Any, order: Any) -> None:
    table, spec = segments.table(sort_order=order), segments.spec(order)
    with SegmentWriter(io.BytesIO(), spec=spec) as writer:
        writer.write(table.slice(0, 200))
        with pytest.raises(InputError, match=r"row 200 .* out of order"):
            writer.write(table.slice(100, 50))
        writer.write(table.slice(200))
        assert writer.finish().digest == encode_segment(table, spec=spec).digest, "the refused rows left nothing behind"


def test_a_file_without_rows_is_refused(segments: Any) -> None:
    with SegmentWriter(io.BytesIO(), spec=segments.spec()) as writer:
        writer.write(segments.table().slice(0, 0))
        with pytest.raises(InputError, match="at least one row"):
            writer.finish()


def test_a_file_that_is_given_up_is_written_no_further(segments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 100)
    file = io.BytesIO()
    with SegmentWriter(file, spec=segments.spec()) as writer:
        writer.write(segments.table())
        before = file.getvalue()
    assert before
    assert file.getvalue() == before
