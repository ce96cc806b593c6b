"""The segment codec: deterministic bytes, declared order, row groups, metadata, and what it refuses."""

import io
import itertools
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from effort import diagonals, examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.arrays.canonical_order import first_disorder, sort_indices
from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import segment_writer
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME, assign_field_ids, field_id
from statebed.format.segment import SegmentSpec, decode_segment, encode_segment, segment_schema, sort_segment


def footer_of(data: bytes) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(data))


@pytest.mark.parametrize("order", [pb.HASH_FIRST, pb.BIN_FIRST])
def test_rows_come_back_as_they_were(segments: Any, order: Any) -> None:
    table = segments.table(sort_order=order)
    encoded = encode_segment(table, spec=segments.spec(order))
    back = decode_segment(encoded.data, encoded.file_entry("f", owned=WHOLE_SPACE))
    # Table.equals calls NaN unequal to NaN.
    assert back.schema.equals(table.schema, check_metadata=True)
    assert back.drop_columns(["weight"]).equals(table.drop_columns(["weight"]))
    assert repr(back["weight"].to_pylist()) == repr(table["weight"].to_pylist())


def test_the_entry_says_what_is_in_the_file(segments: Any) -> None:
    table = segments.table()
    encoded = encode_segment(table, spec=segments.spec())
    entry = encoded.file_entry("some/path", owned=pb.HashRange(first=1, last=2), level=3)
    assert (entry.path, entry.size, entry.rows, entry.level) == ("some/path", len(encoded.data), 500, 3)
    assert (entry.owned.first, entry.owned.last) == (1, 2)
    hashes = table[KEY_HASH].to_pylist()
    assert (entry.min_key_hash, entry.max_key_hash) == (min(hashes), max(hashes))
    assert max(hashes) > 1 << 63
    times = table[TIME].cast(pa.int64()).to_pylist()
    assert (entry.min_time_us, entry.max_time_us) == (min(times), max(times))
    assert min(times) < 0
    sequences = table[SEQUENCE].to_pylist()
    assert (entry.min_sequence, entry.max_sequence) == (min(sequences), max(sequences)) == (5, 504)
    assert entry.sort_order == pb.BIN_FIRST


def test_a_file_without_times_has_none_in_its_entry() -> None:
    columns = assign_field_ids(pa.schema([("k", pa.int64()), ("v", pa.int64())]))
    schema = segment_schema(columns, sort_order=pb.HASH_FIRST, key_columns=["k"], timed=False)
    spec = SegmentSpec("t", 0, schema, pb.HASH_FIRST, ("k",))
    table = pa.table({KEY_HASH: pa.array([7], pa.uint64()), "k": [1], SEQUENCE: pa.array([1], pa.uint64()), "v": [2]})
    entry = encode_segment(table, spec=spec).file_entry("f", owned=WHOLE_SPACE)
    assert not entry.HasField("min_time_us")
    assert not entry.HasField("max_time_us")


@settings(max_examples=examples(30), deadline=None)
@given(cuts=st.lists(st.integers(0, 400), max_size=6), seed=st.integers(0, 3))
def test_p6_the_chunking_of_the_input_does_not_show_in_the_bytes(segments: Any, cuts: list[int], seed: int) -> None:
    table = segments.table(400, seed=seed)
    expected = encode_segment(table, spec=segments.spec()).digest
    edges = [0, *sorted(cuts), 400]
    pieces = [table.slice(a, b - a) for a, b in itertools.pairwise(edges)]
    # Pieces that went through IPC have buffers of their own: other offsets, other validity bitmaps.
    rebuilt = []
    for piece in pieces:
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, piece.schema) as writer:
            writer.write_table(piece)
        rebuilt.append(pa.ipc.open_stream(sink.getvalue()).read_all())
    assert encode_segment(pa.concat_tables(pieces), spec=segments.spec()).digest == expected
    assert encode_segment(pa.concat_tables(rebuilt), spec=segments.spec()).digest == expected


def test_p6_what_lies_under_a_null_does_not_show_in_the_bytes() -> None:
    columns = assign_field_ids(pa.schema([("k", pa.int64()), ("v", pa.int64())]))
    schema = segment_schema(columns, sort_order=pb.HASH_FIRST, key_columns=["k"], timed=False)
    spec = SegmentSpec("t", 0, schema, pb.HASH_FIRST, ("k",))
    mask = np.array([True, False])
    digests = {
        encode_segment(
            pa.table(
                {
                    KEY_HASH: pa.array([1, 2], pa.uint64()),
                    "k": [1, 2],
                    SEQUENCE: pa.array([1, 2], pa.uint64()),
                    "v": pa.array(np.array(values), mask=mask),
                }
            ),
            spec=spec,
        ).digest
        for values in ([1, 5], [99, 5])
    }
    assert len(digests) == 1


CHILD = """
import pickle, sys
import pyarrow as pa
from statebed.format.segment import SegmentSpec, encode_segment
from statebed.format.schema import schema_from_bytes
data, schema, order, keys = pickle.load(sys.stdin.buffer)
spec = SegmentSpec("windows", 0, schema_from_bytes(schema), order, keys)
print(encode_segment(pa.ipc.open_stream(data).read_all(), spec=spec).digest)
"""


@pytest.mark.parametrize(("order", "hash_seed"), diagonals([pb.HASH_FIRST, pb.BIN_FIRST], ["1", "2"]))
def test_p6_another_process_writes_the_same_bytes(segments: Any, order: Any, hash_seed: str) -> None:
    import pickle  # noqa: PLC0415  # only here, between two processes of this test

    from statebed.format.schema import schema_to_bytes  # noqa: PLC0415  # beside its twin in the child

    spec, table = segments.spec(order), segments.table(sort_order=order)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=77)
    message = pickle.dumps((sink.getvalue(), schema_to_bytes(spec.schema), order, spec.key_columns))
    expected = encode_segment(table, spec=spec).digest
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=message,
        capture_output=True,
        check=True,
        timeout=60,
        env={"PYTHONHASHSEED": hash_seed, "TZ": "Asia/Tokyo"},
    )
    assert child.stdout.decode().strip() == expected


@pytest.mark.parametrize("order", [pb.HASH_FIRST, pb.BIN_FIRST])
def test_rows_out_of_order_are_refused_and_the_row_is_named(segments: Any, order: Any) -> None:
    table, spec = segments.table(sort_order=order), segments.spec(order)
    swapped = table.take([*range(200), 201, 200, *range(202, 500)])
    with pytest.raises(InputError, match=r"row 201 .* out of order"):
        encode_segment(swapped, spec=spec)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([None, 0.0, 1.0, float("nan"), -1.0]),
            st.sampled_from([None, "", "a", "b", "ä"]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_the_check_of_the_order_agrees_with_a_model_in_python(rows: list[tuple[Any, ...]]) -> None:
    def rank(row: tuple[Any, ...]) -> tuple[Any, ...]:
        number, real, text = row
        floating = (2, 0.0) if real is None else (1, 0.0) if np.isnan(real) else (0, real)
        return number, floating, (text is None, (text or "").encode())

    table = pa.table(
        {
            "a": pa.array([row[0] for row in rows], pa.int64()),
            "b": pa.array([row[1] for row in rows], pa.float64()),
            "c": pa.array([row[2] for row in rows], pa.string()),
        }
    )
    wrong = [i + 1 for i in range(len(rows) - 1) if rank(rows[i]) > rank(rows[i + 1])]
    assert first_disorder(table, ["a", "b", "c"]) == (wrong[0] if wrong else None)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_sorted_is_found_sorted(segments: Any, seed: int) -> None:
    table = segments.table(300, seed=seed)
    shuffled = table.take(np.random.default_rng(seed).permutation(300))
    assert sort_segment(shuffled, spec=segments.spec()).drop_columns("weight").equals(table.drop_columns("weight"))
    assert first_disorder(table, segments.spec().sort_columns) is None


def test_row_groups_are_bounded_in_rows(segments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 64)
    footer = footer_of(encode_segment(segments.table(sort_order=pb.HASH_FIRST), spec=segments.spec(pb.HASH_FIRST)).data)
    rows = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
    assert rows == [64] * 7 + [52]


def test_row_groups_are_bounded_in_bytes_by_the_rows_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "ROW_GROUP_BYTES", 10_000)
    columns = assign_field_ids(pa.schema([("k", pa.int64()), ("v", pa.string())]))
    schema = segment_schema(columns, sort_order=pb.HASH_FIRST, key_columns=["k"], timed=False)
    spec = SegmentSpec("t", 0, schema, pb.HASH_FIRST, ("k",))
    lengths = [10] * 50 + [9_000, 30_000] + [10] * 50
    numbers = np.arange(len(lengths), dtype=np.uint64)
    table = pa.table(
        {KEY_HASH: numbers, "k": numbers.astype(np.int64), SEQUENCE: numbers, "v": ["x" * length for length in lengths]}
    )
    footer = footer_of(encode_segment(table, spec=spec).data)
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [50, 1, 1, 50]


def test_row_groups_are_cut_at_bin_edges(segments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "PACKED_ROWS", 40)
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 64)
    table = segments.table(bins=7)
    assert min(pc.value_counts(table[BIN]).field("counts").to_pylist()) > 40
    file = pq.ParquetFile(pa.BufferReader(encode_segment(table, spec=segments.spec()).data))
    assert file.num_row_groups > 7
    for group in range(file.num_row_groups):
        assert len(file.read_row_group(group, columns=[BIN])[BIN].unique()) == 1


def test_small_bins_share_a_row_group_whole(segments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "PACKED_ROWS", 40)
    table = segments.table(bins=100)
    file = pq.ParquetFile(pa.BufferReader(encode_segment(table, spec=segments.spec()).data))
    groups = [set(file.read_row_group(i, columns=[BIN])[BIN].to_pylist()) for i in range(file.num_row_groups)]
    assert 500 / 40 <= len(groups) < 30
    assert sum(map(len, groups)) == len(set.union(*groups)), "a bin is in two row groups"


@pytest.mark.parametrize("order", [pb.HASH_FIRST, pb.BIN_FIRST])
def test_the_file_declares_its_order_field_ids_and_metadata(segments: Any, order: Any) -> None:
    spec = segments.spec(order)
    footer = footer_of(encode_segment(segments.table(sort_order=order), spec=spec).data)
    declared = footer.row_group(0).sorting_columns
    assert [footer.schema.column(column.column_index).name for column in declared] == list(spec.sort_columns)
    assert not any(column.descending or column.nulls_first for column in declared)
    ids = {field.name: field_id(field) for field in footer.schema.to_arrow_schema()}
    assert ids == {field.name: field_id(field) for field in spec.schema}
    assert ids[KEY_HASH] == 1
    assert ids["driver"] == 16
    own = {key.decode(): value.decode() for key, value in footer.metadata.items() if key.startswith(b"statebed.")}
    assert own == {
        "statebed.format": "segment",
        "statebed.version": "1",
        "statebed.table": "windows",
        "statebed.schema_id": "0",
        "statebed.sort_order": pb.SortOrder.Name(order),
        "statebed.key_columns": json.dumps(["driver", "weight"]),
        "statebed.state_version": "0",
    }


def test_encodings_are_those_that_every_reader_knows(segments: Any) -> None:
    group = footer_of(encode_segment(segments.table(), spec=segments.spec()).data).row_group(0)
    encodings = {group.column(i).path_in_schema: set(group.column(i).encodings) for i in range(group.num_columns)}
    assert "BYTE_STREAM_SPLIT" in encodings["trips"]
    assert "BYTE_STREAM_SPLIT" in encodings["weight"]
    # Spark's vectorised reader cannot read unsigned numbers in BYTE_STREAM_SPLIT, and DuckDB cannot read decimals.
    assert "BYTE_STREAM_SPLIT" not in encodings[KEY_HASH] | encodings[SEQUENCE] | encodings["total"]
    assert not any("DICTIONARY" in name for names in encodings.values() for name in names)


def test_global_keyed_rows_are_sorted_by_key_and_compressed_with_zstd() -> None:
    columns = assign_field_ids(pa.schema([("key", pa.binary()), ("value", pa.binary())]))
    schema = segment_schema(columns, sort_order=pb.KEY_ONLY, key_columns=["key"])
    assert schema.names == ["key", SEQUENCE, KEY_HASH, "value"]
    spec = SegmentSpec("settings", 0, schema, pb.KEY_ONLY, ("key",), state_version=3)
    table = pa.table(
        {
            "key": pa.array([b"b", b"a"]),
            SEQUENCE: pa.array([1, 2], pa.uint64()),
            KEY_HASH: pa.array([1, 2], pa.uint64()),
            "value": pa.array([b"1", None]),
        }
    )
    encoded = encode_segment(sort_segment(table, spec=spec), spec=spec)
    back = decode_segment(encoded.data, encoded.file_entry("f", owned=WHOLE_SPACE))
    assert back["key"].to_pylist() == [b"a", b"b"]
    footer = footer_of(encoded.data)
    assert footer.row_group(0).column(0).compression == "ZSTD"
    assert footer.metadata[b"statebed.state_version"] == b"3"


def test_columns_with_dots_and_nested_columns_are_read_by_name(segments: Any) -> None:
    columns = assign_field_ids(
        pa.schema([("k", pa.int64()), ("a.b", pa.int64()), ("a", pa.struct([("b", pa.int64())]))])
    )
    schema = segment_schema(columns, sort_order=pb.HASH_FIRST, key_columns=["k"], timed=False)
    spec = SegmentSpec("t", 0, schema, pb.HASH_FIRST, ("k",))
    table = pa.table(
        {
            KEY_HASH: pa.array([1], pa.uint64()),
            "k": [1],
            SEQUENCE: pa.array([1], pa.uint64()),
            "a.b": [2],
            "a": [{"b": 3}],
        }
    )
    encoded = encode_segment(table, spec=spec)
    entry = encoded.file_entry("f", owned=WHOLE_SPACE)
    assert decode_segment(encoded.data, entry).to_pylist() == [
        {KEY_HASH: 1, "k": 1, SEQUENCE: 1, "a.b": 2, "a": {"b": 3}}
    ]
    assert decode_segment(encoded.data, entry, columns=["a"]).to_pylist() == [{"a": {"b": 3}}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.slice(0, 0), "at least one row"),
        (lambda table: table.drop_columns("trips"), "columns"),
        (lambda table: table.append_column("more", table["trips"]), "columns"),
        (lambda table: table.set_column(0, BIN, table[BIN].cast(pa.timestamp("ms", "UTC"))), "type"),
        (lambda table: table.set_column(1, KEY_HASH, pa.nulls(500, pa.uint64())), "nulls"),
    ],
)
def test_a_table_of_another_shape_is_refused(segments: Any, change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        encode_segment(change(segments.table()), spec=segments.spec())


def test_a_spec_without_its_reserved_columns_is_refused() -> None:
    columns = assign_field_ids(pa.schema([("k", pa.int64())]))
    with pytest.raises(InputError, match="_seq"):
        SegmentSpec("t", 0, columns, pb.HASH_FIRST, ("k",))


def test_a_dictionary_column_is_refused_since_its_bytes_are_not_those_of_its_values() -> None:
    columns = assign_field_ids(pa.schema([("k", pa.int64()), ("v", pa.dictionary(pa.int32(), pa.string()))]))
    schema = segment_schema(columns, sort_order=pb.HASH_FIRST, key_columns=["k"])
    with pytest.raises(InputError, match="cast it"):
        SegmentSpec("t", 0, schema, pb.HASH_FIRST, ("k",))


def test_rows_are_sorted_by_nested_keys_part_by_part(segments: Any) -> None:
    rows = segments.table()
    ordered = rows.take(sort_indices(rows, ["tags"]))
    assert first_disorder(ordered, ["tags"]) is None
    assert ordered["tags"].to_pylist() == sorted(rows["tags"].to_pylist())
    assert first_disorder(ordered.take(list(range(500))[::-1]), ["tags"]) is not None


def test_a_key_without_an_order_is_refused() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])])
    with pytest.raises(InputError, match="no order"):
        first_disorder(pa.table({"either": union}), ["either"])


def test_a_file_says_that_it_is_sorted_up_to_the_first_nested_key() -> None:
    columns = assign_field_ids(
        pa.schema([("k", pa.int64()), ("at", pa.struct([("x", pa.int64()), ("y", pa.int64())]))])
    )
    schema = segment_schema(columns, sort_order=pb.HASH_FIRST, key_columns=["k", "at"], timed=False)
    spec = SegmentSpec("t", 0, schema, pb.HASH_FIRST, ("k", "at"))
    values = {KEY_HASH: [1, 2], "k": [1, 2], "at": [{"x": 1, "y": 2}, None], SEQUENCE: [1, 2]}
    data = encode_segment(pa.table(values, schema=schema), spec=spec).data
    found = footer_of(data).row_group(0)
    assert [found.column(one.column_index).path_in_schema for one in found.sorting_columns] == [KEY_HASH, "k"]
    assert pq.read_table(pa.BufferReader(data))["at"].to_pylist() == values["at"]
