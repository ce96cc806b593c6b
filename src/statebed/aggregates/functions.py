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
    """Rows; or rows in which `column` is not null; only those for which `where` holds."""
    return Aggregate(Function.COUNT, () if column is None else (column,), where)


def count_if(condition: Any) -> Aggregate:
    """Rows for which `condition` holds: count(where=condition)."""
    return count(where=condition)


def count_distinct(column: Any, *, where: Any = None) -> Aggregate:
    """How many different values `column` has; 0 for none. Exact: the state keeps them all."""
    return Aggregate(Function.COUNT_DISTINCT, (column,), where)


def approx_count_distinct(column: Any, *, precision: int = 12, where: Any = None) -> Aggregate:
    """About how many different values `column` has (HyperLogLog); 0 for none.

    The standard error is 1.04 / sqrt(2 ** precision): 1.6 % for 12. The state takes at most 4 * 2 ** precision bytes.
    """
    if not LEAST_PRECISION <= precision <= MOST_PRECISION:
        raise InputError(
            f"approx_count_distinct() with the precision {precision}",
            fix=f"give a whole number from {LEAST_PRECISION} to {MOST_PRECISION}",
        )
    return Aggregate(Function.APPROX_COUNT_DISTINCT, (column,), where, (precision,))


def sum(column: Any, *, where: Any = None) -> Aggregate:  # noqa: A001 (the name SQL and Spark give it)
    """Sum of `column` over the rows for which `where` holds; null when there is no value.

    A sum of integers that does not fit 64 bits when its window closes raises SumOverflowError; it never wraps.
    """
    return Aggregate(Function.SUM, (column,), where)


def sum_distinct(column: Any, *, where: Any = None) -> Aggregate:
    """Sum of the different values of `column`, each once. The state keeps them all."""
    return Aggregate(Function.SUM_DISTINCT, (column,), where)


def mean(column: Any, *, where: Any = None) -> Aggregate:
    """Mean of `column`: a double, or for decimals a decimal with four digits more."""
    return Aggregate(Function.MEAN, (column,), where)


def min(column: Any, *, where: Any = None) -> Aggregate:  # noqa: A001 (as sum)
    """The smallest value of `column`."""
    return Aggregate(Function.MIN, (column,), where)


def max(column: Any, *, where: Any = None) -> Aggregate:  # noqa: A001 (as sum)
    """The largest value of `column`; NaN is larger than every number."""
    return Aggregate(Function.MAX, (column,), where)


def any_value(column: Any, *, where: Any = None) -> Aggregate:
    """Some value of `column` that is not null: the smallest, so that it is the same one every time."""
    return Aggregate(Function.ANY_VALUE, (column,), where)


def mode(column: Any, *, where: Any = None) -> Aggregate:
    """The most frequent value of `column`; of several such the smallest. The state keeps the distinct values."""
    return Aggregate(Function.MODE, (column,), where)


def min_by(column: Any, by: Any, *, where: Any = None) -> Aggregate:
    """The value of `column` in the row where `by` is smallest; of several such rows the smallest value."""
    return Aggregate(Function.MIN_BY, (column, by), where)


def max_by(column: Any, by: Any, *, where: Any = None) -> Aggregate:
    """The value of `column` in the row where `by` is largest; of several such rows the smallest value."""
    return Aggregate(Function.MAX_BY, (column, by), where)


def first(column: Any, *, where: Any = None) -> Aggregate:
    """The value of `column` in the row with the earliest event time; of several such rows the smallest value."""
    return Aggregate(Function.FIRST, (column, EventTime.EVENT_TIME), where)


def last(column: Any, *, where: Any = None) -> Aggregate:
    """The value of `column` in the row with the latest event time; of several such rows the smallest value."""
    return Aggregate(Function.LAST, (column, EventTime.EVENT_TIME), where)


def collect_list(column: Any, *, where: Any = None) -> Aggregate:
    """All values that are not null, by event time and then by value; empty for none."""
    return Aggregate(Function.COLLECT_LIST, (column, EventTime.EVENT_TIME), where)


def collect_set(column: Any, *, where: Any = None) -> Aggregate:
    """The different values, in their order; empty for none."""
    return Aggregate(Function.COLLECT_SET, (column,), where)


def string_agg(column: Any, delimiter: str = "", *, where: Any = None) -> Aggregate:
    """All texts that are not null, by event time and then by value, with `delimiter` between them."""
    return Aggregate(Function.STRING_AGG, (column, EventTime.EVENT_TIME), where, (str(delimiter),))


def percentile(column: Any, at: float, *, where: Any = None) -> Aggregate:
    """The value below which the share `at` (0 to 1) of the values lies, between two values in proportion.

    Exact: the state keeps the distinct values.
    """
    return Aggregate(Function.PERCENTILE, (column,), where, (_share(at),))


def approx_percentile(column: Any, at: float, *, accuracy: float = 0.01, where: Any = None) -> Aggregate:
    """About the value below which the share `at` of the values lies, from a small histogram.

    It differs from the value at rank floor(at * (n - 1)) by at most `accuracy` (up to 1/3) times that value.
    """
    if not FINEST <= accuracy <= COARSEST:
        raise InputError(
            f"approx_percentile() with the accuracy {accuracy}",
            where=f"column {column!r}",
            fix=f"give one from {FINEST:g} to 1/3, for example 0.01 for one percent",
        )
    return Aggregate(Function.APPROX_PERCENTILE, (column,), where, (_share(at), float(accuracy)))


def median(column: Any, *, where: Any = None) -> Aggregate:
    """The value in the middle: percentile(column, 0.5)."""
    return percentile(column, 0.5, where=where)


def _share(at: float) -> float:
    if not 0.0 <= at <= 1.0:
        raise InputError(f"a percentile at {at}", fix="give a share from 0 to 1: percentile('fare', 0.95)")
    return float(at)


def aggregate(user: UserAggregate, *columns: Any, where: Any = None) -> Aggregate:
    """An aggregate of your own over `columns`: an object with `state`, `output`, accumulate, merge and finish.

    Rows in which every column is null are left out. Give it a `version` and change that when it computes otherwise.
    """
    check_user_aggregate(user)
    if not columns:
        raise InputError("aggregate() has no input", fix="name a column: aggregate(MyAggregate(), 'fare')")
    return Aggregate(Function.USER_DEFINED, columns, where, user_description(user), user)


def bool_and(column: Any, *, where: Any = None) -> Aggregate:
    """Whether `column` is true in every row in which it is not null."""
    return Aggregate(Function.BOOL_AND, (column,), where)


def bool_or(column: Any, *, where: Any = None) -> Aggregate:
    """Whether `column` is true in some row."""
    return Aggregate(Function.BOOL_OR, (column,), where)


def bit_and(column: Any, *, where: Any = None) -> Aggregate:
    """The bits that all values of an integer column have."""
    return Aggregate(Function.BIT_AND, (column,), where)


def bit_or(column: Any, *, where: Any = None) -> Aggregate:
    """The bits that some value of an integer column has."""
    return Aggregate(Function.BIT_OR, (column,), where)


def bit_xor(column: Any, *, where: Any = None) -> Aggregate:
    """The bits that an odd number of values of an integer column have."""
    return Aggregate(Function.BIT_XOR, (column,), where)


def _moment(function: Function, meaning: str) -> Callable[..., Aggregate]:
    def of_one(column: Any, *, where: Any = None) -> Aggregate:
        return Aggregate(function, (column,), where)

    def of_two(y: Any, x: Any, *, where: Any = None) -> Aggregate:
        return Aggregate(function, (y, x), where)

    made = of_one if MomentFunction(function.value).columns == 1 else of_two
    made.__name__ = made.__qualname__ = function.value
    made.__doc__ = meaning
    return made


var_pop = _moment(Function.VAR_POP, "Variance of the values as the whole population.")
var_samp = _moment(Function.VAR_SAMP, "Variance of the values as a sample; null for one value.")
stddev_pop = _moment(Function.STDDEV_POP, "Square root of var_pop.")
stddev_samp = _moment(Function.STDDEV_SAMP, "Square root of var_samp.")
covar_pop = _moment(Function.COVAR_POP, "Covariance of two columns as the whole population.")
covar_samp = _moment(Function.COVAR_SAMP, "Covariance of two columns as a sample; null for one row.")
corr = _moment(Function.CORR, "Pearson's correlation of two columns.")
regr_count = _moment(Function.REGR_COUNT, "Rows in which neither y nor x is null.")
regr_avgx = _moment(Function.REGR_AVGX, "Mean of x, of rows in which neither is null.")
regr_avgy = _moment(Function.REGR_AVGY, "Mean of y, of rows in which neither is null.")
regr_sxx = _moment(Function.REGR_SXX, "Sum of squared distances of x from its mean.")
regr_syy = _moment(Function.REGR_SYY, "Sum of squared distances of y from its mean.")
regr_sxy = _moment(Function.REGR_SXY, "Sum of products of the distances of x and y from their means.")
regr_slope = _moment(Function.REGR_SLOPE, "Slope of the line that fits y by x; null where x is constant.")
regr_intercept = _moment(Function.REGR_INTERCEPT, "Where that line meets x = 0.")
regr_r2 = _moment(Function.REGR_R2, "How much of the variance of y that line explains, 0 to 1.")
