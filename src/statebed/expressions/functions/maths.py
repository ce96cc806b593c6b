"""Numeric functions: rounding as in Spark, roots, powers, logarithms."""

import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import from_numpy, int64_values, validity
from statebed.expressions import types
from statebed.expressions.casts import convert, number_casts
from statebed.expressions.casts.number_casts import float_values
from statebed.expressions.casts.unscaled import exact_decimals, integers, rescaled, rounded_quotient
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Datum, Term, arrays

Doubles = npt.NDArray[np.float64]

_EXACT = 2.0**52
"""Below this bound, halves of integers are exact doubles."""
MIN_DIGITS = -40
"""Rounding to this many digits before the point, or more, gives 0 for every integer and decimal."""
_MAX_DIGITS = 400
"""No double has more digits before or after the point: the largest one has 309, and the smallest one 324."""
_CONTEXT = Context(prec=800, Emin=-999999, Emax=999999)
_MAX_EXACT_POWER = 22
"""Largest power of ten that is an exact double."""


def _number(site: Site) -> Term:
    operand = site.operands[0]
    if operand.type in (types.TEXT, types.NULL):
        return convert(operand, types.DOUBLE)
    if not types.is_number(operand.type):
        raise site.wrong_types("a number", at=operand)
    return operand


def _round(site: Site) -> Term:
    operand = _number(site)
    digits = max(site.integer_of(1) if len(site.operands) > 1 else 0, MIN_DIGITS)
    kind = operand.type
    if types.is_float(kind):
        if abs(digits) > _MAX_EXACT_POWER:
            return site.apply(partial(rounded_by_value, digits, ROUND_HALF_UP), kind, operand)
        return site.apply(partial(_rounded_floats, digits), kind, operand)
    if types.is_integer(kind):
        if digits >= 0:
            return operand
        return site.apply(partial(_rounded_integers, digits), kind, operand, fallible=True)
    target = rounded_type(kind, digits)
    return site.apply(partial(_rounded_decimals, digits, target), target, operand, fallible=True)


def rounded_type(kind: pa.DataType, digits: int) -> pa.DataType:
    """Return the type of a decimal that is rounded to `digits` fractional digits."""
    whole = kind.precision - kind.scale + 1
    if digits < 0:
        return pa.decimal128(min(max(whole, 1 - digits), types.MAX_DIGITS), 0)
    scale = min(kind.scale, digits)
    return pa.decimal128(min(whole + scale, types.MAX_DIGITS), scale)


def rounded_text(text: str, digits: int, rounding: str) -> Decimal:
    """Round a double, given as text."""
    digits = min(max(digits, -_MAX_DIGITS), _MAX_DIGITS)
    return Decimal(text).quantize(Decimal(1).scaleb(-digits), rounding, _CONTEXT)


def rounded_by_value(digits: int, rounding: str, array: pa.Array) -> pa.Array:
    """Round the shortest decimal of each distinct number."""
    values, valid = float_values(array), validity(array)
    distinct, inverse = np.unique(np.where(valid, values, 0.0), return_inverse=True)
    is_float = array.type == types.FLOAT
    rounded = np.array(
        [
            float(rounded_text(str(np.float32(value)) if is_float else repr(value), digits, rounding))
            if math.isfinite(value)
            else value
            for value in distinct.tolist()
        ]
    )[inverse]
    return pc.cast(from_numpy(np.where(rounded == 0, 0.0, rounded), pa.float64(), valid=valid), array.type)


def _rounded_floats(digits: int, array: pa.Array) -> pa.Array:
    """Round the shortest decimal of each double half away from zero, if it has at most 15 digits."""
    values, valid = float_values(array), validity(array)
    size = np.abs(np.where(valid & np.isfinite(values), values, 0.0))
    power = 10.0 ** abs(digits)
    up, down = (power, 1.0) if digits >= 0 else (1.0, power)
    # size * up / down as an integer and a remainder; every quotient below is the nearest double.
    count = np.floor(size * up / down)
    count -= count * down / up > size
    count += (count + 1.0) * down / up <= size
    near = (count + ((2.0 * count + 1.0) * down / (2.0 * up) <= size)) * down / up
    rounded = np.where((size * up / down < _EXACT) & np.isfinite(values), np.copysign(near, values) + 0.0, values)
    return pc.cast(from_numpy(rounded, pa.float64(), valid=valid), array.type)


def _rounded_integers(digits: int, array: pa.Array) -> pa.Array:
    values = int64_values(pc.cast(array, pa.int64())).astype(object)
    rounded = rounded_quotient(values, 10**-digits) * 10**-digits
    lowest, highest = number_casts.limits(array.type)
    valid = validity(array)
    if np.any(valid & ((rounded < lowest) | (rounded > highest)).astype(np.bool_)):
        raise RowFailure(f"a number that {types.type_name(array.type)} cannot hold", fix="cast it to a wider type")
    return pc.cast(from_numpy(np.where(valid, rounded, 0).astype(np.int64), pa.int64(), valid=valid), array.type)


def _rounded_decimals(digits: int, target: pa.DataType, array: pa.Array) -> pa.Array:
    scale = min(digits, array.type.scale)
    values = rescaled(integers(array), array.type.precision, scale - array.type.scale)
    return exact_decimals(rescaled(values, types.MAX_DIGITS, target.scale - scale), target, validity(array))


def _whole(site: Site) -> Term:
    """Build floor or ceil: the result is a bigint, or a decimal without a fraction."""
    operand = _number(site)
    kernel = pc.floor if site.function == "floor" else pc.ceil
    if types.is_integer(operand.type):
        return convert(operand, types.BIGINT)
    if types.is_float(operand.type):
        return site.apply(partial(_whole_floats, kernel), types.BIGINT, convert(operand, types.DOUBLE), fallible=True)
    kind = operand.type
    target = kind if kind.scale == 0 else pa.decimal128(min(kind.precision - kind.scale + 1, types.MAX_DIGITS), 0)
    return site.apply(partial(_whole_decimals, site.function, target), target, operand)


def _whole_floats(kernel: Callable[[pa.Array], pa.Array], array: pa.Array) -> pa.Array:
    """Round doubles to integers; NaN becomes 0, as in Java."""
    numbers = pc.if_else(pc.is_nan(array), 0.0, array)
    integers, bad = number_casts.number_to_number(array.type, types.BIGINT)(kernel(numbers), types.BIGINT)
    if pc.any(bad).as_py():
        raise RowFailure("a number that bigint cannot hold", fix="round() keeps a double a double")
    return integers


def _whole_decimals(function: str, target: pa.DataType, array: pa.Array) -> pa.Array:
    values, unit = integers(array).astype(object), 10**array.type.scale
    whole = values // unit if function == "floor" else -(-values // unit)
    return exact_decimals(whole, target, validity(array))


def _of_double(kernel: Callable[[Doubles], Doubles], *, below: float | None = None) -> Builder:
    """Build a function of a double; the result is null where the operand is not above `below`."""

    def build(site: Site) -> Term:
        operand = convert(_number(site), types.DOUBLE)
        nullable = None if below is None else True
        return site.apply(partial(_doubles, kernel, below), types.DOUBLE, operand, nullable=nullable)

    return of(build, 1)


def _doubles(kernel: Callable[[Doubles], Doubles], below: float | None, array: pa.Array) -> pa.Array:
    values, valid = float_values(array), validity(array)
    with np.errstate(all="ignore"):
        if below is not None:
            valid = valid & ~(values <= below)
        return from_numpy(kernel(np.where(valid, values, 1.0)), pa.float64(), valid=valid)


def _sign(values: Doubles) -> Doubles:
    """Return -1, 0 or 1; a zero keeps its sign."""
    return np.where(values == 0.0, values, np.sign(values))


def _power(site: Site) -> Term:
    operands = [convert(operand, types.DOUBLE) for operand in site.operands]
    return site.apply(_raised, types.DOUBLE, *operands)


def _raised(base: Datum, exponent: Datum) -> pa.Array:
    base_values, exponent_values = arrays(base, exponent)
    bases, exponents, valid = (
        float_values(base_values),
        float_values(exponent_values),
        validity(base_values) & validity(exponent_values),
    )
    with np.errstate(all="ignore"):
        powers = np.power(bases, exponents)
        # Java returns NaN where C returns 1.
        powers = np.where((np.abs(bases) == 1.0) & ~np.isfinite(exponents), np.nan, powers)
    return from_numpy(powers, pa.float64(), valid=valid)


BUILDERS: dict[str, Builder] = {
    "round": of(_round, 1, 2),
    "floor": of(_whole, 1),
    "ceil": of(_whole, 1),
    "ceiling": of(_whole, 1),
    "sqrt": _of_double(np.sqrt),
    "exp": _of_double(np.exp),
    "ln": _of_double(np.log, below=0.0),
    "log10": _of_double(np.log10, below=0.0),
    "log2": _of_double(np.log2, below=0.0),
    "sign": _of_double(_sign),
    "signum": _of_double(_sign),
    "pow": of(_power, 2),
    "power": of(_power, 2),
}
