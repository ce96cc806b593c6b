"""Functions of the calendar: months, last days, parts of dates, and times made from their parts. Times are UTC."""

from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, int64_values, validity
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.casts.time_casts import DAY, SECOND
from statebed.expressions.casts.unscaled import integers, rescaled, to_decimals
from statebed.expressions.far_years import iso_year_of
from statebed.expressions.functions.lenient import attempted
from statebed.expressions.functions.temporal import days_later
from statebed.expressions.functions.times import BUILDERS as TIMES
from statebed.expressions.functions.times import as_instant, as_time, months_of, truncated
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Build, Builder, Site, of
from statebed.expressions.terms import Datum, Term, arrays, constant
from statebed.quantities import parse_duration

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_WEEKDAYS = ["mo", "tu", "we", "th", "fr", "sa", "su"]
_DAY_NAMES = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
_MONTH_NAMES = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_MONTHS_OF = {"month": 1, "quarter": 3, "year": 12}
_MICROSECONDS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": SECOND,
    "minute": 60 * SECOND,
    "hour": 3600 * SECOND,
    "day": DAY,
    "week": 7 * DAY,
}
_TRUNCATED = {
    "year": "year",
    "yyyy": "year",
    "yy": "year",
    "quarter": "quarter",
    "month": "month",
    "mon": "month",
    "mm": "month",
    "week": "week",
}
_SIX_PARTS = 6
_MIDDLE = 0.5
_MONTH_DAYS = 31


def _as_date(site: Site, operand: Term) -> Term:
    return convert(as_time(site, operand), types.DATE)


def _days(dates: pa.Array) -> Integers:
    return fixed_width_values(dates, np.int32).astype(np.int64)


def _dates(days: Integers, valid: Flags) -> pa.Array:
    return from_numpy(days.astype(np.int32), types.DATE, valid=valid)


def _month_starts(months: Integers) -> Integers:
    """Return the first day of months, both counted from 1970."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def _months_later(days: Integers, months: Integers) -> Integers:
    """Move days by months; the last day of the month if it is shorter."""
    month = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    of_month = days - _month_starts(month)
    first, following = _month_starts(month + months), _month_starts(month + months + 1)
    return np.minimum(first + of_month, following - 1)


def _add_months(site: Site) -> Term:
    date, months = _as_date(site, site.operands[0]), convert(site.operands[1], types.INT)
    return site.apply(_moved_by_months, types.DATE, date, months, fallible=True)


def _moved_by_months(dates: Datum, months: Datum) -> pa.Array:
    start_dates, month_counts = arrays(dates, months)
    valid = validity(start_dates) & validity(month_counts)
    moved = _months_later(np.where(valid, _days(start_dates), 0), np.where(valid, _days(month_counts), 0))
    return _dates(moved, valid)


def _last_day(site: Site) -> Term:
    return site.apply(_month_end, types.DATE, _as_date(site, site.operands[0]))


def _month_end(dates: pa.Array) -> pa.Array:
    month = _days(dates).astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    return _dates(_month_starts(month + 1) - 1, validity(dates))


def _next_day(site: Site) -> Term:
    name = site.text_of(1).lower()
    weekday = next((index for index, start in enumerate(_WEEKDAYS) if name in _names_of(index)), None)
    if weekday is None:
        raise site.operands[1].place.mistake(f"{name!r} is not a day of the week", fix="write 'Monday', 'Mon' or 'Mo'")
    return site.apply(partial(_following, weekday), types.DATE, _as_date(site, site.operands[0]))


def _names_of(index: int) -> set[str]:
    whole = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"][index]
    return {whole, whole[:3], whole[:2]}


def _following(weekday: int, dates: pa.Array) -> pa.Array:
    days = _days(dates)
    today = (days + 3) % 7  # 1970 began on a Thursday
    return _dates(days + (weekday - today - 1) % 7 + 1, validity(dates))


def _trunc(site: Site) -> Term:
    unit = _TRUNCATED.get(site.text_of(1).lower())
    if unit is None:
        # Spark returns null for a unit that it does not know.
        return constant(site.place, None, types.DATE)
    instant = convert(_as_date(site, site.operands[0]), types.NAIVE_TIMESTAMP)
    whole = site.apply(partial(truncated, unit), types.NAIVE_TIMESTAMP, instant)
    return convert(whole, types.DATE)


def _name(site: Site) -> Term:
    date = _as_date(site, site.operands[0])
    return site.apply(_day_name if site.function == "dayname" else _month_name, types.TEXT, date)


def _day_name(dates: pa.Array) -> pa.Array:
    return pa.array(_DAY_NAMES).take(pc.day_of_week(dates))


def _month_name(dates: pa.Array) -> pa.Array:
    return pa.array(_MONTH_NAMES).take(pc.subtract(pc.month(dates), 1))


def _months_between(site: Site) -> Term:
    later, earlier = (as_instant(site, operand) for operand in site.operands[:2])
    rounded = True
    if len(site.operands) > 2:  # noqa: PLR2004 - the third operand
        flag = site.operands[2].constant
        if flag is None or site.operands[2].type != types.BOOLEAN:
            raise site.operands[2].place.type_mistake("months_between needs true or false here")
        rounded = bool(flag.as_py())
    return site.apply(partial(_month_difference, rounded), types.DOUBLE, later, earlier)


def _month_difference(rounded: bool, later: Datum, earlier: Datum) -> pa.Array:
    """Return whole months if both days of the month are equal, or both the last; else with a fraction of 31 days."""
    later_times, earlier_times = arrays(later, earlier)
    valid = validity(later_times) & validity(earlier_times)
    micros = [int64_values(column) for column in (later_times, earlier_times)]
    months = [months_of(value) for value in micros]
    days = [value // DAY for value in micros]
    of_month = [day - _month_starts(month) + 1 for day, month in zip(days, months, strict=True)]
    last = [_month_starts(month + 1) - 1 == day for day, month in zip(days, months, strict=True)]
    whole = (months[0] - months[1]).astype(np.float64)
    seconds = [(value % DAY) // SECOND for value in micros]
    rest = (of_month[0] - of_month[1]) * 86400 + seconds[0] - seconds[1]
    same = (of_month[0] == of_month[1]) | (last[0] & last[1])
    difference = np.where(same, whole, whole + rest / (_MONTH_DAYS * 86400.0))
    if rounded:
        # To the nearest number, and up from the middle, as Java rounds; adding a half first would round twice.
        digits = difference * 1e8
        below = np.floor(digits)
        difference = (below + (digits - below >= _MIDDLE)) / 1e8
    return from_numpy(difference + 0.0, types.DOUBLE, valid=valid)


def _make_date(site: Site) -> Term:
    parts = [convert(operand, types.INT) for operand in site.operands]
    return site.apply(_made_date, types.DATE, *parts, fallible=True)


def _made_date(*data: Datum) -> pa.Array:
    columns = arrays(*data)
    valid = np.logical_and.reduce([validity(column) for column in columns])
    return _dates(_checked_days(valid, *(_days(column) for column in columns)), valid)


def _checked_days(valid: Flags, year: Integers, month: Integers, day: Integers) -> Integers:
    """Return days since 1970 of dates. Raise if one does not exist."""
    safe = np.clip(month, 1, 12)
    months = (np.where(valid, year, 1970) - 1970) * 12 + safe - 1
    first, following = _month_starts(months), _month_starts(months + 1)
    wrong = valid & ((month < 1) | (month > 12) | (day < 1) | (day > following - first))  # noqa: PLR2004 - a calendar
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise RowFailure(f"the date {int(year[row])}-{int(month[row])}-{int(day[row])} does not exist")
    return first + np.where(valid, day, 1) - 1


def _make_timestamp(kind: pa.DataType) -> Build:
    """Build a timestamp from year, month, day, hour, minute and seconds."""

    def build(site: Site) -> Term:
        if len(site.operands) != _SIX_PARTS:
            raise site.place.mistake(
                f"{site.function} takes 6 operands here, got {len(site.operands)}",
                fix="leave the time zone out: it is UTC",
            )
        *parts, seconds = site.operands
        exact = convert(seconds, pa.decimal128(16, 6))
        integers = [convert(part, types.INT) for part in parts]
        return site.apply(partial(_made_timestamp, kind), kind, *integers, exact, fallible=True)

    return build


def _made_timestamp(kind: pa.DataType, *data: Datum) -> pa.Array:
    *columns, exact = arrays(*data)
    valid = np.logical_and.reduce([validity(column) for column in (*columns, exact)])
    year, month, day, hour, minute = (np.where(valid, _days(column), 0) for column in columns)
    days = _checked_days(valid, year, month, day)
    micros = np.where(valid, integers(exact).astype(np.int64), 0)
    wrong = (hour < 0) | (hour > 23) | (minute < 0) | (minute > 59) | (micros < 0) | (micros > 60 * SECOND)  # noqa: PLR2004
    if np.any(valid & wrong):
        row = int(np.flatnonzero(valid & wrong)[0])
        raise RowFailure(f"the time {int(hour[row])}:{int(minute[row])}:{int(micros[row]) / SECOND} does not exist")
    return from_numpy(days * DAY + (hour * 60 + minute) * 60 * SECOND + micros, kind, valid=valid)


def _make_interval(site: Site) -> Term:
    """Build make_dt_interval(days, hours, minutes, seconds), all optional."""
    zero = constant(site.place, 0, types.INT)
    parts = [*site.operands, *[zero] * (4 - len(site.operands))]
    integers = [convert(part, types.INT) for part in parts[:3]]
    return site.apply(_made_interval, types.INTERVAL, *integers, convert(parts[3], pa.decimal128(18, 6)), fallible=True)


def _made_interval(*data: Datum) -> pa.Array:
    *columns, exact = arrays(*data)
    valid = np.logical_and.reduce([validity(column) for column in (*columns, exact)])
    sizes = (DAY, 3600 * SECOND, 60 * SECOND)
    total = integers(exact).astype(object)
    for column, size in zip(columns, sizes, strict=True):
        total = total + _days(column).astype(object) * size
    return _interval(total, valid)


def _interval(total: npt.NDArray[np.object_], valid: Flags) -> pa.Array:
    total = np.where(valid, total, 0)
    if np.any(np.abs(total) >= 2**63):
        raise RowFailure("an interval beyond what 64 bits hold")
    return from_numpy(total.astype(np.int64), types.INTERVAL, valid=valid)


def _unix_date(site: Site) -> Term:
    return site.apply(_day_numbers, types.INT, _as_date(site, site.operands[0]))


def _day_numbers(dates: pa.Array) -> pa.Array:
    return pc.cast(dates, pa.int32())


def _from_unix_date(site: Site) -> Term:
    return site.apply(_as_dates, types.DATE, convert(site.operands[0], types.INT))


def _as_dates(days: pa.Array) -> pa.Array:
    return pc.cast(days, types.DATE)


# ---- parts of times ----------------------------------------------------------------------------------------------

_FIELDS = {
    **dict.fromkeys(("year", "y", "years", "yr", "yrs"), "year"),
    **dict.fromkeys(("quarter", "qtr"), "quarter"),
    **dict.fromkeys(("month", "mon", "mons", "months"), "month"),
    **dict.fromkeys(("week", "w", "weeks"), "weekofyear"),
    **dict.fromkeys(("day", "d", "days"), "day"),
    **dict.fromkeys(("dayofweek", "dow"), "dayofweek"),
    **dict.fromkeys(("dayofweek_iso", "dow_iso"), "dow_iso"),
    "doy": "dayofyear",
    "yearofweek": "yearofweek",
    **dict.fromkeys(("hour", "h", "hours", "hr", "hrs"), "hour"),
    **dict.fromkeys(("minute", "m", "min", "mins", "minutes"), "minute"),
    **dict.fromkeys(("second", "s", "sec", "seconds", "secs"), "second"),
    "epoch": "epoch",
}
_PARTS_OF_INTERVALS = {"day": DAY, "hour": 3600 * SECOND, "minute": 60 * SECOND, "second": SECOND}
_EPOCH = pa.decimal128(20, 6)
_SECONDS = pa.decimal128(8, 6)


def _date_part(site: Site) -> Term:
    name = site.text_of(0).lower()
    field = _FIELDS.get(name)
    if field is None:
        known = ", ".join(sorted(set(_FIELDS)))
        raise site.operands[0].place.mistake(f"there is no part {name!r} of a time", fix=f"use one of {known}")
    source = site.operands[1]
    if source.type == types.INTERVAL:
        return _interval_part(site, field, source)
    instant = as_instant(site, source)
    if field == "epoch":
        return site.apply(partial(_micros_as, _EPOCH, None), _EPOCH, instant)
    if field == "second":
        return site.apply(partial(_micros_as, _SECONDS, 60 * SECOND), _SECONDS, instant)
    if field in {"dow_iso", "yearofweek"}:
        return site.apply(partial(_iso_field, field), types.INT, convert(instant, types.NAIVE_TIMESTAMP))
    return TIMES[field].build(Site(site.place, field, (source,)))


def _iso_field(field: str, times: pa.Array) -> pa.Array:
    values = iso_year_of(times) if field == "yearofweek" else pc.day_of_week(times, count_from_zero=False)
    return pc.cast(values, pa.int32())


def _micros_as(kind: pa.DataType, modulo: int | None, times: pa.Array) -> pa.Array:
    micros = int64_values(times) if modulo is None else int64_values(times) % modulo
    return to_decimals(rescaled(micros, types.MAX_DIGITS, 0), kind, validity(times))[0]


def _interval_part(site: Site, field: str, interval: Term) -> Term:
    if field == "epoch":
        return site.apply(partial(_micros_as, _EPOCH, None), _EPOCH, interval)
    if field not in _PARTS_OF_INTERVALS:
        raise site.operands[0].place.mistake(f"an interval has no {field}", fix="use day, hour, minute or second")
    kind = {"day": types.INT, "second": _SECONDS}.get(field, types.TINYINT)
    return site.apply(partial(_part_of_interval, field, kind), kind, interval)


def _part_of_interval(field: str, kind: pa.DataType, intervals: pa.Array) -> pa.Array:
    micros, valid = int64_values(intervals), validity(intervals)
    above = {"hour": DAY, "minute": 3600 * SECOND, "second": 60 * SECOND}.get(field)
    rest = micros if above is None else np.fmod(micros, above)
    if field == "second":
        return to_decimals(rest, kind, valid)[0]
    size = _PARTS_OF_INTERVALS[field]
    whole = np.where(rest < 0, -(-rest // size), rest // size)
    return from_numpy(whole.astype(f"int{kind.bit_width}"), kind, valid=valid)


# ---- differences and sums by unit --------------------------------------------------------------------------------


def _timestamp_add(site: Site) -> Term:
    """Build timestampadd(unit, count, time)."""
    unit, time = site.text_of(0).lower(), as_instant(site, site.operands[2])
    count = convert(site.operands[1], types.BIGINT)
    return site.apply(partial(_added, unit), time.type, count, time, fallible=True)


def _added(unit: str, count: Datum, time: Datum) -> pa.Array:
    counts, times = arrays(count, time)
    valid = validity(counts) & validity(times)
    number, micros = np.where(valid, int64_values(counts), 0), np.where(valid, int64_values(times), 0)
    if unit in _MONTHS_OF:
        moved = _months_later(micros // DAY, number * _MONTHS_OF[unit]) * DAY + micros % DAY
    else:
        total = number.astype(object) * _MICROSECONDS[unit] + micros
        if np.any(np.abs(total) >= 2**63):
            raise RowFailure("a time beyond what 64 bits hold")
        moved = total.astype(np.int64)
    return from_numpy(moved, times.type, valid=valid)


def _timestamp_diff(site: Site) -> Term:
    """Build timestampdiff(unit, start, end): whole units, truncated."""
    unit = site.text_of(0).lower()
    times = [as_instant(site, operand) for operand in site.operands[1:]]
    return site.apply(partial(_whole_units, unit), types.BIGINT, *times)


def _whole_units(unit: str, start: Datum, end: Datum) -> pa.Array:
    starts, ends = arrays(start, end)
    valid = validity(starts) & validity(ends)
    first, last = (np.where(valid, int64_values(column), 0) for column in (starts, ends))
    if unit in _MONTHS_OF:
        # As in Java, a month is whole if the day of the month and the time of day are reached, whatever its length.
        days, end = first // DAY, last // DAY
        end = end - ((end > days) & (last % DAY < first % DAY)) + ((end < days) & (last % DAY > first % DAY))
        months = [months_of(day * DAY) for day in (days, end)]
        places = [month * 32 + day - _month_starts(month) for month, day in zip(months, (days, end), strict=True)]
        packed = places[1] - places[0]
        count, size = np.where(packed < 0, -(-packed // 32), packed // 32), _MONTHS_OF[unit]
    else:
        count, size = last - first, _MICROSECONDS[unit]
    return from_numpy(np.where(count < 0, -(-count // size), count // size), types.BIGINT, valid=valid)


def _date_add_unit(site: Site) -> Term:
    """Build dateadd(date, days)."""
    return days_later(site, site.operands[0], site.operands[1], "+")


def _window(site: Site) -> Term:
    """Build window(time, duration): the tumbling window of a time, as a struct of start and end."""
    time = site.operands[0]
    if not types.is_timestamp(time.type):
        raise site.wrong_types("a timestamp", at=time)
    length = site.operands[1].constant
    if length is not None and site.operands[1].type == types.INTERVAL and length.is_valid:
        size = int(length.value)
    else:
        size = parse_duration(site.text_of(1))
    if size <= 0:
        raise site.operands[1].place.mistake("the length of a window must be positive")
    kind = pa.struct([pa.field("start", time.type), pa.field("end", time.type)])
    return site.apply(partial(_window_of, size, kind), kind, time)


def _window_of(size: int, kind: pa.DataType, times: pa.Array) -> pa.Array:
    micros, valid = int64_values(times), validity(times)
    start = micros - micros % size
    children = [from_numpy(edge, times.type, valid=valid) for edge in (start, start + size)]
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(times), [bitmap], children=children)


def _from_unixtime(site: Site) -> Term:
    seconds = TIMES["timestamp_seconds"].build(
        Site(site.place, site.function, (convert(site.operands[0], types.BIGINT),))
    )
    pattern = site.operands[1] if len(site.operands) > 1 else constant(site.place, "yyyy-MM-dd HH:mm:ss", types.TEXT)
    return TIMES["date_format"].build(Site(site.place, site.function, (seconds, pattern)))


BUILDERS: dict[str, Builder] = {
    "add_months": of(_add_months, 2),
    "date_diff": TIMES["datediff"],
    "date_from_unix_date": of(_from_unix_date, 1),
    "date_part": of(_date_part, 2),
    "datepart": of(_date_part, 2),
    "dateadd": of(_date_add_unit, 2),
    "dayname": of(_name, 1),
    "from_unixtime": of(_from_unixtime, 1, 2),
    "last_day": of(_last_day, 1),
    "make_date": of(_make_date, 3),
    "make_dt_interval": of(_make_interval, 0, 4),
    "make_timestamp": of(_make_timestamp(types.TIMESTAMP), 6, 7),
    "make_timestamp_ltz": of(_make_timestamp(types.TIMESTAMP), 6, 7),
    "make_timestamp_ntz": of(_make_timestamp(types.NAIVE_TIMESTAMP), 6),
    "monthname": of(_name, 1),
    "months_between": of(_months_between, 2, 3),
    "next_day": of(_next_day, 2),
    "timestampadd": of(_timestamp_add, 3),
    "timestampdiff": of(_timestamp_diff, 3),
    "to_timestamp_ltz": TIMES["to_timestamp"],
    "to_timestamp_ntz": of(lambda site: convert(site.operands[0], types.NAIVE_TIMESTAMP, place=site.place), 1),
    "to_unix_timestamp": TIMES["unix_timestamp"],
    "trunc": of(_trunc, 2),
    "try_make_timestamp": of(attempted(_make_timestamp(types.TIMESTAMP)), 6, 7),
    "try_make_timestamp_ltz": of(attempted(_make_timestamp(types.TIMESTAMP)), 6, 7),
    "try_make_timestamp_ntz": of(attempted(_make_timestamp(types.NAIVE_TIMESTAMP)), 6),
    "unix_date": of(_unix_date, 1),
    "window": of(_window, 2),
}
