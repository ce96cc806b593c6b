"""Functions of whole numbers and of rounding: bround, pmod, factorial, width_bucket, typeof and others."""

import math
from decimal import ROUND_HALF_EVEN
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import boolean_values, fixed_width_values, from_numpy, int64_values, validity
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.casts.number_casts import float_values
from statebed.expressions.casts.unscaled import exact_decimals, integers, rescaled
from statebed.expressions.functions import arithmetic, maths
from statebed.expressions.functions.trigonometry import as_double
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Datum, Term, arrays, constant

_FACTORIALS = np.array([math.factorial(number) for number in range(21)], dtype=np.int64)
_BITMAP_BITS = 32768


def _positive(site: Site) -> Term:
    (operand,) = site.operands
    if operand.type in (types.TEXT, types.NULL):
        return convert(operand, types.DOUBLE)
    if not types.is_number(operand.type) and operand.type != types.INTERVAL:
        raise site.wrong_types("a number")
    return operand


def _factorial(site: Site) -> Term:
    return site.apply(_factorials, types.BIGINT, convert(site.operands[0], types.INT), nullable=True)


def _factorials(numbers: pa.Array) -> pa.Array:
    values = fixed_width_values(numbers, np.int32).astype(np.int64)
    inside = validity(numbers) & (values >= 0) & (values < len(_FACTORIALS))
    return from_numpy(_FACTORIALS[np.where(inside, values, 0)], types.BIGINT, valid=inside)


def _pmod(site: Site) -> Term:
    """Build the remainder with the sign of the divisor's size: never negative for a positive divisor."""
    remainder = arithmetic.BUILDERS["%"].build(Site(site.place, "%", site.operands))
    kind = remainder.type
    divisor = convert(arithmetic.operands_of(Site(site.place, "%", site.operands))[1], kind)
    kernel = _wrapped_decimals if types.is_decimal(kind) else _wrapped_numbers
    return site.apply(partial(kernel, kind), kind, remainder, divisor, fallible=True)


def _wrapped_numbers(kind: pa.DataType, remainder: Datum, divisor: Datum) -> pa.Array:
    rest, below = arrays(remainder, divisor)
    width = np.dtype(kind.to_pandas_dtype())
    valid = validity(rest) & validity(below)
    r, n = (fixed_width_values(column, width) for column in (rest, below))
    with np.errstate(all="ignore"):
        n = np.where(valid, n, width.type(1))
        moved = np.fmod(r + n, n)  # type: ignore[operator]  # numbers by their dtype
    return from_numpy(np.where(r < 0, moved, r).astype(width), kind, valid=valid)  # type: ignore[operator]  # as above


def _wrapped_decimals(kind: pa.DataType, remainder: Datum, divisor: Datum) -> pa.Array:
    rest, below = arrays(remainder, divisor)
    valid = validity(rest) & validity(below)
    r, n = integers(rest).astype(object), integers(below).astype(object)
    n = np.where(valid, n, 1)
    total = r + n
    moved = np.where(total < 0, -((-total) % np.abs(n)), total % np.abs(n))
    return exact_decimals(np.where(r < 0, moved, r), kind, valid)


def _bround(site: Site) -> Term:
    """Build rounding half to even."""
    operand = site.operands[0]
    operand = convert(operand, types.DOUBLE) if operand.type in (types.TEXT, types.NULL) else operand
    digits = site.integer_of(1) if len(site.operands) > 1 else 0
    kind = operand.type
    if types.is_float(kind):
        return site.apply(partial(maths.rounded_by_value, digits, ROUND_HALF_EVEN), kind, operand)
    digits = max(digits, maths.MIN_DIGITS)
    target = maths.rounded_type(kind, digits) if types.is_decimal(kind) else kind
    if not types.is_number(kind):
        raise site.wrong_types("a number", at=operand)
    if types.is_integer(kind) and digits >= 0:
        return operand
    return site.apply(partial(_even_whole, digits, target), target, operand, fallible=True)


def _even_whole(digits: int, target: pa.DataType, array: pa.Array) -> pa.Array:
    valid = validity(array)
    decimal = types.is_decimal(array.type)
    values = integers(array).astype(object) if decimal else int64_values(pc.cast(array, pa.int64())).astype(object)
    scale = array.type.scale if decimal else 0
    cut = max(scale - digits, 0)
    unit = 10**cut
    low = values // unit
    rest = values - low * unit
    up = (2 * rest > unit) | ((2 * rest == unit) & (low % 2 == 1))
    rounded = low + up.astype(object)
    if decimal:
        return exact_decimals(rescaled(rounded, types.MAX_DIGITS, target.scale - (scale - cut)), target, valid)
    result = rounded * unit
    width = np.iinfo(f"int{target.bit_width}")
    if np.any(valid & ((result < width.min) | (result > width.max)).astype(np.bool_)):
        raise RowFailure(f"a number that {types.type_name(target)} cannot hold", fix="cast it to a wider type")
    return pc.cast(from_numpy(np.where(valid, result, 0).astype(np.int64), pa.int64(), valid=valid), target)


def _width_bucket(site: Site) -> Term:
    value, low, high, count = site.operands
    numbers = [as_double(site, operand) for operand in (value, low, high)]
    return site.apply(_buckets, types.BIGINT, *numbers, convert(count, types.BIGINT), nullable=True)


def _buckets(value: Datum, low: Datum, high: Datum, count: Datum) -> pa.Array:
    """Number the bucket of each value among `count` of equal width: 0 below the first, and one more above the last."""
    columns = arrays(value, low, high, count)
    valid = np.logical_and.reduce([validity(column) for column in columns])
    v, a, b = (float_values(column) for column in columns[:3])
    n = int64_values(columns[3])
    with np.errstate(all="ignore"):
        valid = valid & (n > 0) & (n < 2**63 - 1) & ~np.isnan(v) & np.isfinite(a) & np.isfinite(b) & (a != b)
        n = np.where(valid, n, 1)
        share = np.where(a < b, (v - a) / (b - a), (a - v) / (a - b))
        inside = np.where(valid & (share >= 0) & (share < 1), share * n, 0.0).astype(np.int64) + 1
    below = np.where(a < b, v < a, v > a)
    above = np.where(a < b, v >= b, v <= b)
    return from_numpy(np.where(below, 0, np.where(above, n + 1, inside)), types.BIGINT, valid=valid)


def _zero_if_null(site: Site) -> Term:
    (operand,) = site.operands
    if not types.is_number(operand.type):
        raise site.wrong_types("a number")
    common = types.common_type(operand.type, types.INT)
    return site.apply(_filled, common, convert(operand, common), nullable=False)


def _filled(numbers: pa.Array) -> pa.Array:
    return pc.fill_null(numbers, types.zero(numbers.type))


def _null_if_zero(site: Site) -> Term:
    (operand,) = site.operands
    if not types.is_number(operand.type):
        raise site.wrong_types("a number")
    return site.apply(_nulled, operand.type, nullable=True)


def _nulled(numbers: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(numbers, types.zero(numbers.type)), pa.scalar(None, numbers.type), numbers)


def _type_of(site: Site) -> Term:
    return constant(site.place, types.type_name(site.operands[0].type), types.TEXT)


def _assert(site: Site) -> Term:
    """Build assert_true(condition, message): null if the condition holds, or else an error."""
    condition = convert(site.operands[0], types.BOOLEAN)
    message = site.text_of(1) if len(site.operands) > 1 else f"{condition.place.snippet!r} is not true"
    return site.apply(partial(_asserted, message), types.NULL, condition, nullable=True, fallible=True)


def _asserted(message: str, held: pa.Array) -> pa.Array:
    if not boolean_values(held).all():
        raise RowFailure(message)
    return pa.nulls(len(held))


def _raise_error(site: Site) -> Term:
    """Build raise_error(message): an error for every row that needs it."""
    message = convert(site.operands[0], types.TEXT)
    return site.apply(_raised, types.NULL, message, nullable=True, fallible=True)


def _raised(messages: pa.Array) -> pa.Array:
    if len(messages):
        raise RowFailure(str(messages[0].as_py()))
    return pa.nulls(0)


def _bitmap_position(site: Site) -> Term:
    kernel = _bit_of if site.function == "bitmap_bit_position" else _bucket_of
    return site.apply(kernel, types.BIGINT, convert(site.operands[0], types.BIGINT))


def _bit_of(numbers: pa.Array) -> pa.Array:
    values = int64_values(numbers)
    with np.errstate(over="ignore"):
        positions = np.where(values > 0, np.fmod(values - 1, _BITMAP_BITS), np.fmod(-values, _BITMAP_BITS))
    return from_numpy(positions, types.BIGINT, valid=validity(numbers))


def _bucket_of(numbers: pa.Array) -> pa.Array:
    values = int64_values(numbers)
    towards_zero = np.where(values > 0, 1 + (values - 1) // _BITMAP_BITS, -(-values // _BITMAP_BITS))
    return from_numpy(towards_zero, types.BIGINT, valid=validity(numbers))


BUILDERS: dict[str, Builder] = {
    "positive": of(_positive, 1),
    "factorial": of(_factorial, 1),
    "pmod": of(_pmod, 2),
    "bround": of(_bround, 1, 2),
    "width_bucket": of(_width_bucket, 4),
    "zeroifnull": of(_zero_if_null, 1),
    "nullifzero": of(_null_if_zero, 1),
    "typeof": of(_type_of, 1),
    "assert_true": of(_assert, 1, 2),
    "raise_error": of(_raise_error, 1),
    "bitmap_bit_position": of(_bitmap_position, 1),
    "bitmap_bucket_number": of(_bitmap_position, 1),
}
