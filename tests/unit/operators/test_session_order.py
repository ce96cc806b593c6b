"""The order of rows and sessions and the running end of each key, against plain computations, and with compiled loops
as without.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.aggregates.functions import count as count_of
from statebed.aggregates.partials import Partials
from statebed.arrays import compiled
from statebed.arrays.columns import from_numpy
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP
from statebed.format.stream_schema import Input
from statebed.operators.keyed_rows import by_key
from statebed.operators.windows.merged_sessions import Sessions, _in_order, _running_ends, merged_sessions
from statebed.operators.windows.session_partials import SessionPartials


def both(function: Callable[[], Any]) -> tuple[Any, Any]:
    """Return the results of a function with compiled loops, and without."""
    results = []
    for least in (0, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "_min_rows", lambda rows=least: rows)
            assert (compiled.loops_for(0) is None) == (least is None)
            results.append(function())
    with_loops, without = results
    return with_loops, without


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


@settings(max_examples=examples(40))
@given(st.integers(0, 999), st.integers(0, 500), st.sampled_from([1, 20, 5000]), st.sampled_from([1, 4, 1 << 40]))
def test_rows_of_a_key_are_sorted_by_time_with_compiled_loops_and_without(
    seed: int, count: int, keys: int, span: int
) -> None:
    draw = np.random.default_rng(seed)
    hashes = draw.integers(0, 1 << 60, keys, dtype=np.uint64)[draw.integers(0, keys, count)]
    times = draw.integers(-span, span, count)
    rows = pa.table(
        {
            KEY_HASH: from_numpy(hashes, pa.uint64()),
            TIME: from_numpy(times, TIMESTAMP),
            "k": from_numpy(hashes.view(np.int64), pa.int64()),
        }
    )
    source = Input("input", pa.schema([pa.field("k", pa.int64())]), ("k",))
    expected = np.lexsort((times, hashes))
    for keyed in both(lambda: by_key(rows, source, only_by_time=True)):
        assert np.array_equal(hashes[keyed.order], hashes[expected])
        assert np.array_equal(times[keyed.order], times[expected])
        assert np.array_equal(np.sort(keyed.order), np.arange(count))


NUMBERED = SessionPartials(Partials((), (count_of().bind("n"),)), lists_values=False)


def sessions_of(seed: int, rows: int, *, keys: int, sorted_by_key: bool) -> Sessions:
    """Sessions that often overlap or touch; each has a value of its own."""
    draw = np.random.default_rng(seed)
    key_index, starts = draw.integers(0, keys, rows), draw.integers(0, 40, rows)
    if sorted_by_key:
        key_index.sort()
    values = pa.table([pa.array(1 << np.arange(rows) % 60)], schema=pa.schema(NUMBERED.fields))
    return Sessions(key_index, starts, starts + draw.integers(1, 9, rows), values)


@settings(max_examples=examples(60))
@given(st.integers(0, 999), st.integers(0, 40), st.integers(0, 40), st.sampled_from([1, 3, 30]), st.booleans())
def test_sessions_are_merged_into_the_same_ones_with_compiled_loops_and_without(
    seed: int, old: int, new: int, keys: int, sorted_by_key: bool
) -> None:
    before, others = (
        sessions_of(seed + at, size, keys=keys, sorted_by_key=sorted_by_key) for at, size in enumerate((old, new))
    )
    ours, theirs = both(lambda: merged_sessions(before, others, NUMBERED))
    for name in ("key_index", "starts", "ends"):
        assert np.array_equal(getattr(ours.sessions, name), getattr(theirs.sessions, name)), name
    assert ours.sessions.partials.equals(theirs.sessions.partials)
    assert np.array_equal(ours.unchanged, theirs.unchanged)
    assert np.array_equal(ours.into, theirs.into)
    assert len(ours.into) == old + new
