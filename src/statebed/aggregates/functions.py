"""The aggregates as users write them: `sb.count()`, `sb.sum("fare", where="paid")`.

Columns are names, SQL text or Spark Columns. `where` limits an aggregate to the rows for which it holds. All ignore
nulls, and are null when there is no value, unless they say otherwise; none depends on the order of rows.
"""

from collections.abc import Callable
from typing import Any

from statebed.aggregates.accumulator_choice import Function
from statebed.aggregates.accumulators import (
    LEAST_PRECISION,
    MOST_PRECISION,
    MomentFunction,
    UserAggregate,
    check_user_aggregate,
    user_description,
)
from statebed.aggregates.aggregate import Aggregate, EventTime
from statebed.errors import InputError

__all__ = [
    "aggregate",
    "any_value",
    "approx_count_distinct",
    "approx_percentile",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "collect_list",
    "collect_set",
    "corr",
    "count",
    "count_distinct",
    "count_if",
    "covar_pop",
    "covar_samp",
    "first",
    "last",
    "max",
    "max_by",
    "mean",
    "median",
    "min",
    "min_by",
    "mode",
    "percentile",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
    "stddev_pop",
    "stddev_samp",
    "string_agg",
    "sum",
    "sum_distinct",
    "var_pop",
    "var_samp",
]


FINEST = 1e-5
"""The finest accuracy of a sketch; finer ones would hold as much as the values."""
COARSEST = 1 / 3
"""A bucket is as wide as a doubling then; of wider ones the ends would differ by more than the accuracy allows."""


def count(column: Any = None, *, where: Any = None) -> Aggregate:
    """Count rows, or rows in which `column` is not null; with `where`, only rows for which it is true.

    >>> rows = [{"x": 3}, {"x": 1}, {"x": None}]
    >>> sb.testing.evaluate(rows, n=sb.count(), values=sb.count("x"), large=sb.count(where="x > 2"))
    {'n': 3, 'values': 2, 'large': 1}
    """
    return Aggregate(Function.COUNT, () if column is None else (column,), where)


def count_if(condition: Any) -> Aggregate:
    """Count the rows for which `condition` is true: the same as count(where=condition).

    >>> sb.testing.evaluate([{"x": 3}, {"x": 1}, {"x": None}], large=sb.count_if("x > 2"))
    {'large': 1}
    """
    return count(where=condition)


def count_distinct(column: Any, *, where: Any = None) -> Aggregate:
    """Count the distinct values of `column`; 0 if there are none. Exact: the state keeps every distinct value.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 3}, {"x": 1}], n=sb.count_distinct("x"))
    {'n': 2}
    """
    return Aggregate(Function.COUNT_DISTINCT, (column,), where)


def approx_count_distinct(column: Any, *, precision: int = 12, where: Any = None) -> Aggregate:
    """Estimate the number of distinct values of `column` with HyperLogLog; 0 if there are none.

    The standard error is 1.04 / sqrt(2 ** precision): 1.6 % at 12. The state takes at most 4 * 2 ** precision bytes.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 3}, {"x": 1}], n=sb.approx_count_distinct("x"))
    {'n': 2}
    """
    if not LEAST_PRECISION <= precision <= MOST_PRECISION:
        raise InputError(
            f"approx_count_distinct() with the precision {precision}",
            fix=f"give a whole number from {LEAST_PRECISION} to {MOST_PRECISION}",
        )
    return Aggregate(Function.APPROX_COUNT_DISTINCT, (column,), where, (precision,))


def sum(column: Any, *, where: Any = None) -> Aggregate:  # noqa: A001 (the name SQL and Spark give it)
    """Sum `column` over the rows for which `where` is true; null if there is no value.

    If a sum of integers does not fit into 64 bits when its window closes, SumOverflowError is raised; it never wraps.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 1}, {"x": None}], total=sb.sum("x"), large=sb.sum("x", where="x > 2"))
    {'total': 4, 'large': 3}
    """
    return Aggregate(Function.SUM, (column,), where)


def sum_distinct(column: Any, *, where: Any = None) -> Aggregate:
    """Sum the distinct values of `column`. The state keeps every distinct value.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 3}, {"x": 1}], total=sb.sum_distinct("x"))
    {'total': 4}
    """
    return Aggregate(Function.SUM_DISTINCT, (column,), where)


def mean(column: Any, *, where: Any = None) -> Aggregate:
    """Average `column`: a double, or for decimals a decimal with four more digits.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 1}, {"x": None}], mean=sb.mean("x"))
    {'mean': 2.0}
    """
    return Aggregate(Function.MEAN, (column,), where)


def min(column: Any, *, where: Any = None) -> Aggregate:  # noqa: A001 (as sum)
    """Return the smallest value of `column`.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 1}, {"x": None}], least=sb.min("x"))
    {'least': 1}
    """
    return Aggregate(Function.MIN, (column,), where)


def max(column: Any, *, where: Any = None) -> Aggregate:  # noqa: A001 (as sum)
    """Return the largest value of `column`; NaN is larger than every number.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 1}, {"x": None}], most=sb.max("x"))
    {'most': 3}
    """
    return Aggregate(Function.MAX, (column,), where)


def any_value(column: Any, *, where: Any = None) -> Aggregate:
    """Return a non-null value of `column`: always the smallest, so that a replay gives the same one.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 1}, {"x": None}], value=sb.any_value("x"))
    {'value': 1}
    """
    return Aggregate(Function.ANY_VALUE, (column,), where)


def mode(column: Any, *, where: Any = None) -> Aggregate:
    """Return the most frequent value of `column`, the smallest one in a tie. The state keeps the distinct values.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 3}, {"x": 1}], mode=sb.mode("x"))
    {'mode': 3}
    """
    return Aggregate(Function.MODE, (column,), where)


def min_by(column: Any, by: Any, *, where: Any = None) -> Aggregate:
    """Return `column` of the row in which `by` is smallest; in a tie the smallest value.

    >>> rows = [{"driver": "ann", "fare": 7}, {"driver": "bob", "fare": 5}]
    >>> sb.testing.evaluate(rows, cheapest=sb.min_by("driver", "fare"))
    {'cheapest': 'bob'}
    """
    return Aggregate(Function.MIN_BY, (column, by), where)


def max_by(column: Any, by: Any, *, where: Any = None) -> Aggregate:
    """Return `column` of the row in which `by` is largest; in a tie the smallest value.

    >>> rows = [{"driver": "ann", "fare": 7}, {"driver": "bob", "fare": 5}]
    >>> sb.testing.evaluate(rows, dearest=sb.max_by("driver", "fare"))
    {'dearest': 'ann'}
    """
    return Aggregate(Function.MAX_BY, (column, by), where)


def first(column: Any, *, where: Any = None) -> Aggregate:
    """Return `column` of the row with the earliest event time; in a tie the smallest value.

    >>> from datetime import datetime as at
    >>> rows = [{"x": 3, "s": "b", "ts": at(2026, 1, 2)}, {"x": 1, "s": "a", "ts": at(2026, 1, 1)}]
    >>> sb.testing.evaluate(rows, first=sb.first("x"))
    {'first': 1}
    """
    return Aggregate(Function.FIRST, (column, EventTime.EVENT_TIME), where)


def last(column: Any, *, where: Any = None) -> Aggregate:
    """Return `column` of the row with the latest event time; in a tie the smallest value.

    >>> from datetime import datetime as at
    >>> rows = [{"x": 3, "s": "b", "ts": at(2026, 1, 2)}, {"x": 1, "s": "a", "ts": at(2026, 1, 1)}]
    >>> sb.testing.evaluate(rows, last=sb.last("x"))
    {'last': 3}
    """
    return Aggregate(Function.LAST, (column, EventTime.EVENT_TIME), where)


def collect_list(column: Any, *, where: Any = None) -> Aggregate:
    """Collect all non-null values into a list, by event time and then by value; empty if there are none.

    >>> from datetime import datetime as at
    >>> rows = [{"x": 3, "s": "b", "ts": at(2026, 1, 2)}, {"x": 1, "s": "a", "ts": at(2026, 1, 1)}]
    >>> sb.testing.evaluate(rows, xs=sb.collect_list("x"))
    {'xs': [1, 3]}
    """
    return Aggregate(Function.COLLECT_LIST, (column, EventTime.EVENT_TIME), where)


def collect_set(column: Any, *, where: Any = None) -> Aggregate:
    """Collect the distinct values into a sorted list; empty if there are none.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 3}, {"x": 1}], xs=sb.collect_set("x"))
    {'xs': [1, 3]}
    """
    return Aggregate(Function.COLLECT_SET, (column,), where)


def string_agg(column: Any, delimiter: str = "", *, where: Any = None) -> Aggregate:
    """Join all non-null texts, by event time and then by value, with `delimiter` between them.

    >>> from datetime import datetime as at
    >>> rows = [{"x": 3, "s": "b", "ts": at(2026, 1, 2)}, {"x": 1, "s": "a", "ts": at(2026, 1, 1)}]
    >>> sb.testing.evaluate(rows, names=sb.string_agg("s", "+"))
    {'names': 'a+b'}
    """
    return Aggregate(Function.STRING_AGG, (column, EventTime.EVENT_TIME), where, (str(delimiter),))


def percentile(column: Any, at: float, *, where: Any = None) -> Aggregate:
    """Return the value at the share `at` (0 to 1) of the sorted values, interpolated between neighbours.

    Exact: the state keeps the distinct values.

    >>> sb.testing.evaluate([{"x": 1}, {"x": 2}, {"x": 4}], p75=sb.percentile("x", 0.75))
    {'p75': 3.0}
    """
    return Aggregate(Function.PERCENTILE, (column,), where, (_share(at),))


def approx_percentile(column: Any, at: float, *, accuracy: float = 0.01, where: Any = None) -> Aggregate:
    """Estimate the value at the share `at` of the sorted values from a small histogram.

    The estimate differs from the value at rank floor(at * (n - 1)) by at most `accuracy` (up to 1/3) times that value.

    >>> sb.testing.evaluate([{"x": 1}, {"x": 2}, {"x": 4}], least=sb.approx_percentile("x", 0.0))
    {'least': 1.01}
    """
    if not FINEST <= accuracy <= COARSEST:
        raise InputError(
            f"approx_percentile() with the accuracy {accuracy}",
            where=f"column {column!r}",
            fix=f"give one from {FINEST:g} to 1/3, for example 0.01 for one percent",
        )
    return Aggregate(Function.APPROX_PERCENTILE, (column,), where, (_share(at), float(accuracy)))


def median(column: Any, *, where: Any = None) -> Aggregate:
    """Return the value in the middle: the same as percentile(column, 0.5).

    >>> sb.testing.evaluate([{"x": 1}, {"x": 2}, {"x": 4}], middle=sb.median("x"))
    {'middle': 2.0}
    """
    return percentile(column, 0.5, where=where)


def _share(at: float) -> float:
    if not 0.0 <= at <= 1.0:
        raise InputError(f"a percentile at {at}", fix="give a share from 0 to 1: percentile('fare', 0.95)")
    return float(at)


def aggregate(user: UserAggregate, *columns: Any, where: Any = None) -> Aggregate:
    """Use an aggregate of your own over `columns`: an object with `state`, `output`, accumulate, merge and finish.

    Rows in which every column is null are left out. Give it a `version`, and change that when it computes something
    else.

    >>> import numpy as np, pyarrow as pa
    >>> class Product:
    ...     state, output = "product double", "double"
    ...     def accumulate(self, groups, n_groups, values):
    ...         product = np.ones(n_groups)
    ...         np.multiply.at(product, np.asarray(groups), np.asarray(values))
    ...         return [pa.array(product)]
    ...     merge = accumulate
    ...     def finish(self, product):
    ...         return product
    >>> sb.testing.evaluate([{"x": 2.0}, {"x": 3.0}], product=sb.aggregate(Product(), "x"))
    {'product': 6.0}
    """
    check_user_aggregate(user)
    if not columns:
        raise InputError("aggregate() has no input", fix="name a column: aggregate(MyAggregate(), 'fare')")
    return Aggregate(Function.USER_DEFINED, columns, where, user_description(user), user)


def bool_and(column: Any, *, where: Any = None) -> Aggregate:
    """Return whether `column` is true in every row in which it is not null.

    >>> sb.testing.evaluate([{"paid": True}, {"paid": False}], all=sb.bool_and("paid"))
    {'all': False}
    """
    return Aggregate(Function.BOOL_AND, (column,), where)


def bool_or(column: Any, *, where: Any = None) -> Aggregate:
    """Return whether `column` is true in at least one row.

    >>> sb.testing.evaluate([{"paid": True}, {"paid": False}], any=sb.bool_or("paid"))
    {'any': True}
    """
    return Aggregate(Function.BOOL_OR, (column,), where)


def bit_and(column: Any, *, where: Any = None) -> Aggregate:
    """Return the bits set in every value of an integer column.

    >>> sb.testing.evaluate([{"x": 6}, {"x": 3}], bits=sb.bit_and("x"))
    {'bits': 2}
    """
    return Aggregate(Function.BIT_AND, (column,), where)


def bit_or(column: Any, *, where: Any = None) -> Aggregate:
    """Return the bits set in at least one value of an integer column.

    >>> sb.testing.evaluate([{"x": 6}, {"x": 3}], bits=sb.bit_or("x"))
    {'bits': 7}
    """
    return Aggregate(Function.BIT_OR, (column,), where)


def bit_xor(column: Any, *, where: Any = None) -> Aggregate:
    """Return the bits set in an odd number of values of an integer column.

    >>> sb.testing.evaluate([{"x": 6}, {"x": 3}], bits=sb.bit_xor("x"))
    {'bits': 5}
    """
    return Aggregate(Function.BIT_XOR, (column,), where)


def _moment(function: Function, meaning: str, example: float) -> Callable[..., Aggregate]:
    """Make the function that users call. `example` is its result for the rows in the example of its docstring."""

    def of_one(column: Any, *, where: Any = None) -> Aggregate:
        return Aggregate(function, (column,), where)

    def of_two(y: Any, x: Any, *, where: Any = None) -> Aggregate:
        return Aggregate(function, (y, x), where)

    made = of_one if MomentFunction(function.value).columns == 1 else of_two
    made.__name__ = made.__qualname__ = function.value
    inputs = '"y"' if made is of_one else '"y", "x"'
    made.__doc__ = f"""{meaning}

    >>> rows = [{{"y": 1, "x": 1}}, {{"y": 2, "x": 2}}, {{"y": 6, "x": 3}}]
    >>> sb.testing.evaluate(rows, result=sb.{function.value}({inputs}))
    {{'result': {example!r}}}
    """
    return made


var_pop = _moment(Function.VAR_POP, "Population variance of the values.", 4.666666666666667)
var_samp = _moment(Function.VAR_SAMP, "Sample variance of the values; null for a single value.", 7.0)
stddev_pop = _moment(
    Function.STDDEV_POP, "Population standard deviation: the square root of var_pop.", 2.160246899469287
)
stddev_samp = _moment(
    Function.STDDEV_SAMP, "Sample standard deviation: the square root of var_samp.", 2.6457513110645907
)
covar_pop = _moment(Function.COVAR_POP, "Population covariance of two columns.", 1.6666666666666667)
covar_samp = _moment(Function.COVAR_SAMP, "Sample covariance of two columns; null for a single row.", 2.5)
corr = _moment(Function.CORR, "Pearson correlation of two columns.", 0.944911182523068)
regr_count = _moment(Function.REGR_COUNT, "Number of rows in which neither y nor x is null.", 3)
regr_avgx = _moment(Function.REGR_AVGX, "Mean of x over rows in which neither is null.", 2.0)
regr_avgy = _moment(Function.REGR_AVGY, "Mean of y over rows in which neither is null.", 3.0)
regr_sxx = _moment(Function.REGR_SXX, "Sum of squared deviations of x from its mean.", 2.0)
regr_syy = _moment(Function.REGR_SYY, "Sum of squared deviations of y from its mean.", 14.0)
regr_sxy = _moment(Function.REGR_SXY, "Sum of products of the deviations of x and y from their means.", 5.0)
regr_slope = _moment(Function.REGR_SLOPE, "Slope of the least-squares line of y over x; null if x is constant.", 2.5)
regr_intercept = _moment(Function.REGR_INTERCEPT, "Intercept of the least-squares line of y over x.", -2.0)
regr_r2 = _moment(
    Function.REGR_R2, "Coefficient of determination of the least-squares line, 0 to 1.", 0.8928571428571429
)
