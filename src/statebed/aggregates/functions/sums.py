"""Sums and means."""

import pyarrow as pa

from statebed.aggregates.accumulators import MORE_DIGITS, Accumulator, DecimalSum, DistinctSum, Mean, multiset_of
from statebed.aggregates.aggregate import Aggregate
from statebed.aggregates.declaration import AccumulatorRequest, Function, Retraction, Takes, declare
from statebed.aggregates.functions.makers import MAX_PRECISION, counted, sum_accumulator
from statebed.expressions.column_like import ColumnLike

__all__ = ["mean", "sum", "sum_distinct"]

_SUM = declare(Function("sum", counted(sum_accumulator), takes=Takes.NUMBERS, state="two columns"))


def sum(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:  # noqa: A001 (the name SQL and Spark give it)
    """Sum `column` over the rows for which `where` is true; null if there is no value.

    A sum of integers has 64 bits and raises `SumOverflowError` instead of wrapping. A sum of floats is a double,
    rounded once. A sum of decimal(p, s) is a decimal(p + 10, s).

    >>> sb.testing.evaluate([{"x": 3}, {"x": 1}, {"x": None}], total=sb.sum("x"), large=sb.sum("x", where="x > 2"))
    {'total': 4, 'large': 3}
    """
    return Aggregate(_SUM, (column,), where)


def _mean(request: AccumulatorRequest) -> Accumulator | None:
    total = sum_accumulator(request)
    if total is None:
        return None
    kind = pa.float64()
    if isinstance(total, DecimalSum):
        # With too many digits, some after the point are dropped. Spark drops some before it, where they would be
        # missed, so queries from Spark refuse an average of such decimals.
        precision, scale = request.kinds[0].precision + MORE_DIGITS, request.kinds[0].scale + MORE_DIGITS
        excess = precision - min(precision, MAX_PRECISION)
        kind = pa.decimal128(precision - excess, scale - excess)
    return Mean(request.name, sum=total, kind=kind, changelog=request.changelog)


_MEAN = declare(Function("mean", _mean, takes=Takes.NUMBERS, state="sum and count", other_names=("avg",)))


def mean(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Average `column`: a double, or for decimal(p, s) a decimal(p + 4, s + 4), rounded half away from zero.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 1}, {"x": None}], mean=sb.mean("x"))
    {'mean': 2.0}
    """
    return Aggregate(_MEAN, (column,), where)


def _sum_distinct(request: AccumulatorRequest) -> Accumulator | None:
    # The sum is computed from distinct values when it is read, so nothing is retracted from it.
    total = sum_accumulator(AccumulatorRequest(request.name, request.kinds))
    return None if total is None else multiset_of(request.name, request.kinds[0], DistinctSum(total))


_SUM_DISTINCT = declare(
    Function(
        "sum_distinct",
        _sum_distinct,
        takes=Takes.NUMBERS,
        state="all distinct values",
        retraction=Retraction.MULTISET,
        other_names=("sumDistinct",),
    )
)


def sum_distinct(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Sum the distinct values of `column`; null if there are none.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 3}, {"x": 1}], total=sb.sum_distinct("x"))
    {'total': 4}
    """
    return Aggregate(_SUM_DISTINCT, (column,), where)
