"""Types of setting values: how to parse one from text or from Python, and how to show it.

Spark's configuration and the environment contain only text, a TOML file also contains numbers, and keywords may be any
Python value. Each type accepts all sensible forms and refuses the rest. Errors do not name the origin of the value,
which the caller adds.
"""

import datetime as dt
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from statebed.errors import InputError
from statebed.present.units import binary_size
from statebed.quantities import duration_text, parse_bytes, parse_duration

_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_SHARE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*")
_MICROSECOND = dt.timedelta(microseconds=1)


@dataclass(frozen=True)
class ValueType:
    """Type of a setting's value."""

    words: str
    """Name of the type in the reference and in errors."""
    parse: Callable[[object], Any]
    show: Callable[[Any], str] = str
    is_place: bool = False
    """Whether it is a folder or URL; a relative one refers to the folder of its source."""


def whole_number(minimum: int, maximum: int) -> ValueType:
    """Return the type of whole numbers from `minimum` to `maximum`."""

    def parse(value: object) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"expected a whole number, got {value!r}", fix=f"set a number from {minimum} to {maximum}")
        if not minimum <= value <= maximum:
            raise InputError(
                f"the value must be from {minimum} to {maximum}, got {value}",
                fix=f"set a number from {minimum} to {maximum}",
            )
        return value

    return ValueType("number", parse)


def size(minimum: int) -> ValueType:
    """Return the type of sizes of at least `minimum` bytes."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InputError(
                f"expected a size, got {value!r}", fix="set a number of bytes, or text with k, m, g or t: '512m', '2g'"
            )
        nbytes = parse_bytes(str(value), where="")
        if nbytes < minimum:
            raise InputError(
                f"the value must be at least {binary_size(minimum)}, got {value!r}", fix="set a larger size"
            )
        return nbytes

    return ValueType("size", parse, binary_size)


def duration(minimum: dt.timedelta) -> ValueType:
    """Return the type of durations of at least `minimum`."""

    def parse(value: object) -> dt.timedelta:
        if not isinstance(value, str | dt.timedelta):
            raise InputError(f"expected a duration, got {value!r}", fix="add a unit: '10 seconds', '1 hour 30 minutes'")
        span = parse_duration(value) * _MICROSECOND
        if span < minimum:
            shortest = duration_text(minimum // _MICROSECOND)
            raise InputError(f"the value must be at least {shortest}, got {value!r}", fix="set a longer duration")
        return span

    return ValueType("duration", parse, lambda span: duration_text(span // _MICROSECOND))


def share(maximum: float) -> ValueType:
    """Return the type of fractions from 0 to `maximum`."""

    def parse(value: object) -> float:
        number = value
        if isinstance(value, str) and (match := _SHARE.fullmatch(value)):
            number = float(match[1]) / (100 if match[2] else 1)
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= maximum:
            raise InputError(
                f"expected a share from 0 to {maximum:g}, got {value!r}",
                fix=f"set a number from 0 to {maximum:g}, or a percentage",
            )
        return float(number)

    return ValueType("share", parse, lambda part: f"{part:.0%}")


def shares() -> ValueType:
    """Return the type of named shares, which sum to at most 1."""
    fix = "set a mapping such as {'joined': '40%'}, or text such as 'joined=40%, totals.groups=0.1'"
    part = share(1.0)

    def parse(value: object) -> dict[str, float]:
        if isinstance(value, str):
            pairs = [item.partition("=") for item in value.split(",") if item.strip()]
            if not all(separator for _, separator, _ in pairs):
                raise InputError(f"expected shares by name, got {value!r}", fix=fix)
            value = {name.strip(): text for name, _, text in pairs}
        if not isinstance(value, Mapping):
            raise InputError(f"expected shares by name, got {value!r}", fix=fix)
        parsed = {}
        for name, share_value in _flattened(value):
            try:
                parsed[name] = part.parse(share_value)
            except InputError as error:
                raise InputError(f"{name}: {error.what}", fix=error.fix) from error
        if not all(name and number > 0 for name, number in parsed.items()):
            raise InputError(f"a share needs a name and must be greater than 0, got {value!r}", fix=fix)
        if sum(parsed.values()) > 1 + 1e-9:
            raise InputError(
                f"the shares {_show_shares(parsed)} add up to {sum(parsed.values()):.0%}",
                fix="set at most 100% in total; the rest is for everything without a share",
            )
        return parsed

    return ValueType("shares by name", parse, _show_shares)


def _flattened(table: Mapping[Any, object]) -> Iterator[tuple[str, object]]:
    """Yield names and shares; a TOML table such as `joined.left = "10%"` is nested."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", inner_value) for inner, inner_value in _flattened(value))
        else:
            yield str(name), value


def _show_shares(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={100 * part:.4g}%" for name, part in parts.items())


def _flag(value: object) -> bool:
    text = str(value).strip().lower()
    if text not in _FLAGS:
        raise InputError(f"expected true or false, got {value!r}", fix="set true or false")
    return _FLAGS[text]


_FLAGS = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
FLAG = ValueType("true or false", _flag, lambda value: str(value).lower())


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"expected non-empty text, got {value!r}", fix="set a text that is not empty")
    return value.strip()


TEXT = ValueType("text", _text)


def _place(value: object) -> str:
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"expected a folder or URL, got {value!r}", fix="set text, such as 'folder' or 's3://bucket/state'"
        )
    return text


FOLDER = ValueType("folder", _place, is_place=True)
LOCATION = ValueType("folder or URL", _place, is_place=True)
