"""The try_ functions: null for rows where the function without `try_` would fail."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, validity
from statebed.errors import ExpressionError
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.functions import arithmetic
from statebed.expressions.sites import Build, Builder, Site, of
from statebed.expressions.terms import BatchColumns, Datum, Term, arrays

_SIGNS = {"try_add": "+", "try_subtract": "-", "try_multiply": "*", "try_divide": "/", "try_mod": "%"}
_SAFE = float(2**62)
"""Products of a smaller size are certain to fit into 64 bits."""


@dataclass(frozen=True, eq=False)
class Attempt(Term):
    """A term whose result is null for rows that fail. Failing rows are found by halving the batch again and again."""

    inner: Term

    def value(self, frame: BatchColumns) -> pa.Array:
        try:
            return self.inner.array(frame)
        except ExpressionError:
            if frame.num_rows <= 1:
                return pa.nulls(frame.num_rows, self.type)
        middle = frame.num_rows // 2
        halves = [np.arange(start, end, dtype=np.int64) for start, end in ((0, middle), (middle, frame.num_rows))]
        return pa.concat_arrays([self.value(frame.part(rows)) for rows in halves])


def attempted(build: Build) -> Build:
    """Return a builder whose result is null where the term of `build` fails."""

    def lenient(site: Site) -> Term:
        inner = build(site)
        return Attempt(site.place, inner.type, True, False, inner.columns, inner) if inner.fallible else inner

    return lenient


def _arithmetic(site: Site) -> Term:
    plain = Site(site.place, _SIGNS[site.function], site.operands)
    timed = any(types.has_time(operand.type) or operand.type == types.INTERVAL for operand in site.operands)
    if not timed and site.function in {"try_divide", "try_mod"}:
        left, right = site.operands
        if types.is_number(right.type):
            right = site.apply(_without_zeros, right.type, right, nullable=True)
        plain = Site(site.place, plain.function, (left, right))
    elif not timed:
        left, right = arithmetic.operands_of(plain)
        if types.is_integer(left.type):
            kernel = partial(_in_range, plain.function, left.type)
            return site.apply(kernel, left.type, left, right, nullable=True)
    return attempted(arithmetic.BUILDERS[plain.function].build)(plain)


def _without_zeros(divisors: pa.Array) -> pa.Array:
    zero = types.zero(divisors.type)
    return pc.if_else(pc.equal(divisors, zero), pa.scalar(None, divisors.type), divisors)


def _in_range(sign: str, kind: pa.DataType, left: Datum, right: Datum) -> pa.Array:
    """Add, subtract or multiply integers; null where the result does not fit."""
    left_values, right_values = arrays(left, right)
    width = np.dtype(f"int{kind.bit_width}")
    a, b = (fixed_width_values(column, width).astype(np.int64) for column in (left_values, right_values))
    valid = validity(left_values) & validity(right_values)
    kernel: Callable[..., np.ndarray[tuple[int], np.dtype[np.int64]]]
    kernel = {"+": np.add, "-": np.subtract, "*": np.multiply}[sign]
    with np.errstate(over="ignore"):
        results = kernel(a, b)
        if kind.bit_width < types.BIGINT.bit_width:
            fits = (results >= np.iinfo(width).min) & (results <= np.iinfo(width).max)
        else:
            size = np.abs(kernel(a.astype(np.float64), b.astype(np.float64)))
            fits = size < _SAFE
            near = np.flatnonzero(valid & ~fits & (size < 2 * 2 * _SAFE))
            exact = kernel(a[near].astype(object), b[near].astype(object))
            fits[near] = ((exact >= -(2**63)) & (exact < 2**63)).astype(np.bool_)
    return from_numpy(np.where(fits, results, 0).astype(width), kind, valid=valid & fits)


def lenient_cast(kind: pa.DataType) -> Builder:
    """Build a conversion that gives null for values that cannot be converted."""
    return of(lambda site: convert(site.operands[0], kind, place=site.place, lenient=True), 1)


BUILDERS: dict[str, Builder] = {
    **{name: of(_arithmetic, 2) for name in _SIGNS},
    "try_to_date": lenient_cast(types.DATE),
    "try_to_timestamp": lenient_cast(types.TIMESTAMP),
}
