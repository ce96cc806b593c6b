"""Text functions that work character by character: translate, soundex, levenshtein, mask and others.

Most have no counterpart in Arrow and are computed in Python, once per distinct text.
"""

from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, validity
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.distinct_values import by_distinct
from statebed.expressions.functions.strings import as_text
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Builder, Site, of, of_many
from statebed.expressions.terms import Datum, Term, arrays, constant
from statebed.expressions.text_limits import check_size

_SOUNDEX = {
    letter: code for code, letters in enumerate(["", "BFPV", "CGJKQSXZ", "DT", "L", "MN", "R"]) for letter in letters
}
_SOUNDEX_LENGTH = 4
_BYTE = 0xFF
_MAX_PAIRS = 1 << 32
"""Maximum number of pairs of characters that `levenshtein` compares for two texts; they take about 2 s."""
_MAX_DECIMALS = 1100
_CONTEXT = Context(prec=2000, Emin=-999999, Emax=999999)


def per_value(
    function: Callable[..., object],
    kind: pa.DataType,
    *operands: pa.DataType,
    min_operands: int | None = None,
    maybe: bool = False,
    fails: bool = False,
) -> Builder:
    """Build a function that Python computes once per distinct combination of operands of these types.

    With `maybe` it may return None, and with `fails` it may raise `RowFailure`.
    """

    def build(site: Site) -> Term:
        converted = [
            as_text(site, operand) if wanted == types.TEXT else convert(operand, wanted)
            for operand, wanted in zip(site.operands, operands, strict=False)
        ]
        kernel = partial(by_distinct, function, kind)
        return site.apply(kernel, kind, *converted, nullable=True if maybe else None, fallible=fails)

    return of(build, len(operands) if min_operands is None else min_operands, len(operands))


def _ascii(text: str) -> int:
    return ord(text[0]) if text else 0


def _chr(code: int) -> str:
    return "" if code < 0 else chr(code & _BYTE)


def _find_in_set(text: str, listed: str) -> int:
    parts = listed.split(",")
    return parts.index(text) + 1 if text in parts and "," not in text else 0


def _initcap(text: str) -> str:
    return " ".join(word[:1].title() + word[1:].lower() for word in text.split(" "))


def _instr(text: str, part: str) -> int:
    return text.find(part) + 1


def _locate(site: Site) -> Term:
    """Build locate(part, text, start). As in Spark, the result is 0 if `start` is null, even for a null text."""
    part, text = (as_text(site, operand) for operand in site.operands[:2])
    start = convert(site.operands[2] if len(site.operands) > 2 else constant(site.place, 1, types.INT), types.INT)  # noqa: PLR2004 - the third operand
    kernel = partial(by_distinct, _located, types.INT, with_nulls=True)
    return site.apply(kernel, types.INT, part, text, start, nullable=part.nullable or text.nullable)


def _located(part: str | None, text: str | None, start: int | None) -> int | None:
    if start is None or start < 1:
        return 0 if start is None or (part is not None and text is not None) else None
    return None if part is None or text is None else text.find(part, start - 1) + 1


def _levenshtein(longer: str, shorter: str, threshold: int | None = None) -> int:
    if len(longer) < len(shorter):
        longer, shorter = shorter, longer
    if len(longer) * len(shorter) > _MAX_PAIRS:
        raise RowFailure(
            f"levenshtein of texts of {len(longer):,} and {len(shorter):,} characters", fix="compare shorter texts"
        )
    distance = _distance(longer, shorter) if shorter else len(longer)
    return -1 if threshold is not None and distance > threshold else distance


def _distance(longer: str, shorter: str) -> int:
    """Return the Levenshtein distance by Myers' algorithm, which keeps a row of the matrix in the bits of integers.

    A bit of `up` or `down` says that the matrix grows or shrinks by 1 from one character of `shorter` to the next.
    """
    codes = np.frombuffer(shorter.encode("utf-32-le"), dtype=np.uint32)
    places = {
        character: int.from_bytes(np.packbits(codes == ord(character), bitorder="little").tobytes(), "little")
        for character in set(longer) & set(shorter)
    }
    every, last = (1 << len(shorter)) - 1, 1 << (len(shorter) - 1)
    up, down, distance = every, 0, len(shorter)
    for character in longer:
        same = places.get(character, 0)
        vertical = same | down
        horizontal = (((same & up) + up) ^ up) | same
        more = down | (every & ~(horizontal | up))
        fewer = up & horizontal
        distance += 1 if more & last else -1 if fewer & last else 0
        more = (more << 1) | 1
        fewer <<= 1
        up = every & (fewer | ~(vertical | more))
        down = every & more & vertical
    return distance


def _luhn_check(text: str) -> bool:
    if not text or not (text.isascii() and text.isdigit()):
        return False
    digits = [int(digit) for digit in reversed(text)]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _overlay(text: str, part: str, position: int, length: int = -1) -> str:
    length = len(part) if length < 0 else length
    return _cut(text, 1, position - 1) + part + _cut(text, position + length, 2**31)


def _cut(text: str, position: int, length: int) -> str:
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    end = start + length
    return text[max(start, 0) : max(end, 0)] if length > 0 else ""


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _soundex(text: str) -> str:
    if not text or not (text[0].isascii() and text[0].isalpha()):
        return text
    encoded, last = text[0].upper(), _SOUNDEX.get(text[0].upper(), 0)
    for character in text[1:]:
        letter = character.upper()
        if not (character.isascii() and character.isalpha()):
            last = 0
            continue
        code = _SOUNDEX.get(letter, 0)
        if code and code != last:
            encoded += str(code)
            if len(encoded) == _SOUNDEX_LENGTH:
                break
        # H and W do not separate equal codes.
        if letter not in "HW":
            last = code
    return encoded.ljust(_SOUNDEX_LENGTH, "0")


def _split_part(text: str, separator: str, number: int) -> str:
    if number == 0:
        raise RowFailure("split_part with part 0", fix="parts count from 1, or from -1 at the end")
    parts = text.split(separator) if separator else [text]
    index = number - 1 if number > 0 else len(parts) + number
    return parts[index] if 0 <= index < len(parts) else ""


def _substring_index(text: str, separator: str, count: int) -> str:
    if not separator or count == 0:
        return ""
    if count > 0:
        place = -1
        for _ in range(count):
            place = text.find(separator, place + 1)
            if place < 0:
                return text
        return text[:place]
    place = len(text) - len(separator) + 1
    for _ in range(-count):
        place = text.rfind(separator, 0, max(place - 1 + len(separator), 0)) if place > 0 else -1
        if place < 0:
            return text
    return text[place + len(separator) :]


def _translate(text: str, source: str, target: str) -> str:
    table: dict[int, str | None] = {}
    for index, character in enumerate(source):
        table.setdefault(ord(character), target[index] if index < len(target) else None)
    return text.translate(table)


def _repeat(site: Site) -> Term:
    text, count = as_text(site, site.operands[0]), convert(site.operands[1], types.INT)
    return site.apply(_repeated, types.TEXT, text, count, fallible=True)


def _space(site: Site) -> Term:
    count = convert(site.operands[0], types.INT)
    return site.apply(_repeated, types.TEXT, constant(site.place, " ", types.TEXT), count, fallible=True)


def _repeated(text: Datum, count: Datum) -> pa.Array:
    texts, counts = arrays(text, count)
    counts = pc.max_element_wise(counts, pa.scalar(0, pa.int32()), skip_nulls=False)
    wanted = pc.multiply(pc.cast(pc.binary_length(texts), pa.int64()), pc.cast(counts, pa.int64()))
    check_size(pc.sum(wanted).as_py() or 0, len(texts))
    return pc.binary_repeat(texts, counts)


def _element(site: Site) -> Term:
    """Build elt(n, ...): the n-th of its other operands."""
    number, *values = site.operands
    kind = types.BINARY if all(value.type == types.BINARY for value in values) else types.TEXT
    choices = [value if kind == types.BINARY else as_text(site, value) for value in values]
    return site.apply(_chosen, kind, convert(number, types.INT), *choices, nullable=True, fallible=True)


def _chosen(number: Datum, *values: Datum) -> pa.Array:
    numbers, *columns = arrays(number, *values)
    wanted, valid = fixed_width_values(numbers, "int32").astype("int64"), validity(numbers)
    outside = valid & ((wanted < 1) | (wanted > len(columns)))
    if outside.any():
        raise RowFailure(f"element {int(wanted[outside][0])} of {len(columns)} operands of elt")
    return pc.choose(from_numpy(wanted - 1, pa.int64(), valid=valid), *columns)


def _mask(site: Site) -> Term:
    """Build mask(text, upper, lower, digit, other): a null keeps the characters of its kind."""
    fillers = ["X", "x", "n", None]
    for index in range(1, len(site.operands)):
        operand = site.operands[index]
        if operand.constant is None:
            raise operand.place.type_mistake("mask needs the same character for all rows", fix="write it as a text")
        fillers[index - 1] = operand.constant.as_py()
        if fillers[index - 1] is not None and len(str(fillers[index - 1])) != 1:
            raise operand.place.mistake("mask replaces a character by one character")
    kernel = partial(by_distinct, partial(_masked, tuple(fillers)), types.TEXT)
    return site.apply(kernel, types.TEXT, as_text(site, site.operands[0]))


def _masked(fillers: tuple[str | None, ...], text: str) -> str:
    def mask_character(character: str) -> str:
        kind = 0 if character.isupper() else 1 if character.islower() else 2 if character.isdecimal() else 3
        return fillers[kind] or character

    return "".join(map(mask_character, text))


def _format_number(site: Site) -> Term:
    number, digits = site.operands[0], convert(site.operands[1], types.INT)
    if not types.is_number(number.type):
        raise site.wrong_types("a number", at=number)
    kernel = partial(by_distinct, _grouped, types.TEXT)
    return site.apply(kernel, types.TEXT, number, digits, nullable=True)


def _grouped(number: Decimal | float, digits: int) -> str | None:
    """Write a number with commas and `digits` decimals, rounded half to even.

    As in Java, a double that need not be rounded has the digits with which it is printed, followed by zeros.
    """
    if digits < 0:
        return None
    value = Decimal(number)
    if isinstance(number, float) and value.is_finite():
        printed = Decimal(repr(number))
        value = printed if -int(printed.as_tuple().exponent) <= digits else value
    if value.is_nan():
        return "NaN"
    if value.is_infinite():
        return "∞" if value > 0 else "-∞"
    rounded = value.quantize(Decimal(1).scaleb(-min(digits, _MAX_DECIMALS)), ROUND_HALF_EVEN, _CONTEXT)
    return f"{rounded:,f}"


def _make_valid(site: Site) -> Term:
    return as_text(site, site.operands[0])


def _is_valid(site: Site) -> Term:
    text = as_text(site, site.operands[0])
    return site.apply(_true_if_known, types.BOOLEAN, text)


def _true_if_known(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(texts), True, pa.scalar(None, pa.bool_()))


BUILDERS: dict[str, Builder] = {
    "ascii": per_value(_ascii, types.INT, types.TEXT),
    "char": per_value(_chr, types.TEXT, types.BIGINT),
    "chr": per_value(_chr, types.TEXT, types.BIGINT),
    "elt": of_many(_element, 2),
    "find_in_set": per_value(_find_in_set, types.INT, types.TEXT, types.TEXT),
    "format_number": of(_format_number, 2),
    "initcap": per_value(_initcap, types.TEXT, types.TEXT),
    "instr": per_value(_instr, types.INT, types.TEXT, types.TEXT),
    "is_valid_utf8": of(_is_valid, 1),
    "levenshtein": per_value(_levenshtein, types.INT, types.TEXT, types.TEXT, types.INT, min_operands=2, fails=True),
    "locate": of(_locate, 2, 3),
    "luhn_check": per_value(_luhn_check, types.BOOLEAN, types.TEXT),
    "make_valid_utf8": of(_make_valid, 1),
    "mask": of(_mask, 1, 5),
    "overlay": per_value(_overlay, types.TEXT, types.TEXT, types.TEXT, types.INT, types.INT, min_operands=3),
    "position": of(_locate, 2, 3),
    "quote": per_value(_quote, types.TEXT, types.TEXT),
    "repeat": of(_repeat, 2),
    "soundex": per_value(_soundex, types.TEXT, types.TEXT),
    "space": of(_space, 1),
    "split_part": per_value(_split_part, types.TEXT, types.TEXT, types.TEXT, types.INT, fails=True),
    "substring_index": per_value(_substring_index, types.TEXT, types.TEXT, types.TEXT, types.INT),
    "translate": per_value(_translate, types.TEXT, types.TEXT, types.TEXT, types.TEXT),
    "try_validate_utf8": of(_make_valid, 1),
    "validate_utf8": of(_make_valid, 1),
}
