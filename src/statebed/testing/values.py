"""Conversion of values written in tests to Arrow, exact or refused."""

import datetime as dt
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from statebed.errors import InputError

Time: TypeAlias = str | int | dt.datetime

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_FRACTION = re.compile(r"[.,]\d{6}(\d+)")


def micros(time: Time) -> int:
    """Return a time in microseconds since 1970; ISO text without a zone is UTC."""
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
        if not _is_same(value, kept.as_py(), field.type):
            raise InputError(
                f"the column {field.name!r} is {field.type}, but {value!r} (row {row}) would become {kept.as_py()!r}",
                where=where,
                fix=fix,
            )
    return column


def _is_same(value: Any, kept: Any, kind: pa.DataType) -> bool:
    """Return whether a value is unchanged: equal, with numbers compared as numbers and text as its bytes."""
    if value is None or kept is None:
        return value is kept
    if pa.types.is_nested(kind):
        return all(_parts(value, kept, kind))
    if isinstance(value, dt.datetime) and isinstance(kept, dt.datetime):
        nanoseconds = (getattr(time, "nanosecond", 0) for time in (value, kept))
        return len(set(nanoseconds)) == 1 and _instant(value) == _instant(kept)
    if isinstance(value, float):
        # A float is written with the fewest digits that identify it.
        written = float(str(np.float32(kept))) if pa.types.is_float32(kind) else kept
        return written == value or (math.isnan(value) and isinstance(kept, float) and math.isnan(kept))
    if isinstance(value, str) and isinstance(kept, bytes):
        return value.encode() == kept
    return isinstance(value, bool) == isinstance(kept, bool) and bool(value == kept)


def _parts(nested: Any, kept: Any, kind: pa.DataType) -> Iterator[bool]:
    """Yield whether each part of a nested value is unchanged."""
    if pa.types.is_struct(kind):
        yield from (_is_same(nested.get(field.name), kept[field.name], field.type) for field in kind)
        return
    if pa.types.is_map(kind):
        nested = list(nested.items() if isinstance(nested, Mapping) else nested)
        kind = pa.list_(pa.struct([("0", kind.key_type), ("1", kind.item_type)]))
        nested, kept = ([{"0": pair[0], "1": pair[1]} for pair in entries] for entries in (nested, kept))
    yield len(nested) == len(kept)
    yield from (_is_same(value, other, kind.value_type) for value, other in zip(nested, kept, strict=False))


def _instant(time: dt.datetime) -> dt.datetime:
    return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time
