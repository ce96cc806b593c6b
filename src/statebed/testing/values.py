"""Conversion of values written in tests to Arrow, exact or refused."""

import datetime as dt
import re
from typing import Any, TypeAlias

import pyarrow as pa

from statebed.arrays.exact_values import is_same, moved
from statebed.errors import InputError

Time: TypeAlias = str | int | dt.datetime

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_FRACTION = re.compile(r"[.,]\d{6}(\d+)")


def micros(time: Time, *, local: bool = False) -> int:
    """Return a time in microseconds since 1970; ISO text without a zone is UTC.

    A `local` time is one without a zone; a value whose zone is not UTC is refused.
    """
    if isinstance(time, int) and not isinstance(time, bool):
        return time
    moment = time
    if isinstance(time, str):
        digits = _FRACTION.search(time)
        if digits is not None and digits[1].rstrip("0"):
            raise _no_time(time, "it has more than six digits after the second, and times are microseconds")
        try:
            moment = dt.datetime.fromisoformat(time)
        except ValueError as error:
            raise _no_time(time, str(error)) from error
    if not isinstance(moment, dt.datetime):
        raise _no_time(time, f"it is of type {type(time).__name__}")
    if getattr(moment, "nanosecond", 0):  # pandas
        raise _no_time(time, "it has nanoseconds, and times are microseconds")
    if local and moved(moment):
        raise InputError(
            f"{time!r} has a time zone, but the column is timestamp_ntz: a local time without a zone",
            fix=f"drop the zone to keep the clock time ({moment.replace(tzinfo=None).isoformat()!r}), "
            "or declare the column as timestamp",
        )
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // _MICROSECOND


def _no_time(value: object, why: str) -> InputError:
    return InputError(
        f"{value!r} is not a time: {why}",
        fix="use a datetime, ISO text such as '2026-01-31T12:00:00.123456Z', or microseconds since 1970 as an int",
    )


def exact_column(field: pa.Field, values: list[Any], *, where: str) -> pa.Array:
    """Return Python values as a column; raise InputError if one would change, as 1.5 would among integers."""
    fix = "give values of the column's type, or round or cast them yourself"
    try:
        column = pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"values of the column {field.name!r} do not fit its type {field.type}: {error}", where=where, fix=fix
        ) from error
    for row, (value, kept) in enumerate(zip(values, column, strict=True)):
        if not is_same(value, kept.as_py(), field.type):
            raise InputError(
                f"the column {field.name!r} is {field.type}, but {value!r} (row {row}) would become {kept.as_py()!r}",
                where=where,
                fix=fix,
            )
    return column
