"""Functions of dates and timestamps. All times are UTC, in microseconds."""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, int64_values, validity
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.casts.time_casts import DAY, SECOND
from statebed.expressions.far_years import in_reach, year_of
from statebed.expressions.functions.formats import format_pieces, formatted
from statebed.expressions.functions.temporal import DAYS, days_later
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Datum, Term, arrays

_FIXED = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": SECOND,
    "minute": 60 * SECOND,
    "hour": 3600 * SECOND,
    "day": DAY,
    "dd": DAY,
}
_MONTHS = {"month": 1, "mon": 1, "mm": 1, "quarter": 3, "year": 12, "yyyy": 12, "yy": 12}
_MONDAY = 4 * DAY
"""First Monday of 1970, which began on a Thursday."""


def as_time(site: Site, operand: Term) -> Term:
    """Return a date or a timestamp; text is parsed as a timestamp."""
    if types.has_time(operand.type):
        return operand
    if operand.type not in (types.TEXT, types.NULL):
        raise site.wrong_types("a date or a timestamp", at=operand)
    return convert(operand, types.TIMESTAMP)


def as_instant(site: Site, operand: Term) -> Term:
    time = as_time(site, operand)
    return convert(time, types.TIMESTAMP) if time.type == types.DATE else time


def _part(kernel: Callable[[pa.Array], pa.Array]) -> Builder:
    """Build the extraction of a calendar or clock field."""

    def build(site: Site) -> Term:
        time = convert(as_instant(site, site.operands[0]), types.NAIVE_TIMESTAMP)
        return site.apply(partial(_field, kernel), types.INT, time)

    return of(build, 1)


def _field(kernel: Callable[[pa.Array], pa.Array], times: pa.Array) -> pa.Array:
    return pc.cast(kernel(times), pa.int32())


def _day_of_week(times: pa.Array) -> pa.Array:
    """Number the days of the week from Sunday (1) to Saturday (7)."""
    return pc.day_of_week(times, count_from_zero=False, week_start=7)


def _weekday(times: pa.Array) -> pa.Array:
    """Number the days of the week from Monday (0) to Sunday (6)."""
    return pc.day_of_week(times, count_from_zero=True, week_start=1)


def _truncate(site: Site) -> Term:
    unit = site.text_of(0).lower()
    time = as_instant(site, site.operands[1])
    if unit not in {*_FIXED, *_MONTHS, "week"}:
        known = ", ".join(sorted({*_FIXED, *_MONTHS, "week"}))
        raise site.operands[0].place.mistake(
            f"date_trunc does not support the unit {unit!r}", fix=f"use one of {known}"
        )
    return site.apply(partial(truncated, unit), time.type, time)


def truncated(unit: str, times: pa.Array) -> pa.Array:
    micros = int64_values(times)
    if unit in _FIXED:
        starts = micros - micros % _FIXED[unit]
    elif unit == "week":
        starts = micros - (micros - _MONDAY) % (7 * DAY)
    else:
        months = months_of(micros)
        first = (months - months % _MONTHS[unit]).astype("datetime64[M]")
        starts = first.astype("datetime64[D]").astype(np.int64) * DAY
    return from_numpy(starts, times.type, valid=validity(times))


def months_of(micros: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return months since the beginning of 1970."""
    return (micros // DAY).astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)


def _since_1970(unit: int) -> Builder:
    """Build a function that returns whole units since 1970, rounded down."""

    def build(site: Site) -> Term:
        if not types.is_timestamp(site.operands[0].type):
            raise site.wrong_types("a timestamp")
        return site.apply(partial(_counted, unit), types.BIGINT)

    return of(build, 1)


def _counted(unit: int, times: pa.Array) -> pa.Array:
    return from_numpy(int64_values(times) // unit, pa.int64(), valid=validity(times))


def _unix_timestamp(site: Site) -> Term:
    """Return whole seconds since 1970, truncated. Unlike unix_seconds, it rounds times before 1970 up."""
    if site.operands[0].type == types.TEXT:
        raise site.wrong_types("a date or a timestamp")
    return site.apply(_towards_1970, types.BIGINT, as_instant(site, site.operands[0]))


def _towards_1970(times: pa.Array) -> pa.Array:
    micros = int64_values(times)
    return from_numpy(
        -(-micros // SECOND) * (micros < 0) + micros // SECOND * (micros >= 0), pa.int64(), valid=validity(times)
    )


def _from_1970(unit: int) -> Builder:
    """Build the function that converts a number of units since 1970 to a timestamp."""

    def build(site: Site) -> Term:
        operand = site.operands[0]
        if unit == SECOND and (types.is_float(operand.type) or types.is_decimal(operand.type)):
            return convert(operand, types.TIMESTAMP)
        if not types.is_integer(operand.type):
            raise site.wrong_types("an integer")
        count = convert(operand, types.BIGINT)
        return site.apply(partial(_instants, unit), types.TIMESTAMP, count, fallible=unit > 1)

    return of(build, 1)


def _instants(unit: int, counts: pa.Array) -> pa.Array:
    values, valid = int64_values(counts), validity(counts)
    limit = (2**63 - 1) // unit
    if np.any(valid & ((values > limit) | (values < -limit))) and unit > 1:
        raise RowFailure("a time beyond what 64 bits hold")
    return from_numpy(values * unit, types.TIMESTAMP, valid=valid)


def conversion(kind: pa.DataType) -> Builder:
    """Build a conversion that is called as a function."""
    return of(lambda site: convert(site.operands[0], kind, place=site.place), 1)


def _date_format(site: Site) -> Term:
    pieces = format_pieces(site.operands[1].place, site.text_of(1))
    time = convert(as_instant(site, site.operands[0]), types.NAIVE_TIMESTAMP)
    return site.apply(partial(formatted, pieces), types.TEXT, time)


def _days_later(site: Site) -> Term:
    date, days = site.operands
    if days.type not in DAYS:
        raise site.wrong_types("a date and an int")
    return days_later(site, date, days, "-" if site.function == "date_sub" else "+")


def _days_between(site: Site) -> Term:
    dates = [convert(as_time(site, operand), types.DATE) for operand in site.operands]
    return site.apply(_difference, types.INT, *dates)


def _difference(later: Datum, earlier: Datum) -> pa.Array:
    later_dates, earlier_dates = arrays(later, earlier)
    days = fixed_width_values(later_dates, np.int32).astype(np.int32) - fixed_width_values(
        earlier_dates, np.int32
    ).astype(np.int32)
    return from_numpy(days, pa.int32(), valid=validity(later_dates) & validity(earlier_dates))


BUILDERS: dict[str, Builder] = {
    "year": _part(year_of),
    "quarter": _part(pc.quarter),
    "month": _part(pc.month),
    "day": _part(pc.day),
    "dayofmonth": _part(pc.day),
    "dayofyear": _part(lambda times: pc.day_of_year(in_reach(times))),
    "dayofweek": _part(_day_of_week),
    "weekday": _part(_weekday),
    "weekofyear": _part(lambda times: pc.iso_week(in_reach(times))),
    "hour": _part(pc.hour),
    "minute": _part(pc.minute),
    "second": _part(pc.second),
    "date_trunc": of(_truncate, 2),
    "date_format": of(_date_format, 2),
    "unix_timestamp": of(_unix_timestamp, 1),
    "unix_seconds": _since_1970(SECOND),
    "unix_millis": _since_1970(1_000),
    "unix_micros": _since_1970(1),
    "timestamp_seconds": _from_1970(SECOND),
    "timestamp_millis": _from_1970(1_000),
    "timestamp_micros": _from_1970(1),
    "to_date": conversion(types.DATE),
    "to_timestamp": conversion(types.TIMESTAMP),
    "date_add": of(_days_later, 2),
    "date_sub": of(_days_later, 2),
    "datediff": of(_days_between, 2),
}
