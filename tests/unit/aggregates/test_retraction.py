"""Rows taken back: for each aggregate, adding rows and taking some back equals adding the others alone."""

import datetime as dt
import math
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.aggregates.aggregate_cases import CASES

from statebed.aggregates import functions as sb
from statebed.aggregates.aggregate import BoundAggregate
from statebed.aggregates.declaration import Retraction, declared_functions
from statebed.arrays.grouping import Grouping, group_rows
from statebed.errors import InputError, SumOverflowError

TIME = pa.timestamp("us", "UTC")
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
KINDS = {
    "y": pa.float64(),
    "x": pa.float32(),
    "n": pa.int64(),
    "price": pa.decimal128(12, 2),
    "flag": pa.bool_(),
    "word": pa.string(),
    "ts": TIME,
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "y": st.none() | st.floats(),
    "x": st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
    "n": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    "price": st.none() | st.decimals(-99999, 99999, places=2),
    "flag": st.none() | st.booleans(),
    "word": st.none() | st.sampled_from(["a", "b", "é", ""]),
    "ts": st.integers(0, 3).map(lambda seconds: START + dt.timedelta(seconds=seconds)),
}

Weighted = tuple[int, tuple[Any, ...], int]


def bound_of(name: str, *, changelog: bool) -> BoundAggregate:
    case = CASES[name]
    return case.aggregate.bind("a", input_types=tuple(KINDS[column] for column in case.columns), changelog=changelog)


def grouping_of(groups: list[int]) -> Grouping:
    return group_rows(np.array(groups, dtype=np.int64), np.zeros(len(groups), dtype=np.uint64), [])


def fold(name: str, bound: BoundAggregate, changes: list[Weighted], *, weighted: bool = True) -> tuple[pa.Array, ...]:
    kinds = [KINDS[column] for column in CASES[name].columns]
    values = [pa.array([row[place] for _, row, _ in changes], kind) for place, kind in enumerate(kinds)]
    inputs = CASES[name].aggregate.input_columns(values)
    weights = np.array([weight for _, _, weight in changes], dtype=np.int64) if weighted else None
    return bound.accumulator.fold(inputs, grouping_of([group for group, _, _ in changes]), weights)


def merged(name: str, bound: BoundAggregate, pieces: list[list[Weighted]]) -> tuple[list[int], tuple[pa.Array, ...]]:
    """The groups, and their partials, of changes folded piece by piece."""
    folded = [fold(name, bound, piece) for piece in pieces]
    numbers = [number for piece in pieces for number in sorted({group for group, _, _ in piece})]
    columns = [pa.concat_arrays(list(column)) for column in zip(*folded, strict=True)]
    partials = bound.accumulator.merge(columns, grouping_of(numbers))
    for array, field in zip(partials, bound.accumulator.partial_fields, strict=True):
        assert array.type == field.type
        array.validate(full=True)
    return sorted(set(numbers)), partials


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=examples(12))
@given(data=st.data())
def test_p6_taking_rows_back_equals_adding_the_others_alone(name: str, data: st.DataObject) -> None:
    row = st.tuples(*(VALUES[column] for column in CASES[name].columns))
    # Group, row, how often it comes, and how often it is taken back.
    change = st.tuples(st.integers(0, 2), row, st.integers(0, 3), st.integers(0, 3))
    rows = data.draw(st.lists(change, min_size=1, max_size=12))
    changelog, plain = bound_of(name, changelog=True), bound_of(name, changelog=False)
    came = [(group, row, +often) for group, row, often, _ in rows]
    gone = [(group, row, -min(back, often)) for group, row, often, back in rows]
    changes = data.draw(st.permutations([one for one in came + gone if one[2]]))
    left = [(group, row, often - min(back, often)) for group, row, often, back in rows if often > back]
    if not changes:
        return
    cut = data.draw(st.integers(0, len(changes)))
    groups, partials = merged(name, changelog, [piece for piece in (changes[:cut], changes[cut:]) if piece])
    remaining = [place for place, number in enumerate(groups) if number in {group for group, _, _ in left}]
    if left:
        alone = fold(name, changelog, left)
        assert repr([column.take(pa.array(remaining)).to_pylist() for column in partials]) == repr(
            [column.to_pylist() for column in alone]
        )
    repeated = [(group, row, 1) for group, row, often in left for _ in range(often)]
    try:
        expected = plain.accumulator.finish(fold(name, plain, repeated, weighted=False)).to_pylist() if left else []
    except SumOverflowError:
        with pytest.raises(SumOverflowError):
            changelog.accumulator.finish(partials)
        return
    found = changelog.accumulator.finish(partials)
    assert found.type == changelog.output_field.type == plain.output_field.type
    found.validate(full=True)
    assert repr([found.to_pylist()[place] for place in remaining]) == repr(expected)
    gone_groups = [value for place, value in enumerate(found.to_pylist()) if place not in remaining]
    assert all(value in (None, 0, []) for value in gone_groups)


def test_each_function_says_how_it_takes_rows_back_and_each_is_tested() -> None:
    tested = {case.aggregate.function.name for case in CASES.values()}
    functions = {function.name: function.retraction_with(None) for function in declared_functions()}
    refusing = {name for name, retraction in functions.items() if retraction is Retraction.REFUSES}
    # A user-defined one may have a method for it.
    assert refusing == {"approx_count_distinct", "aggregate"}
    assert tested == set(functions) - refusing
    for name, case in CASES.items():
        bound = bound_of(name, changelog=True)
        keeps_lists = any(pa.types.is_list(field.type) for field in bound.accumulator.partial_fields)
        if case.aggregate.function.name != "approx_percentile":  # a histogram: lists, yet no values
            assert keeps_lists == (bound.retraction is Retraction.MULTISET), name


def test_a_sketch_of_distinct_values_refuses_a_changelog_and_says_what_to_use() -> None:
    bound = sb.approx_count_distinct("x").bind("a", input_types=(pa.int64(),))
    with pytest.raises(InputError, match="does not support retractions") as caught:
        bound.retracting()
    assert "count_distinct" in caught.value.fix


FORGETFUL = [name for name, case in CASES.items() if case.aggregate.function.name in {"min", "sum", "mean", "first"}]


@pytest.mark.parametrize("name", [*FORGETFUL, "bit_xor", "bit_or", "collect_list", "corr"])
def test_weights_for_an_aggregate_that_was_bound_without_a_changelog_are_refused(name: str) -> None:
    nulls = (None,) * len(KINDS)
    with pytest.raises(InputError, match="append-only rows") as caught:
        fold(name, bound_of(name, changelog=False), [(0, nulls, -1)])
    assert "changelog=True" in caught.value.fix


def summed(values: list[Any], weights: list[int], kind: pa.DataType) -> Any:
    bound = sb.sum("x").bind("a", input_types=(kind,), changelog=True)
    partials = bound.accumulator.fold([pa.array(values, kind)], grouping_of([0] * len(values)), np.array(weights))
    (found,) = bound.accumulator.finish(partials).to_pylist()
    return found


def test_weights_of_any_size_are_exact() -> None:
    most = (1 << 63) - 1
    assert summed([-6, -7], [most, 1 - most], pa.int64()) == most - 7
    assert summed([3, 2], [-(1 << 63), most], pa.int64()) is None
    assert summed([0.1, 0.1, 0.25], [most, -most, 3], pa.float64()) == 0.75
    assert summed([0.1, 0.1], [1 << 40, 1 - (1 << 40)], pa.float64()) == 0.1
    assert summed([Decimal("0.1"), Decimal("0.1")], [most, 1 - most], pa.decimal128(5, 1)) == Decimal("0.1")
    assert summed([1e300, 1e300, 5e-324, 5e-324], [7, -7, 5, -3], pa.float64()) == 1e-323
    assert summed([sys.float_info.max, sys.float_info.max], [3, -2], pa.float64()) == sys.float_info.max
    with pytest.raises(SumOverflowError, match="times its weight"):
        summed([sys.float_info.max], [1 << 40], pa.float64())


def test_special_values_can_be_taken_back() -> None:
    values = [math.nan, math.inf, -math.inf, 1.5]
    assert math.isnan(summed(values, [1, 0, 0, 1], pa.float64()))
    assert math.isnan(summed(values, [0, 2, 1, 1], pa.float64()))
    assert summed([*values, math.nan, -math.inf], [2, 1, 1, 1, -2, -1], pa.float64()) == math.inf
    assert summed([*values, *values[:3]], [1, 1, 1, 1, -1, -1, -1], pa.float64()) == 1.5


@pytest.mark.parametrize("name", CASES)
def test_a_group_that_waits_for_rows_it_has_taken_back_has_no_value(name: str) -> None:
    bound = bound_of(name, changelog=True)
    row = tuple(
        {"y": 1.5, "x": 2.5, "n": 1 << 62, "price": Decimal(7), "flag": True, "word": "a", "ts": START}[column]
        for column in CASES[name].columns
    )
    partials = fold(name, bound, [(0, row, -5)])
    assert bound.accumulator.finish(partials).to_pylist()[0] in (None, 0, [])


def test_a_retraction_waits_for_its_row() -> None:
    bound = sb.min("n").bind("a", input_types=(pa.int64(),), changelog=True)
    early = bound.accumulator.fold([pa.array([1, 5])], grouping_of([0, 0]), np.array([-1, 1]))
    assert early[1].to_pylist() == [[-1, 1]]
    assert bound.accumulator.finish(early).to_pylist() == [5]
    late = bound.accumulator.fold([pa.array([1])], grouping_of([0]), np.array([1]))
    columns = [pa.concat_arrays(list(both)) for both in zip(early, late, strict=True)]
    assert [column.to_pylist() for column in bound.accumulator.merge(columns, grouping_of([0, 0]))] == [[[5]], [[1]]]
