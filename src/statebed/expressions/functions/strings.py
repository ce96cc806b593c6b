"""Text functions. Lengths and positions count characters (code points) from 1, as in Spark."""

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.functions.slices import begins_or_ends, substring_by_row
from statebed.expressions.sites import Builder, Site, of, of_many
from statebed.expressions.terms import Datum, Term, constant
from statebed.expressions.text_limits import MOST_PADDED, check_size, text_bytes

_SPACE = " "
_LONGEST = 2**31 - 1


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


def _trimmed(kernel: Callable[..., pa.Array]) -> Builder:
    """Build a trim function, which removes spaces and no other white space."""

    def build(site: Site) -> Term:
        return site.apply(partial(_trim, kernel), types.TEXT, as_text(site, site.operands[0]))

    return of(build, 1)


def _trim(kernel: Callable[..., pa.Array], array: pa.Array) -> pa.Array:
    return kernel(array, characters=_SPACE)


def _concat(site: Site) -> Term:
    return site.apply(_joined, types.TEXT, *(as_text(site, operand) for operand in site.operands))


def _joined(*data: Datum) -> pa.Array:
    rows = next(len(one) for one in data if isinstance(one, pa.Array))
    check_size(sum(_size(one, rows) for one in data), rows)
    return pc.binary_join_element_wise(*data, "", null_handling="emit_null")


def _size(datum: Datum, rows: int) -> int:
    """Return the bytes that a text takes in `rows` rows."""
    if isinstance(datum, pa.Array):
        return text_bytes(datum)
    return rows * len(datum.as_py().encode()) if datum.is_valid else 0


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
    return site.apply(partial(_cut, 1, site.integer_of(1)), types.TEXT, as_text(site, site.operands[0]))


def _right(site: Site) -> Term:
    length = site.integer_of(1)
    return site.apply(partial(_cut, -length, length), types.TEXT, as_text(site, site.operands[0]))


def _replace(site: Site) -> Term:
    text = as_text(site, site.operands[0])
    wanted = site.text_of(1)
    instead = site.text_of(2) if len(site.operands) > 2 else ""  # noqa: PLR2004 - the third operand
    if not wanted:
        return text
    return site.apply(partial(_replaced, wanted, instead), types.TEXT, text)


def _replaced(wanted: str, instead: str, array: pa.Array) -> pa.Array:
    growth = len(instead.encode()) - len(wanted.encode())
    if growth > 0:
        found = pc.sum(pc.count_substring(array, pattern=wanted)).as_py() or 0
        check_size(text_bytes(array) + found * growth, len(array))
    return pc.replace_substring(array, pattern=wanted, replacement=instead)


def _contains(site: Site) -> Term:
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
        width = site.integer_of(1)
        if width > MOST_PADDED:
            raise site.operands[1].place.mistake(
                f"{site.function} to {width:,} characters is above the limit of {MOST_PADDED:,}",
                fix="pad to a smaller length",
            )
        padding = site.text_of(2) if len(site.operands) > 2 else _SPACE  # noqa: PLR2004 - the third operand
        if len(padding) != 1:
            raise site.operands[2].place.mistake("the padding must be one character")
        return site.apply(partial(_pad, kernel, width, padding), types.TEXT, as_text(site, site.operands[0]))

    return of(build, 2, 3)


def _pad(kernel: Callable[..., pa.Array], width: int, padding: str, array: pa.Array) -> pa.Array:
    missing = pc.sum(pc.max_element_wise(pc.subtract(width, pc.utf8_length(array)), 0, skip_nulls=False)).as_py() or 0
    check_size(text_bytes(array) + missing * len(padding.encode()), len(array))
    return _cut(1, width, kernel(array, width=max(width, 0), padding=padding))


BUILDERS: dict[str, Builder] = {
    "length": of(_length, 1),
    "char_length": of(_length, 1),
    "lower": _simple(pc.utf8_lower),
    "upper": _simple(pc.utf8_upper),
    "reverse": _simple(pc.utf8_reverse),
    "trim": _trimmed(pc.utf8_trim),
    "ltrim": _trimmed(pc.utf8_ltrim),
    "rtrim": _trimmed(pc.utf8_rtrim),
    "concat": of_many(_concat),
    "||": of(_concat, 2),
    "substring": of(_substring, 2, 3),
    "substr": of(_substring, 2, 3),
    "left": of(_left, 2),
    "right": of(_right, 2),
    "replace": of(_replace, 2, 3),
    "startswith": _ends(pc.starts_with),
    "endswith": _ends(pc.ends_with),
    "contains": of(_contains, 2),
    "lpad": _padded(pc.utf8_lpad),
    "rpad": _padded(pc.utf8_rpad),
}
