"""format_string and printf: Java's formats, for numbers, texts and booleans; to_char of times and binaries."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial

import pyarrow as pa

from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.distinct_values import by_distinct
from statebed.expressions.functions import number_bases, times
from statebed.expressions.functions.json_paths import java_double
from statebed.expressions.mistakes import TextSpan
from statebed.expressions.sites import Builder, Site, of, of_many
from statebed.expressions.terms import Term
from statebed.expressions.text_limits import check_size

_PIECE = re.compile(
    r"%(?:(?P<index>\d{1,9})\$)?(?P<flags>[-#+ 0,(]*)(?P<width>\d{1,9})?(?:\.(?P<precision>\d{1,9}))?"
    r"(?P<letter>[a-zA-Z%])"
)
_INTEGERS, _FLOATS, _ANY = "dxXo", "feE", "sSbB"
_DEFAULT_DECIMALS = 6
_WIDE = Context(prec=1200)
_LONGEST = 100_000
"""Maximum width and number of decimals of a directive."""
_MAX_DECIMALS = 400
"""No double has more decimals; zeros follow them."""


@dataclass(frozen=True)
class Directive:
    """One place of a format: literal text, or an operand and how it is written."""

    text: str = ""
    operand: int = -1
    flags: str = ""
    width: int = 0
    precision: int | None = None
    letter: str = ""
    bits: int = 0
    """Width of an integer operand, for hexadecimal and octal numbers."""


def _format_string(site: Site) -> Term:
    directives = _directives(site, site.text_of(0))
    operands = [_plain(operand) for operand in site.operands[1:]]
    if not operands:
        operands = [site.operands[0]]
    kernel = partial(by_distinct, partial(_written, tuple(directives)), types.TEXT, with_nulls=True)
    return site.apply(kernel, types.TEXT, *operands, nullable=False)


def _plain(operand: Term) -> Term:
    return convert(operand, types.TEXT) if types.is_decimal(operand.type) else operand


def _directives(site: Site, pattern: str) -> list[Directive]:
    directives, at, ordinary, last = [], 0, 0, -1
    place = site.operands[0].place
    for match in _PIECE.finditer(pattern):
        literal = pattern[at : match.start()]
        _check_literal(place, literal)
        directives.append(Directive(literal))
        at = match.end()
        letter, width = match["letter"], int(match["width"] or 0)
        if letter in "%n":
            _check_width(site, match)
            directives.append(Directive(_padded("%", match["flags"], width) if letter == "%" else "\n"))
            continue
        if match["index"]:
            last = int(match["index"]) - 1
        else:
            last, ordinary = ordinary, ordinary + 1
        if not 0 <= last < len(site.operands) - 1:
            raise place.mistake(f"{match[0]} has no argument", fix="pass directive argument for each % of the format")
        kind = site.operands[last + 1].type
        _check_letter(site, match, kind)
        precision = None if match["precision"] is None else int(match["precision"])
        bits = kind.bit_width if types.is_integer(kind) else 0
        directives.append(Directive("", last, match["flags"], width, precision, letter, bits))
    _check_literal(place, pattern[at:])
    directives.append(Directive(pattern[at:]))
    return directives


def _check_literal(place: TextSpan, literal: str) -> None:
    if "%" in literal:
        raise place.mistake(f"{literal!r} has a % that begins no format", fix="write %% for the character itself")


def _check_letter(site: Site, match: "re.Match[str]", kind: pa.DataType) -> None:
    letter, flags = match["letter"], set(match["flags"])
    if letter in _INTEGERS:
        is_wanted = types.is_integer(kind)
    else:
        is_wanted = types.is_float(kind) if letter in _FLOATS else letter in _ANY
    is_simple = types.is_number(kind) or kind in (types.TEXT, types.BOOLEAN, types.NULL)
    _check_width(site, match)
    allowed = set("-") if letter in _ANY else set("-0,+ (" if letter in "df" else "-0")
    if not is_wanted or not is_simple or flags - allowed:
        raise site.operands[0].place.type_mistake(
            f"{site.function} does not write {types.type_name(kind)} as {match[0]}",
            fix="use %d %x %o for integers, %f %e for doubles, %s for texts; cast other types to string",
        )


def _check_width(site: Site, match: "re.Match[str]") -> None:
    is_number = match["letter"] in _FLOATS
    if max(int(match["width"] or 0), int((is_number and match["precision"]) or 0)) > _LONGEST:
        raise site.operands[0].place.mistake(
            f"{site.function} cannot write {match[0]}: the limit is {_LONGEST:,} characters", fix="write fewer"
        )


def _written(directives: Sequence[Directive], *operands: object) -> str:
    pieces, total = [], 0
    for directive in directives:
        pieces.append(_piece(directive, operands[directive.operand]) if directive.operand >= 0 else directive.text)
        total += len(pieces[-1])
        check_size(total, 1)
    return "".join(pieces)


def _piece(directive: Directive, value: object) -> str:
    if directive.letter in "bB":
        text = "true" if (value is not None and value is not False) else "false"
        return _finished(directive, text)
    if value is None:
        return _finished(directive, _cut("null", directive.precision))
    if directive.letter in "sS":
        return _finished(directive, _text(value))
    if directive.letter in "xXo":
        number = int(value) & ((1 << directive.bits) - 1)  # type: ignore[call-overload]
        return _numeral(directive, f"{number:{'o' if directive.letter == 'o' else 'x'}}", negative=False)
    if directive.letter == "d":
        number = int(value)  # type: ignore[call-overload]
        return _numeral(directive, str(abs(number)), negative=number < 0)
    return _float(directive, float(value))  # type: ignore[arg-type]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return java_double(value).strip('"') if isinstance(value, float) else str(value)


def _float(directive: Directive, value: float) -> str:
    if value != value:  # noqa: PLR0124 - NaN
        return _finished(directive, "NaN")
    negative = str(value).startswith("-")
    if value in {float("inf"), float("-inf")}:
        sign = "(" if negative and "(" in directive.flags else "-" if negative else _sign(directive)
        return _finished(directive, f"{sign}Infinity{')' if sign == '(' else ''}")
    decimals = _DEFAULT_DECIMALS if directive.precision is None else directive.precision
    number = abs(Decimal(repr(value)))
    exact = min(decimals, _MAX_DECIMALS)
    zeros = "0" * (decimals - exact)
    if directive.letter == "f":
        digits = f"{number.quantize(Decimal(1).scaleb(-exact), rounding=ROUND_HALF_UP, context=_WIDE):f}{zeros}"
        return _numeral(directive, digits, negative=negative)
    power = number.adjusted() if number else 0
    mantissa = number.scaleb(-power, context=_WIDE).quantize(
        Decimal(1).scaleb(-exact), rounding=ROUND_HALF_UP, context=_WIDE
    )
    if mantissa >= 10:  # noqa: PLR2004 - rounded up to the next power
        power += 1
        mantissa = (mantissa / 10).quantize(Decimal(1).scaleb(-exact), context=_WIDE)
    return _numeral(directive, f"{mantissa:f}{zeros}e{'-' if power < 0 else '+'}{abs(power):02d}", negative=negative)


def _sign(directive: Directive) -> str:
    return "+" if "+" in directive.flags else " " if " " in directive.flags else ""


def _numeral(directive: Directive, digits: str, *, negative: bool) -> str:
    if "," in directive.flags:
        whole, point, fraction = digits.partition(".")
        digits = f"{int(whole):,}{point}{fraction}"
    opening = "(" if negative and "(" in directive.flags else "-" if negative else _sign(directive)
    closing = ")" if opening == "(" else ""
    if "0" in directive.flags:
        digits = digits.rjust(directive.width - len(opening) - len(closing), "0")
    return _finished(directive, f"{opening}{digits}{closing}", cut=False)


def _finished(directive: Directive, text: str, *, cut: bool = True) -> str:
    if cut and directive.precision is not None and directive.letter in "sSbB":
        text = _cut(text, directive.precision)
    if directive.letter.isupper():
        text = text.upper()
    return _padded(text, directive.flags, directive.width)


def _padded(text: str, flags: str, width: int) -> str:
    """Return a text of at least `width` UTF-16 units, as Java counts them."""
    space = " " * (width - len(text.encode("utf-16-le", "surrogatepass")) // 2)
    return text + space if "-" in flags else space + text


def _cut(text: str, units: int | None) -> str:
    """Return the first UTF-16 units of a text."""
    if units is None:
        return text
    return text.encode("utf-16-le", "surrogatepass")[: 2 * units].decode("utf-16-le", "replace").replace("\ufffd", "?")


def _to_char(site: Site) -> Term:
    """Build to_char(value, format) for times, which is date_format, and for binaries."""
    value = site.operands[0]
    if types.has_time(value.type):
        return times.BUILDERS["date_format"].build(site)
    form = site.text_of(1).lower()
    if value.type == types.BINARY and form in {"hex", "base64"}:
        return number_bases.BUILDERS[form].build(Site(site.place, form, (value,)))
    if value.type == types.BINARY and form == "utf-8":
        return number_bases.BUILDERS["decode"].build(Site(site.place, "decode", site.operands))
    raise site.wrong_types(
        "a date, a timestamp, or a binary with 'hex', 'base64' or 'utf-8' (for numbers: format_number)"
    )


BUILDERS: dict[str, Builder] = {
    "format_string": of_many(_format_string),
    "printf": of_many(_format_string),
    "to_char": of(_to_char, 2),
    "to_varchar": of(_to_char, 2),
}
