"""Conversion of Python values to Arrow that refuses what pyarrow would change without a word.

pyarrow converts 1.5 to the integer 1, cuts nanoseconds and the time of day of a date, and drops unknown fields of a
struct.
"""

import datetime as dt
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def exact_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array; raise ValueError if one would change, or what pyarrow raises if one does not fit.

    >>> exact_array([1, 2.0, None], pa.int64()).to_pylist()
    [1, 2, None]
    >>> exact_array([1.5], pa.int64())
    Traceback (most recent call last):
    ValueError: 1.5 would become 1
    """
    column = pa.array(values, kind)
    exact = _exact_types(kind)
    if exact is None:
        return column
    local = _is_local(kind)
    for row, value in enumerate(values):
        if type(value) not in exact or (local and moved(value)):
            kept = column[row].as_py()
            if not is_same(value, kept, kind):
                raise ValueError(f"{value!r} would become {kept!r}")
    return column


def _exact_types(kind: pa.DataType) -> Collection[type] | None:
    """Return the types of Python whose values pyarrow converts exactly or refuses; None for all of them."""
    if pa.types.is_integer(kind):
        return {int, type(None)}
    if pa.types.is_temporal(kind):
        of_python = {pa.types.is_timestamp: dt.datetime, pa.types.is_date: dt.date, pa.types.is_duration: dt.timedelta}
        return {int, type(None), *(python for is_kind, python in of_python.items() if is_kind(kind))}
    return {type(None)} if pa.types.is_nested(kind) else None


def is_same(value: Any, kept: Any, kind: pa.DataType) -> bool:
    """Return whether a value is unchanged: equal, with numbers compared as numbers and text as its bytes."""
    if value is None or kept is None:
        return value is kept
    if pa.types.is_nested(kind):
        return all(_parts(value, kept, kind))
    if pa.types.is_temporal(kind):
        return _is_same_time(value, kept) and not (_is_local(kind) and moved(value))
    if isinstance(value, float):
        # A float is written with the fewest digits that identify it.
        written = float(str(np.float32(kept))) if pa.types.is_float32(kind) else kept
        return bool(written == value) or (math.isnan(value) and isinstance(kept, float) and math.isnan(kept))
    if isinstance(value, str) and isinstance(kept, bytes):
        return value.encode() == kept
    return isinstance(value, bool) == isinstance(kept, bool) and bool(value == kept)


def _is_same_time(value: Any, kept: Any) -> bool:
    if isinstance(value, int | np.datetime64 | np.timedelta64):
        return True  # the number that is stored, and units that pyarrow compares
    if not isinstance(value, dt.datetime):
        return bool(value == kept)
    if not isinstance(kept, dt.datetime):
        return value.date() == kept and value.time() == dt.time.min
    return getattr(value, "nanosecond", 0) == getattr(kept, "nanosecond", 0) and _instant(value) == _instant(kept)


def _is_local(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is None


def moved(value: Any) -> bool:
    """Return whether a time has a zone whose clock differs from UTC, so that a local time would differ from it."""
    return isinstance(value, dt.datetime) and bool(value.utcoffset())


def _parts(nested: Any, kept: Any, kind: pa.DataType) -> Iterator[bool]:
    """Yield whether each part of a nested value is unchanged."""
    if pa.types.is_struct(kind):
        fields = nested if isinstance(nested, Mapping) else dict(nested)
        yield fields.keys() <= {field.name for field in kind}
        yield from (is_same(fields.get(field.name), kept[field.name], field.type) for field in kind)
        return
    if pa.types.is_map(kind):
        nested = list(nested.items() if isinstance(nested, Mapping) else nested)
        kind = pa.list_(pa.struct([("0", kind.key_type), ("1", kind.item_type)]))
        nested, kept = ([{"0": pair[0], "1": pair[1]} for pair in entries] for entries in (nested, kept))
    yield len(nested) == len(kept)
    yield from (is_same(value, other, kind.value_type) for value, other in zip(nested, kept, strict=False))


def _instant(time: dt.datetime) -> dt.datetime:
    return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time
