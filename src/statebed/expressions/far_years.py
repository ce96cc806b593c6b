"""Years that Arrow's kernels cannot handle: those beyond ±32767, and those that are not written with four digits.

The calendar repeats every 400 years, weekdays included. A time is moved to the cycle that begins in 1970, where every
kernel works, and the years by which it was moved are added to the result.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, int64_values, validity

_CYCLE_YEARS = 400
_CYCLE_DAYS = 146_097
_DAY_US = 86_400_000_000
CYCLE_US = _CYCLE_DAYS * _DAY_US
_FIRST_DAY = -719_528
"""The beginning of year 0."""
_END_DAY = 2_932_897
"""The beginning of year 10000."""
_REACH_DAYS = 10_000_000
"""Days before or after 1970 that are certainly in years that fit 16 bits."""
_YEAR_DIGITS = 4


def year_of(times: pa.Array) -> pa.Array:
    """Return the calendar years of dates or timestamps without a zone."""
    return _moved(pc.year, times)


def iso_year_of(times: pa.Array) -> pa.Array:
    """Return the years to which the ISO weeks of dates or timestamps without a zone belong."""
    return _moved(pc.iso_year, times)


def in_reach(times: pa.Array) -> pa.Array:
    """Return times with the same fields, except the year, that all kernels can handle."""
    return times if _is_between(times, -_REACH_DAYS, _REACH_DAYS) else in_first_cycle(times)[0]


def in_first_cycle(times: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the times moved to 1970 up to 2369, and the years by which each was moved."""
    values, per_day = _values(times)
    size = _CYCLE_DAYS * per_day
    cycles, valid = values // size, validity(times)
    places = values - cycles * size
    if pa.types.is_date32(times.type):
        moved = from_numpy(places.astype(np.int32), times.type, valid=valid)
    else:
        moved = from_numpy(places, times.type, valid=valid)
    return moved, from_numpy(cycles * _CYCLE_YEARS, pa.int64(), valid=valid)


def year_texts(years: pa.Array, width: int) -> pa.Array:
    """Write years with at least `width` digits. As in Java, longer ones have a plus sign, and negative ones a minus."""
    digits = pc.utf8_lpad(pc.cast(pc.abs(years), pa.string()), width, "0")
    sign = pc.if_else(pc.less(years, 0), "-", pc.if_else(pc.greater_equal(years, 10**width), "+", ""))
    return pc.binary_join_element_wise(sign, digits, "", null_handling="emit_null")


def iso_texts(write: Callable[[pa.Array], pa.Array], times: pa.Array) -> pa.Array:
    """Write times with a function whose texts begin with a year of four digits, whatever their years are."""
    if _is_between(times, _FIRST_DAY, _END_DAY - 1):
        return write(times)
    moved, years = in_first_cycle(times)
    year = year_texts(pc.add(pc.year(moved), years), _YEAR_DIGITS)
    rest = pc.utf8_slice_codeunits(write(moved), _YEAR_DIGITS)
    return pc.binary_join_element_wise(year, rest, "", null_handling="emit_null")


def _moved(kernel: Callable[[pa.Array], pa.Array], times: pa.Array) -> pa.Array:
    if _is_between(times, -_REACH_DAYS, _REACH_DAYS):
        return kernel(times)
    moved, years = in_first_cycle(times)
    return pc.add(kernel(moved), years)


def _is_between(times: pa.Array, first_day: int, last_day: int) -> bool:
    """Return whether all times are in a range of days."""
    values, per_day = _values(times)
    return not len(values) or bool(values.min() >= first_day * per_day and values.max() < (last_day + 1) * per_day)


def _values(times: pa.Array) -> tuple[npt.NDArray[np.int64], int]:
    """Return the values of dates or timestamps, and how many units a day has."""
    if pa.types.is_date32(times.type):
        return fixed_width_values(times, np.int32).astype(np.int64), 1
    return int64_values(times), _DAY_US
