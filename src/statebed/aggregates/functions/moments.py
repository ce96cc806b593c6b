"""Variances, covariances, correlation and regression."""

from typing import Protocol

from statebed.aggregates.accumulators import Accumulator, MomentFunction, Moments
from statebed.aggregates.aggregate import Aggregate
from statebed.aggregates.declaration import AccumulatorRequest, Function, Takes, declare
from statebed.aggregates.functions.makers import is_number
from statebed.expressions.column_like import ColumnLike

__all__ = [
    "corr",
    "covar_pop",
    "covar_samp",
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
    "var_pop",
    "var_samp",
]


class OfOneColumn(Protocol):
    """Signature of variances and standard deviations."""

    def __call__(self, column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
        """Aggregate one column."""


class OfTwoColumns(Protocol):
    """Signature of covariances, correlation and regression: y comes before x, as in SQL."""

    def __call__(self, y: ColumnLike, x: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
        """Aggregate the rows in which neither column is null."""


def _declare_moment(moment: MomentFunction, state: str, other_names: tuple[str, ...]) -> Function:
    def make(request: AccumulatorRequest) -> Accumulator | None:
        moments = Moments(request.name, moment, changelog=request.changelog)
        return moments if all(map(is_number, request.kinds)) else None

    return declare(Function(moment.value, make, takes=Takes.NUMBERS, state=state, other_names=other_names))


def _docstring(moment: MomentFunction, meaning: str, inputs: str, example: float) -> str:
    return f"""{meaning}

    >>> rows = [{{"y": 1, "x": 1}}, {{"y": 2, "x": 2}}, {{"y": 6, "x": 3}}]
    >>> sb.testing.evaluate(rows, result=sb.{moment.value}({inputs}))
    {{'result': {example!r}}}
    """


def _of_one(moment: MomentFunction, meaning: str, example: float, *, other_names: tuple[str, ...] = ()) -> OfOneColumn:
    """Declare a moment of one column. `example` is its result for the rows in the example of its docstring."""
    function = _declare_moment(moment, "count and two sums", other_names)

    def make(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
        return Aggregate(function, (column,), where)

    make.__name__ = make.__qualname__ = function.name
    make.__doc__ = _docstring(moment, meaning, '"y"', example)
    return make


def _of_two(moment: MomentFunction, meaning: str, example: float) -> OfTwoColumns:
    """Declare a moment of two columns. `example` is its result for the rows in the example of its docstring."""
    function = _declare_moment(moment, "count and five sums", ())

    def make(y: ColumnLike, x: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
        return Aggregate(function, (y, x), where)

    make.__name__ = make.__qualname__ = function.name
    make.__doc__ = _docstring(moment, meaning, '"y", "x"', example)
    return make


var_pop = _of_one(MomentFunction.VAR_POP, "Population variance of the values.", 4.666666666666667)
var_samp = _of_one(
    MomentFunction.VAR_SAMP, "Sample variance of the values; null for a single value.", 7.0, other_names=("variance",)
)
stddev_pop = _of_one(
    MomentFunction.STDDEV_POP, "Population standard deviation: the square root of var_pop.", 2.160246899469287
)
stddev_samp = _of_one(
    MomentFunction.STDDEV_SAMP,
    "Sample standard deviation: the square root of var_samp.",
    2.6457513110645907,
    other_names=("std", "stddev"),
)
covar_pop = _of_two(MomentFunction.COVAR_POP, "Population covariance of two columns.", 1.6666666666666667)
covar_samp = _of_two(MomentFunction.COVAR_SAMP, "Sample covariance of two columns; null for a single row.", 2.5)
corr = _of_two(MomentFunction.CORR, "Pearson correlation of two columns.", 0.944911182523068)
regr_count = _of_two(MomentFunction.REGR_COUNT, "Number of rows in which neither y nor x is null.", 3)
regr_avgx = _of_two(MomentFunction.REGR_AVGX, "Mean of x over rows in which neither is null.", 2.0)
regr_avgy = _of_two(MomentFunction.REGR_AVGY, "Mean of y over rows in which neither is null.", 3.0)
regr_sxx = _of_two(MomentFunction.REGR_SXX, "Sum of squared deviations of x from its mean.", 2.0)
regr_syy = _of_two(MomentFunction.REGR_SYY, "Sum of squared deviations of y from its mean.", 14.0)
regr_sxy = _of_two(MomentFunction.REGR_SXY, "Sum of products of the deviations of x and y from their means.", 5.0)
regr_slope = _of_two(
    MomentFunction.REGR_SLOPE, "Slope of the least-squares line of y over x; null if x is constant.", 2.5
)
regr_intercept = _of_two(MomentFunction.REGR_INTERCEPT, "Intercept of the least-squares line of y over x.", -2.0)
regr_r2 = _of_two(
    MomentFunction.REGR_R2, "Coefficient of determination of the least-squares line, 0 to 1.", 0.8928571428571429
)
