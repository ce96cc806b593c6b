"""Type changes allowed for value columns: the new type must hold every stored value.

| from | to |
|---|---|
| int8, int16, int32 | a wider signed integer |
| uint8, uint16, uint32 | a wider integer, signed or not |
| float16, float32 | a wider float |
| decimal(p, s) | a decimal with no fewer digits before and after the point |
| date32 | date64; timestamp in seconds or milliseconds, without zone |
| time32, time64 | a time of a finer unit |
| string, binary | large_string, large_binary |

Finer units of timestamps and durations are not allowed, because their range is smaller. Nested types must stay the
same.
"""

import pyarrow as pa

_TIME_UNITS = {"s": 0, "ms": 1, "us": 2, "ns": 3}


def widens(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether `wanted` is a different type that holds every value of `stored`.

    >>> widens(pa.int32(), pa.int64()), widens(pa.int64(), pa.int32()), widens(pa.uint32(), pa.int32())
    (True, False, False)
    """
    types = pa.types
    if types.is_integer(stored) and types.is_integer(wanted):
        unsigned = types.is_unsigned_integer(stored)
        return bool(
            wanted.bit_width > stored.bit_width and (unsigned or types.is_signed_integer(wanted)),
        )
    if types.is_floating(stored) and types.is_floating(wanted):
        return bool(wanted.bit_width > stored.bit_width)
    if types.is_decimal(stored) and types.is_decimal(wanted):
        return stored != wanted and _holds(wanted, stored)
    if types.is_date32(stored):
        coarse = types.is_timestamp(wanted) and wanted.unit in {"s", "ms"} and wanted.tz is None
        return bool(types.is_date64(wanted) or coarse)
    if types.is_time(stored) and types.is_time(wanted):
        return _TIME_UNITS[wanted.unit] > _TIME_UNITS[stored.unit]
    return (stored, wanted) in {(pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())}


def _holds(wanted: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether a decimal type has room for every value of another."""
    before = wanted.precision - wanted.scale >= stored.precision - stored.scale
    return bool(before and wanted.scale >= stored.scale and wanted.bit_width >= stored.bit_width)
