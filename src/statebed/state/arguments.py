"""Checks of arguments that programs pass in, made before anything changes. Each check and its error text exist once."""

import numpy as np
import pyarrow as pa

from statebed.errors import InputError

_MIN_US, _MAX_US = -(1 << 63), (1 << 63) - 1


def check_kind(value: object, kind: type, what: str, *, where: str, fix: str) -> None:
    """Raise InputError if a value is not of the expected type."""
    if not isinstance(value, kind):
        raise InputError(
            f"the {what} must be of type {kind.__name__}, got {type(value).__name__}", where=where, fix=fix
        )


def check_rows(rows: object, what: str, *, where: str) -> None:
    """Raise InputError if `rows` is not an Arrow table or record batch."""
    if not isinstance(rows, pa.Table | pa.RecordBatch):
        raise InputError(
            f"the {what} must be a pyarrow Table or RecordBatch, got {type(rows).__name__}",
            where=where,
            fix="pass a pyarrow Table or RecordBatch",
        )


def check_times(times: object, *, where: str) -> None:
    """Raise InputError if `times` is not an Arrow array."""
    if not isinstance(times, pa.Array | pa.ChunkedArray):
        raise InputError(
            f"the times must be a pyarrow array, got {type(times).__name__}",
            where=where,
            fix="pass a pyarrow array of timestamps in microseconds, one for each row",
        )


def checked_number(number: object, what: str, *, where: str, fix: str) -> int:
    """Return an integer as it is; raise InputError for anything else, including a bool."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise InputError(f"the {what} must be an int, got {number!r}", where=where, fix=fix)
    return int(number)


def checked_micros(moment: object, what: str, *, where: str) -> int:
    """Return a time in microseconds since 1970; raise InputError if it does not fit into 64 bits."""
    fix = "pass microseconds since 1970 as an int, from -2**63 to 2**63 - 1"
    micros = checked_number(moment, what, where=where, fix=fix)
    if not _MIN_US <= micros <= _MAX_US:
        raise InputError(f"the {what} must fit into 64 bits, got {micros}", where=where, fix=fix)
    return micros


def checked_range(start_us: object, end_us: object, *, where: str) -> tuple[int, int]:
    """Return the checked bounds of a time range to delete."""
    start, end = checked_micros(start_us, "start", where=where), checked_micros(end_us, "end", where=where)
    if start > end:
        raise InputError(
            f"a time range cannot end ({end}) before it starts ({start})",
            where=where,
            fix="the start is the first time deleted, the end the first time kept",
        )
    return start, end
