"""Ownership of the hash space: whole, without overlap, and as the routing says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.errors import InputError
from statebed.format.ranges import MAX_PARALLELISM, WHOLE_SPACE, check_parallelism, overlaps, owned_range, subtask_of

parallelisms = st.integers(1, MAX_PARALLELISM)


@given(parallelisms, st.data())
def test_ranges_follow_one_another_and_cover_the_space(parallelism: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, parallelism - 1))
    owned = owned_range(index, parallelism)
    assert owned.first <= owned.last
    if index == 0:
        assert owned.first == WHOLE_SPACE.first
    else:
        assert owned_range(index - 1, parallelism).last + 1 == owned.first
    if index == parallelism - 1:
        assert owned.last == WHOLE_SPACE.last


@given(parallelisms, st.integers(0, (1 << 64) - 1))
def test_a_hash_is_routed_to_the_subtask_that_owns_it(parallelism: int, number: int) -> None:
    index = int(subtask_of(np.array([number], dtype=np.uint64), parallelism)[0])
    assert index == ((number >> 32) * parallelism) >> 32
    owned = owned_range(index, parallelism)
    assert owned.first <= number <= owned.last


@given(parallelisms, st.data())
def test_both_ends_of_a_range_are_routed_to_its_owner(parallelism: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, parallelism - 1))
    owned = owned_range(index, parallelism)
    assert subtask_of(np.array([owned.first, owned.last], dtype=np.uint64), parallelism).tolist() == [index, index]


def test_ranges_overlap_if_they_share_a_hash() -> None:
    first, second = owned_range(0, 2), owned_range(1, 2)
    assert not overlaps(first, second)
    assert overlaps(first, owned_range(1, 3))
    assert overlaps(second, owned_range(1, 3))
    assert overlaps(WHOLE_SPACE, second)


@pytest.mark.parametrize("parallelism", [0, -1, MAX_PARALLELISM + 1])
def test_an_impossible_parallelism_is_refused(parallelism: int) -> None:
    with pytest.raises(InputError, match="from 1 to 65536"):
        check_parallelism(parallelism)


@pytest.mark.parametrize("index", [-1, 4])
def test_a_subtask_that_does_not_exist_owns_nothing(index: int) -> None:
    with pytest.raises(InputError, match="must be from 0 to"):
        owned_range(index, 4)
