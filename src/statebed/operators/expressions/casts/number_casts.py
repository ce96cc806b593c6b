"""Casts among numbers and booleans: towards zero to integers, half away from zero to decimals, as Spark."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.format.columns import fixed_width_values, from_numpy, validity
from statebed.operators.expressions import kinds
from statebed.operators.expressions.casts import decimals

Converted = tuple[pa.Array, pa.Array | None]
Conversion = Callable[[pa.Array, pa.DataType], Converted]

WHOLE_DIGITS = {kinds.TINYINT: 3, kinds.SMALLINT: 5, kinds.INT: 10, kinds.BIGINT: 19}
"""Digits that values of the integer types have at most."""
_WIDE_DIGITS = 76
_GUARD_DIGITS = 20
"""Digits behind those that a decimal keeps, with which a double is read: it has 17."""


def number_to_number(source: pa.DataType, target: pa.DataType) -> Conversion:
    """The conversion between two types of numbers."""
    if kinds.is_integer(target):
        if kinds.is_integer(source):
            return integer_to_integer
        return _float_to_integer if kinds.is_float(source) else _decimal_to_integer
    if kinds.is_decimal(target):
        if kinds.is_integer(source):
            return integer_to_decimal
        return _float_to_decimal if kinds.is_float(source) else decimal_to_decimal
    return _decimal_to_float if kinds.is_decimal(source) else _to_float


def with_boolean(source: pa.DataType, target: pa.DataType) -> Conversion | None:
    """To or from booleans: 1 and 0; everything but zero is true."""
    if kinds.is_number(target):
        return _boolean_to_number
    return _number_to_boolean if kinds.is_number(source) else None


def limits(kind: pa.DataType) -> tuple[int, int]:
    """The least and the largest integer of a type."""
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def without(array: pa.Array, bad: pa.Array) -> pa.Array:
    """Null where it is bad."""
    return pc.if_else(bad, pa.scalar(None, array.type), array)


def integer_to_integer(array: pa.Array, kind: pa.DataType) -> Converted:
    """Integers of another width."""
    if array.type.bit_width <= kind.bit_width:
        return pc.cast(array, kind), None
    least, most = limits(kind)
    bad = pc.fill_null(
        pc.or_(pc.less(array, pa.scalar(least, array.type)), pc.greater(array, pa.scalar(most, array.type))), False
    )
    return pc.cast(without(array, bad), kind), bad


def _float_to_integer(array: pa.Array, kind: pa.DataType) -> Converted:
    valid = validity(array)
    least, most = limits(kind)
    whole = np.trunc(np.where(valid, float_values(array), 0.0))
    with np.errstate(invalid="ignore"):
        bad = ~((whole >= float(least)) & (whole <= float(most)))
        top = whole >= float(most)  # 2 ** 63 is the double next to the largest bigint, and becomes it
        values = np.where(bad | top, 0.0, whole).astype(np.int64)
    values = np.where(top, most, values)
    found = from_numpy(values, pa.int64(), valid=valid & ~bad)
    return pc.cast(found, kind), booleans(bad)


def _decimal_to_integer(array: pa.Array, kind: pa.DataType) -> Converted:
    wide = pc.cast(array, pa.decimal256(_WIDE_DIGITS, array.type.scale))
    whole = pc.cast(pc.trunc(wide), pa.decimal256(_WIDE_DIGITS, 0), safe=False)
    least, most = (pa.scalar(str(limit)).cast(whole.type) for limit in limits(kind))
    bad = pc.fill_null(pc.or_(pc.less(whole, least), pc.greater(whole, most)), False)
    return pc.cast(without(whole, bad), kind), bad


def integer_to_decimal(array: pa.Array, kind: pa.DataType) -> Converted:
    """Integers as decimals; those with too many digits are bad."""
    bad = None
    whole = kind.precision - kind.scale
    if not pa.types.is_unsigned_integer(array.type):
        array = pc.cast(array, pa.int64())
        if whole < WHOLE_DIGITS[kinds.BIGINT]:
            most = pa.scalar(10**whole - 1)
            bad = pc.fill_null(pc.or_(pc.less(array, pa.scalar(1 - 10**whole)), pc.greater(array, most)), False)
            array = without(array, bad)
    return pc.cast(pc.cast(array, pa.decimal256(20 + kind.scale, kind.scale)), kind), bad


def _float_to_decimal(array: pa.Array, kind: pa.DataType) -> Converted:
    """By way of the shortest text that names the number; NaN and infinities become null."""
    values, valid = float_values(array), validity(array)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(values) & valid
        bad = finite & (np.abs(values) >= 10.0 ** (kind.precision - kind.scale))
        small = np.abs(values) < 10.0 ** -(kind.scale + 2)
    shown = from_numpy(values, pa.float64(), valid=finite & ~bad & ~small)
    scale = kind.scale + _GUARD_DIGITS
    exact = pc.cast(pc.cast(shown, pa.string()), pa.decimal256(kind.precision + _GUARD_DIGITS + 1, scale))
    zero = pa.scalar("0").cast(exact.type)
    exact = pc.if_else(booleans(small & finite), zero, exact)
    near = pc.round(exact, ndigits=kind.scale, round_mode="half_towards_infinity")
    over = decimals.too_large(near, kind)
    return decimals.rounded(without(near, over), kind), pc.or_(booleans(bad), over)


def decimal_to_decimal(array: pa.Array, kind: pa.DataType) -> Converted:
    """Decimals of another type, rounded half away from zero; those with too many digits are bad."""
    wide = pc.cast(array, pa.decimal256(min(_WIDE_DIGITS, array.type.precision + 1), array.type.scale))
    if array.type.scale > kind.scale:
        wide = pc.round(wide, ndigits=kind.scale, round_mode="half_towards_infinity")
    bad = decimals.too_large(wide, kind)
    return decimals.rounded(without(wide, bad), kind), bad


def _decimal_to_float(array: pa.Array, kind: pa.DataType) -> Converted:
    # By way of text: Arrow's own cast is not always to the nearest double.
    return pc.cast(pc.cast(array, pa.string()), kind), None


def _to_float(array: pa.Array, kind: pa.DataType) -> Converted:
    return pc.cast(array, kind, safe=False), None


def _boolean_to_number(array: pa.Array, kind: pa.DataType) -> Converted:
    ones = pc.cast(array, pa.int8())
    return integer_to_decimal(ones, kind) if kinds.is_decimal(kind) else (pc.cast(ones, kind), None)


def _number_to_boolean(array: pa.Array, kind: pa.DataType) -> Converted:  # noqa: ARG001 - the shape of a conversion
    return pc.not_equal(array, kinds.zero(array.type)), None


def float_values(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Floats or doubles as doubles; arbitrary at nulls."""
    wide = pc.cast(array, pa.float64())
    return fixed_width_values(wide, np.float64)  # type: ignore[return-value]  # the dtype says it


def booleans(bits: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
    """A boolean column without nulls."""
    return pa.Array.from_buffers(pa.bool_(), len(bits), [None, pa.py_buffer(np.packbits(bits, bitorder="little"))], 0)
