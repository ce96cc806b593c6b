"""Sorted sources as one sorted stream: in order, complete, the same for every way in which rows came."""

import random
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.arrays.canonical_order import first_disorder
from statebed.arrays.columns import from_numpy
from statebed.arrays.key_hash import hash_columns
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME, TIMESTAMP, assign_field_ids
from statebed.format.segment import SegmentSpec, segment_schema
from statebed.state.time_keyed.row_merge import SortedSource, merged, newest, ordered
from statebed.state.time_keyed.row_runs import merged_runs

NAN = float("nan")
COLUMNS = assign_field_ids(pa.schema([("driver", pa.float64()), ("city", pa.string()), ("tips", pa.list_(pa.int64()))]))
SPEC = SegmentSpec(
    "rides", 0, segment_schema(COLUMNS, sort_order=pb.BIN_FIRST, key_columns=["driver"]), pb.BIN_FIRST, ("driver",)
)
Row = tuple[float | None, int, int, str | None]
"""Driver (the key), time, sequence, city."""


def table(rows: list[Row]) -> pa.Table:
    drivers = pa.array([row[0] for row in rows], pa.float64())
    times = np.array([row[1] for row in rows], dtype=np.int64)
    columns = {
        BIN: from_numpy(times // 10 * 10, TIMESTAMP),
        KEY_HASH: from_numpy(hash_columns([drivers]), pa.uint64()),
        "driver": drivers,
        TIME: from_numpy(times, TIMESTAMP),
        SEQUENCE: from_numpy(np.array([row[2] for row in rows], dtype=np.uint64), pa.uint64()),
        "city": pa.array([row[3] for row in rows], pa.string()),
        "tips": pa.array([[1]] * len(rows), pa.list_(pa.int64())),
    }
    return pa.table({name: columns[name] for name in SPEC.schema.names})


def pieces(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def source(rows: list[Row], size: int) -> SortedSource:
    return SortedSource(min(row[1] // 10 * 10 for row in rows), pieces(ordered(table(rows), SPEC), size))


def text(rows: pa.Table) -> list[str]:
    # Python's own times do not reach as far.
    plain = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in rows.columns]
    return [str(row) for row in pa.table(plain, names=rows.column_names).to_pylist()]


some_rows = st.lists(
    st.tuples(
        st.sampled_from([1.0, 2.0, NAN, None]),
        st.sampled_from([-12, -1, 0, 3, 25, (1 << 62)]),
        st.integers(1, 3),
        st.sampled_from(["a", "b", None]),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=examples(60), deadline=None)
@given(parts=st.lists(some_rows, min_size=1, max_size=5), size=st.integers(1, 7))
def test_what_comes_out_is_what_one_sort_of_all_rows_gives(parts: list[list[Row]], size: int) -> None:
    rows = [row for part in parts for row in part]
    found = pa.concat_tables(merged([source(part, size) for part in parts], SPEC))
    assert first_disorder(found, SPEC.sort_columns) is None
    assert text(found) == text(ordered(table(rows), SPEC))


@pytest.mark.parametrize(
    ("kind", "ascending"),
    [
        (pa.float16(), [np.float16(value) for value in (-2.0, 0.5, 1.0, NAN)]),
        (pa.uuid(), [bytes([first, *range(15)]) for first in (0, 1, 127, 128, 255)]),
        (pa.bool8(), [-1, 0, 1, 2]),
        (pa.json_(), ["1", "[]", "{}"]),
    ],
    ids=str,
)
def test_p6_values_of_types_that_arrow_does_not_sort_are_in_order_however_they_came(
    kind: pa.DataType, ascending: list[object]
) -> None:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    values = pa.array([*ascending, None], storage).cast(kind)
    columns = assign_field_ids(pa.schema([("driver", pa.float64()), ("value", kind)]))
    schema = segment_schema(columns, sort_order=pb.BIN_FIRST, key_columns=["driver"])
    spec = SegmentSpec("rides", 0, schema, pb.BIN_FIRST, ("driver",))
    same = table([(1.0, 0, 1, None)] * len(values)).drop_columns(["city", "tips"])
    rows = same.append_column("value", values).select(schema.names)
    for seed in range(5):
        order = random.Random(seed).sample(range(len(values)), len(values))
        halves = [ordered(rows.take(order[place::2]), spec) for place in (0, 1)]
        found = pa.concat_tables(merged([SortedSource(0, pieces(half, 2)) for half in halves], spec)).combine_chunks()
        assert str(found["value"].cast(storage).to_pylist()) == str(values.cast(storage).to_pylist()), seed


@settings(max_examples=examples(60), deadline=None)
@given(parts=st.lists(some_rows, min_size=1, max_size=6), limit=st.integers(1, 3_000))
def test_runs_that_are_cut_into_cells_give_the_same(parts: list[list[Row]], limit: int) -> None:
    runs = [ordered(table(part), SPEC).combine_chunks() for part in parts]
    found = list(merged_runs(runs, SPEC, limit=limit))
    whole = ordered(table([row for part in parts for row in part]), SPEC)
    assert text(pa.concat_tables(found)) == text(whole)


def test_cells_are_about_as_large_as_they_should_be_whatever_the_runs_hold() -> None:
    spread: list[list[Row]] = [[(float(key * 7919 % 100_000), time, 1, "a") for key in range(500)] for time in range(8)]
    same: list[list[Row]] = [[(1.0, 10 * number + time % 10, 1, "a") for time in range(500)] for number in range(3)]
    for rows in (spread, same):
        runs = [ordered(table(part), SPEC).combine_chunks() for part in rows]
        limit = sum(int(run.nbytes) for run in runs) // 10
        sizes = [int(piece.nbytes) for piece in merged_runs(runs, SPEC, limit=limit)]
        assert max(sizes) <= 2.5 * limit


@settings(max_examples=examples(40), deadline=None)
@given(rows=some_rows, seed=st.integers(0, 100))
def test_p6_the_order_in_which_rows_came_does_not_show(rows: list[Row], seed: int) -> None:
    other = list(rows)
    random.Random(seed).shuffle(other)
    assert text(ordered(table(rows), SPEC)) == text(ordered(table(other), SPEC))


@settings(max_examples=examples(60), deadline=None)
@given(parts=st.lists(some_rows, min_size=1, max_size=4), size=st.integers(1, 5))
def test_of_one_key_and_time_the_greatest_sequence_is_kept(parts: list[list[Row]], size: int) -> None:
    rows = [(*row[:2], number + 1, row[3]) for number, row in enumerate(row for part in parts for row in part)]
    expected = {(str(row[0]), row[1]): row[2] for row in rows}
    halves = [half for half in (rows[::2], rows[1::2]) if half]
    found = pa.concat_tables(newest(merged([source(half, size) for half in halves], SPEC), ["driver"]))
    times = found[TIME].cast(pa.int64()).to_pylist()
    keys = zip(map(str, found["driver"].to_pylist()), times, strict=True)
    assert list(zip(keys, found[SEQUENCE].to_pylist(), strict=True)) == [
        (key, expected[key]) for key in zip(map(str, found["driver"].to_pylist()), times, strict=True)
    ]
    assert found.num_rows == len(expected)


def test_sources_that_follow_one_another_in_time_are_open_one_at_a_time() -> None:
    opened: list[int] = []

    def noted(number: int) -> Iterator[pa.Table]:
        for piece in pieces(ordered(table([(float(key), number * 10, 1, "a") for key in range(10)]), SPEC), 3):
            opened.append(number)
            yield piece

    seen = []
    for piece in merged([SortedSource(number * 10, noted(number)) for number in range(5)], SPEC):
        seen.append(piece)
        assert len(set(opened)) <= len({time for one in seen for time in one[TIME].to_pylist()}) + 1
    assert sum(piece.num_rows for piece in seen) == 50


def test_many_rows_of_one_key_are_cut_by_their_times() -> None:
    early: list[Row] = [(1.0, time, 1, "a") for time in range(0, 1000, 2)]
    late: list[Row] = [(1.0, time, 1, "a") for time in range(1, 1000, 2)]
    sources = [SortedSource(0, pieces(ordered(table(rows), SPEC), 10)) for rows in (early, late)]
    sizes = [piece.num_rows for piece in merged(sources, SPEC)]
    assert sum(sizes) == 1000
    assert max(sizes) <= 20
