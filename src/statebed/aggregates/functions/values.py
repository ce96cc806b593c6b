"""Functions of all values: mode, percentiles and collections."""

from typing import Literal

import pyarrow as pa

from statebed.aggregates.accumulators import (
    Accumulator,
    AllValues,
    ApproximatePercentile,
    CollectedList,
    CollectedSet,
    EntryColumn,
    Joined,
    Limit,
    MostFrequent,
    Multiset,
    Percentile,
    has_order,
    multiset_of,
)
from statebed.aggregates.aggregate import Aggregate, EventTime
from statebed.aggregates.declaration import AccumulatorRequest, Function, Retraction, Takes, declare
from statebed.aggregates.functions.makers import is_number, multiset_finished_by
from statebed.errors import InputError
from statebed.expressions.column_like import ColumnLike

__all__ = ["approx_percentile", "collect_list", "collect_set", "median", "mode", "percentile", "string_agg"]

MAX_LIMIT = 100_000
"""The largest limit of collected values, because they are one value of the state, rewritten when it changes."""
FINEST = 1e-5
"""The finest accuracy of a sketch; finer ones would hold as much as the values."""
COARSEST = 1 / 3
"""The coarsest accuracy of a sketch: its buckets double in width. The ends of wider ones differ by more than it."""

_MODE = declare(
    Function(
        "mode",
        multiset_finished_by(MostFrequent()),
        takes=Takes.ORDERED,
        state="all distinct values",
        retraction=Retraction.MULTISET,
    )
)


def mode(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Return the most frequent value of `column`; in a tie the smallest.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 3}, {"x": 1}], mode=sb.mode("x"))
    {'mode': 3}
    """
    return Aggregate(_MODE, (column,), where)


def _limit_of(request: AccumulatorRequest) -> Limit | None:
    """Return the limit among the options."""
    number = request.options[-1] if request.options else ""
    if isinstance(number, str):
        return None
    if request.changelog:
        raise InputError(
            "a limit on collected values needs rows that are never retracted, but the input is a changelog: the value "
            "after a retracted one would be unknown",
            where=f"aggregate {request.name!r}",
            fix="drop `limit`, or keep the first rows with `.key_by(...).top(n, ...)`, which handles retractions",
        )
    return Limit(int(abs(number)), last=number < 0)


def _limit_options(limit: int | None, keep: str) -> tuple[int, ...]:
    """Return the option of a limit, a negative number for the last values; nothing without a limit."""
    if keep not in ("first", "last"):
        raise InputError(f"`keep` must be 'first' or 'last', got {keep!r}", fix="leave it out to keep the first values")
    if limit is None:
        if keep != "first":
            raise InputError("`keep` needs `limit`", fix="give both, for example limit=100, keep='last'")
        return ()
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise InputError(
            f"`limit` must be an integer from 1 to {MAX_LIMIT}, got {limit!r}",
            fix="give a smaller list, or leave `limit` out to collect all values",
        )
    return (limit if keep == "first" else -limit,)


def _collected_list(request: AccumulatorRequest) -> CollectedList | Multiset | None:
    kind, time = request.kinds
    if not has_order(kind):
        return None
    limit = _limit_of(request)
    if not request.changelog:
        return CollectedList(request.name, kind, time, limit)
    return Multiset(request.name, (EntryColumn("times", time, 1), EntryColumn("values", kind, 0)), AllValues())


_COLLECT_LIST = declare(
    Function(
        "collect_list",
        _collected_list,
        takes=Takes.ORDERED,
        state="all values, or `limit` of them",
        retraction=Retraction.MULTISET,
        limited=True,
    )
)


def collect_list(
    column: ColumnLike,
    *,
    limit: int | None = None,
    keep: Literal["first", "last"] = "first",
    where: ColumnLike | None = None,
) -> Aggregate:
    """Collect all non-null values into a list, by event time and then by value; empty if there are none.

    With `limit`, only the first values in this order are collected, or with `keep="last"` the last ones, and the state
    holds no others. The input must not be a changelog then. Without `limit`, all values are one row of the result,
    whose time and memory grow with them.

    >>> from datetime import datetime as at
    >>> rows = [{"x": 3, "s": "b", "ts": at(2026, 1, 2)}, {"x": 1, "s": "a", "ts": at(2026, 1, 1)}]
    >>> sb.testing.evaluate(rows, xs=sb.collect_list("x"))
    {'xs': [1, 3]}
    >>> sb.testing.evaluate(rows, newest=sb.collect_list("x", limit=1, keep="last"))
    {'newest': [3]}
    """
    return Aggregate(_COLLECT_LIST, (column, EventTime.EVENT_TIME), where, _limit_options(limit, keep))


def _collected_set(request: AccumulatorRequest) -> Multiset | None:
    (kind,) = request.kinds
    if not has_order(kind):
        return None
    return Multiset(request.name, (EntryColumn("values", kind, 0),), CollectedSet(), _limit_of(request))


_COLLECT_SET = declare(
    Function(
        "collect_set",
        _collected_set,
        takes=Takes.ORDERED,
        state="all distinct values, or `limit` of them",
        retraction=Retraction.MULTISET,
        limited=True,
    )
)


def collect_set(
    column: ColumnLike,
    *,
    limit: int | None = None,
    keep: Literal["first", "last"] = "first",
    where: ColumnLike | None = None,
) -> Aggregate:
    """Collect the distinct values into a sorted list; empty if there are none.

    With `limit`, only the smallest values are collected, or with `keep="last"` the largest ones, and the state holds no
    others. The input must not be a changelog then. Without `limit`, all values are one row of the result, whose time
    and memory grow with them.

    >>> sb.testing.evaluate([{"x": 3}, {"x": 3}, {"x": 1}], xs=sb.collect_set("x"))
    {'xs': [1, 3]}
    """
    return Aggregate(_COLLECT_SET, (column,), where, _limit_options(limit, keep))


def _joined(request: AccumulatorRequest) -> Accumulator | None:
    collected = _collected_list(request) if pa.types.is_string(request.kinds[0]) else None
    return None if collected is None else Joined(collected, delimiter=str(request.options[0]))


_STRING_AGG = declare(
    Function(
        "string_agg",
        _joined,
        takes=Takes.TEXT,
        state="all values, or `limit` of them",
        retraction=Retraction.MULTISET,
        option_count=1,
        limited=True,
        other_names=("listagg",),
    )
)


def string_agg(
    column: ColumnLike,
    delimiter: str = "",
    *,
    limit: int | None = None,
    keep: Literal["first", "last"] = "first",
    where: ColumnLike | None = None,
) -> Aggregate:
    """Join all non-null texts, by event time and then by value, with `delimiter` between them; null if there are none.

    With `limit`, only the first texts in this order are joined, or with `keep="last"` the last ones, and the state
    holds no others. The input must not be a changelog then. Without `limit`, all values are one row of the result,
    whose time and memory grow with them.

    >>> from datetime import datetime as at
    >>> rows = [{"x": 3, "s": "b", "ts": at(2026, 1, 2)}, {"x": 1, "s": "a", "ts": at(2026, 1, 1)}]
    >>> sb.testing.evaluate(rows, names=sb.string_agg("s", "+"))
    {'names': 'a+b'}
    """
    return Aggregate(_STRING_AGG, (column, EventTime.EVENT_TIME), where, (str(delimiter), *_limit_options(limit, keep)))


def _percentile(request: AccumulatorRequest) -> Accumulator | None:
    if not is_number(request.kinds[0]):
        return None
    return multiset_of(request.name, request.kinds[0], Percentile(float(request.options[0])))


_PERCENTILE = declare(
    Function(
        "percentile",
        _percentile,
        takes=Takes.NUMBERS,
        state="all distinct values",
        retraction=Retraction.MULTISET,
        option_count=1,
    )
)


def percentile(column: ColumnLike, at: float, *, where: ColumnLike | None = None) -> Aggregate:
    """Return the value at the share `at` (0 to 1) of the sorted values, interpolated between neighbours. Exact.

    >>> sb.testing.evaluate([{"x": 1}, {"x": 2}, {"x": 4}], p75=sb.percentile("x", 0.75))
    {'p75': 3.0}
    """
    return Aggregate(_PERCENTILE, (column,), where, (_share(at),))


def median(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Return the value in the middle: the same as percentile(column, 0.5).

    >>> sb.testing.evaluate([{"x": 1}, {"x": 2}, {"x": 4}], middle=sb.median("x"))
    {'middle': 2.0}
    """
    return percentile(column, 0.5, where=where)


def _approximate_percentile(request: AccumulatorRequest) -> Accumulator | None:
    percentile = ApproximatePercentile(request.name, *map(float, request.options))
    return percentile if is_number(request.kinds[0]) else None


_APPROX_PERCENTILE = declare(
    Function(
        "approx_percentile",
        _approximate_percentile,
        takes=Takes.NUMBERS,
        state="a histogram of a few hundred buckets",
        option_count=2,
    )
)


def approx_percentile(
    column: ColumnLike, at: float, *, accuracy: float = 0.01, where: ColumnLike | None = None
) -> Aggregate:
    """Estimate the value at the share `at` of the sorted values from a small histogram.

    The estimate differs from the value at rank floor(at * (n - 1)) by at most `accuracy` (0.00001 to 1/3) times that
    value; below 2.3e-308, where doubles have less precision, by at most the smallest double.

    >>> sb.testing.evaluate([{"x": 1}, {"x": 2}, {"x": 4}], least=sb.approx_percentile("x", 0.0))
    {'least': 1.01}
    """
    if not isinstance(accuracy, int | float) or not FINEST <= accuracy <= COARSEST:
        raise InputError(
            f"the accuracy of approx_percentile() must be from {FINEST:g} to 1/3, got {accuracy!r}",
            where=f"column {column!r}",
            fix="give 0.01 for one percent, or leave it out",
        )
    return Aggregate(_APPROX_PERCENTILE, (column,), where, (_share(at), float(accuracy)))


def _share(at: float) -> float:
    if not isinstance(at, int | float) or not 0.0 <= at <= 1.0:
        raise InputError(f"`at` must be a share from 0 to 1, got {at!r}", fix="write 0.95 for the 95th percentile")
    return float(at)
