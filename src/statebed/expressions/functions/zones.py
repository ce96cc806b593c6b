"""Functions of time zones: from_utc_timestamp, to_utc_timestamp and convert_timezone.

A local time that a zone skips is moved forward by the length of the gap, and one that it has twice is the earlier one,
as in Java.
"""

import datetime as dt
import re
from collections.abc import Callable
from functools import lru_cache, partial
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import from_numpy
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.distinct_values import by_distinct
from statebed.expressions.far_years import CYCLE_US
from statebed.expressions.functions.strings import as_text
from statebed.expressions.list_parts import taken
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Datum, Term, arrays, constant, scattered

_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?(?P<sign>[+-])(?P<hours>\d{1,2})(?::?(?P<minutes>\d{2})(?::?(?P<seconds>\d{2}))?)?"
)
_UTC = frozenset({"UTC", "GMT", "UT", "Z", "Etc/UTC"})
_MAX_HOURS = 18
_SECOND_US = 1_000_000
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a local time
_FAR_US = 2_114_380_800_000_000
"""The beginning of 2037."""
_LAST_US = 253_402_214_400_000_000
"""The end of 9999, minus a day; Python has no later times."""
SHORT_NAMES = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
"""Short names that Java knows."""
_NAMES = 1_024
"""Number of zones that are remembered: rows can name any."""
Shift = Callable[[pa.Array, str], pa.Array]


@lru_cache(maxsize=_NAMES)
def zone_of(name: str) -> int | str:
    """Return the offset of a zone in microseconds, or the name of a region."""
    known = SHORT_NAMES.get(name, name)
    if known in _UTC:
        return 0
    match = _OFFSET.fullmatch(known)
    if match is not None:
        hours, minutes, seconds = (int(match[part] or 0) for part in ("hours", "minutes", "seconds"))
        size = (hours * 60 + minutes) * 60 + seconds
        if hours <= _MAX_HOURS and minutes < 60 and seconds < 60 and size <= _MAX_HOURS * 3600:  # noqa: PLR2004 - a clock
            return (-size if match["sign"] == "-" else size) * _SECOND_US
    try:
        return ZoneInfo(known).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise RowFailure(
            f"{name!r} is not a time zone", fix="write a region such as 'Europe/Berlin', or an offset such as '+02:00'"
        ) from None


def local_time(times: pa.Array, zone: str) -> pa.Array:
    """Return the local times of instants, which are microseconds since 1970."""
    offset_or_region = zone_of(zone)
    if isinstance(offset_or_region, int):
        return pc.add_checked(times, offset_or_region)
    zoned = pc.cast(times, pa.timestamp("us", offset_or_region))
    local = pc.cast(pc.local_timestamp(zoned), pa.int64())
    return _with_far_times(local, times, partial(_far_local_time, ZoneInfo(offset_or_region)))


def instant(times: pa.Array, zone: str) -> pa.Array:
    """Return the instants of local times, which are microseconds since 1970."""
    offset_or_region = zone_of(zone)
    if isinstance(offset_or_region, int):
        return pc.subtract_checked(times, offset_or_region)
    local = pc.cast(times, types.NAIVE_TIMESTAMP)
    zoned = pc.assume_timezone(local, offset_or_region, ambiguous="earliest", nonexistent="earliest")
    instants = pc.cast(zoned, pa.int64())
    offsets = pc.subtract(pc.cast(pc.local_timestamp(zoned), pa.int64()), instants)
    # In a gap, the instant just before it has the offset by which Java moves the time forward.
    near = pc.subtract(times, offsets)
    return _with_far_times(near, times, partial(_far_instant, ZoneInfo(offset_or_region)))


def _with_far_times(near: pa.Array, times: pa.Array, far: Callable[[int], int]) -> pa.Array:
    """Replace results after 2036, for which Arrow knows no daylight saving time, by those of Python's time zones."""
    is_far = pc.fill_null(pc.greater(times, _FAR_US), False)
    if not pc.any(is_far).as_py():
        return near
    rows = np.flatnonzero(is_far.to_numpy(zero_copy_only=False))
    values = by_distinct(far, pa.int64(), times.take(from_numpy(rows, pa.int64())))
    return pc.coalesce(scattered(values, rows, len(times)), near)


def _far_local_time(zone: ZoneInfo, time_us: int) -> int:
    moment = _moment(time_us).replace(tzinfo=dt.UTC)
    return time_us + _microseconds(moment.astimezone(zone).utcoffset())


def _far_instant(zone: ZoneInfo, time_us: int) -> int:
    return time_us - _microseconds(_moment(time_us).replace(tzinfo=zone).utcoffset())


def _moment(time_us: int) -> dt.datetime:
    """Return a time in the same year of the calendar's cycle, and therefore with the same offset."""
    cycles = max(0, -((_LAST_US - time_us) // CYCLE_US))
    return _EPOCH + dt.timedelta(microseconds=time_us - cycles * CYCLE_US)


def _microseconds(offset: dt.timedelta | None) -> int:
    return 0 if offset is None else offset // dt.timedelta(microseconds=1)


def _shifted(shift: Shift, kind: pa.DataType, *data: Datum) -> pa.Array:
    """Shift times by zones, one distinct zone at a time."""
    times, zones = arrays(*data)
    numbers = pc.cast(times, pa.int64())
    if isinstance(data[1], pa.Scalar):
        if not data[1].is_valid:
            return pa.nulls(len(times), kind)
        return pc.cast(shift(numbers, data[1].as_py()), kind)
    encoded = zones.dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    # Rows can name as many zones as there are rows, so each zone reads only its own.
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(-1, len(encoded.dictionary)), side="right").tolist()
    ordered = taken(numbers, order)
    parts = [pa.nulls(ends[0], pa.int64())]
    for zone, start, end in zip(encoded.dictionary.to_pylist(), ends, ends[1:], strict=False):
        parts.append(shift(ordered.slice(start, end - start), zone))
    return pc.cast(taken(pa.concat_arrays(parts), np.argsort(order)), kind)


def _utc_shift(shift: Shift) -> Builder:
    def build(site: Site) -> Term:
        times = convert(site.operands[0], types.TIMESTAMP)
        zone = as_text(site, site.operands[1])
        return site.apply(partial(_shifted, shift, types.TIMESTAMP), types.TIMESTAMP, times, zone, fallible=True)

    return of(build, 2)


def _convert_timezone(site: Site) -> Term:
    """Build convert_timezone([source, ] target, time); without a source, the time is in UTC."""
    *zones, time = site.operands
    source = as_text(site, zones[0]) if len(zones) > 1 else constant(site.place, "UTC", types.TEXT)
    target = as_text(site, zones[-1])
    kind = types.NAIVE_TIMESTAMP
    instants = site.apply(partial(_shifted, instant, kind), kind, convert(time, kind), source, fallible=True)
    return site.apply(partial(_shifted, local_time, kind), kind, instants, target, fallible=True)


BUILDERS: dict[str, Builder] = {
    "from_utc_timestamp": _utc_shift(local_time),
    "to_utc_timestamp": _utc_shift(instant),
    "convert_timezone": of(_convert_timezone, 2, 3),
}
