"""Decimals as unscaled integers: their digits without the point, exact at any width.

Values of up to 18 digits are 64-bit integers, longer ones are Python integers, both in numpy arrays. Arrow has 256-bit
decimals but divides some of them wrongly (pyarrow 26 rounds 99999999999999999999999999999999999999.5 down), and every
rounding divides.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import fixed_width_values, validity
from statebed.expressions.mistakes import RowFailure

Integers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

FEWER_DIGITS = "cast the operands to decimals of fewer digits, or to double"
_FAST_DIGITS = 18
_LIMB = 64
_LOWEST = 2**_LIMB - 1


def integers(array: pa.Array) -> Integers:
    """Return the unscaled values of an array of decimals; 0 at nulls."""
    limbs = fixed_width_values(array, np.dtype(("<u8", array.type.bit_width // _LIMB)))
    valid = validity(array)
    if array.type.precision <= _FAST_DIGITS:
        return np.where(valid, limbs[:, 0].view(np.int64), 0)
    values = limbs[:, -1].view(np.int64).astype(object)
    for limb in range(limbs.shape[1] - 2, -1, -1):
        values = (values << _LIMB) + limbs[:, limb].astype(object)
    return np.where(valid, values, 0)


def to_decimals(values: Integers, kind: pa.DataType, valid: Flags) -> tuple[pa.Array, Flags]:
    """Build 128-bit decimals from unscaled values. Return them with a mask of values that have too many digits."""
    bad = np.zeros(len(values), dtype=np.bool_)
    if values.dtype == object or kind.precision <= _FAST_DIGITS:
        bad = valid & (np.abs(values) >= 10**kind.precision).astype(np.bool_)
    there = valid & ~bad
    values = np.where(there, values, 0)
    if values.dtype == object:
        low, high = (values & _LOWEST).astype(np.uint64), (values >> _LIMB).astype(np.int64)
    else:
        low, high = values.astype(np.int64).view(np.uint64), values.astype(np.int64) >> (_LIMB - 1)
    limbs = np.stack([low, high.view(np.uint64)], axis=1)
    bitmap = pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(limbs)]), bad


def exact_decimals(values: Integers, kind: pa.DataType, valid: Flags) -> pa.Array:
    """Build decimals from unscaled values. Raise if one does not fit."""
    decimals, bad = to_decimals(values, kind, valid)
    if bad.any():
        what = f"a number that decimal({kind.precision},{kind.scale}) cannot hold"
        raise RowFailure(what, fix=FEWER_DIGITS)
    return decimals


def rescaled(values: Integers, digits: int, by: int) -> Integers:
    """Rescale values by `by` fractional digits; if that removes digits, round half away from zero."""
    if by < 0:
        return rounded_quotient(values, 10**-by)
    wide: Integers = values.astype(object) if digits + by > _FAST_DIGITS else values
    return np.asarray(wide * 10**by)


def rounded_quotient(values: Integers, divisor: Any) -> Integers:
    """Divide by a positive divisor and round half away from zero."""
    values = _wide_enough(values, divisor)
    return signed(values, (2 * np.abs(values) + divisor) // (2 * divisor))


def whole_quotient(values: Integers, divisor: Any) -> Integers:
    """Divide by a positive divisor and truncate towards zero."""
    values = _wide_enough(values, divisor)
    return signed(values, np.abs(values) // divisor)


def signed(values: Integers, size: Integers) -> Integers:
    """Return `size` with the signs of `values`."""
    return np.where(values < 0, -size, size)


def _wide_enough(values: Integers, divisor: Any) -> Integers:
    return values.astype(object) if isinstance(divisor, int) and divisor > 10**_FAST_DIGITS else values
