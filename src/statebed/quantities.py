"""Durations and sizes as people write them: '1 hour 30 minutes', '512m'."""

import datetime as dt
import re

from statebed.argument_checks import misplaced
from statebed.errors import InputError

Duration = str | dt.timedelta
"""A length of time: text such as '30 days', or a timedelta."""

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
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d+)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def parse_duration(text: str | dt.timedelta) -> int:
    """Return the microseconds of a duration such as '1 minute', '1 hour 30 minutes', '500 ms', or a timedelta.

    >>> parse_duration("1 hour 30 minutes")
    5400000000
    """
    if isinstance(text, dt.timedelta):
        return text // dt.timedelta(microseconds=1)
    fix = "write whole numbers with units week, day, hour, minute, second, ms, us, for example '1 hour 30 minutes'"
    if not isinstance(text, str) or not text.strip():
        elsewhere = misplaced(text)
        raise InputError(f"{text!r} is not a duration", fix=f"{fix}; {elsewhere}" if elsewhere else fix)
    body = text.strip()
    body = body[len("interval ") :] if body.lower().startswith("interval ") else body
    total, position = 0, 0
    while position < len(body):
        match = _TERM.match(body, position)
        if match is None:
            raise InputError(f"{text!r} is not a duration: cannot read {body[position:].strip()!r}", fix=fix)
        total += int(match.group(1)) * _unit_us(match.group(2), text=text, fix=fix)
        position = match.end()
    if abs(total) > _MAX_DURATION_US:
        raise InputError(f"the duration {text!r} is out of range", fix="use a duration below 146000 years")
    return total


def duration_text(span_us: int) -> str:
    """Format a number of microseconds as text that `parse_duration` accepts.

    >>> duration_text(5_400_000_000), duration_text(-60_000_000), duration_text(0)
    ('1 hour 30 minutes', '-1 minute', '0 seconds')
    """
    sign, rest, parts = "-" if span_us < 0 else "", abs(span_us), []
    for unit, size in _UNITS_US.items():
        if unit == "week":  # 14 days read better than 2 weeks
            continue
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{sign}{count} {unit}{'' if count == 1 else 's'}")
    return " ".join(parts) or "0 seconds"


def _unit_us(word: str, *, text: str, fix: str) -> int:
    unit = word.lower()
    unit = _SHORT.get(unit, unit)
    unit = unit if unit in _UNITS_US or not unit.endswith("s") else unit[:-1]
    if unit in _CALENDAR:
        raise InputError(
            f"the duration {text!r} uses a calendar unit, whose length varies",
            fix="use days or weeks, for example '30 days'",
        )
    if unit not in _UNITS_US:
        raise InputError(f"{text!r} is not a duration: unknown unit {word!r}", fix=fix)
    return _UNITS_US[unit]


def parse_bytes(text: str, *, where: str) -> int:
    """Return the number of bytes in a text such as '512m' or '2g'.

    >>> parse_bytes("512m", where="")
    536870912
    """
    match = _SIZE.fullmatch(text)
    nbytes = int(match[1]) * _SIZE_UNITS[match[2].lower()] if match else 0
    if not nbytes:
        raise InputError(
            f"a size must be at least 1 byte, got {text!r}" if match else f"{text!r} is not a number of bytes",
            where=where,
            fix="use a number of bytes, or a number with k, m, g or t: 512m, 2g",
        )
    return nbytes
