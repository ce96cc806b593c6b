"""Smallest and largest values, and values of the row in which another column is smallest or largest."""

from collections.abc import Callable

import pyarrow as pa

from statebed.aggregates.accumulators import (
    Accumulator,
    AtEnd,
    End,
    EntryColumn,
    Extreme,
    ExtremeBy,
    Multiset,
    has_order,
    multiset_of,
)
from statebed.aggregates.aggregate import Aggregate, EventTime
from statebed.aggregates.declaration import AccumulatorRequest, Function, Maker, Retraction, Takes, declare
from statebed.expressions.column_like import ColumnLike

__all__ = ["any_value", "bool_and", "bool_or", "first", "last", "max", "max_by", "min", "min_by"]


def _extreme(end: End, *, accepts: Callable[[pa.DataType], bool] = has_order) -> Maker:
    def make(request: AccumulatorRequest) -> Accumulator | None:
        name, kind = request.name, request.kinds[0]
        if not accepts(kind):
            return None
        return multiset_of(name, kind, AtEnd(end)) if request.changelog else Extreme(name, kind, end)

    return make


def _declare_extreme(
    name: str,
    end: End,
    *,
    accepts: Callable[[pa.DataType], bool] = has_order,
    takes: Takes = Takes.ORDERED,
    other_names: tuple[str, ...] = (),
) -> Function:
    return declare(
        Function(
            name,
            _extreme(end, accepts=accepts),
            takes=takes,
            state="a value",
            retraction=Retraction.MULTISET,
            other_names=other_names,
        )
    )


_MIN = _declare_extreme("min", End.SMALLEST)
_MAX = _declare_extreme("max", End.LARGEST)
_ANY_VALUE = _declare_extreme("any_value", End.SMALLEST)


def min(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:  # noqa: A001 (as sum)
    """Return the smallest value of `column`: numbers, text, binaries, booleans, dates or times.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 1}, {"x": None}], least=sb.min("x"))
    {'least': 1}
    """
    return Aggregate(_MIN, (column,), where)


def max(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:  # noqa: A001 (as sum)
    """Return the largest value of `column`, of the same types as min(); NaN is larger than every number.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 1}, {"x": None}], most=sb.max("x"))
    {'most': 3}
    """
    return Aggregate(_MAX, (column,), where)


def any_value(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Return a non-null value of `column`: always the smallest, so that a replay gives the same one.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 1}, {"x": None}], value=sb.any_value("x"))
    {'value': 1}
    """
    return Aggregate(_ANY_VALUE, (column,), where)


def _declare_extreme_by(name: str, end: End, *, state: str) -> Function:
    def make(request: AccumulatorRequest) -> Accumulator | None:
        if not all(map(has_order, request.kinds)):
            return None
        kind, by = request.kinds
        if not request.changelog:
            return ExtremeBy(request.name, kind, by, end)
        columns = (EntryColumn("by", by, 1), EntryColumn("values", kind, 0, needed=False))
        return Multiset(request.name, columns, AtEnd(end))

    return declare(Function(name, make, takes=Takes.ORDERED, state=state, retraction=Retraction.MULTISET))


_MIN_BY = _declare_extreme_by("min_by", End.SMALLEST, state="two values")
_MAX_BY = _declare_extreme_by("max_by", End.LARGEST, state="two values")
_FIRST = _declare_extreme_by("first", End.SMALLEST, state="a value and its time")
_LAST = _declare_extreme_by("last", End.LARGEST, state="a value and its time")


def min_by(column: ColumnLike, by: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Return `column`, possibly null, of the row in which `by` is smallest; in a tie the smallest value.

    >>> rows = [{"driver": "ann", "fare": 7}, {"driver": "bob", "fare": 5}]
    >>> sb.testing.evaluate(rows, cheapest=sb.min_by("driver", "fare"))
    {'cheapest': 'bob'}
    """
    return Aggregate(_MIN_BY, (column, by), where)


def max_by(column: ColumnLike, by: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Return `column`, possibly null, of the row in which `by` is largest; in a tie the smallest value.

    >>> rows = [{"driver": "ann", "fare": 7}, {"driver": "bob", "fare": 5}]
    >>> sb.testing.evaluate(rows, dearest=sb.max_by("driver", "fare"))
    {'dearest': 'ann'}
    """
    return Aggregate(_MAX_BY, (column, by), where)


def first(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Return `column`, possibly null, of the row with the earliest event time; in a tie the smallest value.

    >>> from datetime import datetime as at
    >>> rows = [{"x": 3, "s": "b", "ts": at(2026, 1, 2)}, {"x": 1, "s": "a", "ts": at(2026, 1, 1)}]
    >>> sb.testing.evaluate(rows, first=sb.first("x"))
    {'first': 1}
    """
    return Aggregate(_FIRST, (column, EventTime.EVENT_TIME), where)


def last(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Return `column`, possibly null, of the row with the latest event time; in a tie the smallest value.

    >>> from datetime import datetime as at
    >>> rows = [{"x": 3, "s": "b", "ts": at(2026, 1, 2)}, {"x": 1, "s": "a", "ts": at(2026, 1, 1)}]
    >>> sb.testing.evaluate(rows, last=sb.last("x"))
    {'last': 3}
    """
    return Aggregate(_LAST, (column, EventTime.EVENT_TIME), where)


_BOOL_AND = _declare_extreme(
    "bool_and", End.SMALLEST, accepts=pa.types.is_boolean, takes=Takes.BOOLEANS, other_names=("every",)
)
_BOOL_OR = _declare_extreme(
    "bool_or", End.LARGEST, accepts=pa.types.is_boolean, takes=Takes.BOOLEANS, other_names=("any",)
)


def bool_and(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Return whether `column` is true in every row in which it is not null.

    >>> sb.testing.evaluate([{"paid": True}, {"paid": False}], all=sb.bool_and("paid"))
    {'all': False}
    """
    return Aggregate(_BOOL_AND, (column,), where)


def bool_or(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Return whether `column` is true in at least one row.

    >>> sb.testing.evaluate([{"paid": True}, {"paid": False}], any=sb.bool_or("paid"))
    {'any': True}
    """
    return Aggregate(_BOOL_OR, (column,), where)
