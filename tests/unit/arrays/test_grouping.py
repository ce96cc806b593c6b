"""Grouping: by key, not by hash, in the order of the files."""

import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.state.key_types import KEYS as NEW_KEYS
from unit.state.key_types import shown

from statebed.arrays.canonical_order import first_disorder
from statebed.arrays.grouping import group_rows
from statebed.arrays.key_hash import normalise_key

# Few values, so that different keys with one hash stand between equal ones.
ROW = st.tuples(
    st.sampled_from([-1, 0]),
    st.sampled_from([0, (1 << 64) - 1]),
    st.sampled_from(["a", "b", None]),
    st.sampled_from([0.0, -0.0, math.nan, -math.nan, None]),
)


def group_key(row: tuple[int, int, str | None, float | None]) -> tuple[object, ...]:
    number = row[3]
    normal: object = "nan" if number is not None and math.isnan(number) else number
    return (*row[:3], normal if normal != 0.0 else 0.0)


@settings(deadline=None)
@given(rows=st.lists(ROW, max_size=60))
def test_rows_group_by_bin_and_key_even_where_keys_share_a_hash(
    rows: list[tuple[int, int, str | None, float | None]],
) -> None:
    bins, hashes, names, numbers = zip(*rows, strict=True) if rows else ((), (), (), ())
    keys = [pa.array(names, pa.string()), normalise_key(pa.array(numbers, pa.float64()))]
    grouping = group_rows(np.array(bins, dtype=np.int64), np.array(hashes, dtype=np.uint64), keys)
    found = {group_key(rows[row]): int(size) for row, size in zip(grouping.first_rows, grouping.sizes, strict=True)}
    assert found == dict(Counter(map(group_key, rows)))
    assert grouping.groups == len(found)
    assert sorted(grouping.order.tolist()) == list(range(len(rows)))
    order = [rows[row][:2] for row in grouping.first_rows]
    assert order == sorted(order)


def test_many_bins_are_ordered_as_few_are() -> None:
    random = np.random.default_rng(1)
    bins = random.integers(-(1 << 40), 1 << 40, 70_000)
    hashes = random.integers(0, 1 << 63, 70_000).astype(np.uint64)
    grouping = group_rows(bins, hashes, [])
    assert grouping.groups == 70_000
    assert bool((np.diff(bins[grouping.order]) >= 0).all())


@settings(deadline=None)
@given(numbers=st.lists(st.integers(0, 9), max_size=60), rows=st.integers(1, 20))
def test_pieces_hold_whole_groups_in_their_order(numbers: list[int], rows: int) -> None:
    grouping = group_rows(np.array(numbers, dtype=np.int64), np.zeros(len(numbers), dtype=np.uint64), [])
    pieces = list(grouping.pieces(rows))
    assert [row for taken, _ in pieces for row in taken.tolist()] == grouping.order.tolist()
    assert [size for _, piece in pieces for size in piece.sizes.tolist()] == grouping.sizes.tolist()
    largest = max(grouping.sizes.tolist(), default=0)
    assert all(0 < len(taken) < rows + largest for taken, _ in pieces)


def test_each_rows_group_is_known() -> None:
    grouping = group_rows(np.array([5, 1, 5]), np.zeros(3, dtype=np.uint64), [pa.array(["x", "x", "x"])])
    assert grouping.group_of_rows().tolist() == [1, 0, 1]


def test_keys_that_share_a_hash_are_told_apart_and_sorted() -> None:
    key = pa.array(["b", "a", "b", None, "a"])
    grouping = group_rows(np.zeros(5, dtype=np.int64), np.zeros(5, dtype=np.uint64), [key])
    assert key.take(pa.array(grouping.first_rows)).to_pylist() == ["a", "b", None]
    assert grouping.sizes.tolist() == [2, 2, 1]


@pytest.mark.parametrize("name", NEW_KEYS)
@pytest.mark.parametrize("several", [1, 3])
def test_keys_of_any_type_that_share_a_hash_are_told_apart_and_sorted(name: str, several: int) -> None:
    kind, values = NEW_KEYS[name]
    count = len(values)
    key = pa.array(values, kind).take(pa.array(list(range(count)) * several, pa.int64()))
    grouping = group_rows(np.zeros(len(key), dtype=np.int64), np.zeros(len(key), dtype=np.uint64), [key])
    assert grouping.sizes.tolist() == [several] * count
    firsts = key.take(pa.array(grouping.first_rows))
    assert first_disorder(pa.table({"key": firsts}), ["key"]) is None
    assert sorted(shown(firsts)) == sorted(shown(pa.array(values, kind)))
