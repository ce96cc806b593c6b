"""Parsers for numbers, booleans, dates and times, in the formats that Spark accepts. Surrounding spaces are ignored."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import boolean_values, fixed_width_values, from_numpy, int64_values, validity
from statebed.expressions import types
from statebed.expressions.casts.number_casts import Conversion, Converted, booleans, integer_to_integer, without
from statebed.expressions.casts.unscaled import integers, rounded_quotient, to_decimals

_BLANKS = "".join(map(chr, range(33)))
_INTEGER = r"^[+-]?\d+$"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_SPECIAL = {
    "nan": "nan",
    "inf": "inf",
    "+inf": "inf",
    "-inf": "-inf",
    "infinity": "inf",
    "+infinity": "inf",
    "-infinity": "-inf",
}
_TRUE, _FALSE = ["true", "t", "yes", "y", "1"], ["false", "f", "no", "n", "0"]
_LONGEST_INTEGER = "9223372036854775807"
_PARTS = r"^(?P<sign>[+-]?)(?P<whole>\d*)\.?(?P<fraction>\d*)(?:[eE](?P<exponent>[+-]?\d+))?$"
_MAX_DIGITS = 76
"""Maximum number of digits that Arrow parses."""
_FAR = 99_999
_POWERS = np.array([10**power for power in range(160)], dtype=object)
_DATE = r"^(?P<sign>[+-]?)(?P<year>\d{4,6})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})(?P<rest>[ T].*)?)?)?$"
_CLOCK = (
    r"^[ T](?:(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{0,9}))?)?)?)?"
    r" ?(?P<zone>Z|UTC|GMT|(?:UTC|GMT)[+-]\d{1,2}(?::\d{1,2})?|[+-]\d{1,2}(?::?\d{2})?)?$"
)
_ZONE = r"^(?:UTC|GMT|Z)?(?P<sign>[+-]?)(?P<hours>\d{0,2}):?(?P<minutes>\d{0,2})$"
_DAY = 86_400_000_000
_MAX_DAYS = (2**63 - 1) // _DAY - 1


def _integer(array: pa.Array, kind: pa.DataType) -> Converted:
    text = pc.utf8_trim(array, _BLANKS)
    digits = pc.utf8_ltrim(pc.utf8_ltrim(text, "+-"), "0")
    negative = pc.starts_with(text, "-")
    length = pc.utf8_length(digits)
    longest = pc.and_(pc.equal(length, len(_LONGEST_INTEGER)), pc.less_equal(digits, _LONGEST_INTEGER))
    lowest = pc.and_(negative, pc.equal(digits, "9223372036854775808"))
    fits = pc.or_(pc.or_(pc.less(length, len(_LONGEST_INTEGER)), longest), lowest)
    bad = pc.invert(pc.fill_null(pc.and_(pc.match_substring_regex(text, _INTEGER), fits), True))
    plain = pc.binary_join_element_wise(
        pc.if_else(negative, "-", ""), pc.if_else(pc.equal(digits, ""), "0", digits), ""
    )
    values, outside = integer_to_integer(pc.cast(without(plain, bad), pa.int64()), kind)
    return values, bad if outside is None else pc.or_(bad, outside)


def _float(array: pa.Array, kind: pa.DataType) -> Converted:
    text = pc.utf8_lower(pc.utf8_trim(array, _BLANKS))
    number = pc.match_substring_regex(text, r"^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[df]?$")
    text = pc.if_else(number, pc.utf8_ltrim(pc.utf8_rtrim(text, "df"), "+"), text)
    for word, value in _SPECIAL.items():
        text = pc.if_else(pc.equal(text, word), value, text)
    special = pc.is_in(text, value_set=pa.array(["nan", "inf", "-inf"]))
    bad = pc.invert(pc.fill_null(pc.or_(number, special), True))
    return pc.cast(without(text, bad), kind), bad


def _decimal(array: pa.Array, kind: pa.DataType) -> Converted:
    text = pc.utf8_trim(array, _BLANKS)
    bad = pc.invert(pc.fill_null(pc.match_substring_regex(text, _NUMBER), True))
    parts = pc.extract_regex(without(text, bad), _PARTS)
    whole, fraction, exponent = (pc.struct_field(parts, name) for name in ("whole", "fraction", "exponent"))
    digits = pc.utf8_ltrim(pc.binary_join_element_wise(whole, fraction, ""), "0")
    length = int64_values(pc.cast(pc.fill_null(pc.utf8_length(digits), 0), pa.int64()))
    # Rounding half away from zero needs one digit beyond those that are kept, so digits after the 76th can be cut off.
    kept = pc.utf8_slice_codeunits(pc.if_else(pc.equal(digits, ""), "0", digits), 0, _MAX_DIGITS)
    values = integers(pc.cast(pc.fill_null(kept, "0"), pa.decimal256(_MAX_DIGITS, 0)))
    power = _exponents(exponent) - int64_values(pc.cast(pc.fill_null(pc.utf8_length(fraction), 0), pa.int64()))
    shift = power + kind.scale + np.maximum(length - _MAX_DIGITS, 0)
    large, small = length + power > kind.precision - kind.scale, np.minimum(length, _MAX_DIGITS) + shift < 0
    shift = np.where(large | small, 0, shift)
    values = np.where(small | (values == 0), 0, values)
    values = rounded_quotient(values * _POWERS[np.maximum(shift, 0)], _POWERS[np.maximum(-shift, 0)])
    negative = boolean_values(pc.equal(pc.struct_field(parts, "sign"), "-"))
    there = validity(array) & ~boolean_values(bad)
    zero = values == 0
    decimals, over = to_decimals(np.where(negative, -values, values), kind, there & ~(large & ~zero.astype(np.bool_)))
    return decimals, pc.or_(bad, booleans(over | (large & there & ~zero.astype(np.bool_))))


def _exponents(text: pa.Array) -> npt.NDArray[np.int64]:
    """Return the exponents of numbers, clipped to a range that covers every type."""
    plain = pc.fill_null(pc.if_else(pc.equal(text, ""), "0", pc.utf8_ltrim(text, "+")), "0")
    digits = pc.utf8_ltrim(pc.utf8_ltrim(plain, "-"), "0")
    far = pc.if_else(pc.starts_with(plain, "-"), str(-_FAR), str(_FAR))
    near = pc.if_else(pc.greater(pc.utf8_length(digits), 4), far, plain)
    return np.array(int64_values(pc.cast(near, pa.int64())))


def float_to_decimal(array: pa.Array, kind: pa.DataType) -> Converted:
    """Convert a double to the shortest decimal that identifies it; NaN and infinities become null."""
    doubles = pc.cast(array, pa.float64())
    finite = pc.if_else(pc.is_finite(doubles), doubles, pa.scalar(None, pa.float64()))
    return _decimal(pc.cast(finite, pa.string()), kind)


def _boolean(array: pa.Array, kind: pa.DataType) -> Converted:  # noqa: ARG001 - the shape of a conversion
    text = pc.utf8_lower(pc.utf8_trim(array, _BLANKS))
    true = pc.is_in(text, value_set=pa.array(_TRUE))
    known = pc.or_(true, pc.is_in(text, value_set=pa.array(_FALSE)))
    bad = pc.and_(pc.invert(known), pc.is_valid(array))
    return pc.if_else(known, true, pa.scalar(None, pa.bool_())), bad


def _date(array: pa.Array, kind: pa.DataType) -> Converted:
    days, _, bad = _days(pc.utf8_trim(array, _BLANKS))
    valid = validity(array) & ~bad
    return from_numpy(days.astype(np.int32), kind, valid=valid), booleans(bad)


def _timestamp(array: pa.Array, kind: pa.DataType) -> Converted:
    """Parse timestamps. Without a zone they are UTC; timestamp_ntz ignores the zone."""
    days, rest, bad = _days(pc.utf8_trim(array, _BLANKS))
    clock = pc.extract_regex(pc.if_else(pc.equal(rest, ""), " ", rest), _CLOCK)
    bad |= validity(rest) & ~validity(clock)
    hour, minute, second = (_number(pc.struct_field(clock, name)) for name in ("hour", "minute", "second"))
    fraction = _number(pc.utf8_slice_codeunits(pc.utf8_rpad(pc.struct_field(clock, "fraction"), 6, "0"), 0, 6))
    bad |= (hour > 23) | (minute > 59) | (second > 59) | (np.abs(days) > _MAX_DAYS)  # noqa: PLR2004 - of a clock
    micros = days * _DAY + ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction
    if kind.tz is not None:
        zone = pc.extract_regex(pc.fill_null(pc.struct_field(clock, "zone"), ""), _ZONE)
        offset = _number(pc.struct_field(zone, "hours")) * 60 + _number(pc.struct_field(zone, "minutes"))
        bad |= offset > 18 * 60
        behind = boolean_values(pc.equal(pc.struct_field(zone, "sign"), "-"))
        micros -= np.where(behind, -offset, offset) * 60_000_000
    valid = validity(array) & ~bad
    return from_numpy(micros, kind, valid=valid), booleans(bad & validity(array))


def _days(text: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array, npt.NDArray[np.bool_]]:
    """Return days since 1970, the text after the date, and a mask of texts without a date."""
    parts = pc.extract_regex(text, _DATE)
    year, month, day = (_number(pc.struct_field(parts, name), empty=1) for name in ("year", "month", "day"))
    year = np.where(boolean_values(pc.equal(pc.struct_field(parts, "sign"), "-")), -year, year)
    bad = (validity(text) & ~validity(parts)) | (month < 1) | (month > 12) | (day < 1)  # noqa: PLR2004 - of a calendar
    month = np.clip(month, 1, 12)
    first = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = first.astype("datetime64[D]").astype(np.int64)
    length = (first + 1).astype("datetime64[D]").astype(np.int64) - days
    bad |= day > length
    return days + day - 1, pc.struct_field(parts, "rest"), bad & validity(text)


def _number(text: pa.Array, *, empty: int = 0) -> npt.NDArray[np.int64]:
    """Parse digits as integers; an empty text or a null is `empty`."""
    filled = pc.fill_null(pc.if_else(pc.equal(text, ""), str(empty), text), str(empty))
    return fixed_width_values(pc.cast(filled, pa.int64()), np.int64)  # type: ignore[return-value]  # the dtype says it


READERS: dict[object, Conversion] = {
    **dict.fromkeys((types.TINYINT, types.SMALLINT, types.INT, types.BIGINT), _integer),
    **dict.fromkeys((types.FLOAT, types.DOUBLE), _float),
    **dict.fromkeys((types.TIMESTAMP, types.NAIVE_TIMESTAMP), _timestamp),
    types.BOOLEAN: _boolean,
    types.DATE: _date,
    types.BINARY: lambda array, kind: (pc.cast(array, kind), None),
    "decimal": _decimal,
}
"""Parsers by type; all decimals share one."""
