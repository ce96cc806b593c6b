"""Choices of `job.start` for sinks that lack or refuse epochs, and for sources whose messages are gone."""

import enum
from collections.abc import Mapping
from typing import TypeVar

from statebed.errors import InputError

Choice = TypeVar("Choice", bound=enum.Enum)


def start_choices(
    choices: Mapping[str, str | Choice] | None, kind: type[Choice], *, argument: str
) -> dict[str, Choice]:
    """Return the choices by name; raise InputError for one that does not exist."""
    return {name: _choice(name, value, kind, argument) for name, value in (choices or {}).items()}


def _choice(name: str, value: str | Choice, kind: type[Choice], argument: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        ways = ", ".join(repr(way.value) for way in kind)
        raise InputError(
            f"{argument}={{{name!r}: {value!r}}} is not a valid choice", fix=f"use one of {ways}"
        ) from None


def epochs_to_skip(skip: Mapping[str, int] | None) -> dict[str, int]:
    """Return the epoch up to which each sink gives up rows; raise InputError for one that is no epoch."""
    if skip is not None and not isinstance(skip, Mapping):
        raise InputError(f"`skip` must be a dict of epochs by sink, got {skip!r}", fix="write skip={'minutes': 17}")
    for name, epoch in (skip or {}).items():
        if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 1:
            raise InputError(f"skip={{{name!r}: {epoch!r}}} does not name an epoch", fix=f"write skip={{{name!r}: 17}}")
    return dict(skip or {})
