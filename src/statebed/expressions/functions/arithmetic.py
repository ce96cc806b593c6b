"""Addition, subtraction, multiplication and division with Spark's result types; errors instead of wrong results.

Integers keep their type, and overflow is an error. `/` of integers is a double. Decimals grow by Spark's rules.
Division by zero is an error for every type.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, validity
from statebed.expressions import types
from statebed.expressions.casts import as_decimal, convert
from statebed.expressions.functions import decimals, temporal
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Datum, Term, arrays

_MIN_QUOTIENT_SCALE = 6
_WIDER = "cast to a wider type before"


def operands_of(site: Site) -> tuple[Term, Term]:
    """Return both operands as numbers of one type; decimals keep their own digits."""
    left, right = site.operands
    common = types.common_type(left.type, right.type)
    if not (_may_be_number(left) and _may_be_number(right)) or common in (None, types.TEXT):
        raise site.wrong_types("numbers")
    if common == types.NULL:
        common = types.DOUBLE
    if types.is_decimal(common):
        return as_decimal(left, common), as_decimal(right, common)
    return convert(left, common), convert(right, common)


def _may_be_number(term: Term) -> bool:
    return types.is_number(term.type) or term.type in (types.TEXT, types.NULL)


def _sum(site: Site) -> Term:
    timed = temporal.sum_of(site)
    if timed is not None:
        return timed
    left, right = operands_of(site)
    plus = site.function == "+"
    if types.is_decimal(left.type):
        left_type, right_type = left.type, right.type
        scale = max(left_type.scale, right_type.scale)
        whole = max(left_type.precision - left_type.scale, right_type.precision - right_type.scale)
        kind = types.bounded_decimal(whole + scale + 1, scale)
        kernel = decimals.sum_kernel(kind, site.function)
        return site.apply(kernel, kind, left, right, fallible=whole + scale + 1 > types.MAX_DIGITS)
    return _plain(site, left, right, pc.add_checked if plus else pc.subtract_checked)


def _product(site: Site) -> Term:
    timed = temporal.product_of(site)
    if timed is not None:
        return timed
    left, right = operands_of(site)
    if types.is_decimal(left.type):
        digits = left.type.precision + right.type.precision + 1
        kind = types.bounded_decimal(digits, left.type.scale + right.type.scale)
        return site.apply(decimals.product_kernel(kind), kind, left, right, fallible=digits > types.MAX_DIGITS)
    return _plain(site, left, right, pc.multiply_checked)


def _plain(site: Site, left: Term, right: Term, kernel: Callable[[Datum, Datum], pa.Array]) -> Term:
    fallible = types.is_integer(left.type)
    return site.apply(partial(_checked, kernel, left.type), left.type, left, right, fallible=fallible)


def _checked(kernel: Callable[..., pa.Array], kind: pa.DataType, *data: Datum) -> pa.Array:
    try:
        return kernel(*data)
    except pa.ArrowInvalid:
        raise RowFailure(f"a number that {types.type_name(kind)} cannot hold", fix=f"{_WIDER} computing") from None


def _quotient(site: Site) -> Term:
    left, right = operands_of(site)
    if types.is_decimal(left.type):
        left_type, right_type = left.type, right.type
        scale = max(_MIN_QUOTIENT_SCALE, left_type.scale + right_type.precision + 1)
        kind = types.bounded_decimal(left_type.precision - left_type.scale + right_type.scale + scale, scale)
        return site.apply(partial(_divided, decimals.quotient_kernel(kind)), kind, left, right, fallible=True)
    kind = left.type if left.type == types.DOUBLE else types.DOUBLE
    return site.apply(partial(_divided, pc.divide), kind, convert(left, kind), convert(right, kind), fallible=True)


def _integer_quotient(site: Site) -> Term:
    left, right = operands_of(site)
    if not types.is_integer(left.type):
        raise site.wrong_types("integers")
    kernel = partial(_divided, partial(_checked, pc.divide_checked, types.BIGINT))
    return site.apply(kernel, types.BIGINT, convert(left, types.BIGINT), convert(right, types.BIGINT), fallible=True)


def _remainder(site: Site) -> Term:
    left, right = operands_of(site)
    if types.is_decimal(left.type):
        left_type, right_type = left.type, right.type
        scale = max(left_type.scale, right_type.scale)
        whole = min(left_type.precision - left_type.scale, right_type.precision - right_type.scale)
        kind = types.bounded_decimal(whole + scale, scale)
        return site.apply(partial(_divided, decimals.remainder_kernel(kind)), kind, left, right, fallible=True)
    return site.apply(partial(_divided, _plain_remainder), left.type, left, right, fallible=True)


def _divided(kernel: Callable[[Datum, Datum], pa.Array], left: Datum, right: Datum) -> pa.Array:
    """Divide, after checking that no divisor is zero where the dividend is not null."""
    dividend, divisor = arrays(left, right)
    zero = pc.and_(pc.is_valid(dividend), pc.fill_null(pc.equal(divisor, types.zero(divisor.type)), False))
    if pc.any(zero).as_py():
        raise RowFailure("a division by zero", fix="use nullif(divisor, 0) to get null for such rows")
    # null / 0 is null.
    return kernel(left, pc.if_else(pc.is_valid(dividend), divisor, pa.scalar(None, divisor.type)))


def _plain_remainder(left: Datum, right: Datum) -> pa.Array:
    dividend, divisor = arrays(left, right)
    kind = dividend.type
    valid = validity(dividend) & validity(divisor)
    dtype = np.dtype(kind.to_pandas_dtype())
    below = np.where(valid, fixed_width_values(divisor, dtype), dtype.type(1))
    above = np.where(valid, fixed_width_values(dividend, dtype), dtype.type(0))
    with np.errstate(invalid="ignore"):
        return from_numpy(np.fmod(above, below), kind, valid=valid)


def _single(site: Site) -> Term:
    """Return the only operand as a number; text is parsed as a double."""
    (operand,) = site.operands
    if operand.type in (types.TEXT, types.NULL):
        return convert(operand, types.DOUBLE)
    if not types.is_number(operand.type) and operand.type != types.INTERVAL:
        raise site.wrong_types("a number")
    return operand


def _negative(site: Site) -> Term:
    operand = _single(site)
    if types.is_decimal(operand.type) or operand.type == types.INTERVAL:
        return site.apply(_negated_exactly, operand.type)
    return _changed(site, operand, pc.negate_checked)


def _negated_exactly(operand: pa.Array) -> pa.Array:
    if operand.type == types.INTERVAL:
        return pc.cast(pc.negate_checked(pc.cast(operand, pa.int64())), operand.type)
    return pc.negate(operand)


def _absolute(site: Site) -> Term:
    operand = _single(site)
    if operand.type == types.INTERVAL:
        raise site.wrong_types("a number")
    if types.is_decimal(operand.type):
        return site.apply(pc.abs, operand.type)
    return _changed(site, operand, pc.abs_checked)


def _changed(site: Site, operand: Term, kernel: Callable[[pa.Array], pa.Array]) -> Term:
    fallible = types.is_integer(operand.type)
    return site.apply(partial(_checked, kernel, operand.type), operand.type, operand, fallible=fallible)


BUILDERS: dict[str, Builder] = {
    "+": of(_sum, 2),
    "-": of(_sum, 2),
    "*": of(_product, 2),
    "/": of(_quotient, 2),
    "%": of(_remainder, 2),
    "mod": of(_remainder, 2),
    "div": of(_integer_quotient, 2),
    "negative": of(_negative, 1),
    "abs": of(_absolute, 1),
}
