"""Arithmetic on dates, timestamps and intervals."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import from_numpy, int64_values, validity
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.casts.time_casts import DAY
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Site
from statebed.expressions.terms import Datum, Term, arrays

DAYS = (types.TINYINT, types.SMALLINT, types.INT)
"""Types that can hold a number of days."""


def sum_of(site: Site) -> Term | None:
    """Build a sum or difference with a time or an interval; return None if neither operand is one."""
    left, right = site.operands
    if not any(types.has_time(term.type) or term.type == types.INTERVAL for term in site.operands):
        return None
    if site.function == "+" and (left.type == types.INTERVAL or types.is_integer(left.type)):
        left, right = right, left
    if right.type == types.INTERVAL:
        return _moved(site, left, right)
    if left.type == types.DATE and right.type in DAYS:
        return days_later(site, left, right, site.function)
    if site.function == "-" and types.has_time(left.type) and (types.has_time(right.type) or right.type == types.TEXT):
        common = types.common_type(left.type, right.type) or types.TIMESTAMP
        if common == types.DATE:
            common = types.NAIVE_TIMESTAMP
        operands = [convert(convert(term, common), types.NAIVE_TIMESTAMP) for term in (left, right)]
        return site.apply(partial(_micros, "-", types.INTERVAL), types.INTERVAL, *operands, fallible=True)
    raise site.wrong_types("a time and an interval, a date and days, or two times")


def _moved(site: Site, left: Term, interval: Term) -> Term:
    """Add an interval to, or subtract it from, a time or an interval."""
    constant = interval.constant
    if left.type == types.DATE and constant is not None and constant.is_valid and constant.value % DAY == 0:
        moved = site.apply(
            partial(_micros, site.function, types.NAIVE_TIMESTAMP),
            types.NAIVE_TIMESTAMP,
            convert(left, types.NAIVE_TIMESTAMP),
            interval,
            fallible=True,
        )
        return convert(moved, types.DATE)
    if left.type == types.DATE:
        left = convert(left, types.TIMESTAMP)
    if not types.is_timestamp(left.type) and left.type != types.INTERVAL:
        raise site.wrong_types("a time and an interval")
    return site.apply(partial(_micros, site.function, left.type), left.type, left, interval, fallible=True)


def days_later(site: Site, date: Term, days: Term, sign: str) -> Term:
    """Move a date by a number of days."""
    operands = convert(date, types.DATE), convert(days, types.BIGINT)
    return site.apply(partial(_days, sign), types.DATE, *operands, fallible=True)


def _days(sign: str, dates: Datum, days: Datum) -> pa.Array:
    counted = pc.cast(pc.cast(dates, pa.int32()), pa.int64())
    moved = pc.add(counted, days) if sign == "+" else pc.subtract(counted, days)
    return pc.cast(_exact(pc.cast, moved, pa.int32()), types.DATE)


def product_of(site: Site) -> Term | None:
    """Build the product of an interval and a number; return None if neither operand is an interval."""
    left, right = site.operands
    if types.INTERVAL not in (left.type, right.type):
        return None
    interval, times = (left, right) if left.type == types.INTERVAL else (right, left)
    if not types.is_integer(times.type):
        raise site.wrong_types("an interval and an integer")
    kernel = partial(_micros, "*", types.INTERVAL)
    return site.apply(kernel, types.INTERVAL, interval, convert(times, types.BIGINT), fallible=True)


def _micros(sign: str, kind: pa.DataType, left: Datum, right: Datum) -> pa.Array:
    kernels = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
    left_micros, right_micros = (as_integers(array) for array in arrays(left, right))
    result = _exact(kernels[sign], left_micros, right_micros)
    return from_numpy(int64_values(result), kind, valid=validity(result))


def as_integers(array: pa.Array) -> pa.Array:
    """Return timestamps or intervals as microseconds."""
    return from_numpy(np.asarray(int64_values(array)), pa.int64(), valid=validity(array))


def _exact(kernel: Callable[..., pa.Array], *arguments: object) -> pa.Array:
    try:
        return kernel(*arguments)
    except pa.ArrowInvalid:
        raise RowFailure("a time or an interval beyond what 64 bits hold") from None
