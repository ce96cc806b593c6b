"""Decimal arithmetic: exact, then rounded once, half away from zero, as in Spark.

If the exact result has at most 38 digits, Arrow's own kernels compute sums and products.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import validity
from statebed.expressions.casts.unscaled import (
    Flags,
    Integers,
    exact_decimals,
    integers,
    rescaled,
    rounded_quotient,
    signed,
)
from statebed.expressions.terms import Datum, arrays
from statebed.expressions.types import MAX_DIGITS

Operation = Callable[[Datum, Datum], pa.Array]


def sum_kernel(kind: pa.DataType, sign: str) -> Operation:
    """Return addition or subtraction with a result of `kind`."""

    def combine(left: Datum, right: Datum) -> pa.Array:
        scale = max(left.type.scale, right.type.scale)
        whole = max(left.type.precision - left.type.scale, right.type.precision - right.type.scale)
        if whole + scale + 1 <= MAX_DIGITS:
            return pc.add(left, right) if sign == "+" else pc.subtract(left, right)
        left_values, right_values = (_at_scale(array, scale) for array in arrays(left, right))
        total = left_values.astype(object) + (right_values if sign == "+" else -right_values)
        return exact_decimals(rescaled(total, MAX_DIGITS, kind.scale - scale), kind, _both(left, right))

    return combine


def product_kernel(kind: pa.DataType) -> Operation:
    """Return multiplication with a result of `kind`."""

    def multiply(left: Datum, right: Datum) -> pa.Array:
        if left.type.precision + right.type.precision + 1 <= MAX_DIGITS:
            return pc.multiply(left, right)
        left_values, right_values = (integers(array) for array in arrays(left, right))
        shift = kind.scale - left.type.scale - right.type.scale
        return exact_decimals(
            rescaled(left_values.astype(object) * right_values, MAX_DIGITS, shift), kind, _both(left, right)
        )

    return multiply


def quotient_kernel(kind: pa.DataType) -> Operation:
    """Return division with a result of `kind`. Divisors must not be zero."""

    def divide(left: Datum, right: Datum) -> pa.Array:
        dividend, divisor = arrays(left, right)
        shift = kind.scale + divisor.type.scale - dividend.type.scale
        above = rescaled(integers(dividend), dividend.type.precision, max(shift, 0))
        below = rescaled(integers(divisor), divisor.type.precision, max(-shift, 0))
        valid = _both(dividend, divisor)
        size = np.where(valid, np.abs(below), 1)
        return exact_decimals(rounded_quotient(np.where(below < 0, -above, above), size), kind, valid)

    return divide


def remainder_kernel(kind: pa.DataType) -> Operation:
    """Return the remainder of a division, with the sign of the dividend. Divisors must not be zero."""

    def remain(left: Datum, right: Datum) -> pa.Array:
        scale = max(left.type.scale, right.type.scale)
        above, below = (_at_scale(array, scale) for array in arrays(left, right))
        valid = _both(left, right)
        left_over = signed(above, np.abs(above) % np.where(valid, np.abs(below), 1))
        return exact_decimals(rescaled(left_over, MAX_DIGITS, kind.scale - scale), kind, valid)

    return remain


def _at_scale(array: pa.Array, scale: int) -> Integers:
    return rescaled(integers(array), array.type.precision, scale - array.type.scale)


def _both(left: Datum, right: Datum) -> Flags:
    """Return a mask of rows in which neither operand is null."""
    left_values, right_values = arrays(left, right)
    return validity(left_values) & validity(right_values)
