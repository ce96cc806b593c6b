"""What programs hand over, checked before anything changes: each check once, with the words that say what to give."""

import numpy as np

from statebed.errors import InputError

_LEAST_US, _MOST_US = -(1 << 63), (1 << 63) - 1


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
