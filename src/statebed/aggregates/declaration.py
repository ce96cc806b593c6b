"""Declarations of the aggregate functions: name, inputs, accumulators, retractions and what the state keeps.

Each function is declared once, next to the function that users call (`aggregates.functions`). Binding, errors for
unsupported types, stored descriptions, hints for names of other engines and the reference pages are derived from that.

Over append-only rows, an aggregate keeps as little as possible. Over a changelog it keeps what a retraction needs: only
the number of values if it is invertible, the multiset of values otherwise.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from statebed.aggregates.accumulators import Accumulator, UserAggregate
from statebed.errors import InputError

USER_DEFINED = "aggregate"
"""Name of the function that runs a user's class."""
Types = tuple[pa.DataType, ...]
Options = tuple[float | str, ...]


class Retraction(enum.Enum):
    """Support of an aggregate for retractions."""

    INVERTIBLE = "invertible"
    """The partial itself can be inverted, such as a sum by subtracting."""
    MULTISET = "multiset"
    """Keeps all its values: after the smallest is retracted, the second smallest must be known."""
    REFUSES = "refuses"
    """Does not support retractions."""


class Takes(enum.Enum):
    """Types of input that a function accepts. The value completes the errors for other types: problem and fix."""

    NUMBERS = ("add values", "give integers, floats or decimals; cast the column first")
    ORDERED = (
        "order values",
        "give numbers, text, binaries, booleans, dates or times; take a struct or list apart first",
    )
    BOOLEANS = ("combine values", "give a boolean, such as 'fare > 30'")
    SIGNED_INTEGERS = ("combine values", "give a signed integer")
    TEXT = ("join values", "give text: cast the column to a string first")


@dataclass(frozen=True)
class AccumulatorRequest:
    """Properties by which a function chooses its accumulator."""

    name: str
    kinds: Types
    options: Options = ()
    user: UserAggregate | None = None
    """Implementation of a user-defined aggregate."""
    changelog: bool = False


Maker = Callable[[AccumulatorRequest], Accumulator | None]


@dataclass(frozen=True, eq=False)
class Function:
    """Declaration of one aggregate function. There is one object per name; pickles refer to it by name."""

    name: str
    """Name in the API, in errors and in stored descriptions; never changes."""
    accumulator: Maker
    """Makes the accumulator; returns None for types of inputs that the function does not accept."""
    takes: Takes
    state: str
    """Contents of its state for append-only rows, for the reference page."""
    retraction: Retraction = Retraction.INVERTIBLE
    option_count: int = 0
    """Number of options, such as the delimiter of string_agg."""
    limited: bool = False
    """Whether a number may follow the options: the largest number of values, negative to keep the last ones."""
    counts_rows: bool = False
    """Whether it only counts the rows whose inputs are not null, so that the values are not needed."""
    other_names: tuple[str, ...] = ()
    """Names in other engines, for hints in errors."""

    def __reduce__(self) -> tuple[Callable[[str], "Function"], tuple[str]]:
        return function_named, (self.name,)

    def retraction_with(self, user: UserAggregate | None) -> Retraction:
        """Return how it handles retractions; a user's class supports them if it has a method `retract`."""
        refuses = self.name == USER_DEFINED and not hasattr(user, "retract")
        return Retraction.REFUSES if refuses else self.retraction


_DECLARED: dict[str, Function] = {}


def declare(function: Function) -> Function:
    """Register a function under its name, and return it."""
    if function.name in _DECLARED:
        raise ValueError(f"the aggregate {function.name!r} is declared twice")
    _DECLARED[function.name] = function
    return function


def declared_functions() -> tuple[Function, ...]:
    """Return all functions in the order of their declaration."""
    return tuple(_DECLARED.values())


def function_named(name: str) -> Function:
    """Return the function with this name."""
    if name not in _DECLARED:
        raise InputError(
            f"there is no aggregate {name!r}",
            fix="if a newer release of statebed has written the state, use that release",
        )
    return _DECLARED[name]
