"""The index of joins against comparing every row with every other."""

from typing import Any

import numpy as np
import pyarrow as pa
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.operators.joins.join_index import JoinIndex, KeyIndex, expanded, searched
from statebed.operators.joins.pairs import output_order, shifted
from statebed.state.live.row_set import RowSet, ascending, distinct
from statebed.state.tiers.selection import among

key = st.sampled_from(["a", "b", "c", "", None])
rows = st.lists(st.tuples(key, st.sampled_from([1, 2, None]), st.integers(-9, 9)), max_size=40)


def columns(some: Any) -> tuple[Any, list[pa.Array], Any]:
    """Hashes of which many keys share one, key columns and numbers."""
    hashes = np.array([len(text or "") + (number or 0) % 2 for text, number, _ in some], dtype=np.uint64)
    keys = [pa.array([text for text, _, _ in some], pa.string()), pa.array([n for _, n, _ in some], pa.int64())]
    return hashes, keys, np.array([number for _, _, number in some], dtype=np.int64)


@settings(max_examples=examples(60), deadline=None)
@given(indexed=rows, asked=rows, below=st.integers(-4, 4), above=st.integers(-4, 4))
def test_pairs_have_equal_keys_without_nulls_and_numbers_inside_the_bounds(
    indexed: Any, asked: Any, below: int, above: int
) -> None:
    hashes, keys, numbers = columns(indexed)
    index = JoinIndex(hashes, keys, numbers)
    hashes, keys, numbers = columns(asked)
    found = [
        (int(ours), int(theirs))
        for pairs in index.pairs(hashes, keys, numbers - below, numbers + above)
        for ours, theirs in zip(*pairs, strict=True)
    ]
    expected = [
        (ours, theirs)
        for ours, one in enumerate(indexed)
        for theirs, other in enumerate(asked)
        if one[:2] == other[:2] and None not in one[:2] and other[2] - below <= one[2] <= other[2] + above
    ]
    assert sorted(found) == sorted(expected)


def test_keys_that_share_a_hash_are_told_apart() -> None:
    index = KeyIndex(np.array([5, 5, 5, 9], dtype=np.uint64), [pa.array(["a", "b", "c", "d"])])
    asked = np.array([5, 9, 5, 5, 1, 9], dtype=np.uint64)
    assert index.find(asked, [pa.array(["c", "d", "x", "a", "a", "a"])]).tolist() == [2, 3, -1, 0, -1, -1]


def test_many_keys_are_found_in_any_order_before_and_after_the_index_has_its_directory() -> None:
    numbers = np.arange(6_000, dtype=np.int64)
    hashes = np.sort(np.random.default_rng(1).integers(0, 1 << 64, 3_000, dtype=np.uint64)).repeat(2)
    index = KeyIndex(hashes, [pa.array(numbers)])
    asked = np.random.default_rng(2).permutation(np.concatenate([numbers, numbers[:500]]))
    for some in (asked[:10], np.sort(asked), asked, asked[:0]):
        assert index.find(hashes[some], [pa.array(some)]).tolist() == some.tolist()
        assert index.find(hashes[some], [pa.array(some + 10_000)]).tolist() == [-1] * len(some)
        assert index.find(hashes[some] + np.uint64(1), [pa.array(some)]).tolist() == [-1] * len(some)
    assert index._index.held_bytes > 0


@given(
    counts=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 9)), max_size=20),
    limit=st.integers(1, 12),
)
def test_ranges_are_expanded_in_parts_of_bounded_size(counts: list[tuple[int, int]], limit: int) -> None:
    starts, lengths = (np.array([one[part] for one in counts], dtype=np.int64) for part in (0, 1))
    parts = list(expanded(starts, lengths, limit=limit))
    assert all(len(rows) <= limit for rows, _ in parts)
    found = [(int(row), int(at)) for some in parts for row, at in zip(*some, strict=True)]
    assert found == [(row, at) for row, (start, length) in enumerate(counts) for at in range(start, start + length)]


def test_numbers_are_shifted_without_leaving_64_bits() -> None:
    ends = np.array([-(1 << 63), -5, 0, 5, (1 << 63) - 1])
    assert shifted(ends, 7).tolist() == [-(1 << 63) + 7, 2, 7, 12, (1 << 63) - 1]
    assert shifted(ends, -7).tolist() == [-(1 << 63), -12, -7, -2, (1 << 63) - 8]
    assert shifted(ends, 1 << 60).tolist()[-1] == (1 << 63) - 1


@given(seed=st.integers(0, 50), size=st.sampled_from([0, 10, 1025, 5000]), wanted=st.sampled_from([0, 1, 700, 9000]))
@settings(max_examples=examples(40), deadline=None)
def test_hashes_are_found_among_others_however_many_there_are(seed: int, size: int, wanted: int) -> None:
    chance = np.random.default_rng(seed)
    some = chance.integers(0, 1 << 63, 9000).astype(np.uint64) * np.uint64(2)
    values, looked_for = chance.choice(some, size), ascending(chance.choice(some, wanted))
    assert looked_for.tolist() == sorted(set(looked_for.tolist()))
    assert among(values, looked_for).tolist() == np.isin(values, looked_for).tolist()
    assert searched(looked_for, values, "right").tolist() == np.searchsorted(looked_for, values, side="right").tolist()


def test_of_equal_rows_the_first_is_kept() -> None:
    chance = np.random.default_rng(3)
    numbers = chance.integers(0, 40, 500)
    hashes = pa.array((numbers % 7).tolist(), pa.uint64())
    table = pa.table({"_key_hash": hashes, "k": pa.array(numbers), "n": pa.array([0] * 500)})
    few = distinct(table, keys=["k"])
    # Rows whose hashes are equal though their keys are not may stay; equal ones next to the first of a hash do not.
    assert RowSet(few, keys=["k"]).contains(table).all()
    alike = pa.table({"_key_hash": pa.array(numbers.tolist(), pa.uint64()), "k": pa.array(numbers)})
    assert distinct(alike, keys=["k"])["k"].to_pylist() == list(dict.fromkeys(numbers.tolist()))


def test_results_are_ordered_by_time_and_then_in_an_order_of_their_own() -> None:
    chance = np.random.default_rng(4)
    table = pa.table(
        {
            "k": pa.array(chance.integers(0, 3, 400)),
            "tags": pa.array([[int(n)] for n in chance.integers(0, 3, 400)]),
            "_time": pa.array(chance.integers(0, 5, 400)).cast(pa.timestamp("us", "UTC")),
        }
    )
    found = table.take(output_order(table, ["k"]))
    shuffled = table.take(pa.array(chance.permutation(400)))
    again = shuffled.take(output_order(shuffled, ["k"]))
    assert found.equals(again)
    times = found["_time"].cast(pa.int64()).to_pylist()
    assert times == sorted(times)
    assert table.take(output_order(table, [])).num_rows == 400
