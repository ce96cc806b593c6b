"""The order in which sessions are merged, and the running end of each key, against plain computations."""

import numpy as np
import pytest

from statebed.operators.windows.merged_sessions import _in_order, _running_ends


@pytest.mark.parametrize("seed", range(20))
def test_sessions_are_ordered_by_key_start_and_end(seed: int) -> None:
    draw = np.random.default_rng(seed)
    keys = np.concatenate([np.sort(draw.integers(0, 30, size)) for size in draw.integers(0, 40, 2)]).astype(np.int64)
    starts, ends = (draw.integers(0, 10, len(keys)) for _ in range(2))
    order = _in_order(keys, starts, ends)
    expected = np.lexsort((ends, starts, keys))
    for column in (keys, starts, ends):
        np.testing.assert_array_equal(column[order], column[expected])


@pytest.mark.parametrize("far", [0, -(1 << 62), 1 << 61])
def test_the_running_end_of_a_key_does_not_depend_on_how_far_apart_ends_are(far: int) -> None:
    keys = np.array([0, 0, 0, 2, 2, 7, 7], dtype=np.int64)
    ends = np.array([5, 3, 9, 1, 4, 8, far], dtype=np.int64)
    expected = [max(ends[: at + 1][keys[: at + 1] == keys[at]]) for at in range(len(keys))]
    assert _running_ends(keys, ends).tolist() == expected
    assert _running_ends(keys[:0], ends[:0]).tolist() == []
