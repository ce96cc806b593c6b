"""Patterns of `date_format`: each letter is a field of a time, repeated for its width."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, int64_values, validity
from statebed.expressions.casts.time_casts import DAY, SECOND
from statebed.expressions.far_years import in_reach, year_of, year_texts
from statebed.expressions.list_parts import check_repeated, taken_or_null
from statebed.expressions.mistakes import TextSpan
from statebed.expressions.text_limits import check_size, text_bytes

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
_LONGEST_YEAR = 6
_AT_ONCE = 32
"""Number of columns that are joined in one step."""
_RESERVED = "[]{}#"
"""Characters with a meaning in Java's patterns: optional parts, and what may come in the future."""
_UNITS = {**dict.fromkeys("Hha", 3600 * SECOND), "m": 60 * SECOND, "s": SECOND, "S": 1}
"""Time for which a field stays the same, in microseconds; a day for the fields that are not listed."""


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
            text = _quoted_text(place, pattern, position)
            pieces.append(PatternPiece("", 0, text or "'"))
            position += len(text) + 2
            continue
        if character in _RESERVED:
            raise place.mistake(
                f"date_format does not support {character!r}", fix=f"put it in quotes: write \"'{character}'\""
            )
        width = 1
        while pattern[position + width : position + width + 1] == character:
            width += 1
        if character.isascii() and character.isalpha():
            if not _is_known(character, width):
                known = "y yy yyyy yyyyy yyyyyy M MM MMM MMMM d dd D DDD E EEEE H HH h hh m mm s ss S to SSSSSSSSS a"
                raise place.mistake(f"date_format does not support {character * width!r}", fix=f"supported are {known}")
            pieces.append(PatternPiece(character, width))
        else:
            pieces.append(PatternPiece("", 0, character * width))
        position += width
    return tuple(pieces)


def _quoted_text(place: TextSpan, pattern: str, start: int) -> str:
    """Return the text between the quote at `start` and the next one."""
    end = pattern.find("'", start + 1)
    if end < 0:
        raise place.mistake(
            "the pattern has a quote that is not closed",
            fix="close it; write two quotes for the character itself",
        )
    if pattern[end + 1 : end + 2] == "'":
        # Spark takes what follows for letters of the pattern, Java for text.
        raise place.mistake(
            "date_format does not support two quotes next to quoted text", fix="put only letters in quotes"
        )
    return pattern[start + 1 : end]


def formatted(pieces: tuple[PatternPiece, ...], times: pa.Array) -> pa.Array:
    """Format timestamps without a zone as text.

    Rows that come together are often of the same day or minute, so each distinct text is written once.
    """
    unit = min((_UNITS.get(piece.letter, DAY) for piece in pieces if piece.letter), default=DAY)
    if unit == 1:
        return _formatted(pieces, times)
    numbers = from_numpy(int64_values(times) // unit, pa.int64(), valid=validity(times)).dictionary_encode()
    distinct = int64_values(numbers.dictionary)
    # The instant of a unit that is nearest to 1970 is one that 64 bits hold.
    instants = distinct * unit + np.where(distinct < 0, unit - 1, 0)
    indices = fixed_width_values(pc.fill_null(numbers.indices, 0), np.int32).astype(np.int64)
    valid = validity(numbers.indices)
    texts = _formatted(pieces, from_numpy(instants, times.type))
    check_repeated(texts, indices[valid])
    return taken_or_null(texts, indices, valid)


def _formatted(pieces: tuple[PatternPiece, ...], times: pa.Array) -> pa.Array:
    empty = pc.if_else(pc.is_valid(times), "", pa.scalar(None, pa.string()))
    fields = {piece: _written(piece, times) if piece.letter else piece.text for piece in set(pieces)}
    sizes = {piece: _total_bytes(field, len(times)) for piece, field in fields.items()}
    check_size(sum(sizes[piece] for piece in pieces), len(times))
    columns = _in_few_columns([fields[piece] for piece in pieces])
    return pc.binary_join_element_wise(empty, *columns, "", null_handling="emit_null")


def _total_bytes(field: pa.Array | str, rows: int) -> int:
    return len(field.encode()) * rows if isinstance(field, str) else text_bytes(field)


def _in_few_columns(columns: list[pa.Array | str]) -> list[pa.Array | str]:
    """Join neighbours until few columns are left. Equal pairs are joined once, so that a repeated pattern is fast."""
    while len(columns) > _AT_ONCE:
        pairs: dict[tuple[int, int], pa.Array | str] = {}
        halves = []
        for left, right in zip(columns[::2], columns[1::2], strict=False):
            key = id(left), id(right)
            if key not in pairs:
                both_texts = isinstance(left, str) and isinstance(right, str)
                pairs[key] = left + right if both_texts else pc.binary_join_element_wise(left, right, "")
            halves.append(pairs[key])
        columns = halves + columns[len(halves) * 2 :]
    return columns


def _is_known(letter: str, width: int) -> bool:
    if letter in "MLE":
        return width <= _LONG_NAME
    if letter == "S":
        return width <= _LONGEST_FRACTION
    if letter == "y":
        return width <= _LONGEST_YEAR and width != _SHORT
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
    year = year_of(times)
    if width == 1:
        return pc.cast(year, pa.string())
    if width == 2:  # noqa: PLR2004 - yy
        return pc.utf8_slice_codeunits(year_texts(year, 2), -2)
    return year_texts(year, width)


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
    "D": lambda times: pc.day_of_year(in_reach(times)),
    "H": pc.hour,
    "h": _twelve_hours,
    "m": pc.minute,
    "s": pc.second,
}
