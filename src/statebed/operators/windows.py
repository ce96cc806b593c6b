"""Windows in event time, and the durations they are written in.

A tumbling window is half open: it holds `start <= time < start + size`. Starts lie on `offset + n * size` for every
whole n, so the arithmetic is the same before and after 1970. A window is closed by a watermark when its end is not
after it: no admitted row can fall into it any more.
"""

import datetime as dt
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from statebed.errors import InputError

Times = npt.NDArray[np.int64]
"""Microseconds since 1970-01-01T00:00:00Z."""

_UNITS_US = {
    "week": 7 * 24 * 3600 * 1_000_000,
    "day": 24 * 3600 * 1_000_000,
    "hour": 3600 * 1_000_000,
    "minute": 60 * 1_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
_SHORT = {
    "w": "week",
    "d": "day",
    "h": "hour",
    "min": "minute",
    "s": "second",
    "sec": "second",
    "ms": "millisecond",
    "us": "microsecond",
}
_CALENDAR = {"month", "quarter", "year"}
_TERM = re.compile(r"\s*([+-]?\d+)\s*([a-z]+)", re.IGNORECASE | re.ASCII)
_MAX_DURATION_US = 1 << 62


def parse_duration(text: str | dt.timedelta) -> int:
    """Microseconds of a duration such as '1 minute', '1 hour 30 minutes', '500 ms', or a timedelta.

    >>> parse_duration("1 hour 30 minutes")
    5400000000
    """
    if isinstance(text, dt.timedelta):
        return text // dt.timedelta(microseconds=1)
    fix = "write whole numbers with units week, day, hour, minute, second, ms, us, for example '1 hour 30 minutes'"
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{text!r} is no duration", fix=fix)
    body = text.strip()
    body = body[len("interval ") :] if body.lower().startswith("interval ") else body
    total, position = 0, 0
    while position < len(body):
        match = _TERM.match(body, position)
        if match is None:
            raise InputError(f"{text!r} is no duration: stuck at {body[position:].strip()!r}", fix=fix)
        total += int(match.group(1)) * _unit_us(match.group(2), text=text, fix=fix)
        position = match.end()
    if abs(total) > _MAX_DURATION_US:
        raise InputError(f"the duration {text!r} is out of range", fix="choose one below 146000 years")
    return total


def _unit_us(word: str, *, text: str, fix: str) -> int:
    unit = word.lower()
    unit = _SHORT.get(unit, unit)
    unit = unit if unit in _UNITS_US or not unit.endswith("s") else unit[:-1]
    if unit in _CALENDAR:
        raise InputError(
            f"the duration {text!r} has a calendar unit, whose length varies",
            fix="use days or weeks, for example '30 days'",
        )
    if unit not in _UNITS_US:
        raise InputError(f"{text!r} is no duration: unknown unit {word!r}", fix=fix)
    return _UNITS_US[unit]


@dataclass(frozen=True)
class TumblingWindow:
    """Windows of one size that follow each other without gap or overlap."""

    size_us: int
    offset_us: int = 0
    """From 0 up to, not including, `size_us`."""

    def __post_init__(self) -> None:
        if self.size_us <= 0:
            raise InputError(f"a window of {self.size_us} us", fix="give a window a positive size, such as '1 minute'")
        if not 0 <= self.offset_us < self.size_us:
            raise InputError(
                f"a window of {self.size_us} us with the offset {self.offset_us} us",
                fix="use tumbling(size, offset=...), which brings any offset into range",
            )

    def starts_of(self, times: Times) -> Times:
        """The start of the window that holds each time."""
        size = np.int64(self.size_us)
        # Reduced one by one, so that no intermediate leaves the 64 bits.
        starts = times - np.mod(np.mod(times, size) - np.int64(self.offset_us), size)
        if len(times) and bool(np.any((starts > times) | (starts > np.iinfo(np.int64).max - size))):
            raise InputError(
                "an event time so far from 1970 that its window's start or end does not fit a timestamp",
                fix="filter such rows before the operator, for example with where(\"ts < '9999-12-31'\")",
            )
        return starts

    def start_of(self, time_us: int) -> int:
        """The start of the window that holds one time."""
        return time_us - (time_us - self.offset_us) % self.size_us

    def first_open(self, watermark_us: int) -> int:
        """The first window start that the watermark leaves open: every window that starts before it is closed."""
        return self.start_of(watermark_us)


def tumbling(size: str | dt.timedelta, offset: str | dt.timedelta | None = None) -> TumblingWindow:
    """Windows of `size`, aligned to 1970-01-01T00:00:00Z plus `offset`.

    >>> tumbling("1 minute").size_us
    60000000
    """
    size_us = parse_duration(size)
    if size_us <= 0:
        raise InputError(f"the window size {size!r} is not positive", fix="give a positive size, such as '1 minute'")
    offset_us = parse_duration(offset) % size_us if offset is not None else 0
    return TumblingWindow(size_us=size_us, offset_us=offset_us)
