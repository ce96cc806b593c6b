"""Aggregates: what the user writes, and what a subtask computes.

`count()` and `sum()` make an `Aggregate`, which may hold a Spark expression and stays on the driver. Bound to a name
and an Arrow type it becomes a `BoundAggregate`, which travels with the task; its accumulator says which partial columns
it keeps, how rows become partials, how partials merge and how they finish.

Types are Spark's: a count is a non-null int64; a sum of integers int64, of floats double, of decimal(p, s)
decimal(min(38, p + 10), s). Nulls are ignored; a sum of no value is null.
"""

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from statebed.errors import InputError
from statebed.operators.accumulators import Accumulator, Count, DecimalSum, FloatSum, IntegerSum

MARKER = pa.bool_()
"""Input of a count with an input or a condition: any value where the row counts, null where it does not."""

_MAX_PRECISION = 38


class Function(enum.Enum):
    """What an aggregate computes."""

    COUNT = "count"
    SUM = "sum"


@dataclass(frozen=True)
class Aggregate:
    """An aggregate as the user writes it; `input` and `where` are a column name or SQL text, or a Spark Column."""

    function: Function
    input: Any = None
    where: Any = None

    @property
    def needs_input(self) -> bool:
        """Whether batches carry a column for it; only a plain count() needs none."""
        return self.input is not None or self.where is not None

    def bind(self, name: str, *, input_type: pa.DataType | None = None, text: str = "") -> "BoundAggregate":
        """The aggregate as a subtask runs it; `text` tells one expression from another in the fingerprint."""
        marker = MARKER if self.needs_input else None
        kind = marker if self.function is Function.COUNT else input_type
        return BoundAggregate(name=name, function=self.function, input_type=kind, text=text)


@dataclass(frozen=True)
class BoundAggregate:
    """An aggregate with its output name and the Arrow type of its input; picklable, no Spark in it."""

    name: str
    function: Function
    input_type: pa.DataType | None
    """Type of its input column in a batch; None: it has no input column."""
    text: str = ""

    def __post_init__(self) -> None:
        _ = self.accumulator  # a type that cannot be aggregated is refused here, on the driver

    @cached_property
    def accumulator(self) -> Accumulator:
        """The arithmetic of this aggregate."""
        if self.function is Function.COUNT:
            return Count(name=self.name)
        return _sum_accumulator(self.name, self.input_type)

    @property
    def output_field(self) -> pa.Field:
        return self.accumulator.output_field


def count(column: Any = None, *, where: Any = None) -> Aggregate:
    """Rows; or rows in which `column` is not null; only those for which `where` holds."""
    return Aggregate(Function.COUNT, column, where)


def sum(column: Any, *, where: Any = None) -> Aggregate:  # noqa: A001 (the name SQL and Spark give it)
    """Sum of `column` over the rows for which `where` holds; null when there is no value.

    A sum of integers that does not fit 64 bits when its window closes raises SumOverflowError; it never wraps.
    """
    if column is None:
        raise InputError("sum() has no input", fix="name a column: sum('fare')")
    return Aggregate(Function.SUM, column, where)


def _sum_accumulator(name: str, kind: pa.DataType | None) -> Accumulator:
    if kind is not None and pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return IntegerSum(name=name)
    if kind is not None and pa.types.is_floating(kind):
        return FloatSum(name=name)
    if kind is not None and pa.types.is_decimal128(kind):
        return DecimalSum(name=name, precision=min(_MAX_PRECISION, kind.precision + 10), scale=kind.scale)
    raise InputError(
        f"sum cannot add values of the type {kind}",
        where=f"aggregate {name!r}",
        fix="sum integers, floats or decimals; cast the column first",
    )
