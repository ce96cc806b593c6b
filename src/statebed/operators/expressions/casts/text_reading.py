"""Text as values: numbers, booleans, dates and times, in the forms that Spark reads. Spaces around are ignored."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.format.columns import fixed_width_values, from_numpy, validity
from statebed.operators.expressions import kinds
from statebed.operators.expressions.casts import decimals
from statebed.operators.expressions.casts.number_casts import (
    Conversion,
    Converted,
    booleans,
    integer_to_integer,
    without,
)

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
_WIDE_DIGITS = 76
_LONGEST_DECIMAL = 70
_DATE = r"^(?P<sign>[+-]?)(?P<year>\d{4,6})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})(?P<rest>[ T].*)?)?)?$"
_CLOCK = (
    r"^[ T](?:(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{0,9}))?)?)?)?"
    r" ?(?P<zone>Z|UTC|GMT|(?:UTC|GMT)[+-]\d{1,2}(?::\d{1,2})?|[+-]\d{1,2}(?::?\d{2})?)?$"
)
_ZONE = r"^(?:UTC|GMT|Z)?(?P<sign>[+-]?)(?P<hours>\d{0,2}):?(?P<minutes>\d{0,2})$"
_DAY = 86_400_000_000


def _integer(array: pa.Array, kind: pa.DataType) -> Converted:
    text = pc.utf8_trim(array, _BLANKS)
    digits = pc.utf8_ltrim(pc.utf8_ltrim(text, "+-"), "0")
    negative = pc.starts_with(text, "-")
    length = pc.utf8_length(digits)
    longest = pc.and_(pc.equal(length, len(_LONGEST_INTEGER)), pc.less_equal(digits, _LONGEST_INTEGER))
    least = pc.and_(negative, pc.equal(digits, "9223372036854775808"))
    fits = pc.or_(pc.or_(pc.less(length, len(_LONGEST_INTEGER)), longest), least)
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
    whole = kind.precision - kind.scale
    parts = pc.extract_regex(
        text, r"^(?P<sign>[+-]?)0*(?P<whole>\d*)\.?(?P<fraction>\d*)(?:[eE](?P<exponent>[+-]?\d+))?$"
    )
    exponent = pc.struct_field(parts, "exponent")
    scientific = pc.fill_null(pc.not_equal(exponent, ""), False)
    long = pc.fill_null(pc.greater(pc.utf8_length(pc.struct_field(parts, "whole")), whole), False)
    bad = pc.or_(bad, pc.and_(long, pc.invert(scientific)))
    # Plain numbers: digits beyond the guard never decide, but for a half they all stay below it.
    fraction = pc.utf8_slice_codeunits(pc.struct_field(parts, "fraction"), 0, _LONGEST_DECIMAL - whole)
    sign = pc.if_else(pc.equal(pc.struct_field(parts, "sign"), "-"), "-", "")
    digits = pc.struct_field(parts, "whole")
    plain = pc.binary_join_element_wise(sign, pc.if_else(pc.equal(digits, ""), "0", digits), ".", fraction, "")
    plain = pc.binary_join_element_wise(plain, "0", "")
    wide = pa.decimal256(_WIDE_DIGITS, _WIDE_DIGITS - whole - 2)
    exact = pc.cast(without(without(plain, bad), scientific), wide)
    size, limit = pc.abs(_as_doubles(text, bad)), 10.0**whole
    bad = pc.or_(bad, pc.and_(scientific, pc.fill_null(pc.greater_equal(size, limit), False)))
    tiny = pc.fill_null(pc.less(size, 10.0 ** -(kind.scale + 2)), False)
    text = pc.if_else(tiny, "0", text)
    try:
        powers = pc.cast(pc.if_else(pc.and_(scientific, pc.invert(bad)), text, pa.scalar(None, pa.string())), wide)
    except pa.ArrowInvalid:
        raise decimals.overflow(kind) from None
    near = pc.round(pc.coalesce(exact, powers), ndigits=kind.scale, round_mode="half_towards_infinity")
    over = decimals.too_large(near, kind)
    return decimals.rounded(without(near, over), kind), pc.or_(bad, over)


def _as_doubles(text: pa.Array, bad: pa.Array) -> pa.Array:
    return pc.cast(pc.utf8_ltrim(without(text, bad), "+"), pa.float64())


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
    """Without a zone it is UTC; a timestamp_ntz ignores the zone."""
    days, rest, bad = _days(pc.utf8_trim(array, _BLANKS))
    clock = pc.extract_regex(pc.if_else(pc.equal(rest, ""), " ", rest), _CLOCK)
    bad |= validity(rest) & ~validity(clock)
    hour, minute, second = (_number(pc.struct_field(clock, name)) for name in ("hour", "minute", "second"))
    fraction = _number(pc.utf8_slice_codeunits(pc.utf8_rpad(pc.struct_field(clock, "fraction"), 6, "0"), 0, 6))
    bad |= (hour > 23) | (minute > 59) | (second > 59)  # noqa: PLR2004 - of a clock
    micros = days * _DAY + ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction
    if kind.tz is not None:
        zone = pc.extract_regex(pc.fill_null(pc.struct_field(clock, "zone"), ""), _ZONE)
        offset = _number(pc.struct_field(zone, "hours")) * 60 + _number(pc.struct_field(zone, "minutes"))
        bad |= offset > 18 * 60
        behind = fixed_flags(pc.equal(pc.struct_field(zone, "sign"), "-"))
        micros -= np.where(behind, -offset, offset) * 60_000_000
    valid = validity(array) & ~bad
    return from_numpy(micros, kind, valid=valid), booleans(bad & validity(array))


def _days(text: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array, npt.NDArray[np.bool_]]:
    """Days since 1970, what follows the date, and where there is no date."""
    parts = pc.extract_regex(text, _DATE)
    year, month, day = (_number(pc.struct_field(parts, name), empty=1) for name in ("year", "month", "day"))
    year = np.where(fixed_flags(pc.equal(pc.struct_field(parts, "sign"), "-")), -year, year)
    bad = (validity(text) & ~validity(parts)) | (month < 1) | (month > 12) | (day < 1)  # noqa: PLR2004 - of a calendar
    month = np.clip(month, 1, 12)
    first = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = first.astype("datetime64[D]").astype(np.int64)
    length = (first + 1).astype("datetime64[D]").astype(np.int64) - days
    bad |= day > length
    return days + day - 1, pc.struct_field(parts, "rest"), bad & validity(text)


def _number(text: pa.Array, *, empty: int = 0) -> npt.NDArray[np.int64]:
    """Digits as integers; nothing, or a null, as `empty`."""
    filled = pc.fill_null(pc.if_else(pc.equal(text, ""), str(empty), text), str(empty))
    return fixed_width_values(pc.cast(filled, pa.int64()), np.int64)  # type: ignore[return-value]  # the dtype says it


def fixed_flags(flags: pa.Array) -> npt.NDArray[np.bool_]:
    """Booleans, False at nulls."""
    return np.asarray(fixed_width_values(pc.cast(pc.fill_null(flags, False), pa.int8()), np.int8) != 0)


READERS: dict[object, Conversion] = {
    **dict.fromkeys((kinds.TINYINT, kinds.SMALLINT, kinds.INT, kinds.BIGINT), _integer),
    **dict.fromkeys((kinds.FLOAT, kinds.DOUBLE), _float),
    **dict.fromkeys((kinds.TIMESTAMP, kinds.NAIVE_TIMESTAMP), _timestamp),
    kinds.BOOLEAN: _boolean,
    kinds.DATE: _date,
    kinds.BINARY: lambda array, kind: (pc.cast(array, kind), None),
    "decimal": _decimal,
}
"""By type; all decimals have one."""
