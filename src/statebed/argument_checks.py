"""Checks of the kinds of arguments, which raise an InputError instead of an error of Python further inside."""

from collections.abc import Sequence
from typing import Any

from statebed.errors import InputError


def misplaced(value: object) -> str:
    """Return which method takes this value, for the fix of an error; empty if the value may belong anywhere.

    Classes of values with one place in the API say it in the attribute `BELONGS`: a window is for `group_by`.
    """
    place = getattr(type(value), "BELONGS", "")
    return place if isinstance(place, str) else ""


def check_text(value: object, option: str, *, where: str = "", fix: str) -> str:
    """Return the value of an option that must be text."""
    if not isinstance(value, str) or not value:
        raise InputError(f"`{option}` must be text, got {value!r}", where=where, fix=misplaced(value) or fix)
    return value


def texts(value: object, option: str, *, where: str = "", fix: str) -> tuple[str, ...]:
    """Return the values of an option that is one text or several."""
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, Sequence | set) or not all(isinstance(text, str) and text for text in several):
        raise InputError(
            f"`{option}` must be text, or a list of texts, got {value!r}", where=where, fix=misplaced(value) or fix
        )
    return tuple(several)


def check_whole_number(value: Any, option: str, *, where: str = "", fix: str) -> int:
    """Return the value of an option that must be an int; a bool is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"`{option}` must be a whole number, got {value!r}", where=where, fix=fix)
    return value
