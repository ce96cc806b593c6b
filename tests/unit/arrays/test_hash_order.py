"""Rows are ordered by hash, and rows with equal hashes stay in their order."""

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.arrays.hash_order import Hashes, hash_order

random_hashes = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 50), max_size=300).map(
    lambda values: np.array(values, dtype=np.uint64)
)


@given(random_hashes)
@settings(max_examples=examples(200))
def test_the_order_is_that_of_a_stable_sort(hashes: Hashes) -> None:
    order, in_order = hash_order(hashes)
    assert order.tolist() == np.argsort(hashes, kind="stable").tolist()
    assert in_order.tolist() == sorted(hashes.tolist())


@pytest.mark.parametrize("descending", [False, True])
def test_hashes_that_differ_in_their_lowest_bits_alone_are_ordered(descending: bool) -> None:
    hashes = np.arange(5000, dtype=np.uint64)[:: -1 if descending else 1].copy()
    assert hashes[hash_order(hashes)[0]].tolist() == list(range(5000))
