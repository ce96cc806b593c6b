"""Aggregates as users write them, and as subtasks compute them.

`count()`, `sum()` and similar (`functions`) make an `Aggregate`, which may hold Spark expressions and stays on the
driver. Bound to a name and Arrow types it becomes a `BoundAggregate`, which is sent with the task. Its accumulator
defines the partial columns, how rows become partials, how partials are merged and how they are finished.

Types are Spark's: a count is a non-null int64; a sum of integers int64, of floats double, of decimal(p, s)
decimal(min(38, p + 10), s). Nulls are ignored; an aggregate of no values is null.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.aggregates.accumulators import Accumulator, UserAggregate
from statebed.aggregates.declaration import (
    USER_DEFINED,
    AccumulatorRequest,
    Function,
    Options,
    Retraction,
    Types,
    function_named,
)
from statebed.arrays.columns import boolean_array, boolean_values, validity
from statebed.errors import InputError
from statebed.expressions.column_like import ColumnLike
from statebed.expressions.type_text import type_from_arrow_text

MARKER = pa.bool_()
"""Input of a count with an input or a condition: any value if the row counts, null otherwise."""


class EventTime(enum.Enum):
    """An input that stands for the row's event time."""

    EVENT_TIME = "event time"


@dataclass(frozen=True, repr=False)
class Aggregate:
    """An aggregate as the user writes it; inputs and `where` are a column name or SQL text, or a Spark Column."""

    function: Function
    inputs: tuple[ColumnLike | EventTime, ...] = ()
    where: ColumnLike | None = None
    options: Options = ()
    user: UserAggregate | None = None
    """Implementation of a user-defined aggregate."""
    BELONGS: ClassVar[str] = 'pass the aggregate to agg: key_by("key").agg(n=sb.count())'

    def __repr__(self) -> str:
        """Return the call that makes the aggregate: `sum('fare')`. Options are shown as `...`."""
        parts = [repr(column) for column in self.inputs if not isinstance(column, EventTime)]
        parts += ["..."] if self.options else []
        parts += [] if self.where is None else [f"where={self.where!r}"]
        return f"{self.function.name}({', '.join(parts)})"

    def __post_init__(self) -> None:
        if any(column is None for column in self.inputs):
            name = self.function.name
            raise InputError(f"{name}() needs an input column, got none", fix=f"name a column: {name}('fare')")

    @property
    def needs_input(self) -> bool:
        """Whether batches have columns for it; only a plain count() needs none."""
        return bool(self.inputs) or self.where is not None

    def bind(self, name: str, *, input_types: Types = (), text: str = "", changelog: bool = False) -> "BoundAggregate":
        """Return the aggregate as a subtask runs it; `text` distinguishes expressions in the fingerprint.

        `input_types` are the types of its `inputs`. With `changelog`, rows may be retracted.
        """
        if self.function.counts_rows:
            input_types = (MARKER,) if self.needs_input else ()
        return BoundAggregate(
            name,
            self.function,
            input_types,
            text=text,
            options=self.options,
            changelog=changelog,
            user=self.user,
        )

    def input_columns(self, values: Sequence[pa.Array], holds: pa.Array | None = None) -> list[pa.Array]:
        """Return its columns of a batch: the values of its `inputs`, null where its condition does not hold."""
        counted = None if holds is None else boolean_values(holds)
        if self.function.counts_rows and self.needs_input:
            marks = [validity(column) for column in values] + ([] if counted is None else [counted])
            there = boolean_array(np.logical_and.reduce(marks))
            return [pc.if_else(there, there, pa.scalar(None, MARKER))]
        if counted is None:
            return list(values)
        return [pc.if_else(boolean_array(counted), column, pa.scalar(None, column.type)) for column in values]


@dataclass(frozen=True)
class BoundAggregate:
    """An aggregate with its output name and the Arrow types of its inputs; picklable and independent of Spark."""

    name: str
    function: Function
    input_types: Types
    """Types of its input columns in a batch."""
    text: str = ""
    options: Options = ()
    changelog: bool = False
    """Whether rows have weights and may be retracted."""
    user: UserAggregate | None = field(default=None, compare=False)
    """Implementation of a user-defined aggregate; `options` describe it."""

    def __post_init__(self) -> None:
        _ = self.accumulator  # refuses a type that cannot be aggregated here, on the driver

    @property
    def retraction(self) -> Retraction:
        """Support for retractions."""
        return self.function.retraction_with(self.user)

    def retracting(self) -> "BoundAggregate":
        """Return the same aggregate over a changelog."""
        return replace(self, changelog=True)

    @property
    def description(self) -> tuple[float | str, ...]:
        """Identifies the aggregate in the fingerprint of its operator."""
        kinds = map(str, self.input_types)
        changelog = ("changelog",) if self.changelog else ()
        return (self.name, self.function.name, *kinds, self.text, *self.options, *changelog)

    @cached_property
    def accumulator(self) -> Accumulator:
        """Accumulator that computes this aggregate."""
        if self.changelog and self.retraction is Retraction.REFUSES:
            user_defined = self.function.name == USER_DEFINED
            raise InputError(
                f"{self.function.name} does not support retractions, but its input is a changelog",
                where=f"aggregate {self.name!r}",
                fix="give its class the method retract" if user_defined else "use count_distinct, which keeps values",
            )
        accumulator = self.function.accumulator(
            AccumulatorRequest(self.name, self.input_types, self.options, user=self.user, changelog=self.changelog)
        )
        if accumulator is None:
            what, fix = self.function.takes.value
            raise InputError(
                f"{self.function.name} cannot {what} of type {', '.join(map(str, self.input_types))}",
                where=f"aggregate {self.name!r}",
                fix=fix,
            )
        return accumulator

    @property
    def output_field(self) -> pa.Field:
        return self.accumulator.output_field


def bound_from_description(
    description: Sequence[float | str], *, changelog: bool, user: UserAggregate | None = None
) -> BoundAggregate:
    """Rebuild an aggregate from its stored `description`; `user` is the implementation of a user-defined one.

    >>> bound_from_description(["total", "sum", "int64", "cents"], changelog=False).output_field.type
    DataType(int64)
    """
    name, function = str(description[0]), function_named(str(description[1]))
    rest = description[2 : len(description) - changelog]
    # Text precedes the options, and so a number at the end is the limit.
    has_limit = function.limited and not isinstance(rest[-1], str)
    options = rest[len(rest) - function.option_count - has_limit :]
    *kinds, text = rest[: len(rest) - len(options)]
    types = () if function.name == USER_DEFINED else tuple(type_from_arrow_text(str(kind)) for kind in kinds)
    return BoundAggregate(name, function, types, str(text), tuple(options), changelog=changelog, user=user)
