"""Casts between dates, timestamps and seconds since 1970. Days begin at midnight UTC."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, int64_values, validity
from statebed.expressions import types
from statebed.expressions.casts.number_casts import Conversion, Converted, booleans, float_values, integer_to_integer
from statebed.expressions.casts.unscaled import integers, rescaled, to_decimals, whole_quotient

DAY = 86_400_000_000
SECOND = 1_000_000
_MICROSECOND_DIGITS = 6


def conversion(source: pa.DataType, target: pa.DataType) -> Conversion | None:
    """Return the cast from `source` to `target`, or None if there is none."""
    if types.is_timestamp(source) and types.is_timestamp(target):
        return _relabel
    if types.is_timestamp(source) and target == types.DATE:
        return timestamp_to_date
    if source == types.DATE and types.is_timestamp(target):
        return date_to_timestamp
    number = target if source == types.TIMESTAMP else source
    if types.TIMESTAMP not in (source, target) or not types.is_number(number):
        return None
    into, outof = _WITH_INTEGERS if types.is_integer(number) else _WITH_FLOATS
    if types.is_decimal(number):
        into, outof = _WITH_DECIMALS
    return into if target == types.TIMESTAMP else outof


def _relabel(array: pa.Array, kind: pa.DataType) -> Converted:
    return from_numpy(int64_values(array), kind, valid=validity(array)), None


def timestamp_to_date(array: pa.Array, kind: pa.DataType) -> Converted:
    """Return the day that contains each instant."""
    days = int64_values(array) // DAY
    return from_numpy(days.astype(np.int32), kind, valid=validity(array)), None


def date_to_timestamp(array: pa.Array, kind: pa.DataType) -> Converted:
    """Return the midnight at which each day begins."""
    days = fixed_width_values(array, np.int32).astype(np.int64)
    return _scaled(days, DAY, validity(array), kind)


def _timestamp_to_seconds(array: pa.Array, kind: pa.DataType) -> Converted:
    return integer_to_integer(from_numpy(int64_values(array) // SECOND, pa.int64(), valid=validity(array)), kind)


def _timestamp_to_float(array: pa.Array, kind: pa.DataType) -> Converted:
    seconds = from_numpy(int64_values(array) / SECOND, pa.float64(), valid=validity(array))
    return pc.cast(seconds, kind, safe=False), None


def _timestamp_to_decimal(array: pa.Array, kind: pa.DataType) -> Converted:
    micros = int64_values(array).astype(object)
    seconds = rescaled(micros, types.MAX_DIGITS, kind.scale - _MICROSECOND_DIGITS)
    decimals, bad = to_decimals(seconds, kind, validity(array))
    return decimals, booleans(bad)


def _decimal_to_timestamp(array: pa.Array, kind: pa.DataType) -> Converted:
    micros = whole_quotient(integers(array).astype(object) * SECOND, 10**array.type.scale)
    bad = (np.abs(micros) >= 2**63).astype(np.bool_)
    fitting = np.where(bad, 0, micros).astype(np.int64)
    return from_numpy(fitting, kind, valid=validity(array) & ~bad), booleans(bad)


def _seconds_to_timestamp(array: pa.Array, kind: pa.DataType) -> Converted:
    return _scaled(int64_values(pc.cast(array, pa.int64())), SECOND, validity(array), kind)


def _float_to_timestamp(array: pa.Array, kind: pa.DataType) -> Converted:
    values = float_values(array) * SECOND
    valid = validity(array)
    with np.errstate(invalid="ignore"):
        inside = np.abs(values) < float(2**63)
        micros = np.where(inside & valid, np.trunc(values), 0.0).astype(np.int64)
    return from_numpy(micros, kind, valid=valid & inside), booleans(valid & ~inside)


def _scaled(values: npt.NDArray[np.int64], factor: int, valid: npt.NDArray[np.bool_], kind: pa.DataType) -> Converted:
    limit = (2**63 - 1) // factor
    bad = valid & ((values > limit) | (values < -limit))
    return from_numpy(np.where(bad, 0, values) * factor, kind, valid=valid & ~bad), booleans(bad)


_WITH_INTEGERS = (_seconds_to_timestamp, _timestamp_to_seconds)
_WITH_DECIMALS = (_decimal_to_timestamp, _timestamp_to_decimal)
_WITH_FLOATS = (_float_to_timestamp, _timestamp_to_float)
