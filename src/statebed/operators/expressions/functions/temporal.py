"""Plus, minus and times with dates, timestamps and intervals."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.format.columns import from_numpy, int64_values, validity
from statebed.operators.expressions import kinds
from statebed.operators.expressions.casts import convert
from statebed.operators.expressions.casts.time_casts import DAY
from statebed.operators.expressions.mistakes import RowFailure
from statebed.operators.expressions.sites import Site
from statebed.operators.expressions.terms import Datum, Term, arrays

DAYS = (kinds.TINYINT, kinds.SMALLINT, kinds.INT)
"""Types of a number of days."""


def sum_of(site: Site) -> Term | None:
    """A sum or a difference in which there is a time or an interval; None if there is none."""
    left, right = site.operands
    if not any(kinds.has_time(term.type) or term.type == kinds.INTERVAL for term in site.operands):
        return None
    if site.function == "+" and (left.type == kinds.INTERVAL or kinds.is_integer(left.type)):
        left, right = right, left
    if right.type == kinds.INTERVAL:
        return _moved(site, left, right)
    if left.type == kinds.DATE and right.type in DAYS:
        return days_later(site, left, right, site.function)
    if site.function == "-" and kinds.has_time(left.type) and (kinds.has_time(right.type) or right.type == kinds.TEXT):
        common = kinds.common_type(left.type, right.type) or kinds.TIMESTAMP
        if common == kinds.DATE:
            common = kinds.NAIVE_TIMESTAMP
        operands = [convert(convert(term, common), kinds.NAIVE_TIMESTAMP) for term in (left, right)]
        return site.apply(partial(_micros, "-", kinds.INTERVAL), kinds.INTERVAL, *operands, fallible=True)
    raise site.wrong_types("a time and an interval, a date and days, or two times")


def _moved(site: Site, left: Term, interval: Term) -> Term:
    """A time or an interval, and an interval more or less."""
    constant = interval.constant
    if left.type == kinds.DATE and constant is not None and constant.is_valid and constant.value % DAY == 0:
        moved = site.apply(
            partial(_micros, site.function, kinds.NAIVE_TIMESTAMP),
            kinds.NAIVE_TIMESTAMP,
            convert(left, kinds.NAIVE_TIMESTAMP),
            interval,
            fallible=True,
        )
        return convert(moved, kinds.DATE)
    if left.type == kinds.DATE:
        left = convert(left, kinds.TIMESTAMP)
    if not kinds.is_timestamp(left.type) and left.type != kinds.INTERVAL:
        raise site.wrong_types("a time and an interval")
    return site.apply(partial(_micros, site.function, left.type), left.type, left, interval, fallible=True)


def days_later(site: Site, date: Term, days: Term, sign: str) -> Term:
    """A date so many days later or earlier."""
    operands = convert(date, kinds.DATE), convert(days, kinds.BIGINT)
    return site.apply(partial(_days, sign), kinds.DATE, *operands, fallible=True)


def _days(sign: str, dates: Datum, days: Datum) -> pa.Array:
    counted = pc.cast(pc.cast(dates, pa.int32()), pa.int64())
    moved = pc.add(counted, days) if sign == "+" else pc.subtract(counted, days)
    return pc.cast(_exact(pc.cast, moved, pa.int32()), kinds.DATE)


def product_of(site: Site) -> Term | None:
    """An interval so many times; None if there is no interval."""
    left, right = site.operands
    if kinds.INTERVAL not in (left.type, right.type):
        return None
    interval, times = (left, right) if left.type == kinds.INTERVAL else (right, left)
    if not kinds.is_integer(times.type):
        raise site.wrong_types("an interval and an integer")
    kernel = partial(_micros, "*", kinds.INTERVAL)
    return site.apply(kernel, kinds.INTERVAL, interval, convert(times, kinds.BIGINT), fallible=True)


def _micros(sign: str, kind: pa.DataType, left: Datum, right: Datum) -> pa.Array:
    kernels = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
    one, other = (as_integers(array) for array in arrays(left, right))
    found = _exact(kernels[sign], one, other)
    return from_numpy(int64_values(found), kind, valid=validity(found))


def as_integers(array: pa.Array) -> pa.Array:
    """The microseconds of timestamps or intervals."""
    return from_numpy(np.asarray(int64_values(array)), pa.int64(), valid=validity(array))


def _exact(kernel: Callable[..., pa.Array], *arguments: object) -> pa.Array:
    try:
        return kernel(*arguments)
    except pa.ArrowInvalid:
        raise RowFailure("a time or an interval beyond what 64 bits hold") from None
