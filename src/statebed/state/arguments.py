"""What programs hand over, checked before anything changes: each check once, with the words that say what to give."""

import numpy as np
import pyarrow as pa

from statebed.errors import InputError

_LEAST_US, _MOST_US = -(1 << 63), (1 << 63) - 1


def check_kind(value: object, kind: type, what: str, *, where: str, fix: str) -> None:
    """Refuse what is of another type."""
    if not isinstance(value, kind):
        raise InputError(f"the {what} is of the type {type(value).__name__}", where=where, fix=fix)


def check_rows(rows: object, what: str, *, where: str) -> None:
    """Refuse what has no columns of Arrow's."""
    if not isinstance(rows, pa.Table | pa.RecordBatch):
        raise InputError(
            f"the {what} are of the type {type(rows).__name__}", where=where, fix="give a pyarrow Table or RecordBatch"
        )


def check_times(times: object, *, where: str) -> None:
    """Refuse what is no column of Arrow's."""
    if not isinstance(times, pa.Array | pa.ChunkedArray):
        raise InputError(
            f"the times are of the type {type(times).__name__}",
            where=where,
            fix="give a pyarrow array of timestamps in microseconds, one for each row",
        )


def checked_number(number: object, what: str, *, where: str, fix: str) -> int:
    """A whole number; True is none."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise InputError(f"the {what} {number!r} is of the type {type(number).__name__}", where=where, fix=fix)
    return int(number)


def checked_micros(moment: object, what: str, *, where: str) -> int:
    """Microseconds since 1970, as files and metadata can hold them."""
    fix = "give microseconds since 1970 as an int, from -2**63 to 2**63 - 1"
    micros = checked_number(moment, what, where=where, fix=fix)
    if not _LEAST_US <= micros <= _MOST_US:
        raise InputError(f"the {what} {micros} is no time that can be stored", where=where, fix=fix)
    return micros


def checked_range(start_us: object, end_us: object, *, where: str) -> tuple[int, int]:
    """A range of time that rows are deleted in."""
    start, end = checked_micros(start_us, "start", where=where), checked_micros(end_us, "end", where=where)
    if start > end:
        raise InputError(
            f"a range of time cannot end ({end}) before it starts ({start})",
            where=where,
            fix="the start is the first time deleted, the end the first time not deleted",
        )
    return start, end
