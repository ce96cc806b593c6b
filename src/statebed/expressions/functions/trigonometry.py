"""Functions of doubles: trigonometric, hyperbolic, logarithms, and two-operand ones such as hypot."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import from_numpy, validity
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.casts.number_casts import float_values
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Datum, Term, arrays, constant

Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def as_double(site: Site, operand: Term) -> Term:
    """Convert a number or a text to a double."""
    if not types.is_number(operand.type) and operand.type not in (types.TEXT, types.NULL):
        raise site.wrong_types("a number", at=operand)
    return convert(operand, types.DOUBLE)


def of_doubles(
    kernel: Callable[..., Doubles], count: int = 1, *, defined: Callable[..., Flags] | None = None
) -> Builder:
    """Build a function of doubles; its result is null where `defined` is False."""

    def build(site: Site) -> Term:
        operands = [as_double(site, operand) for operand in site.operands]
        nullable = None if defined is None else True
        return site.apply(partial(_computed, kernel, defined), types.DOUBLE, *operands, nullable=nullable)

    return of(build, count)


def _computed(kernel: Callable[..., Doubles], defined: Callable[..., Flags] | None, *data: Datum) -> pa.Array:
    columns = arrays(*data)
    valid = np.logical_and.reduce([validity(column) for column in columns])
    values = [float_values(column) for column in columns]
    with np.errstate(all="ignore"):
        if defined is not None:
            valid = valid & defined(*values)
        values = [np.where(valid, value, 1.0) for value in values]
        return from_numpy(kernel(*values), types.DOUBLE, valid=valid)


def _log(site: Site) -> Term:
    """Build log(x), the natural logarithm, or log(base, x)."""
    if len(site.operands) == 1:
        return of_doubles(np.log, defined=_positive).build(site)
    return of_doubles(_log_to_base, 2, defined=_both_positive).build(site)


def _log_to_base(base: Doubles, value: Doubles) -> Doubles:
    return np.log(value) / np.log(base)


def _positive(values: Doubles) -> Flags:
    return ~(values <= 0.0)


def _both_positive(base: Doubles, values: Doubles) -> Flags:
    return _positive(base) & _positive(values)


def _above_minus_one(values: Doubles) -> Flags:
    return ~(values <= -1.0)


def _acosh(values: Doubles) -> Doubles:
    return np.log(values + np.sqrt(values * values - 1.0))


def _asinh(values: Doubles) -> Doubles:
    size = np.abs(values)
    finite = np.copysign(np.log(size + np.sqrt(size * size + 1.0)), values)
    return np.where(np.isinf(values), values, finite)


def _atanh(values: Doubles) -> Doubles:
    return 0.5 * (np.log1p(values) - np.log1p(-values))


def _cot(values: Doubles) -> Doubles:
    return 1.0 / np.tan(values)


def _sec(values: Doubles) -> Doubles:
    return 1.0 / np.cos(values)


def _csc(values: Doubles) -> Doubles:
    return 1.0 / np.sin(values)


def _degrees(values: Doubles) -> Doubles:
    return values * (180.0 / math.pi)


def _radians(values: Doubles) -> Doubles:
    return values * (math.pi / 180.0)


def _atan2(vertical: Doubles, horizontal: Doubles) -> Doubles:
    # Spark adds 0.0, so that -0.0 counts as 0.0.
    return np.arctan2(vertical + 0.0, horizontal + 0.0)


def _fixed(value: float) -> Builder:
    return of(lambda site: constant(site.place, value, types.DOUBLE), 0)


def _nan_replaced(site: Site) -> Term:
    left, right = site.operands
    kind = types.FLOAT if left.type == right.type == types.FLOAT else types.DOUBLE
    operands = (
        convert(as_double(site, operand) if operand.type != kind else operand, kind) for operand in (left, right)
    )
    return site.apply(partial(_without_nan, kind), kind, *operands, nullable=left.nullable or right.nullable)


def _without_nan(kind: pa.DataType, left: Datum, right: Datum) -> pa.Array:
    left_values, right_values = arrays(left, right)
    nan = np.isnan(float_values(left_values)) & validity(left_values)
    values = np.where(nan, float_values(right_values), float_values(left_values))
    return from_numpy(
        values.astype(kind.to_pandas_dtype()), kind, valid=np.where(nan, validity(right_values), validity(left_values))
    )


BUILDERS: dict[str, Builder] = {
    "sin": of_doubles(np.sin),
    "cos": of_doubles(np.cos),
    "tan": of_doubles(np.tan),
    "cot": of_doubles(_cot),
    "sec": of_doubles(_sec),
    "csc": of_doubles(_csc),
    "asin": of_doubles(np.arcsin),
    "acos": of_doubles(np.arccos),
    "atan": of_doubles(np.arctan),
    "atan2": of_doubles(_atan2, 2),
    "sinh": of_doubles(np.sinh),
    "cosh": of_doubles(np.cosh),
    "tanh": of_doubles(np.tanh),
    "asinh": of_doubles(_asinh),
    "acosh": of_doubles(_acosh),
    "atanh": of_doubles(_atanh),
    "degrees": of_doubles(_degrees),
    "radians": of_doubles(_radians),
    "cbrt": of_doubles(np.cbrt),
    "expm1": of_doubles(np.expm1),
    "log1p": of_doubles(np.log1p, defined=_above_minus_one),
    "log": of(_log, 1, 2),
    "hypot": of_doubles(np.hypot, 2),
    "rint": of_doubles(np.rint),
    "e": _fixed(math.e),
    "pi": _fixed(math.pi),
    "nanvl": of(_nan_replaced, 2),
}
