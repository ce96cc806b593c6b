"""Patterns of `date_format`: each letter is a field of a time, repeated for its width."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from statebed.expressions.mistakes import TextSpan

_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_SHORT = 3
_LONG_NAME = 4
_MICROSECOND_DIGITS = 6
_LONGEST_FRACTION = 9


@dataclass(frozen=True)
class PatternPiece:
    """One field of a pattern, or literal text."""

    letter: str
    """Pattern letter; empty for literal text."""
    width: int
    text: str = ""


def format_pieces(place: TextSpan, pattern: str) -> tuple[PatternPiece, ...]:
    """Parse a pattern such as yyyy-MM-dd'T'HH:mm."""
    pieces, position = [], 0
    while position < len(pattern):
        character = pattern[position]
        if character == "'":
            end = pattern.find("'", position + 1)
            if end < 0:
                raise place.mistake(
                    "the pattern has a quote that is not closed",
                    fix="close it; write two quotes for the character itself",
                )
            pieces.append(PatternPiece("", 0, pattern[position + 1 : end] or "'"))
            position = end + 1
            continue
        rest = pattern[position:]
        width = len(rest) - len(rest.lstrip(character))
        if character.isascii() and character.isalpha():
            if not _is_known(character, width):
                known = "yyyy yy M MM MMM MMMM d dd D DDD E EEEE H HH h hh m mm s ss S to SSSSSSSSS a"
                raise place.mistake(f"date_format does not support {character * width!r}", fix=f"supported are {known}")
            pieces.append(PatternPiece(character, width))
        else:
            pieces.append(PatternPiece("", 0, character * width))
        position += width
    return tuple(pieces)


def formatted(pieces: tuple[PatternPiece, ...], times: pa.Array) -> pa.Array:
    """Format timestamps without a zone as text."""
    empty = pc.if_else(pc.is_valid(times), "", pa.scalar(None, pa.string()))
    columns = [piece.text if not piece.letter else _written(piece, times) for piece in pieces]
    return pc.binary_join_element_wise(empty, *columns, "", null_handling="emit_null")


def _is_known(letter: str, width: int) -> bool:
    if letter in "MLE":
        return width <= _LONG_NAME
    if letter == "S":
        return width <= _LONGEST_FRACTION
    if letter == "y":
        return width <= _LONGEST_FRACTION and width != _SHORT
    return width <= {"D": 3, "a": 1}.get(letter, 2) and (letter in _FIELDS or letter == "a")


def _written(piece: PatternPiece, times: pa.Array) -> pa.Array:
    if piece.letter == "y":
        return _year(piece.width, times)
    if piece.letter in "ML" and piece.width >= _SHORT:
        return _named(_MONTHS, pc.subtract(pc.month(times), 1), piece.width)
    if piece.letter == "E":
        return _named(_DAYS, pc.day_of_week(times), _SHORT if piece.width < _LONG_NAME else _LONG_NAME)
    if piece.letter == "a":
        return pc.if_else(pc.less(pc.hour(times), 12), "AM", "PM")
    if piece.letter == "S":
        micros = pc.add(pc.multiply(pc.millisecond(times), 1000), pc.microsecond(times))
        digits = pc.utf8_lpad(pc.cast(micros, pa.string()), _MICROSECOND_DIGITS, "0")
        return pc.utf8_slice_codeunits(pc.utf8_rpad(digits, _LONGEST_FRACTION, "0"), 0, piece.width)
    return pc.utf8_lpad(pc.cast(_FIELDS[piece.letter](times), pa.string()), piece.width, "0")


def _year(width: int, times: pa.Array) -> pa.Array:
    year = pc.year(times)
    if width == 2:  # noqa: PLR2004 - yy
        return pc.utf8_slice_codeunits(pc.utf8_lpad(pc.cast(year, pa.string()), 2, "0"), -2)
    return pc.utf8_lpad(pc.cast(year, pa.string()), width, "0")


def _named(names: list[str], index: pa.Array, width: int) -> pa.Array:
    return pa.array([name if width >= _LONG_NAME else name[:_SHORT] for name in names]).take(index)


def _twelve_hours(times: pa.Array) -> pa.Array:
    hour = pc.hour(times)
    late = pc.if_else(pc.greater(hour, 12), pc.subtract(hour, 12), hour)
    return pc.if_else(pc.equal(late, 0), pa.scalar(12, hour.type), late)


_FIELDS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "M": pc.month,
    "L": pc.month,
    "d": pc.day,
    "D": pc.day_of_year,
    "H": pc.hour,
    "h": _twelve_hours,
    "m": pc.minute,
    "s": pc.second,
}
