"""Aggregates: types as Spark's, nulls, overflow, and partials that merge in any grouping."""

import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.aggregates import Aggregate, BoundAggregate
from statebed.aggregates.functions import count
from statebed.aggregates.functions import sum as sum_of
from statebed.arrays.grouping import Grouping, group_rows
from statebed.errors import InputError, SumOverflowError

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def grouping_of(groups: list[int]) -> Grouping:
    numbers = np.array(groups, dtype=np.int64)
    return group_rows(numbers, np.zeros(len(groups), dtype=np.uint64), [])


def aggregate(bound: BoundAggregate, groups: list[int], values: list[Any] | None) -> list[Any]:
    """Fold and finish."""
    inputs = [] if values is None else [pa.array(values, bound.input_types[0])]
    partials = bound.accumulator.fold(inputs, grouping_of(groups))
    for array, field in zip(partials, bound.accumulator.partial_fields, strict=True):
        assert array.type == field.type
        array.validate(full=True)
    result = bound.accumulator.finish(partials)
    assert result.type == bound.output_field.type
    found: list[Any] = result.to_pylist()
    return found


def fold_in_pieces(bound: BoundAggregate, pieces: list[list[Any]]) -> list[Any]:
    """Partials of each piece, merged: all values are one group."""
    accumulator = bound.accumulator
    folded = [
        accumulator.fold([pa.array(piece, bound.input_types[0])], grouping_of([0] * len(piece)))
        for piece in pieces
        if piece
    ]
    columns = [pa.concat_arrays(list(column)) for column in zip(*folded, strict=True)]
    merged = accumulator.merge(columns, grouping_of([0] * len(folded)))
    return [column.to_pylist() for column in merged]


def test_count_counts_rows_and_marked_rows() -> None:
    assert aggregate(count().bind("n"), [2, 1, 2], None) == [1, 2]
    assert aggregate(count(where="x > 1").bind("n"), [2, 1, 2], [None, None, True]) == [0, 1]


def test_types_are_sparks() -> None:
    kinds = {
        pa.int8(): pa.int64(),
        pa.int64(): pa.int64(),
        pa.float32(): pa.float64(),
        pa.float64(): pa.float64(),
        pa.decimal128(10, 2): pa.decimal128(20, 2),
        pa.decimal128(35, 5): pa.decimal128(38, 5),
    }
    for kind, expected in kinds.items():
        field = sum_of("x").bind("total", input_types=(kind,)).output_field
        assert (field.type, field.nullable) == (expected, True)
    assert count().bind("n").output_field == pa.field("n", pa.int64(), nullable=False)


@pytest.mark.parametrize("kind", [pa.string(), pa.bool_(), pa.date32(), pa.uint64(), pa.null()])
def test_a_sum_of_what_cannot_be_added_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InputError, match="sum cannot add"):
        sum_of("x").bind("total", input_types=(kind,))


def test_sum_without_an_input_is_refused() -> None:
    with pytest.raises(InputError, match="needs an input column"):
        sum_of(None)  # type: ignore[arg-type]  # as in a program without types


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.int32(), [1, None, 5, None], [None, 6]),
        (pa.float32(), [0.5, None, 1.5, None], [None, 2.0]),
        (pa.decimal128(5, 1), [Decimal("0.5"), None, Decimal("1.5"), None], [None, Decimal("2.0")]),
    ],
)
def test_nulls_are_ignored_and_a_sum_of_no_value_is_null(kind: pa.DataType, values: list[Any], expected: Any) -> None:
    assert aggregate(sum_of("x").bind("total", input_types=(kind,)), [1, 0, 1, 1], values) == expected


@settings(deadline=None)
@given(pieces=st.lists(st.lists(st.one_of(INT64, st.none()), max_size=8), min_size=1, max_size=6))
def test_p6_integer_sums_are_exact_in_any_grouping_and_never_wrap(pieces: list[list[int | None]]) -> None:
    bound = sum_of("x").bind("total", input_types=(pa.int64(),))
    values = [value for piece in pieces for value in piece]
    if not values:
        return
    (low,), (high,) = fold_in_pieces(bound, pieces)
    present = [value for value in values if value is not None]
    assert (None if low is None else low + (high or 0) * (1 << 64)) == (sum(present) if present else None)
    fits = -(1 << 63) <= sum(present) < 1 << 63
    if fits:
        assert aggregate(bound, [0] * len(values), values) == [sum(present) if present else None]
    else:
        with pytest.raises(SumOverflowError, match="does not fit into 64 bits") as caught:
            aggregate(bound, [0] * len(values), values)
        assert "total" in caught.value.where


@settings(deadline=None)
@given(pieces=st.lists(st.lists(st.one_of(st.floats(), st.none()), max_size=6), min_size=1, max_size=6), data=st.data())
def test_p6_float_partials_are_equal_in_any_order_and_grouping(
    pieces: list[list[float | None]], data: st.DataObject
) -> None:
    bound = sum_of("x").bind("total", input_types=(pa.float64(),))
    values = [value for piece in pieces for value in piece]
    if not values:
        return
    shuffled = data.draw(st.permutations(values))
    cut = data.draw(st.integers(0, len(values)))
    assert repr(fold_in_pieces(bound, pieces)) == repr(fold_in_pieces(bound, [shuffled[:cut], shuffled[cut:]]))


@settings(deadline=None)
@given(pieces=st.lists(st.lists(st.one_of(INT64, st.integers(-(10**30), 10**30), st.none()), max_size=6), min_size=1))
def test_p6_decimal_sums_are_exact_in_any_grouping(pieces: list[list[int | None]]) -> None:
    bound = sum_of("x").bind("total", input_types=(pa.decimal128(31, 0),))
    present = [value for piece in pieces for value in piece if value is not None]
    if not any(pieces):
        return
    decimals = [[None if value is None else Decimal(value) for value in piece] for piece in pieces]
    assert fold_in_pieces(bound, decimals) == [[Decimal(sum(present)) if present else None]]


def test_decimal_sums_beyond_38_digits_are_an_error_with_the_aggregates_name() -> None:
    bound = sum_of("x").bind("total", input_types=(pa.decimal128(38, 0),))
    with pytest.raises(SumOverflowError, match="sum of decimals") as caught:
        aggregate(bound, [0, 0], [Decimal(9 * 10**37), Decimal(9 * 10**37)])
    assert "total" in caught.value.where


def test_nothing_folds_to_nothing() -> None:
    for kind in (pa.int64(), pa.float64(), pa.decimal128(5, 1)):
        assert aggregate(sum_of("x").bind("total", input_types=(kind,)), [], []) == []
    assert aggregate(count().bind("n"), [], None) == []


def test_a_bound_aggregate_pickles_and_only_a_plain_count_needs_no_input() -> None:
    bound = sum_of("x", where="y").bind("total", input_types=(pa.int16(),), text="x if y")
    assert pickle.loads(pickle.dumps(bound)) == bound  # noqa: S301 (our own bytes)
    assert [one.needs_input for one in (count(), count("x"), count(where="y"), sum_of("x"))] == [
        False,
        True,
        True,
        True,
    ]
    assert isinstance(count(), Aggregate)
