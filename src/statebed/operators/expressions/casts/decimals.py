"""Arithmetic of decimals, exact and then rounded once, half away from zero, as Spark does it.

Where the exact result has at most 38 digits, Arrow's own kernels give it. Otherwise the work is done with 256 bits.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from statebed.operators.expressions.kinds import MOST_DIGITS
from statebed.operators.expressions.mistakes import RowFailure
from statebed.operators.expressions.terms import Datum, arrays

_WIDE_DIGITS = 76
_FEWER_DIGITS = "cast the operands to decimals of fewer digits, or to double"
_DIVISION_ADDS = 4
"""Digits that Arrow adds to a dividend when the divisor has one digit and no fraction."""


def overflow(kind: pa.DataType) -> RowFailure:
    """A result that needs more digits than its type has."""
    return RowFailure(f"a number that decimal({kind.precision},{kind.scale}) cannot hold", fix=_FEWER_DIGITS)


def sum_kernel(kind: pa.DataType, kernel: Callable[[Datum, Datum], pa.Array]) -> Callable[[Datum, Datum], pa.Array]:
    """Addition or subtraction with a result of `kind`."""

    def combine(left: Datum, right: Datum) -> pa.Array:
        scale = max(left.type.scale, right.type.scale)
        whole = max(left.type.precision - left.type.scale, right.type.precision - right.type.scale)
        if whole + scale + 1 <= MOST_DIGITS:
            return kernel(left, right)
        wide = [_widened(array) for array in arrays(left, right)]
        if whole + scale + 1 > _WIDE_DIGITS:
            wide = [relabelled(array, array.type.precision - 1, array.type.scale) for array in wide]
        return rounded(kernel(*wide), kind)

    return combine


def product_kernel(kind: pa.DataType) -> Callable[[Datum, Datum], pa.Array]:
    """Multiplication with a result of `kind`."""

    def multiply(left: Datum, right: Datum) -> pa.Array:
        digits = left.type.precision + right.type.precision + 1
        if digits <= MOST_DIGITS:
            return pc.multiply(left, right)
        one, other = (_widened(array) for array in arrays(left, right))
        if digits > _WIDE_DIGITS:
            one = relabelled(one, one.type.precision - 1, one.type.scale)
        return rounded(pc.multiply(one, other), kind)

    return multiply


def quotient_kernel(kind: pa.DataType) -> Callable[[Datum, Datum], pa.Array]:
    """Division with a result of `kind`; no divisor is zero."""

    def divide(left: Datum, right: Datum) -> pa.Array:
        dividend, divisor = arrays(left, right)
        shift = dividend.type.scale - divisor.type.scale
        more = max(0, kind.scale + 1 - shift - _DIVISION_ADDS)
        quotient = _truncated_quotient(dividend, divisor, more)
        scale = more + _DIVISION_ADDS + shift
        if scale < 0:
            raise overflow(kind)
        return rounded(relabelled(quotient, _WIDE_DIGITS, scale), kind)

    return divide


def remainder_kernel(kind: pa.DataType) -> Callable[[Datum, Datum], pa.Array]:
    """What a division leaves, with the sign of the dividend; no divisor is zero."""

    def remain(left: Datum, right: Datum) -> pa.Array:
        scale = max(left.type.scale, right.type.scale)
        one, other = (pc.cast(_widened(array), pa.decimal256(_WIDE_DIGITS, scale)) for array in arrays(left, right))
        times = pc.trunc(relabelled(_truncated_quotient(one, other, 0), _WIDE_DIGITS, _DIVISION_ADDS))
        whole = relabelled(_narrowed(times, 0), _WIDE_DIGITS // 2 - 1, 0)
        back = pc.multiply(whole, relabelled(other, _WIDE_DIGITS // 2, scale))
        difference = pc.subtract(relabelled(one, _WIDE_DIGITS - 1, scale), relabelled(back, _WIDE_DIGITS - 1, scale))
        return rounded(difference, kind)

    return remain


def _truncated_quotient(dividend: pa.Array, divisor: pa.Array, more: int) -> pa.Array:
    """Dividend over divisor as integers, times 10 ** (more + 4), cut off towards zero."""
    digits = _WIDE_DIGITS - _DIVISION_ADDS
    raised = relabelled(_widened(dividend), _WIDE_DIGITS, 0)
    try:
        raised = relabelled(pc.cast(raised, pa.decimal256(digits, more)), digits, 0)
    except pa.ArrowInvalid:
        raise RowFailure("a division of decimals with too many digits", fix=_FEWER_DIGITS) from None
    one = pa.scalar(1).cast(pa.decimal256(_WIDE_DIGITS, 0))
    # Under a null stands a zero, which Arrow would refuse.
    safe = pc.fill_null(relabelled(_widened(divisor), _WIDE_DIGITS, 0), one)
    quotient = pc.divide(raised, relabelled(safe, 1, 0))
    return pc.if_else(pc.is_valid(divisor), quotient, pa.scalar(None, quotient.type))


def rounded(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array of wide decimals as `kind`, rounded half away from zero; refuses what does not fit."""
    if array.type.scale > kind.scale:
        array = pc.round(array, ndigits=kind.scale, round_mode="half_towards_infinity")
    return _checked_cast(_narrowed(array, kind.scale), kind)


def too_large(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Where a decimal has more digits before the point than `kind` has."""
    whole = kind.precision - kind.scale
    if array.type.precision - array.type.scale <= whole:
        return pc.and_(pc.is_null(array), False)  # nowhere
    limit = pa.scalar(10**whole).cast(pa.decimal256(_WIDE_DIGITS, 0)) if whole < 19 else _power(whole)  # noqa: PLR2004
    return pc.fill_null(pc.greater_equal(pc.abs(_widened(array)), pc.cast(limit, _limit_type(array))), False)


def _power(exponent: int) -> pa.Scalar:
    return pa.scalar("1" + "0" * exponent).cast(pa.decimal256(_WIDE_DIGITS, 0))


def _limit_type(array: pa.Array) -> pa.DataType:
    return pa.decimal256(_WIDE_DIGITS, array.type.scale)


def _narrowed(array: pa.Array, scale: int) -> pa.Array:
    """Fewer digits behind the point, where those left out are zeros."""
    if array.type.scale <= scale:
        return array
    return pc.cast(array, pa.decimal256(_WIDE_DIGITS, scale), safe=False)


def _checked_cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return pc.cast(array, kind)
    except pa.ArrowInvalid:
        raise overflow(kind) from None


def _widened(array: pa.Array) -> pa.Array:
    if pa.types.is_decimal256(array.type):
        return array
    return pc.cast(array, pa.decimal256(array.type.precision, array.type.scale))


def relabelled(array: pa.Array, precision: int, scale: int) -> pa.Array:
    """The same integers as decimals of another type of 256 bits."""
    return pa.Array.from_buffers(
        pa.decimal256(precision, scale), len(array), array.buffers(), array.null_count, array.offset
    )
