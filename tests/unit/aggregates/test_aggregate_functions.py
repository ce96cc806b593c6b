"""Every aggregate against DuckDB's, over any rows; and the same partials in any order and grouping of the rows."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import duck
import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.aggregates.aggregate_cases import CASES

from statebed.aggregates import functions as sb
from statebed.aggregates.aggregate import Aggregate, BoundAggregate
from statebed.arrays.grouping import Grouping, group_rows
from statebed.errors import InputError

NUMBERS = st.floats(-1e6, 1e6).map(lambda value: round(value, 3) + 0.0)
ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.none() | NUMBERS, st.none() | NUMBERS, st.none() | st.integers(-99, 99)),
    min_size=1,
    max_size=40,
)
CLOSE = 1e-9

OF_DOUBLES = {name: case for name, case in CASES.items() if case.duckdb and set(case.columns) <= {"y", "x"}}
OF_INTEGERS = {name: case for name, case in CASES.items() if case.duckdb and case.columns == ("n",)}


def grouping_of(groups: list[int]) -> Grouping:
    return group_rows(np.array(groups, dtype=np.int64), np.zeros(len(groups), dtype=np.uint64), [])


def columns_of(bound: BoundAggregate, rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(bound.input_types)
    return [pa.array(column, kind) for column, kind in zip(columns, bound.input_types, strict=True)]


def in_pieces(bound: BoundAggregate, groups: list[int], rows: list[tuple[Any, ...]], cut: int) -> list[pa.Array]:
    """Partials of two pieces, merged."""
    folded = [
        (groups[part], bound.accumulator.fold(columns_of(bound, rows[part]), grouping_of(groups[part])))
        for part in (slice(cut), slice(cut, None))
    ]
    numbers = [number for piece, _ in folded for number in sorted(set(piece))]
    columns = [pa.concat_arrays(list(column)) for column in zip(*(partials for _, partials in folded), strict=True)]
    merged = bound.accumulator.merge(columns, grouping_of(numbers))
    for array, field in zip(merged, bound.accumulator.partial_fields, strict=True):
        assert array.type == field.type
        array.validate(full=True)
    return list(merged)


def duckdb_answer(rows: list[tuple[Any, ...]], sql: str) -> list[Any]:
    names = ["g", "y", "x", "n"]
    types = [pa.int64(), pa.float64(), pa.float64(), pa.int32()]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
    with duck.cursor() as db:
        db.register("t", pa.table(columns, names=names))
        found: list[Any] = [value for (value,) in db.sql(f"select {sql} from t group by g order by g").fetchall()]
    return found


def same(one: Any, other: Any, *, scale: float) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(same(*pair, scale=scale) for pair in zip(one, other, strict=True))
    if one is None or other is None or not isinstance(one, float):
        return bool(one == other)
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE * scale)


@pytest.mark.parametrize("name", OF_DOUBLES)
@settings(deadline=None, max_examples=examples(20))
@given(rows=ROWS, data=st.data())
def test_aggregates_of_doubles_equal_duckdbs_in_any_order_and_grouping(
    name: str, rows: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    case = OF_DOUBLES[name]
    bound = case.aggregate.bind("a", input_types=(pa.float64(),) * len(case.columns))
    pick = [tuple(row["gyxn".index(column)] for column in case.columns) for row in rows]
    merged = in_pieces(bound, [row[0] for row in rows], pick, data.draw(st.integers(0, len(rows))))
    found = bound.accumulator.finish(merged).to_pylist()
    expected = duckdb_answer(rows, case.duckdb)
    if name in SENSITIVE:
        # Where x or y hardly varies, DuckDB's sums of rounded differences decide, not the data.
        firm = [abs(value) > 1e-3 for value in varied(rows)]
        found, expected = ([one for one, sure in zip(each, firm, strict=True) if sure] for each in (found, expected))
    assert all(same(one, other, scale=1e12) for one, other in zip(found, expected, strict=True)), (found, expected)
    shuffled = data.draw(st.permutations(list(zip([row[0] for row in rows], pick, strict=True))))
    other = in_pieces(bound, [group for group, _ in shuffled], [one for _, one in shuffled], len(rows) // 2)
    assert [column.to_pylist() for column in other] == [column.to_pylist() for column in merged]


SENSITIVE = {"corr", "regr_slope", "regr_intercept", "regr_r2"}


def varied(rows: list[tuple[Any, ...]]) -> list[float]:
    xx, yy = duckdb_answer(rows, "regr_sxx(y, x)"), duckdb_answer(rows, "regr_syy(y, x)")
    return [min(one or 0.0, other or 0.0) for one, other in zip(xx, yy, strict=True)]


@pytest.mark.parametrize("name", OF_INTEGERS)
@settings(deadline=None, max_examples=examples(20))
@given(rows=ROWS, data=st.data())
def test_aggregates_of_integers_equal_duckdbs(name: str, rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    case = OF_INTEGERS[name]
    bound = case.aggregate.bind("a", input_types=(pa.int32(),))
    merged = in_pieces(bound, [row[0] for row in rows], [row[3:] for row in rows], data.draw(st.integers(0, len(rows))))
    found = bound.accumulator.finish(merged).to_pylist()
    assert all(same(one, other, scale=1.0) for one, other in zip(found, duckdb_answer(rows, case.duckdb), strict=True))


def finished(aggregate: Aggregate, rows: list[tuple[Any, ...]], *kinds: pa.DataType) -> Any:
    bound = aggregate.bind("a", input_types=kinds)
    (value,) = bound.accumulator.finish(in_pieces(bound, [0] * len(rows), rows, len(rows) // 2)).to_pylist()
    return value


def test_nan_is_larger_than_every_number_and_negative_zero_is_zero() -> None:
    rows = [(math.nan,), (math.inf,), (-0.0,), (None,)]
    assert math.isnan(finished(sb.max("x"), rows, pa.float64()))
    smallest = finished(sb.min("x"), rows, pa.float32())
    assert (smallest, math.copysign(1, smallest)) == (0.0, 1.0)
    assert finished(sb.min("x"), [(-1.5,), (-2.5,), (-math.inf,)], pa.float64()) == -math.inf


def test_text_booleans_and_times_have_extremes() -> None:
    assert finished(sb.max("x"), [("b",), ("é",), (None,), ("Z",)], pa.string()) == "é"
    assert finished(sb.min("x"), [(b"\xff",), (b"a",)], pa.binary()) == b"a"
    assert finished(sb.bool_and("x"), [(True,), (None,), (False,)], pa.bool_()) is False
    assert finished(sb.bool_or("x"), [(None,), (None,)], pa.bool_()) is None
    assert finished(sb.max_by("x", "t"), [("early", 1), ("late", 2), ("lost", None)], pa.string(), pa.int64()) == "late"


def test_first_and_last_go_by_event_time_and_keep_nulls() -> None:
    rows = [("b", 1), ("a", 1), (None, 0), ("z", 9)]
    time = pa.timestamp("us", "UTC")
    assert finished(sb.first("x"), rows, pa.string(), time) is None
    assert finished(sb.first("x"), rows[:2], pa.string(), time) == "a"
    assert finished(sb.last("x"), rows, pa.string(), time) == "z"


def test_lists_are_in_the_order_of_event_time_and_sets_in_that_of_values() -> None:
    rows = [("b", 3), (None, 1), ("c", 1), ("a", 1), ("b", 0)]
    time = pa.timestamp("us", "UTC")
    assert finished(sb.collect_list("x"), rows, pa.string(), time) == ["b", "a", "c", "b"]
    assert finished(sb.collect_set("x"), [row[:1] for row in rows], pa.string()) == ["a", "b", "c"]
    assert finished(sb.collect_list("x"), rows[1:2], pa.string(), time) == []


def test_texts_are_joined_in_the_order_of_event_time() -> None:
    rows = [("b", 3), (None, 1), ("c", 1), ("a", 1), ("", 0)]
    time = pa.timestamp("us", "UTC")
    assert finished(sb.string_agg("x", ", "), rows, pa.string(), time) == ", a, c, b"
    assert finished(sb.string_agg("x"), rows[1:2], pa.string(), time) is None
    assert finished(sb.string_agg("x"), rows[4:], pa.string(), time) == ""
    with pytest.raises(InputError, match="string_agg cannot join values of type int64"):
        sb.string_agg("x").bind("a", input_types=(pa.int64(), time))


def test_the_most_frequent_value_is_the_smallest_of_several() -> None:
    assert finished(sb.mode("x"), [(value,) for value in "cabbca"], pa.string()) == "a"
    assert finished(sb.mode("x"), [(value,) for value in [3, 1, 3, None, None, None]], pa.int64()) == 3
    assert math.isnan(finished(sb.mode("x"), [(math.nan,), (1.0,), (-math.nan,)], pa.float64()))
    assert finished(sb.mode("x"), [(None,)], pa.int64()) is None


def test_count_if_counts_the_rows_for_which_its_condition_holds() -> None:
    assert sb.count_if("x > 1") == sb.count(where="x > 1")


def test_inputs_are_null_where_the_condition_does_not_hold() -> None:
    holds = pa.array([True, False, None])
    values = pa.array([1, 2, 3])
    assert sb.sum("x", where="y").input_columns([values], holds)[0].to_pylist() == [1, None, None]
    assert sb.sum("x").input_columns([values])[0] is values
    assert sb.count("x", where="y").input_columns([values], holds)[0].to_pylist() == [True, None, None]
    assert sb.count(where="y").input_columns([], holds)[0].to_pylist() == [True, None, None]
    assert sb.count("x").input_columns([pa.array([None, "a"])])[0].to_pylist() == [None, True]
    assert sb.count().input_columns([]) == []


def test_distinct_values_are_told_apart_as_keys_are() -> None:
    rows = [(math.nan,), (-math.nan,), (0.0,), (-0.0,), (None,)]
    assert finished(sb.count_distinct("x"), rows, pa.float64()) == 2
    assert finished(sb.count_distinct("x"), [(None,)], pa.string()) == 0
    assert finished(sb.median("x"), [(5,), (1,), (1,), (2,)], pa.int32()) == 1.5
    with pytest.raises(InputError, match="must be a share from 0 to 1, got 95"):
        sb.percentile("x", 95)


@settings(deadline=None)
@given(
    values=st.lists(st.floats(allow_nan=False), min_size=1, max_size=30),
    at=st.floats(0, 1),
    accuracy=st.sampled_from([0.001, 0.01, 0.2, 1 / 3]),
)
def test_approximate_percentiles_are_as_accurate_as_they_say(values: list[float], at: float, accuracy: float) -> None:
    found = finished(sb.approx_percentile("x", at, accuracy=accuracy), [(value,) for value in values], pa.float64())
    exact = sorted(values)[math.floor((len(values) - 1) * at)]
    if math.isinf(exact) or abs(exact) > 1e308:
        assert abs(found) > 1e307
        assert math.copysign(1, found) == math.copysign(1, exact)
    else:
        # Below 1e-307 doubles themselves are no longer that fine.
        assert abs(found - exact) <= accuracy * abs(exact) * (1 + 1e-9) + 1e-315


@pytest.mark.parametrize("accuracy", [0.00001, 0.01, 0.3, 1 / 3])
def test_the_accuracy_of_a_percentile_holds_at_every_magnitude(accuracy: float) -> None:
    chance = np.random.default_rng(5)
    edges = np.ldexp(1.0, np.arange(-1022, 1024))
    inner = np.ldexp(chance.uniform(1.0, 2.0, 5_000), chance.integers(-1022, 1024, 5_000))
    smallest = 5e-324
    values = np.concatenate([inner, edges, np.nextafter(edges, 0.0), smallest * np.arange(1, 200)])
    values = np.concatenate([values, -values])
    bound = sb.approx_percentile("x", 0.5, accuracy=accuracy).bind("a", input_types=(pa.float64(),))
    found = bound.accumulator.finish(bound.accumulator.fold([pa.array(values)], grouping_of(list(range(len(values))))))
    distance = np.abs(found.to_numpy() - values)
    fine = np.abs(values) >= np.finfo(np.float64).tiny
    # Ends of buckets are rounded to doubles.
    allowed = (accuracy + 1e-12) * np.abs(values) + np.where(fine, 0.0, smallest)
    assert bool((distance <= allowed).all())


@pytest.mark.parametrize("accuracy", [0.34, 0.5, 1.0, 0.0, 1e-6, math.nan])
def test_an_accuracy_that_could_not_be_kept_is_refused(accuracy: float) -> None:
    with pytest.raises(InputError, match=r"(?s)accuracy .* must be from 1e-05 to 1/3, got .*column 'fare'"):
        sb.approx_percentile("fare", 0.5, accuracy=accuracy)


def test_a_sketch_is_small_and_sees_nan_as_the_largest() -> None:
    bound = sb.approx_percentile("x", 0.5).bind("a", input_types=(pa.float64(),))
    values = np.random.default_rng(3).lognormal(3, 2, 100_000)
    partials = bound.accumulator.fold([pa.array(values)], grouping_of([0] * len(values)))
    assert len(partials[0].flatten()) < 1000
    (median,) = bound.accumulator.finish(partials).to_pylist()
    assert abs(median - float(np.median(values))) < 0.011 * median
    assert math.isnan(finished(sb.approx_percentile("x", 1.0), [(math.nan,), (math.inf,)], pa.float64()))
    assert finished(sb.approx_percentile("x", 0.5), [(None,)], pa.float64()) is None


@pytest.mark.parametrize(
    "aggregate",
    [sb.var_pop("x"), sb.percentile("x", 0.5), sb.approx_percentile("x", 0.5)],
    ids=lambda one: one.function,
)
def test_integers_that_no_double_holds_count_as_the_nearest_double(aggregate: Aggregate) -> None:
    whole = [(2**60 + 1,), (2**53 + 1,), (-(2**63) + 1,), (7,)]
    doubles = [(float(one),) for (one,) in whole]
    assert finished(aggregate, whole, pa.int64()) == finished(aggregate, doubles, pa.float64())


@pytest.mark.parametrize("distinct", [0, 1, 10, 1_000, 20_000, 300_000])
def test_distinct_sketches_are_within_five_standard_errors(distinct: int) -> None:
    bound = sb.approx_count_distinct("x").bind("a", input_types=(pa.string(),))
    numbers = np.concatenate([np.arange(distinct), np.arange(distinct // 3)])
    values = pa.array(numbers).cast(pa.string())
    partials = bound.accumulator.fold([values], grouping_of([0] * len(numbers)))
    found = bound.accumulator.finish(partials).to_pylist() or [0]
    assert abs(found[0] - distinct) <= 5 * 1.04 / math.sqrt(1 << 12) * distinct
    assert sum(len(one) for one in partials[0].to_pylist()) <= min(distinct, 1 << 12)


@settings(deadline=None, max_examples=examples(30))
@given(rows=ROWS, data=st.data())
def test_p6_registers_are_the_same_in_any_order_and_grouping(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    bound = sb.approx_count_distinct("n", precision=4).bind("a", input_types=(pa.int32(),))
    merged = in_pieces(bound, [row[0] for row in rows], [row[3:] for row in rows], data.draw(st.integers(0, len(rows))))
    shuffled = data.draw(st.permutations(rows))
    (registers,) = bound.accumulator.fold(
        columns_of(bound, [row[3:] for row in shuffled]), grouping_of([row[0] for row in shuffled])
    )
    assert registers.to_pylist() == merged[0].to_pylist()


def test_few_values_are_counted_nearly_exactly_and_the_precision_has_bounds() -> None:
    rows = [(value,) for value in (math.nan, -math.nan, 0.0, -0.0, 1.5, None)]
    assert finished(sb.approx_count_distinct("x"), rows, pa.float64()) == 3
    with pytest.raises(InputError, match="from 4 to 18, got 30"):
        sb.approx_count_distinct("x", precision=30)


def test_p6_many_rows_have_the_same_partials_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(7)
    groups = random.integers(0, 3000, 30_000)
    values = [pa.array(random.lognormal(0, 3, len(groups))) for _ in range(2)]
    bound = sb.corr("y", "x").bind("a", input_types=(pa.float64(), pa.float64()))
    grouping = group_rows(groups, np.zeros(len(groups), dtype=np.uint64), [])
    at_once = bound.accumulator.fold(values, grouping)
    # Fewer than twice as many rows as usual are folded at once.
    monkeypatch.setattr("statebed.aggregates.accumulators.base._ROWS_AT_ONCE", 1000)
    in_pieces_of_1000 = bound.accumulator.fold(values, grouping)
    assert [column.to_pylist() for column in in_pieces_of_1000] == [column.to_pylist() for column in at_once]
    merged = bound.accumulator.merge(at_once, grouping_of([number % 300 for number in np.unique(groups).tolist()]))
    whole = bound.accumulator.fold(values, group_rows(groups % 300, np.zeros(len(groups), dtype=np.uint64), []))
    assert [column.to_pylist() for column in merged] == [column.to_pylist() for column in whole]


def test_variance_does_not_suffer_from_a_large_mean() -> None:
    rows = [(1e9 + value,) for value in (4.0, 7.0, 13.0, 16.0)]
    assert finished(sb.var_samp("x"), rows, pa.float64()) == 30.0


def test_the_mean_of_decimals_has_four_digits_more_and_rounds_half_away_from_zero() -> None:
    kind = pa.decimal128(10, 1)
    rows = [(Decimal("0.1"),), (Decimal("0.1"),), (Decimal("0.0"),)]
    assert finished(sb.mean("x"), rows, kind) == Decimal("0.06667")
    assert finished(sb.mean("x"), [(-value,) for (value,) in rows], kind) == Decimal("-0.06667")
    assert sb.mean("x").bind("a", input_types=(kind,)).output_field.type == pa.decimal128(14, 5)
    assert finished(sb.mean("x"), [(None,)], kind) is None


NINES = st.integers(0, 34).map(lambda digits: 10**digits - 1)


@settings(deadline=None)
@given(
    rows=st.lists(st.integers(-(10**34) + 1, 10**34 - 1) | NINES | st.integers(-99, 99), min_size=1, max_size=9),
    scale=st.integers(0, 34),
)
def test_the_mean_of_decimals_is_the_exact_fraction_rounded_once(rows: list[int], scale: int) -> None:
    kind = pa.decimal128(34, scale)
    with localcontext(prec=50):
        found = finished(sb.mean("x"), [(Decimal(value).scaleb(-scale),) for value in rows], kind)
        exact = Fraction(sum(rows), len(rows)) * 10**4
        size = math.floor(abs(exact) + Fraction(1, 2))
        assert found.scaleb(scale + 4) == (size if exact >= 0 else -size)


def test_the_mean_of_large_integers_does_not_overflow() -> None:
    assert finished(sb.mean("x"), [((1 << 63) - 1,)] * 3, pa.int64()) == float((1 << 63) - 1)


@pytest.mark.parametrize(
    ("aggregate", "kinds"),
    [
        (sb.mean("x"), (pa.string(),)),
        (sb.min("x"), (pa.list_(pa.int64()),)),
        (sb.max_by("x", "y"), (pa.int64(), pa.struct([("a", pa.int64())]))),
        (sb.bool_or("x"), (pa.int64(),)),
        (sb.bit_xor("x"), (pa.float64(),)),
        (sb.corr("y", "x"), (pa.float64(), pa.string())),
    ],
)
def test_types_that_an_aggregate_cannot_take_are_refused_with_advice(
    aggregate: Aggregate, kinds: tuple[pa.DataType, ...]
) -> None:
    with pytest.raises(InputError, match=f"{aggregate.function.name} cannot") as caught:
        aggregate.bind("a", input_types=kinds)
    assert caught.value.fix


def test_an_aggregate_without_its_input_is_refused() -> None:
    with pytest.raises(InputError, match="needs an input column"):
        sb.max_by("x", None)  # type: ignore[arg-type]  # as in a program without types
