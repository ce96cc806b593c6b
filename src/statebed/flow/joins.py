"""Joins as users write them: which columns are equal, and what ties the times of both sides together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from statebed.errors import InputError
from statebed.operators import Operator, Window
from statebed.operators.expressions import bind
from statebed.operators.joins import AsOfJoin, IntervalJoin, JoinKind, UpdatingJoin, WindowJoin
from statebed.operators.operator import Input
from statebed.operators.time_to_live import time_to_live
from statebed.operators.windows import Duration, parse_duration

if TYPE_CHECKING:
    from statebed.flow.stream import Stream

S = TypeVar("S", bound="Stream")


@dataclass(frozen=True)
class Eq:
    """A column of this stream equals one of the other."""

    left: str
    right: str


def eq(left: str, right: str | None = None) -> Eq:
    """`eq("auction", "id")`: the columns that have to be equal; one name stands for both."""
    return Eq(left, right or left)


@dataclass(frozen=True)
class Within:
    """This stream's time lies between the other's plus one span and plus another."""

    lower_us: int
    upper_us: int


def between(lower: Duration, upper: Duration) -> Within:
    """`between("0s", "10 minutes")`: a row comes so long after the other stream's row; spans may be negative."""
    found = Within(parse_duration(lower), parse_duration(upper))
    if found.lower_us > found.upper_us:
        raise InputError(
            f"between({lower!r}, {upper!r}) holds no time",
            fix="give the smaller span first: between('-1 minute', '0s')",
        )
    return found


@dataclass(frozen=True)
class AsOf:
    """Each row gets the newest version of the other stream at its time."""

    tolerance_us: int | None
    deleted: str | None


def as_of(*, tolerance: Duration | None = None, deleted: str | None = None) -> AsOf:
    """`as_of(tolerance="1 hour")`: older versions do not count; `deleted` is a boolean column that ends a key."""
    return AsOf(None if tolerance is None else parse_duration(tolerance), deleted)


On = str | Eq | Sequence[str | Eq]


@dataclass(frozen=True)
class JoinTerms:
    """What a join is, beside its streams."""

    on: On
    within: Within | None
    window: Window | None
    as_of: AsOf | None
    how: str
    condition: str | None
    suffixes: tuple[str, str]
    ttl: Duration | None
    ttl_clock: str


def joined(left: S, right: "Stream", terms: JoinTerms, *, name: str | None) -> S:
    """The results of a join."""
    where = f"operator {name or 'without name'!r}"
    if left.graph is not right.graph:
        raise InputError("the streams belong to two flows", where=where, fix="make both from one Flow")
    if terms.within or terms.window or terms.as_of:
        left.check_timed(name)
        right.check_timed(name)
    several = [terms.on] if isinstance(terms.on, str | Eq) else terms.on
    pairs = [eq(one) if isinstance(one, str) else one for one in several]
    _check_columns(left, [one.left for one in pairs], where)
    _check_columns(right, [one.right for one in pairs], where)
    inputs = (
        left.input_of("left", [one.left for one in pairs]),
        right.input_of("right", [one.right for one in pairs]),
    )
    operator = _operator(inputs, terms, _kind(terms.how, where), name=name or "join", where=where)
    return left.add_operator(operator, right, unnamed=name is None)


def _check_columns(stream: "Stream", names: Sequence[str], where: str) -> None:
    missing = [name for name in names if name not in stream.columns]
    if missing:
        raise InputError(f"there are no columns {missing} to join on", where=where, fix=f"there are {stream.columns}")


def _kind(how: str, where: str) -> JoinKind:
    known = [kind.value for kind in JoinKind]
    if how not in known:
        raise InputError(f"how={how!r} is no kind of join", where=where, fix=f"use one of {known}")
    return JoinKind(how)


def _operator(inputs: tuple[Input, Input], terms: JoinTerms, how: JoinKind, *, name: str, where: str) -> Operator:
    left, right = inputs
    times = [one for one in (terms.within, terms.window, terms.as_of) if one is not None]
    if len(times) > 1:
        raise InputError("a join has one of within=, window= and as_of=", where=where, fix="leave the others out")
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
            "ttl= is for a join without a time", where=where, fix="leave ttl= out: the time says what is forgotten"
        )
    if isinstance(when, AsOf):
        if terms.condition is not None:
            raise InputError(
                "an as-of join has no condition: it could choose an older version",
                where=where,
                fix="put where(...) behind the join, or before it on the versions",
            )
        return AsOfJoin(**common, tolerance_us=when.tolerance_us, deleted=when.deleted)
    operator: WindowJoin | IntervalJoin | UpdatingJoin
    if isinstance(when, Window):
        operator = WindowJoin(**common, window=when)
    elif isinstance(when, Within):
        # The operator measures from left to right.
        operator = IntervalJoin(**common, lower_us=-when.upper_us, upper_us=-when.lower_us)
    else:
        operator = UpdatingJoin(**common, ttl=time_to_live(terms.ttl, terms.ttl_clock))
    if terms.condition is None:
        return operator
    return replace(operator, condition=bind(terms.condition, operator.columns.pairs, where=f"{where}, condition"))
