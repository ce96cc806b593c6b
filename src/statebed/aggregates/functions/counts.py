"""Counts of rows and of distinct values."""

from statebed.aggregates.accumulators import (
    MAX_PRECISION,
    MIN_PRECISION,
    Accumulator,
    Count,
    DistinctCount,
    DistinctSketch,
    has_order,
)
from statebed.aggregates.aggregate import Aggregate
from statebed.aggregates.declaration import AccumulatorRequest, Function, Retraction, Takes, declare
from statebed.aggregates.functions.makers import multiset_finished_by
from statebed.errors import InputError
from statebed.expressions.column_like import ColumnLike

__all__ = ["approx_count_distinct", "count", "count_distinct", "count_if"]

_COUNT = declare(
    Function("count", lambda request: Count(request.name), takes=Takes.ORDERED, state="a number", counts_rows=True)
)


def count(column: ColumnLike | None = None, *, where: ColumnLike | None = None) -> Aggregate:
    """Count rows, or rows in which `column` is not null; with `where`, only rows for which it is true.

    >>> rows = [{"x": 3}, {"x": 1}, {"x": None}]
    >>> sb.testing.evaluate(rows, n=sb.count(), values=sb.count("x"), large=sb.count(where="x > 2"))
    {'n': 3, 'values': 2, 'large': 1}
    """
    return Aggregate(_COUNT, () if column is None else (column,), where)


def count_if(condition: ColumnLike) -> Aggregate:
    """Count the rows for which `condition` is true: the same as count(where=condition).

    >>> sb.testing.evaluate([{"x": 3}, {"x": 1}, {"x": None}], large=sb.count_if("x > 2"))
    {'large': 1}
    """
    return count(where=condition)


_COUNT_DISTINCT = declare(
    Function(
        "count_distinct",
        multiset_finished_by(DistinctCount()),
        takes=Takes.ORDERED,
        state="all distinct values",
        retraction=Retraction.MULTISET,
        other_names=("countDistinct",),
    )
)


def count_distinct(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Count the distinct values of `column`; 0 if there are none. Exact: the state keeps every distinct value.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 3}, {"x": 1}], n=sb.count_distinct("x"))
    {'n': 2}
    """
    return Aggregate(_COUNT_DISTINCT, (column,), where)


def _sketch(request: AccumulatorRequest) -> Accumulator | None:
    return DistinctSketch(request.name, int(request.options[0])) if has_order(request.kinds[0]) else None


_APPROX_COUNT_DISTINCT = declare(
    Function(
        "approx_count_distinct",
        _sketch,
        takes=Takes.ORDERED,
        state="at most 2 ** precision registers",
        retraction=Retraction.REFUSES,
        option_count=1,
        other_names=("approxCountDistinct",),
    )
)


def approx_count_distinct(column: ColumnLike, *, precision: int = 12, where: ColumnLike | None = None) -> Aggregate:
    """Estimate the number of distinct values of `column`; 0 if there are none.

    Uses HyperLogLog of [Apache DataSketches](https://datasketches.apache.org/). The standard error is 1.04 / sqrt(2 **
    precision): 1.6 % at 12. The state takes at most 4 * 2 ** precision bytes.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 3}, {"x": 1}], n=sb.approx_count_distinct("x"))
    {'n': 2}
    """
    is_whole = isinstance(precision, int) and not isinstance(precision, bool)
    if not is_whole or not MIN_PRECISION <= precision <= MAX_PRECISION:
        raise InputError(
            f"the precision must be from {MIN_PRECISION} to {MAX_PRECISION}, got {precision!r}",
            where="approx_count_distinct()",
            fix="leave it out for 12, which has a standard error of 1.6 %",
        )
    return Aggregate(_APPROX_COUNT_DISTINCT, (column,), where, (precision,))
