"""Choices of `job.start` for sinks that lack epochs, and for sources whose messages are gone."""

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
