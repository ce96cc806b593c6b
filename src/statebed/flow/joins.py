"""Joins as users write them: which columns must be equal, and how the times of both sides are related."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from statebed.errors import InputError
from statebed.expressions import bind
from statebed.expressions.column_like import ColumnLike
from statebed.flow.event_time import event_time_columns
from statebed.flow.intervals import Interval, TimeSide, Within, WithinText, interval_of_text
from statebed.format.stream_schema import Input
from statebed.operators import Operator, Window
from statebed.operators.joins import AsOfJoin, IntervalJoin, JoinKind, UpdatingJoin, WindowJoin
from statebed.operators.labels import step_label
from statebed.operators.time_to_live import time_to_live
from statebed.quantities import Duration, parse_duration

if TYPE_CHECKING:
    from statebed.flow.stream import Stream

S = TypeVar("S", bound="Stream")


@dataclass(frozen=True)
class Eq:
    """Condition that a column of this stream equals one of the other."""

    left: str
    right: str


def eq(left: str, right: str | None = None) -> Eq:
    """Declare columns that must be equal: `eq("auction", "id")`. A single name means the same name on both sides.

    >>> sb.eq("auction", "id")
    Eq(left='auction', right='id')
    """
    return Eq(left, right or left)


def between(lower: Duration, upper: Duration | None = None) -> Within:
    """Bound the right row's event time minus the left row's, both bounds included, as Flink and SQL do.

    `bids.join(auctions, ..., within=between("-10 minutes", "0s"))` is `auctions.ts BETWEEN bids.ts - INTERVAL 10
    MINUTES AND bids.ts`: the auction opened up to ten minutes before the bid. That SQL text is accepted, too, as the
    only argument.

    >>> sb.between("0s", "10 minutes")
    Interval(lower_us=0, upper_us=600000000)
    """
    if upper is None:
        if not isinstance(lower, str):
            raise InputError(
                f"between takes two durations, or one SQL text; got {lower!r} alone",
                fix="write between('0s', '10 minutes'), or between('b.ts BETWEEN a.ts AND a.ts + INTERVAL 10 MINUTES')",
            )
        return WithinText(lower)
    interval = Interval(parse_duration(lower), parse_duration(upper))
    if interval.lower_us > interval.upper_us:
        raise InputError(
            f"between({lower!r}, {upper!r}) is empty: the lower bound is greater than the upper one",
            fix=f"put the smaller bound first: between({upper!r}, {lower!r})",
        )
    return interval


@dataclass(frozen=True)
class AsOf:
    """Terms of an as-of join, in which each row gets the newest version of the other stream at its time."""

    tolerance_us: int | None
    deleted: str | None


def as_of(*, tolerance: Duration | None = None, deleted: str | None = None) -> AsOf:
    """Join as of the row's time: `as_of(tolerance="1 hour")`.

    Versions older than `tolerance` do not count. `deleted` is a boolean column that ends a key.

    >>> sb.as_of(tolerance="1 hour")
    AsOf(tolerance_us=3600000000, deleted=None)
    """
    return AsOf(None if tolerance is None else parse_duration(tolerance), deleted)


On = str | Eq | Sequence[str | Eq]


@dataclass(frozen=True)
class JoinTerms:
    """Terms of a join, apart from its streams."""

    on: On
    within: Within | str | None
    window: Window | None
    as_of: AsOf | None
    how: str
    condition: ColumnLike | None
    suffixes: tuple[str, str]
    ttl: Duration | None
    ttl_clock: str

    @property
    def has_times(self) -> bool:
        """Whether the event times of both sides decide which rows join."""
        return any(terms is not None for terms in (self.within, self.window, self.as_of))


def check_stream(other: object, *, where: str) -> None:
    """Raise InputError unless this is a stream."""
    if not hasattr(other, "graph") or not hasattr(other, "edge"):
        raise InputError(
            f"the other side must be a stream, got {type(other).__name__}",
            where=where,
            fix="pass a stream of the same flow or job; job.source(df) makes one of a DataFrame",
        )


def joined(left: S, right: "Stream", terms: JoinTerms, *, name: str | None) -> S:
    """Return the stream of a join's results."""
    where = step_label("join", name)
    check_stream(right, where=where)
    if left.graph is not right.graph:
        raise InputError("the streams belong to different flows", where=where, fix="make both from one Flow")
    _check_times(terms, where)
    if terms.has_times:
        left.check_timed(name, method="join")
        right.check_timed(name, method="join")
    if isinstance(terms.within, str | WithinText):
        text = terms.within if isinstance(terms.within, str) else terms.within.text
        sides = (_time_side(left), _time_side(right))
        terms = replace(terms, within=interval_of_text(text, *sides, where=where))
    if terms.window is not None and terms.window.on is not None:
        raise InputError(
            f"a window join uses the event times of both streams, not {terms.window.on!r}",
            where=where,
            fix="leave on= out; make that column the event time of its source, with watermark=(column, delay)",
        )
    pairs = equal_columns(terms.on)
    check_columns(left, [pair.left for pair in pairs], where)
    check_columns(right, [pair.right for pair in pairs], where)
    inputs = (
        left.input_of("left", [pair.left for pair in pairs]),
        right.input_of("right", [pair.right for pair in pairs]),
    )
    if terms.condition is not None:
        terms = replace(terms, condition=left.written(terms.condition, f"{where}, condition"))
    operator = _operator(inputs, terms, join_kind(terms.how, where), name=name or "join", where=where)
    return left.add_operator(operator, right, unnamed=name is None)


def _check_times(terms: JoinTerms, where: str) -> None:
    """Raise InputError for a time condition of a wrong type, without which rows of all times would join."""
    for name, value, types, what, fix in (
        ("within", terms.within, Within | str, "between(...)", "write within=between('0s', '10 minutes')"),
        ("window", terms.window, Window, "a tumbling or sliding window", "write window=tumbling('10 minutes')"),
        ("as_of", terms.as_of, AsOf, "as_of(...)", "write as_of=as_of(tolerance='1 hour')"),
    ):
        if value is not None and (not isinstance(value, types) or value == ""):
            raise InputError(f"`{name}` must be {what}, got {value!r}", where=where, fix=fix)


def _time_side(stream: "Stream") -> TimeSide:
    """Return the ways in which SQL text may refer to the event time of a stream."""
    graph, edge = stream.graph, stream.edge
    return TimeSide(graph.origins_of(edge), tuple(event_time_columns(graph, edge)))


def equal_columns(on: On) -> list[Eq]:
    """Return the pairs of columns that must be equal."""
    several = [on] if isinstance(on, str | Eq) else on
    return [eq(column) if isinstance(column, str) else column for column in several]


def check_columns(stream: "Stream", names: Sequence[str], where: str, *, what: str = "columns to join on") -> None:
    """Raise InputError if a stream lacks columns."""
    missing = [name for name in names if name not in stream.columns]
    if missing:
        raise InputError(
            f"the {what} {missing} do not exist", where=where, fix=f"use columns of the stream: {stream.columns}"
        )


def join_kind(how: str, where: str) -> JoinKind:
    """Return the kind of join that a user wrote."""
    known = [kind.value for kind in JoinKind]
    if how not in known:
        raise InputError(f"`how` must be one of {known}, got {how!r}", where=where, fix=f"use one of {known}")
    return JoinKind(how)


def _operator(inputs: tuple[Input, Input], terms: JoinTerms, how: JoinKind, *, name: str, where: str) -> Operator:
    left, right = inputs
    times = [condition for condition in (terms.within, terms.window, terms.as_of) if condition is not None]
    if len(times) > 1:
        raise InputError(
            "a join takes only one of within=, window= and as_of=", where=where, fix="leave the others out"
        )
    when = times[0] if times else None
    common: dict[str, Any] = {
        "operator_id": name,
        "left": left,
        "right": right,
        "how": how,
        "suffixes": terms.suffixes,
    }
    if terms.ttl is not None and when is not None:
        raise InputError(
            "ttl= is only for a join without within=, window= or as_of=",
            where=where,
            fix="leave ttl= out: the time condition decides what expires",
        )
    if isinstance(when, AsOf):
        if terms.condition is not None:
            raise InputError(
                "an as-of join takes no condition: it could choose an older version",
                where=where,
                fix="use where(...) after the join, or before it on the versions",
            )
        return AsOfJoin(**common, tolerance_us=when.tolerance_us, deleted=when.deleted)
    operator: WindowJoin | IntervalJoin | UpdatingJoin
    if isinstance(when, Window):
        operator = WindowJoin(**common, window=when)
    elif isinstance(when, Interval):
        operator = IntervalJoin(**common, lower_us=when.lower_us, upper_us=when.upper_us)
    else:
        operator = UpdatingJoin(**common, ttl=time_to_live(terms.ttl, terms.ttl_clock))
    if terms.condition is None:
        return operator
    return replace(operator, condition=bind(terms.condition, operator.columns.pairs, where=f"{where}, condition"))
