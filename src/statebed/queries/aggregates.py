"""Aggregate functions of Spark as statebed's."""

from collections.abc import Callable
from typing import Any

from statebed.aggregates import functions as ours
from statebed.spark.analysed.expression_text import UntranslatableError, not_ansi
from statebed.spark.analysed.plan_tree import Expr

SAME: dict[str, Callable[..., Any]] = {
    "AnyValue": ours.any_value,
    "Average": ours.mean,
    "BitAndAgg": ours.bit_and,
    "BitOrAgg": ours.bit_or,
    "BitXorAgg": ours.bit_xor,
    "BoolAnd": ours.bool_and,
    "BoolOr": ours.bool_or,
    "Corr": ours.corr,
    "CovPopulation": ours.covar_pop,
    "CovSample": ours.covar_samp,
    "Max": ours.max,
    "MaxBy": ours.max_by,
    "Median": ours.median,
    "Min": ours.min,
    "MinBy": ours.min_by,
    "RegrAvgX": ours.regr_avgx,
    "RegrAvgY": ours.regr_avgy,
    "RegrCount": ours.regr_count,
    "RegrIntercept": ours.regr_intercept,
    "RegrR2": ours.regr_r2,
    "RegrSXX": ours.regr_sxx,
    "RegrSXY": ours.regr_sxy,
    "RegrSYY": ours.regr_syy,
    "RegrSlope": ours.regr_slope,
    "StddevPop": ours.stddev_pop,
    "StddevSamp": ours.stddev_samp,
    "Sum": ours.sum,
    "VariancePop": ours.var_pop,
    "VarianceSamp": ours.var_samp,
}
"""Functions whose arguments are their children."""
BY_ARRIVAL = {
    "First": "first",
    "Last": "last",
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
    "ListAgg": "listagg",
    "Mode": "mode",
}
"""Functions whose result in Spark depends on the order in which rows arrive."""
SKETCHES = {"HyperLogLogPlusPlus": "approx_count_distinct", "ApproximatePercentile": "approx_percentile"}
"""Functions whose approximation differs from Spark's."""
_DISTINCT_IS_SAME = frozenset({"Min", "Max", "BoolAnd", "BoolOr", "AnyValue"})
Input = Callable[[Expr], Any]


def aggregate_of(e: Expr, value: Input, *, approximate: bool = False) -> Any:  # noqa: C901, PLR0911 - one return per kind
    """Return the aggregate for an AggregateExpression; `value` gives the input of an operator for an expression."""
    function, condition = e.child, (e.children[1] if len(e.children) > 1 else None)
    where = None if condition is None else value(condition)
    name, inputs, distinct = function.kind, function.children, bool(e.fields["isDistinct"])
    if name in BY_ARRIVAL:
        return _by_arrival(e, function, value, where, distinct, allowed=approximate)
    if name in SKETCHES:
        return _sketch(e, function, value, where, allowed=approximate)
    if name in {"Sum", "Average"} and function.mode != "ANSI":
        raise not_ansi(f"{e.sql}: {name}", function.mode)
    if name == "Count":
        return _count(e, inputs, value, where, distinct)
    if name == "CountIf":
        return ours.count(where=value(inputs[0])) if where is None else _refuse(e, "count_if with FILTER")
    if distinct and name == "Sum":
        return ours.sum_distinct(value(inputs[0]), where=where)
    if distinct and name not in _DISTINCT_IS_SAME:
        return _refuse(e, f"{name} of distinct values")
    if name == "Percentile":
        share, frequency = inputs[1], inputs[2]
        if share.kind != "Literal" or str(frequency.fields.get("value")) != "1":
            return _refuse(e, "percentile needs one constant share, and no frequencies")
        return ours.percentile(value(inputs[0]), float(share.fields["value"]), where=where)
    if name == "PivotFirst":
        raise UntranslatableError(
            "pivot() groups twice, by the pivoted column as well",
            "write one aggregate per value: count_if(word = 'a') AS a, sum(CASE WHEN word = 'b' THEN n END) AS b",
        )
    if name not in SAME:
        return _refuse(e, f"statebed has no aggregate {name}")
    return SAME[name](*(value(operand) for operand in inputs), where=where)


def _count(e: Expr, inputs: list[Expr], value: Input, where: Any, distinct: bool) -> Any:
    if not distinct and all(operand.kind == "Literal" and operand.fields["value"] is not None for operand in inputs):
        return ours.count(where=where)
    if len(inputs) != 1:
        return _refuse(e, "count of several columns")
    return (ours.count_distinct if distinct else ours.count)(value(inputs[0]), where=where)


def _by_arrival(e: Expr, function: Expr, value: Input, where: Any, distinct: bool, *, allowed: bool) -> Any:
    name = BY_ARRIVAL[function.kind]
    if not allowed:
        raise UntranslatableError(
            f"{name}() depends on the order in which rows arrive, which differs from run to run in Spark, too",
            "pass approximate=True to order by event time instead, or use min_by / max_by",
        )
    if distinct and function.kind != "CollectSet":
        return _refuse(e, f"{name} of distinct values")
    first = function.children[0]
    if function.kind == "ListAgg":
        return ours.string_agg(value(first), str(function.children[1].fields.get("value") or ""), where=where)
    makers: dict[str, Callable[..., Any]] = {
        "First": ours.first,
        "Last": ours.last,
        "CollectList": ours.collect_list,
        "CollectSet": ours.collect_set,
        "Mode": ours.mode,
    }
    return makers[function.kind](value(first), where=where)


def _sketch(e: Expr, function: Expr, value: Input, where: Any, *, allowed: bool) -> Any:
    name = SKETCHES[function.kind]
    if not allowed:
        raise UntranslatableError(
            f"{name}() approximates in another way than Spark's, so results would differ",
            "pass approximate=True to accept statebed's approximation, or use the exact function",
        )
    if function.kind == "HyperLogLogPlusPlus":
        return ours.approx_count_distinct(value(function.children[0]), where=where)
    share = function.children[1]
    if share.kind != "Literal":
        return _refuse(e, "approx_percentile needs one constant share")
    return ours.approx_percentile(value(function.children[0]), float(share.fields["value"]), where=where)


def _refuse(e: Expr, why: str) -> Any:
    raise UntranslatableError(f"{e.sql}: {why}")
