"""Formatting of values as text, as Spark does it: 1.0E10, decimals without exponents, times without trailing zeros."""

import pyarrow as pa
import pyarrow.compute as pc

from statebed.expressions import types
from statebed.expressions.casts.number_casts import Conversion, Converted
from statebed.expressions.far_years import iso_texts

_MIN_PLAIN, _MAX_PLAIN = 1e-3, 1e7
"""Bounds between which a double is written without an exponent."""


def writer(source: pa.DataType) -> Conversion | None:
    """Return the conversion that formats values of a type, or None if there is none."""
    if types.is_float(source):
        return _float_to_text
    if types.is_decimal(source):
        return _decimal_to_text
    if types.is_timestamp(source):
        return _timestamp_to_text
    if source == types.DATE:
        return _date_to_text
    simple = types.is_integer(source) or source in (types.BOOLEAN, types.BINARY)
    return _simple if simple else None


def _simple(array: pa.Array, kind: pa.DataType) -> Converted:
    return pc.cast(array, kind, safe=False), None


def _float_to_text(array: pa.Array, kind: pa.DataType) -> Converted:
    shown = pc.cast(array, kind)
    size = pc.abs(array)
    plain = pc.and_(pc.greater_equal(size, _scalar(_MIN_PLAIN, array)), pc.less(size, _scalar(_MAX_PLAIN, array)))
    plain = pc.or_(plain, pc.equal(size, _scalar(0.0, array)))
    with_point = pc.if_else(pc.match_substring(shown, "."), shown, _joined(shown, ".0"))
    written = pc.if_else(plain, with_point, _scientific(shown))
    for name, word in (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        written = pc.if_else(pc.equal(shown, name), word, written)
    return written, None


def _scalar(value: float, array: pa.Array) -> pa.Scalar:
    return pa.scalar(value, array.type)


def _scientific(shown: pa.Array) -> pa.Array:
    """Rewrite numbers such as 12345678.5 or 1.5e+20 as 1.23456785E7 or 1.5E20."""
    pattern = r"^(?P<sign>-?)(?P<whole>\d*)\.?(?P<fraction>\d*)(?:e(?P<exponent>[+-]?\d+))?$"
    parts = pc.extract_regex(shown, pattern)
    sign, whole, fraction, exponent = (
        pc.struct_field(parts, name) for name in ("sign", "whole", "fraction", "exponent")
    )
    digits = _joined(whole, fraction)
    significant = pc.utf8_ltrim(digits, "0")
    leading = pc.subtract(pc.utf8_length(digits), pc.utf8_length(significant))
    written_exponent = pc.cast(pc.if_else(pc.equal(exponent, ""), "0", pc.utf8_ltrim(exponent, "+")), pa.int32())
    power = pc.add(written_exponent, pc.subtract(pc.subtract(pc.utf8_length(whole), leading), pa.scalar(1, pa.int32())))
    first = pc.utf8_slice_codeunits(significant, 0, 1)
    rest = pc.utf8_rtrim(pc.utf8_slice_codeunits(significant, 1), "0")
    rest = pc.if_else(pc.equal(rest, ""), "0", rest)
    return _joined(sign, first, ".", rest, "E", pc.cast(power, pa.string()))


def _decimal_to_text(array: pa.Array, kind: pa.DataType) -> Converted:
    scale = array.type.scale
    if scale == 0:
        return pc.cast(array, kind), None
    # Arrow would write 1E-8, so format the digits and insert the point.
    whole = pa.decimal128(types.MAX_DIGITS, 0)
    digits = pa.Array.from_buffers(whole, len(array), array.buffers(), array.null_count, array.offset)
    text = pc.cast(digits, kind)
    negative = pc.starts_with(text, "-")
    padded = pc.utf8_lpad(pc.utf8_ltrim(text, "-"), scale + 1, "0")
    whole, fraction = pc.utf8_slice_codeunits(padded, 0, -scale), pc.utf8_slice_codeunits(padded, -scale)
    return _joined(pc.if_else(negative, "-", ""), whole, ".", fraction), None


def _date_to_text(array: pa.Array, kind: pa.DataType) -> Converted:
    return iso_texts(lambda dates: pc.cast(dates, kind), array), None


def _timestamp_to_text(array: pa.Array, kind: pa.DataType) -> Converted:
    plain = pc.cast(array, types.NAIVE_TIMESTAMP)
    text = iso_texts(lambda times: pc.cast(times, kind), plain)  # six fractional digits
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")
    return pc.if_else(pc.match_substring(text, "."), trimmed, text), None


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "", null_handling="emit_null")
