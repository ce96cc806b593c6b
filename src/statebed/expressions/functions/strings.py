"""Text functions. Lengths and positions count characters (code points) from 1, as in Spark."""

import functools
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import int64_values, validity
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.distinct_values import by_distinct
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Datum, Term, arrays, constant
from statebed.expressions.text_limits import MAX_PADDED, check_size, text_bytes

_SPACE = " "
_LONGEST = 2**31 - 1
_BMP = range(0x80, 0x10000)
_LONG_LOWER = "[\u0130\u03a3]"
"""Characters whose lower case is more than one character, or depends on its neighbours."""


@functools.cache
def _long_upper() -> str:
    """Return the characters whose upper case is more than one character: the upper case of 'ß' is 'SS'."""
    return f"[{''.join(character for character in map(chr, _BMP) if len(character.upper()) > 1)}]"


def as_text(site: Site, operand: Term) -> Term:
    """Convert an operand to text; numbers and times are formatted."""
    if not (types.has_order(operand.type) and operand.type != types.INTERVAL):
        raise site.wrong_types("a text", at=operand)
    return convert(operand, types.TEXT)


def _simple(kernel: Callable[[pa.Array], pa.Array], kind: pa.DataType = types.TEXT) -> Builder:
    """Build a function of one text."""

    def build(site: Site) -> Term:
        return site.apply(kernel, kind, as_text(site, site.operands[0]))

    return of(build, 1)


def _length(site: Site) -> Term:
    operand = site.operands[0]
    if operand.type == types.BINARY:
        return site.apply(pc.binary_length, types.INT)
    return site.apply(pc.utf8_length, types.INT, as_text(site, operand))


def _upper(texts: pa.Array) -> pa.Array:
    return _with_long_cases(texts, pc.utf8_upper(texts), _long_upper(), str.upper)


def _lower(texts: pa.Array) -> pa.Array:
    return _with_long_cases(texts, pc.utf8_lower(texts), _LONG_LOWER, str.lower)


def _with_long_cases(texts: pa.Array, plain: pa.Array, special: str, case: Callable[[str], str]) -> pa.Array:
    """Replace the result for texts with special characters: Arrow maps every character to one character."""
    is_special = pc.match_substring_regex(texts, special)
    if not pc.any(is_special).as_py():
        return plain
    exact = by_distinct(case, types.TEXT, pc.if_else(is_special, texts, pa.scalar(None, pa.string())))
    return pc.coalesce(exact, plain)


def _trimmed(kernel: Callable[..., pa.Array], strip: Callable[[str, str], str]) -> Builder:
    """Build a trim function, which removes spaces and no other white space, or the given characters.

    As in Spark, the characters are the second operand of btrim, and the first one of the others.
    """

    def build(site: Site) -> Term:
        operands = [as_text(site, operand) for operand in site.operands]
        if len(operands) == 1:
            return site.apply(partial(_trim, kernel), types.TEXT, *operands)
        text, characters = operands if site.function == "btrim" else reversed(operands)
        return site.apply(partial(by_distinct, strip, types.TEXT), types.TEXT, text, characters)

    return of(build, 1, 2)


def _trim(kernel: Callable[..., pa.Array], array: pa.Array) -> pa.Array:
    return kernel(array, characters=_SPACE)


def concat(site: Site) -> Term:
    """Build `concat` of texts, or of binaries."""
    if all(operand.type == types.BINARY for operand in site.operands):
        return site.apply(_joined_bytes, types.BINARY)
    return site.apply(joined, types.TEXT, *(as_text(site, operand) for operand in site.operands))


def reverse(site: Site) -> Term:
    """Build `reverse` of a text."""
    return site.apply(pc.utf8_reverse, types.TEXT, as_text(site, site.operands[0]))


def _joined_bytes(*data: Datum) -> pa.Array:
    _check_joined(*data)
    return pc.binary_join_element_wise(*data, pa.scalar(b"", pa.binary()), null_handling="emit_null")


def joined(*data: Datum) -> pa.Array:
    """Join the texts of each row, after checking the size of the result; null where one of them is null."""
    _check_joined(*data)
    return pc.binary_join_element_wise(*data, "", null_handling="emit_null")


def _check_joined(*data: Datum) -> None:
    rows = next(len(column) for column in data if isinstance(column, pa.Array))
    check_size(sum(_size(column, rows) for column in data), rows)


def _size(datum: Datum, rows: int) -> int:
    """Return the bytes that a text takes in `rows` rows."""
    if isinstance(datum, pa.Array):
        return text_bytes(datum)
    return rows * datum.as_buffer().size if datum.is_valid else 0


def _substring(site: Site) -> Term:
    text = as_text(site, site.operands[0])
    position, *length = (_as_integer(site, operand) for operand in site.operands[1:])
    constants = [term.constant.as_py() for term in (position, *length) if term.constant is not None]
    if None in constants or len(constants) < len(site.operands) - 1:
        longest = length[0] if length else constant(site.place, _LONGEST, types.BIGINT)
        return site.apply(substring_by_row, types.TEXT, text, position, longest)
    return site.apply(partial(_cut, constants[0], *(constants[1:] or [None])), types.TEXT, text)


def _as_integer(site: Site, operand: Term) -> Term:
    if not types.is_integer(operand.type) and operand.type != types.NULL:
        raise site.wrong_types("integers", at=operand)
    return convert(convert(operand, types.INT), types.BIGINT)


def _cut(position: int, length: int | None, array: pa.Array) -> pa.Array:
    """Cut texts from a position that counts from 1, or from the end if negative."""
    if length is not None and length <= 0:
        return pc.if_else(pc.is_valid(array), "", array)
    start = position - 1 if position > 0 else position
    stop = None if length is None else start + length
    if start < 0 and stop is not None and stop >= 0:
        stop = None  # reaches the end of every text
    return pc.utf8_slice_codeunits(array, start, stop)


def _left(site: Site) -> Term:
    """Build left or right: the first or last characters of a text."""
    text, length = as_text(site, site.operands[0]), _as_integer(site, site.operands[1])
    at_end = site.function == "right"
    if length.constant is None or not length.constant.is_valid:
        return site.apply(partial(_end_by_row, at_end), types.TEXT, text, length)
    count = length.constant.as_py()
    return site.apply(partial(_cut, -count if at_end else 1, count), types.TEXT, text)


def _end_by_row(at_end: bool, text: Datum, length: Datum) -> pa.Array:
    texts, lengths = arrays(text, length)
    first = (
        pc.negate(pc.max_element_wise(lengths, 0, skip_nulls=False))
        if at_end
        else pc.if_else(pc.is_valid(lengths), 1, lengths)
    )
    return substring_by_row(texts, pc.cast(first, pa.int64()), lengths)


def _replace(site: Site) -> Term:
    text, *parts = (as_text(site, operand) for operand in site.operands)
    if any(part.constant is None or not part.constant.is_valid for part in parts):
        return site.apply(partial(by_distinct, _replaced_by_row, types.TEXT), types.TEXT, text, *parts)
    wanted = site.text_of(1)
    instead = site.text_of(2) if len(site.operands) > 2 else ""  # noqa: PLR2004 - the third operand
    if not wanted:
        return text
    return site.apply(partial(_replaced, wanted, instead), types.TEXT, text)


def _replaced(wanted: str, instead: str, array: pa.Array) -> pa.Array:
    growth = len(instead.encode()) - len(wanted.encode())
    if growth > 0:
        occurrences = pc.sum(pc.count_substring(array, pattern=wanted)).as_py() or 0
        check_size(text_bytes(array) + occurrences * growth, len(array))
    return pc.replace_substring(array, pattern=wanted, replacement=instead)


def _replaced_by_row(text: str, wanted: str, instead: str = "") -> str:
    if not wanted:
        return text
    growth = text.count(wanted) * (len(instead) - len(wanted))
    check_size(len(text) + growth, 1)
    return text.replace(wanted, instead)


def _contains(site: Site) -> Term:
    text, part = (as_text(site, operand) for operand in site.operands)
    if part.constant is None or not part.constant.is_valid:
        return site.apply(partial(by_distinct, str.__contains__, types.BOOLEAN), types.BOOLEAN, text, part)
    return site.apply(
        partial(_held, pc.match_substring, site.text_of(1)), types.BOOLEAN, as_text(site, site.operands[0])
    )


def _held(kernel: Callable[..., pa.Array], part: str, array: pa.Array) -> pa.Array:
    return kernel(array, pattern=part)


def _ends(kernel: Callable[..., pa.Array]) -> Builder:
    """Build startswith or endswith; the part may differ from row to row."""

    def build(site: Site) -> Term:
        text, part = (as_text(site, operand) for operand in site.operands)
        if part.constant is None or not part.constant.is_valid:
            return site.apply(partial(_ends_by_row, site.function == "endswith"), types.BOOLEAN, text, part)
        return site.apply(partial(_held, kernel, part.constant.as_py()), types.BOOLEAN, text)

    return of(build, 2)


def _ends_by_row(at_end: bool, text: Datum, part: Datum) -> pa.Array:
    same = pc.equal(begins_or_ends(text, part, at_end=at_end), part)
    known = pc.and_(pc.is_valid(text), pc.is_valid(part))
    return pc.if_else(known, pc.fill_null(same, False), pa.scalar(None, pa.bool_()))


def _padded(kernel: Callable[..., pa.Array]) -> Builder:
    """Build lpad or rpad, which extend a text to a length or cut it."""

    def build(site: Site) -> Term:
        text, width = as_text(site, site.operands[0]), _as_integer(site, site.operands[1])
        padding = as_text(site, site.operands[2]) if len(site.operands) > 2 else None  # noqa: PLR2004 - the third
        known = width.constant
        if known is not None and known.is_valid and known.as_py() > MAX_PADDED:
            raise site.operands[1].place.mistake(
                f"{site.function} cannot pad to {known.as_py():,} characters; the limit is {MAX_PADDED:,}",
                fix="pad to a smaller length",
            )
        filler = _SPACE if padding is None else None if padding.constant is None else padding.constant.as_py()
        if known is None or not known.is_valid or filler is None or len(filler) != 1:
            last = constant(site.place, _SPACE, types.TEXT) if padding is None else padding
            by_row = partial(_padded_by_row, site.function == "lpad")
            kernel_by_row = partial(by_distinct, by_row, types.TEXT)
            return site.apply(kernel_by_row, types.TEXT, text, width, last, fallible=True)
        return site.apply(partial(_pad, kernel, known.as_py(), filler), types.TEXT, text)

    return of(build, 2, 3)


def _padded_by_row(at_start: bool, text: str, width: int, padding: str) -> str:
    missing = width - len(text)
    if missing <= 0 or not padding:
        return text[: max(width, 0)]
    if width > MAX_PADDED:
        raise RowFailure(f"a text padded to {width:,} characters, above the limit of {MAX_PADDED:,}")
    filler = (padding * (missing // len(padding) + 1))[:missing]
    return filler + text if at_start else text + filler


def _pad(kernel: Callable[..., pa.Array], width: int, padding: str, array: pa.Array) -> pa.Array:
    missing = pc.sum(pc.max_element_wise(pc.subtract(width, pc.utf8_length(array)), 0, skip_nulls=False)).as_py() or 0
    check_size(text_bytes(array) + missing * len(padding.encode()), len(array))
    return _cut(1, width, kernel(array, width=max(width, 0), padding=padding))


BUILDERS: dict[str, Builder] = {
    "length": of(_length, 1),
    "character_length": of(_length, 1),
    "len": of(_length, 1),
    "lcase": _simple(_lower),
    "ucase": _simple(_upper),
    "lower": _simple(_lower),
    "upper": _simple(_upper),
    "trim": _trimmed(pc.utf8_trim, str.strip),
    "btrim": _trimmed(pc.utf8_trim, str.strip),
    "ltrim": _trimmed(pc.utf8_ltrim, str.lstrip),
    "rtrim": _trimmed(pc.utf8_rtrim, str.rstrip),
    "char_length": of(_length, 1),
    "substring": of(_substring, 2, 3),
    "substr": of(_substring, 2, 3),
    "left": of(_left, 2),
    "right": of(_left, 2),
    "replace": of(_replace, 2, 3),
    "startswith": _ends(pc.starts_with),
    "endswith": _ends(pc.ends_with),
    "contains": of(_contains, 2),
    "lpad": _padded(pc.utf8_lpad),
    "rpad": _padded(pc.utf8_rpad),
}


Positions = npt.NDArray[np.int64]

_CONTINUES = 0x80
_UPPER_BITS = 0xC0
"""Mask of the upper bits of a UTF-8 byte; 10 marks a continuation byte."""
_FARTHEST = 2**31


def substring_by_row(text: Datum, position: Datum, length: Datum) -> pa.Array:
    """Return `length` characters from `position`, which counts from 1, or from the end if negative."""
    texts, positions, lengths = arrays(text, position, length)
    valid = validity(texts) & validity(positions) & validity(lengths)
    offsets, content = _content(texts)
    characters = np.append(np.flatnonzero((content & _UPPER_BITS) != _CONTINUES), len(content)).astype(np.int64)
    first = np.searchsorted(characters, offsets)
    count = np.diff(first)
    wanted = np.clip(int64_values(positions), -_FARTHEST, _FARTHEST)
    start = np.where(wanted > 0, wanted - 1, np.where(wanted < 0, count + wanted, 0))
    end = np.clip(start + np.clip(int64_values(lengths), 0, _FARTHEST), 0, count)
    start = np.minimum(np.clip(start, 0, count), end)
    return _gathered(content, characters[first[:-1] + start], characters[first[:-1] + end], valid)


def begins_or_ends(text: Datum, part: Datum, *, at_end: bool) -> pa.Array:
    """Return the first or last bytes of each text, as many as `part` has; null where the text is shorter."""
    texts, parts = arrays(text, part)
    offsets, content = _content(texts)
    size = np.diff(_content(parts)[0])
    fits = size <= np.diff(offsets)
    size = np.where(fits, size, 0)
    start = offsets[1:] - size if at_end else offsets[:-1]
    return _gathered(content, start, start + size, fits & validity(texts) & validity(parts))


def _content(texts: pa.Array) -> tuple[Positions, npt.NDArray[np.uint8]]:
    """Return the offsets of each text and the bytes of all texts."""
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return np.zeros(len(texts) + 1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    wide = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    return wide - wide[0], np.frombuffer(data, dtype=np.uint8)[wide[0] : wide[-1]]


def _gathered(
    content: npt.NDArray[np.uint8], start: Positions, end: Positions, valid: npt.NDArray[np.bool_]
) -> pa.Array:
    """Gather the bytes of each row from `start` up to, but not including, `end`."""
    size = np.where(valid, end - start, 0)
    offsets = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    taken = content[np.repeat(start - offsets[:-1], size) + np.arange(offsets[-1])]
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(taken))]
    return pa.Array.from_buffers(pa.string(), len(size), buffers)
