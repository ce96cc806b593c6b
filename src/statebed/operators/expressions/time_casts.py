"""Casts among dates, timestamps and seconds since 1970. Days begin at midnight UTC."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.format.columns import fixed_width_values, from_numpy, int64_values, validity
from statebed.operators.expressions import kinds
from statebed.operators.expressions.number_casts import (
    Conversion,
    Converted,
    booleans,
    float_values,
    integer_to_integer,
)

DAY = 86_400_000_000
SECOND = 1_000_000


def conversion(source: pa.DataType, target: pa.DataType) -> Conversion | None:
    """The cast from `source` to `target`, if there is one."""
    if kinds.is_timestamp(source) and kinds.is_timestamp(target):
        return _relabel
    if kinds.is_timestamp(source) and target == kinds.DATE:
        return timestamp_to_date
    if source == kinds.DATE and kinds.is_timestamp(target):
        return date_to_timestamp
    if source == kinds.TIMESTAMP:
        return _timestamp_to_seconds if kinds.is_integer(target) else _TO_DOUBLE.get(target)
    if target == kinds.TIMESTAMP:
        return _seconds_to_timestamp if kinds.is_integer(source) else _FROM_FLOATS.get(source)
    return None


def _relabel(array: pa.Array, kind: pa.DataType) -> Converted:
    return from_numpy(int64_values(array), kind, valid=validity(array)), None


def timestamp_to_date(array: pa.Array, kind: pa.DataType) -> Converted:
    """The day that holds an instant."""
    days = int64_values(array) // DAY
    return from_numpy(days.astype(np.int32), kind, valid=validity(array)), None


def date_to_timestamp(array: pa.Array, kind: pa.DataType) -> Converted:
    """The midnight at which a day begins."""
    days = fixed_width_values(array, np.int32).astype(np.int64)
    return _scaled(days, DAY, validity(array), kind)


def _timestamp_to_seconds(array: pa.Array, kind: pa.DataType) -> Converted:
    return integer_to_integer(from_numpy(int64_values(array) // SECOND, pa.int64(), valid=validity(array)), kind)


def _timestamp_to_double(array: pa.Array, kind: pa.DataType) -> Converted:
    return from_numpy(int64_values(array) / SECOND, kind, valid=validity(array)), None


def _seconds_to_timestamp(array: pa.Array, kind: pa.DataType) -> Converted:
    return _scaled(int64_values(pc.cast(array, pa.int64())), SECOND, validity(array), kind)


def _double_to_timestamp(array: pa.Array, kind: pa.DataType) -> Converted:
    values = float_values(array) * SECOND
    valid = validity(array)
    with np.errstate(invalid="ignore"):
        inside = np.abs(values) < float(2**63)
        micros = np.where(inside & valid, np.trunc(values), 0.0).astype(np.int64)
    return from_numpy(micros, kind, valid=valid & inside), booleans(valid & ~inside)


def _scaled(values: npt.NDArray[np.int64], factor: int, valid: npt.NDArray[np.bool_], kind: pa.DataType) -> Converted:
    most = (2**63 - 1) // factor
    bad = valid & ((values > most) | (values < -most))
    return from_numpy(np.where(bad, 0, values) * factor, kind, valid=valid & ~bad), booleans(bad)


_TO_DOUBLE: dict[pa.DataType, Conversion] = {kinds.DOUBLE: _timestamp_to_double}
_FROM_FLOATS: dict[pa.DataType, Conversion] = {kinds.FLOAT: _double_to_timestamp, kinds.DOUBLE: _double_to_timestamp}
