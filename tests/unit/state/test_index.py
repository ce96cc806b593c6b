"""The index of hashes answers as a binary search does, in memory and from a stored directory."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.state.tiers.hash_index import HashIndex, starts_to_store

Hashes = npt.NDArray[np.uint64]


def spread(count: int, seed: int = 1) -> Hashes:
    return np.sort(np.random.default_rng(seed).integers(0, 1 << 64, count, dtype=np.uint64))


def crowded(count: int) -> Hashes:
    return np.sort(np.random.default_rng(2).integers(0, 5, count, dtype=np.uint64) << np.uint64(60))


def check(index: HashIndex, hashes: Hashes, wanted: Hashes) -> None:
    at, equal = index.find(wanted)
    assert np.array_equal(at, np.searchsorted(hashes, wanted))
    assert np.array_equal(equal, np.isin(wanted, hashes))


@pytest.mark.parametrize("hashes", [spread(50_000), spread(5_000) >> np.uint64(3), crowded(10_000), spread(10)])
def test_an_index_finds_what_a_binary_search_finds(hashes: Hashes) -> None:
    ends = np.array([0, 1, (1 << 64) - 1], dtype=np.uint64)
    wanted = np.sort(np.concatenate([hashes[::3], hashes[::7] + np.uint64(1), spread(100, seed=3), ends]))
    index = HashIndex(hashes)
    for _ in range(4):  # it builds its directory only when it has been asked often
        check(index, hashes, wanted)
    stored = HashIndex.stored(hashes, starts_to_store(hashes))
    check(stored, hashes, wanted)
    assert stored.held_bytes == 0


def test_an_index_takes_memory_only_when_it_pays() -> None:
    hashes = spread(50_000)
    index = HashIndex(hashes)
    index.find(hashes[:10])
    assert index.held_bytes == 0
    for _ in range(3):
        index.find(hashes[::2])
    assert 0 < index.held_bytes <= 8 * len(hashes) + 8


def test_an_index_that_succeeds_another_is_worth_a_directory_at_once() -> None:
    hashes = spread(50_000)
    older, index = HashIndex(hashes[::2]), HashIndex(hashes)
    older.find(hashes)
    index.succeeds(older)
    check(index, hashes, hashes[5:500])
    assert index.held_bytes > 0


@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=40), st.lists(st.integers(0, (1 << 64) - 1), max_size=20))
def test_few_hashes_are_found_too(some: list[int], asked: list[int]) -> None:
    hashes = np.sort(np.array(some, dtype=np.uint64))
    wanted = np.sort(np.array([*asked, *some[::2]], dtype=np.uint64))
    stored = HashIndex.stored(hashes, starts_to_store(hashes))
    for index in (HashIndex(hashes), stored):
        check(index, hashes, wanted)


@pytest.mark.parametrize("hashes", [spread(50_000), spread(5_000).repeat(7), crowded(10_000), spread(10), spread(0)])
def test_all_rows_of_a_hash_are_found(hashes: Hashes) -> None:
    ends = np.array([0, (1 << 64) - 1], dtype=np.uint64)
    wanted = np.sort(np.concatenate([hashes[::3], hashes[::7] + np.uint64(1), ends, ends]))
    index = HashIndex.built(hashes)
    held = index.held_bytes
    starts, behind = index.spans(wanted)
    here = np.unique(wanted[np.isin(wanted, hashes)])
    assert np.array_equal(starts, np.searchsorted(hashes, here))
    assert np.array_equal(behind, np.searchsorted(hashes, here, side="right"))
    assert index.held_bytes == held <= 4 * len(hashes) + 8
