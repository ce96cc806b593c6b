"""Literals: numbers with Spark's suffixes, and intervals."""

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

import pyarrow as pa

from statebed.expressions import types
from statebed.expressions.language.tokens import Token
from statebed.expressions.language.tree import Literal
from statebed.expressions.mistakes import TextSpan

_SUFFIXES = {"l": types.BIGINT, "s": types.SMALLINT, "y": types.TINYINT, "d": types.DOUBLE, "f": types.FLOAT}
_NUMBER = re.compile(r"(?P<digits>[\d.]+)(?P<exponent>e[+-]?\d+)?(?P<suffix>bd|[lsydf])?")
_MICROSECONDS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
}
_FIELDS = ("day", "hour", "minute", "second")
_CALENDAR = {"month", "quarter", "year"}
UNITS = frozenset(_MICROSECONDS) | _CALENDAR
_AMOUNT = re.compile(r"\s*(?P<amount>[+-]?\d*\.?\d+)\s*(?P<unit>[a-zA-Z]+)\s*")
_PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)")
_LONGEST = 2**63 - 1


def number(place: TextSpan, token: Token, *, negative: bool, start: int) -> Literal:
    """Parse a number with Spark's types: int, bigint or decimal by size; 1.5 is a decimal, 1e3 and 1.5D are doubles, 1L
    is a bigint.
    """
    match = _NUMBER.fullmatch(token.value.lower())
    at = place.at(start, token.end)
    if match is None:
        raise at.mistake("the number is invalid")
    sign = "-" if negative else ""
    digits, exponent, suffix = sign + match["digits"], match["exponent"] or "", match["suffix"]
    if suffix in {"d", "f"} or (exponent and suffix is None):
        kind = _SUFFIXES[suffix or "d"]
        return Literal(start, token.end, float(digits + exponent), kind)
    if suffix == "bd" or "." in digits:
        return _decimal(at, digits + exponent)
    if exponent:
        raise at.mistake("an integer cannot have an exponent", fix="leave the suffix out: 1e3 is a double")
    return _integer(at, int(digits), _SUFFIXES.get(suffix or ""))


def _integer(at: TextSpan, value: int, wanted: pa.DataType | None) -> Literal:
    fits = [
        kind for kind in (types.INT, types.BIGINT) if -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1)
    ]
    if wanted is not None:
        if not -(2 ** (wanted.bit_width - 1)) <= value < 2 ** (wanted.bit_width - 1):
            raise at.mistake(f"{value} does not fit the type {types.type_name(wanted)}")
        return Literal(at.start, at.end, value, wanted)
    return Literal(at.start, at.end, value, fits[0]) if fits else _decimal(at, str(value))


def _decimal(at: TextSpan, text: str) -> Literal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise at.mistake("the number is invalid") from None
    _, digits, exponent = value.as_tuple()
    scale = max(0, -int(exponent))
    precision = max(len(digits) + max(0, int(exponent)), scale)
    if precision > types.MAX_DIGITS:
        raise at.mistake(
            f"a decimal has at most {types.MAX_DIGITS} digits, got {precision}", fix="write a double, such as 1e40"
        )
    return Literal(at.start, at.end, value, pa.decimal128(precision, scale))


def interval_of_text(at: TextSpan, text: str) -> Literal:
    """Parse an interval such as '1 day 2 hours'."""
    total, position = 0, 0
    while position < len(text):
        match = _AMOUNT.match(text, position)
        if match is None:
            raise at.mistake(f"{text!r} is not an interval", fix="write amounts and units: interval '1 day 2 hours'")
        total += microseconds(at, match["amount"], match["unit"])
        position = match.end()
    return interval(at, total)


def interval_of_fields(at: TextSpan, text: str, first: str, last: str) -> int:
    """Parse an interval such as '1 02:03:04.5' from `first` (day) to `last` (second); return its microseconds."""
    if first not in _FIELDS or last not in _FIELDS or _FIELDS.index(first) >= _FIELDS.index(last):
        raise at.mistake(f"an interval from {first} to {last}", fix="write interval '1 02:03:04' day to second")
    fields = _FIELDS[_FIELDS.index(first) : _FIELDS.index(last) + 1]
    number = r"(\d+(?:\.\d*)?)" if last == "second" else r"(\d+)"
    pattern = r"\s*([+-]?)" + "".join(r"(\d+)" + (" " if field == "day" else ":") for field in fields[:-1]) + number
    match = re.fullmatch(pattern + r"\s*", text)
    if match is None:
        raise at.mistake(f"{text!r} is not an interval from {first} to {last}", fix="write it as '1 02:03:04'")
    total = sum(
        int(Fraction(value.rstrip(".")) * _MICROSECONDS[field])
        for field, value in zip(fields, match.groups()[1:], strict=True)
    )
    return -total if match[1] == "-" else total


def interval(at: TextSpan, value: int) -> Literal:
    """Build an interval literal of `value` microseconds."""
    if abs(value) > _LONGEST:
        raise at.mistake("the interval is too long for 64 bits of microseconds")
    return Literal(at.start, at.end, value, types.INTERVAL)


def unit_of(word: str) -> str:
    """Return the singular of a unit."""
    return word.lower().removesuffix("s")


def microseconds(at: TextSpan, amount: str, unit: str) -> int:
    """Return the microseconds of an amount and a unit."""
    size = _MICROSECONDS.get(unit_of(unit))
    if size is None:
        known = ", ".join(_MICROSECONDS)
        fix = f"use one of {known}" + ("; months and years differ in length" if unit_of(unit) in _CALENDAR else "")
        raise at.mistake(f"an interval cannot be in {unit!r}", fix=fix)
    if not _PLAIN_NUMBER.fullmatch(amount):
        raise at.mistake(f"{amount!r} is not a number of {unit}", fix="write interval 5 minutes")
    return int(Fraction(amount) * size)
