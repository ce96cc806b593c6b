"""Exact sums of doubles: a function of the exact sum alone."""

import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.aggregates.exact_sums import exact_group_parts, exact_parts, rounded

FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.lists(FINITE, min_size=1, max_size=20)


@settings(deadline=None)
@given(values=VALUES)
def test_the_parts_sum_to_the_exact_sum(values: list[float]) -> None:
    assert sum(map(Fraction, exact_parts(values))) == sum(map(Fraction, values))


@settings(deadline=None)
@given(values=VALUES, data=st.data())
def test_p6_no_order_and_no_grouping_changes_the_parts(values: list[float], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(values))
    cut = data.draw(st.integers(0, len(values)))
    grouped = [part for piece in (shuffled[:cut], shuffled[cut:]) if piece for part in exact_parts(piece)]
    expected = exact_parts(values)
    assert exact_parts(shuffled) == expected
    assert exact_parts(grouped) == expected


@settings(deadline=None)
@given(values=VALUES)
def test_the_result_is_the_exact_sum_rounded_once(values: list[float]) -> None:
    exact = sum(map(Fraction, values))
    try:
        expected = float(exact)
    except OverflowError:
        expected = math.inf if exact > 0 else -math.inf
    assert rounded(exact_parts(values)) == expected


def test_a_sum_that_passes_the_largest_double_on_the_way_comes_back() -> None:
    largest = sys.float_info.max
    over = exact_parts([largest, largest])
    assert rounded(over) == math.inf
    assert exact_parts([*over, -largest]) == [largest]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([math.inf, 1.0], math.inf),
        ([1e308, 1e308, -math.inf], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, math.inf], math.nan),
        ([1e308, 1e308, math.nan], math.nan),
        ([0.0, -0.0], 0.0),
        ([-0.0], 0.0),
    ],
)
def test_special_values_stand_alone(values: list[float], expected: float) -> None:
    (found,) = exact_parts(values)
    assert found == expected or (math.isnan(found) and math.isnan(expected))
    assert math.copysign(1, found) == math.copysign(1, expected) or math.isnan(found)


@settings(deadline=None)
@given(groups=st.lists(st.lists(st.floats(), max_size=4), max_size=12))
def test_many_groups_at_once_have_the_parts_that_each_has_alone(groups: list[list[float]]) -> None:
    values = np.array([value for group in groups for value in group], dtype=np.float64)
    found = exact_group_parts(values, np.array([len(group) for group in groups], dtype=np.int64))
    rests = np.split(found.rest, np.cumsum(found.rest_counts)[:-1]) if groups else []
    together = [[leading, *rest.tolist()] for leading, rest in zip(found.leading.tolist(), rests, strict=True)]
    assert repr(together) == repr([exact_parts(group) if group else [0.0] for group in groups])


@pytest.mark.parametrize("decades", [0, 2, 20, 300])
def test_large_groups_of_any_spread_have_the_parts_that_each_has_alone(decades: int) -> None:
    random = np.random.default_rng(decades)
    counts = random.integers(0, 30, 500)
    values = random.standard_normal(counts.sum()) * 10.0 ** random.uniform(-decades, decades, counts.sum())
    found = exact_group_parts(values, counts)
    rests = np.split(found.rest, np.cumsum(found.rest_counts)[:-1])
    groups = np.split(values, np.cumsum(counts)[:-1])
    expected = [exact_parts(group.tolist()) if len(group) else [0.0] for group in groups]
    assert [[first, *rest.tolist()] for first, rest in zip(found.leading.tolist(), rests, strict=True)] == expected


def test_a_value_near_the_largest_double_among_many_zeros_is_its_own_sum() -> None:
    values = np.zeros(1 << 14)
    values[77] = 2.0**1012
    found = exact_group_parts(values, np.array([len(values)]))
    assert (found.leading.tolist(), found.rest.tolist()) == ([2.0**1012], [])
