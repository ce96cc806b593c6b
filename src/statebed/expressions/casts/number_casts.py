"""Casts between numbers and booleans. Like Spark, they truncate to integers and round decimals half away from zero."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, validity
from statebed.expressions import types
from statebed.expressions.casts.unscaled import integers, rescaled, to_decimals, whole_quotient

Converted = tuple[pa.Array, pa.Array | None]
Conversion = Callable[[pa.Array, pa.DataType], Converted]

WHOLE_DIGITS = {types.TINYINT: 3, types.SMALLINT: 5, types.INT: 10, types.BIGINT: 19}
"""Maximum number of digits of each integer type."""


def number_to_number(source: pa.DataType, target: pa.DataType) -> Conversion:
    """Return the conversion between two numeric types."""
    if types.is_integer(target):
        if types.is_integer(source):
            return integer_to_integer
        return _float_to_integer if types.is_float(source) else _decimal_to_integer
    if types.is_decimal(target):
        if types.is_integer(source):
            return integer_to_decimal
        return decimal_to_decimal
    return _decimal_to_float if types.is_decimal(source) else _to_float


def with_boolean(source: pa.DataType, target: pa.DataType) -> Conversion | None:
    """Return the conversion to or from booleans: true is 1, and every number except 0 is true."""
    if types.is_number(target):
        return _boolean_to_number
    return _number_to_boolean if types.is_number(source) else None


def limits(kind: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer type."""
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def without(array: pa.Array, bad: pa.Array) -> pa.Array:
    """Return the array with nulls where `bad` is true."""
    return pc.if_else(bad, pa.scalar(None, array.type), array)


def integer_to_integer(array: pa.Array, kind: pa.DataType) -> Converted:
    """Convert integers to another width."""
    if array.type.bit_width <= kind.bit_width:
        return pc.cast(array, kind), None
    lowest, highest = limits(kind)
    bad = pc.fill_null(
        pc.or_(pc.less(array, pa.scalar(lowest, array.type)), pc.greater(array, pa.scalar(highest, array.type))), False
    )
    return pc.cast(without(array, bad), kind), bad


def _float_to_integer(array: pa.Array, kind: pa.DataType) -> Converted:
    valid = validity(array)
    lowest, highest = limits(kind)
    whole = np.trunc(np.where(valid, float_values(array), 0.0))
    with np.errstate(invalid="ignore"):
        bad = ~((whole >= float(lowest)) & (whole <= float(highest)))
        top = whole >= float(highest)  # 2 ** 63 is the double closest to the largest bigint and is converted to it
        values = np.where(bad | top, 0.0, whole).astype(np.int64)
    values = np.where(top, highest, values)
    integers = from_numpy(values, pa.int64(), valid=valid & ~bad)
    return pc.cast(integers, kind), booleans(bad)


def _decimal_to_integer(array: pa.Array, kind: pa.DataType) -> Converted:
    whole = whole_quotient(integers(array), 10**array.type.scale)
    lowest, highest = limits(kind)
    bad = ((whole < lowest) | (whole > highest)).astype(np.bool_)
    values = np.where(bad, 0, whole).astype(np.int64)
    wide = from_numpy(values, pa.int64(), valid=validity(array) & ~bad)
    return pc.cast(wide, kind), booleans(bad)


def integer_to_decimal(array: pa.Array, kind: pa.DataType) -> Converted:
    """Convert integers to decimals; values with too many digits are bad."""
    bad = None
    whole = kind.precision - kind.scale
    if pa.types.is_unsigned_integer(array.type):
        return pc.cast(array, kind), None
    array = pc.cast(array, pa.int64())
    if whole < WHOLE_DIGITS[types.BIGINT]:
        highest = pa.scalar(10**whole - 1)
        bad = pc.fill_null(pc.or_(pc.less(array, pa.scalar(1 - 10**whole)), pc.greater(array, highest)), False)
        array = without(array, bad)
    return pc.cast(pc.cast(array, pa.decimal128(WHOLE_DIGITS[types.BIGINT], 0)), kind), bad


def decimal_to_decimal(array: pa.Array, kind: pa.DataType) -> Converted:
    """Convert between decimal types, rounding half away from zero; values with too many digits are bad."""
    whole = array.type.precision - array.type.scale
    if array.type.scale <= kind.scale and whole <= kind.precision - kind.scale:
        return pc.cast(array, kind), None
    values = rescaled(integers(array), array.type.precision, kind.scale - array.type.scale)
    decimals, bad = to_decimals(values, kind, validity(array))
    return decimals, booleans(bad)


def _decimal_to_float(array: pa.Array, kind: pa.DataType) -> Converted:
    # Convert through text, because Arrow's own cast does not always return the nearest double.
    return pc.cast(pc.cast(array, pa.string()), kind), None


def _to_float(array: pa.Array, kind: pa.DataType) -> Converted:
    return pc.cast(array, kind, safe=False), None


def _boolean_to_number(array: pa.Array, kind: pa.DataType) -> Converted:
    ones = pc.cast(array, pa.int8())
    return integer_to_decimal(ones, kind) if types.is_decimal(kind) else (pc.cast(ones, kind), None)


def _number_to_boolean(array: pa.Array, kind: pa.DataType) -> Converted:  # noqa: ARG001 - the shape of a conversion
    return pc.not_equal(array, types.zero(array.type)), None


def float_values(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return floats or doubles as doubles; values at nulls are arbitrary."""
    wide = pc.cast(array, pa.float64())
    return fixed_width_values(wide, np.float64)  # type: ignore[return-value]  # the dtype says it


def booleans(bits: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
    """Build a boolean array without nulls."""
    return pa.Array.from_buffers(pa.bool_(), len(bits), [None, pa.py_buffer(np.packbits(bits, bitorder="little"))], 0)
