"""Kinds of values that a setting may have: how one is read from text or from Python, and how it is shown.

Spark's configuration and the environment hold text alone, a TOML file holds numbers too, and keywords may be any
Python value: each kind takes what can be meant and refuses the rest, without saying where it stood (the caller knows).
"""

import datetime as dt
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from statebed.errors import InputError
from statebed.quantities import parse_bytes, parse_duration

_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_SHARE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*")
_MICROSECOND = dt.timedelta(microseconds=1)
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_TIMES = (
    (86_400_000_000, "day"),
    (3_600_000_000, "hour"),
    (60_000_000, "minute"),
    (1_000_000, "second"),
    (1_000, "ms"),
)


@dataclass(frozen=True)
class ValueType:
    """One kind of value."""

    words: str
    """What a value is, in the reference and in errors."""
    parse: Callable[[object], Any]
    show: Callable[[Any], str] = str
    is_place: bool = False
    """A folder or URL: one that is relative begins at the folder of whoever says it."""


def whole_number(least: int, most: int) -> ValueType:
    """A number of things."""

    def parse(value: object) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{value!r} is no whole number", fix=f"give a number from {least} to {most}")
        if not least <= value <= most:
            raise InputError(f"{value} is out of range", fix=f"give a number from {least} to {most}")
        return value

    return ValueType("number", parse)


def size(least: int) -> ValueType:
    """A number of bytes."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InputError(f"{value!r} is no size", fix="give bytes, or text with k, m, g or t: '512m', '2g'")
        nbytes = parse_bytes(str(value), where="")
        if nbytes < least:
            raise InputError(f"{value!r} is too small", fix=f"give at least {show_size(least)}")
        return nbytes

    return ValueType("size", parse, show_size)


def duration(least: dt.timedelta) -> ValueType:
    """A time span."""

    def parse(value: object) -> dt.timedelta:
        if not isinstance(value, str | dt.timedelta):
            raise InputError(f"{value!r} is no duration", fix="say its unit: '10 seconds', '1 hour 30 minutes'")
        span = parse_duration(value) * _MICROSECOND
        if span < least:
            raise InputError(f"{value!r} is too short", fix=f"give at least {show_duration(least)}")
        return span

    return ValueType("duration", parse, show_duration)


def share(most: float) -> ValueType:
    """A part of a whole."""

    def parse(value: object) -> float:
        number = value
        if isinstance(value, str) and (found := _SHARE.fullmatch(value)):
            number = float(found[1]) / (100 if found[2] else 1)
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= most:
            raise InputError(f"{value!r} is no share", fix=f"give a number from 0 to {most:g}, or a percentage")
        return float(number)

    return ValueType("share", parse, lambda part: f"{part:.0%}")


def shares() -> ValueType:
    """Parts of a whole by name, which together are at most the whole."""
    fix = "give a mapping such as {'joined': '40%'}, or text such as 'joined=40%, totals.groups=0.1'"
    part = share(1.0)

    def parse(value: object) -> dict[str, float]:
        if isinstance(value, str):
            pairs = [item.partition("=") for item in value.split(",") if item.strip()]
            if not all(separator for _, separator, _ in pairs):
                raise InputError(f"{value!r} names no shares", fix=fix)
            value = {name.strip(): text for name, _, text in pairs}
        if not isinstance(value, Mapping):
            raise InputError(f"{value!r} names no shares", fix=fix)
        parsed = {}
        for name, one in _flattened(value):
            try:
                parsed[name] = part.parse(one)
            except InputError as error:
                raise InputError(f"{name}: {error.what}", fix=error.fix) from error
        if not all(name and number > 0 for name, number in parsed.items()):
            raise InputError(f"{value!r} has an empty name or a share of 0", fix=fix)
        if sum(parsed.values()) > 1 + 1e-9:
            raise InputError(
                f"the shares {_show_shares(parsed)} sum up to {sum(parsed.values()):.0%}",
                fix="give at most 100% in all; what is left is for everything without a share",
            )
        return parsed

    return ValueType("shares by name", parse, _show_shares)


def _flattened(given: Mapping[Any, object]) -> Iterator[tuple[str, object]]:
    """Names and shares; a table of TOML such as `joined.left = "10%"` is nested."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", one) for inner, one in _flattened(value))
        else:
            yield str(name), value


def _show_shares(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={100 * part:.4g}%" for name, part in parts.items())


def _flag(value: object) -> bool:
    text = str(value).strip().lower()
    if text not in _FLAGS:
        raise InputError(f"{value!r} is neither true nor false", fix="write true or false")
    return _FLAGS[text]


_FLAGS = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
FLAG = ValueType("true or false", _flag, lambda value: str(value).lower())


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{value!r} is no text", fix="give text that is not empty")
    return value.strip()


TEXT = ValueType("text", _text)


def _place(value: object) -> str:
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{value!r} is no folder or URL", fix="give text, such as 'folder' or 's3://bucket/state'")
    return text


FOLDER = ValueType("folder", _place, is_place=True)
LOCATION = ValueType("folder or URL", _place, is_place=True)


def show_size(nbytes: int) -> str:
    """A size in words.

    >>> show_size(1536 << 20), show_size(2 << 30)
    ('1.5 GiB', '2 GiB')
    """
    for unit, name in _UNITS:
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}" if nbytes < 1000 * unit else f"{nbytes / unit:.0f} {name}"
    return f"{nbytes} bytes"


def show_duration(span: dt.timedelta) -> str:
    """A duration as `parse_duration` reads it.

    >>> show_duration(dt.timedelta(minutes=90))
    '1 hour 30 minutes'
    """
    rest, parts = span // _MICROSECOND, []
    for unit, name in _TIMES:
        count, rest = divmod(rest, unit)
        if count:
            parts.append(f"{count} {name}{'s' if count > 1 and name != 'ms' else ''}")
    if rest or not parts:
        parts.append(f"{rest} us")
    return " ".join(parts)
