"""Checks of what joins and lookups get as columns and suffixes."""

from typing import Any

from statebed.argument_checks import misplaced
from statebed.errors import InputError
from statebed.flow.joins import Eq


def check_on(on: Any, *, where: str) -> None:
    """Raise InputError unless this names columns that must be equal."""
    several = [on] if isinstance(on, str | Eq) else on
    if not isinstance(several, list | tuple | set) or not all(isinstance(column, str | Eq) for column in several):
        raise InputError(
            f"`on` must be column names, or sb.eq(...), got {on!r}",
            where=where,
            fix=misplaced(on) or "write on='driver', on=['driver', 'city'] or on=sb.eq('driver', 'id')",
        )


def check_suffixes(suffixes: Any, *, where: str) -> None:
    """Raise InputError unless these are the suffixes of columns that both sides have."""
    is_pair = isinstance(suffixes, tuple | list) and len(suffixes) == 2  # noqa: PLR2004 - a pair
    if not is_pair or not all(isinstance(suffix, str) for suffix in suffixes):
        raise InputError(
            f"`suffixes` must be two texts, for columns of the left and of the right side, got {suffixes!r}",
            where=where,
            fix="write suffixes=('', '_right')",
        )
