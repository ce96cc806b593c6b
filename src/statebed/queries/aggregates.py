"""Aggregate functions of Spark as statebed's."""

from collections.abc import Callable, Sequence
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
PERCENTILES = frozenset({"Percentile", "PercentileCont"})
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
_COMPARES_FIRST = frozenset({"CollectSet", "HyperLogLogPlusPlus", "Max", "Min", "Mode"})
"""Functions whose result depends on how their first argument is compared."""
_DISTINCT_LISTS = {
    "collect_list": "write collect_set(v)",
    "listagg": "write array_join(array_sort(collect_set(v)), ',')",
}
"""Replacements of lists of distinct values."""
Input = Callable[[Expr], Any]


def aggregate_of(e: Expr, value: Input, *, approximate: bool = False) -> Any:  # noqa: C901, PLR0911, PLR0912 - one return per kind
    """Return the aggregate for an AggregateExpression; `value` gives the input of an operator for an expression."""
    function, condition = e.child, (e.children[1] if len(e.children) > 1 else None)
    where = None if condition is None else value(condition)
    name, inputs, distinct = function.kind, function.children, bool(e.fields["isDistinct"])
    _check_collation(e, name, inputs, distinct)
    if name in BY_ARRIVAL and not (name == "Mode" and function.fields.get("reverseOpt") is True):
        return _by_arrival(e, function, value, where, distinct, allowed=approximate)
    if name in SKETCHES:
        return _sketch(e, function, value, where, allowed=approximate)
    if name in {"Sum", "Average"} and function.mode != "ANSI":
        raise not_ansi(f"{e.sql}: {name}", function.mode)
    if name == "Count":
        return _count(e, inputs, value, where, distinct)
    if name == "Mode":  # in a tie the smallest value, as ours
        return _refuse_distinct(e, "mode") if distinct else ours.mode(value(inputs[0]), where=where)
    if name == "CountIf":
        if distinct:
            raise UntranslatableError(
                f"{e.sql}: count_if of distinct values is 1 or 0", "write max(if(condition, 1, 0)), without DISTINCT"
            )
        condition = value(inputs[0])
        return ours.count(where=condition if where is None else f"({condition}) and ({where})")
    if distinct and name == "Sum":
        return ours.sum_distinct(value(inputs[0]), where=where)
    if distinct and name not in _DISTINCT_IS_SAME:
        return _refuse_distinct(e, _written(function))
    if name in PERCENTILES:
        (result,) = percentiles(e, [percentile_shares(e)], value)
        return result
    if name == "PivotFirst":
        raise UntranslatableError(
            "pivot() groups twice, by the pivoted column as well",
            "write one aggregate per value: count_if(word = 'a') AS a, sum(CASE WHEN word = 'b' THEN n END) AS b",
        )
    if name in {"Max", "Min"} and isinstance(inputs[0].type_json, dict):
        raise UntranslatableError(
            f"{e.sql}: structs, arrays and maps are not ordered",
            f"take its parts apart: {name.lower()}(a), and {name.lower()}_by(b, a)",
        )
    if name not in SAME:
        raise UntranslatableError(
            f"statebed has no aggregate {_written(function)}()",
            "use one of docs/reference/aggregates.md, write your own with sb.aggregate, or compute the result "
            "from others, such as sum(x), sum(x * x) and count(x)",
        )
    return SAME[name](*(value(operand) for operand in inputs), where=where)


def percentile_shares(e: Expr) -> float | list[float] | None:
    """Return the share of a call of percentile, or its list of shares; None if it is another call."""
    function = e.child
    if function.kind not in PERCENTILES:
        return None
    if function.fields.get("reverse"):
        raise UntranslatableError(
            f"{e.sql} sorts the values in descending order",
            "sort them in ascending order, and use one minus the share",
        )
    share = function.children[1]
    if not share.handle.foldable():
        raise UntranslatableError(f"{e.sql}: the share is not a constant", "write a number, such as 0.5")
    if function.kind == "Percentile" and str(function.children[2].fields.get("value")) != "1":
        raise UntranslatableError(
            f"{e.sql}: percentile has a column of frequencies", "repeat each row by explode(array_repeat(x, n)) before"
        )
    content = share.handle.eval(None)
    return float(content) if isinstance(content, float | int) else [float(number) for number in content.toDoubleArray()]


def percentiles(e: Expr, shares: Sequence[Any], value: Input) -> list[Any]:
    """Return an aggregate for each share of a call of percentile."""
    if e.fields["isDistinct"]:
        return [_refuse_distinct(e, _written(e.child))]
    where = value(e.children[1]) if len(e.children) > 1 else None
    return [ours.percentile(value(e.child.children[0]), share, where=where) for share in shares]


def _count(e: Expr, inputs: list[Expr], value: Input, where: Any, distinct: bool) -> Any:
    if not distinct and all(operand.kind == "Literal" and operand.fields["value"] is not None for operand in inputs):
        return ours.count(where=where)
    if len(inputs) > 1:
        # A row counts if none of its values is null.
        present = [f"{value(operand)} is not null" for operand in inputs if operand.kind != "Literal"]
        condition = " and ".join([*present, *([] if where is None else [f"({where})"])])
        if any(operand.kind == "Literal" and operand.fields["value"] is None for operand in inputs):
            condition = "false"
        if distinct:
            raise UntranslatableError(
                f"{e.sql}: distinct values of several columns are not counted",
                "count those of one column that has them all, such as to_json(struct(a, b))",
            )
        return ours.count(where=condition)
    return (ours.count_distinct if distinct else ours.count)(value(inputs[0]), where=where)


def _by_arrival(e: Expr, function: Expr, value: Input, where: Any, distinct: bool, *, allowed: bool) -> Any:
    name = BY_ARRIVAL[function.kind]
    if not allowed:
        raise UntranslatableError(
            f"{name}() depends on the order in which rows arrive, which differs from run to run in Spark, too",
            "pass approximate=True to order by event time instead, or use min_by / max_by",
        )
    if distinct and function.kind != "CollectSet":
        return _refuse_distinct(e, name)
    first = function.children[0]
    _check_order(e, function)
    if function.kind in {"First", "Last"} and function.fields.get("ignoreNulls"):
        present = f"{value(first)} is not null"
        where = present if where is None else f"{present} and ({where})"
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


def _check_order(e: Expr, function: Expr) -> None:
    """Raise UntranslatableError for orders and nulls that the aggregates by event time do not have."""
    if function.kind == "ListAgg" and function.fields.get("orderExpressions"):
        raise UntranslatableError(
            f"{e.sql}: texts are joined in the order of their event times",
            "sort them behind the aggregate: array_join(array_sort(collect_list(k)), ','), or "
            "array_join(transform(array_sort(collect_list(struct(v, k))), s -> s.k), ',') for the order of v",
        )
    if function.kind == "Mode" and function.fields.get("reverseOpt") is False:
        raise UntranslatableError(
            f"{e.sql}: of values that are equally frequent, the smallest is the mode", "write mode(value, true)"
        )
    if function.kind in {"CollectList", "CollectSet"} and function.fields.get("ignoreNulls") is False:
        raise UntranslatableError(
            f"{e.sql}: nulls are not collected", "replace them before, such as coalesce(text, 'none')"
        )


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
        raise UntranslatableError(
            f"{e.sql}: approx_percentile takes one constant share",
            "call it once for each share: approx_percentile(v, 0.5)",
        )
    return ours.approx_percentile(value(function.children[0]), float(share.fields["value"]), where=where)


def _check_collation(e: Expr, name: str, inputs: Sequence[Expr], distinct: bool) -> None:
    """Raise UntranslatableError for texts that the aggregate would compare by their bytes, against their collation."""
    orders = inputs[1:2] if name in {"MaxBy", "MinBy"} else []
    for part in inputs if distinct or name in _COMPARES_FIRST else orders:
        if "collate" in str(part.type_json):
            raise UntranslatableError(
                f"{e.sql} compares texts by a collation; operators compare them by their bytes",
                "aggregate a form that is ordered by its bytes, such as lower(text) collate utf8_binary",
            )


def _refuse_distinct(e: Expr, name: str) -> Any:
    """Refuse an aggregate of distinct values, which another way of writing the query computes."""
    if name in _DISTINCT_LISTS:
        raise UntranslatableError(f"{e.sql}: {name} of distinct values", _DISTINCT_LISTS[name])
    raise UntranslatableError(
        f"{e.sql}: {name} of distinct values",
        f"remove duplicates first: df.dropDuplicates(['k', 'v']).groupBy('k').agg(...), with {name}(v), not DISTINCT",
        sql_fix=f"remove duplicates first: SELECT k, {name}(v) FROM (SELECT DISTINCT k, v FROM t) GROUP BY k",  # noqa: S608 - advice
    )


def _written(function: Expr) -> str:
    """Return the name of a function as users write it."""
    return str(function.sql.partition("(")[0])
