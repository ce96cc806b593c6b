"""ISO 8601 text of dates and timestamps, in any year.

Python's datetime ends with the years 1 and 9999. Arrow writes wrong years beyond ±32767, and a message instead of a
date that is far away. Text is therefore built by numpy where times are outside the years 1 to 9999.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, int64_values, validity

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_SECONDS = 86_400
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
"""The beginnings of the years 1 and 10000."""


def iso_texts(array: pa.Array) -> list[str | None]:
    """Return dates and timestamps as `2026-01-31` and `2026-01-31T12:00:00.000000Z`; without `Z` if they have no zone.

    All digits of the unit are written. The year before 0001 is 0000, and the one before that -0001.
    """
    kind = array.type
    if pa.types.is_date(kind):
        moments = fixed_width_values(array.cast(pa.date32()), np.int32).astype("datetime64[D]")
        zone = ""
    else:
        moments = int64_values(array).view(f"datetime64[{kind.unit}]")
        zone = "Z" if kind.tz else ""
    texts = np.datetime_as_string(moments).tolist()
    return [f"{_padded(text)}{zone}" if valid else None for text, valid in zip(texts, validity(array), strict=True)]


def _padded(text: str) -> str:
    """Return text with four digits for negative years: numpy counts the sign as one of them."""
    if not text.startswith("-"):
        return text
    year, rest = text[1:].split("-", 1)
    return f"-{year:0>4}-{rest}"


def sql_texts(array: pa.Array) -> pa.Array:
    """Return dates and timestamps in the notation of SQL: `2026-01-31 12:00:00.000000Z`, in UTC if they have a zone."""
    kind = array.type
    if pa.types.is_timestamp(kind) and kind.tz:
        array = array.cast(pa.timestamp(kind.unit, "UTC"))
    if in_four_digits(array):
        return array.cast(pa.string())
    return pa.array([None if text is None else text.replace("T", " ") for text in iso_texts(array)], pa.string())


def in_four_digits(array: pa.Array) -> bool:
    """Return whether all dates or timestamps are in the years 1 to 9999."""
    kind = array.type
    if pa.types.is_date(kind):
        numbers, per_day = array.cast(pa.date32()).cast(pa.int32()), 1
    else:
        numbers, per_day = array.cast(pa.int64()), _DAY_SECONDS * _PER_SECOND[kind.unit]
    ends = pc.min_max(numbers)
    first, last = ends["min"].as_py(), ends["max"].as_py()
    return first is None or (first >= _FIRST_DAY * per_day and last < _END_DAY * per_day)
