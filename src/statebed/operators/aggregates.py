"""Aggregates: what the user writes, and what a subtask computes.

`count()`, `sum()` and their like (`functions`) make an `Aggregate`, which may hold Spark expressions and stays on the
driver. Bound to a name and Arrow types it becomes a `BoundAggregate`, which travels with the task; its accumulator says
which partial columns it keeps, how rows become partials, how partials merge and how they finish.

Types are Spark's: a count is a non-null int64; a sum of integers int64, of floats double, of decimal(p, s)
decimal(min(38, p + 10), s). Nulls are ignored; an aggregate of no value is null.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from statebed.errors import InputError
from statebed.operators.accumulators import (
    MORE_DIGITS,
    Accumulator,
    ApproximatePercentile,
    BitOperation,
    Bits,
    CollectedList,
    CollectedSet,
    Count,
    DecimalSum,
    DistinctCount,
    DistinctSketch,
    End,
    Extreme,
    ExtremeBy,
    FloatSum,
    IntegerSum,
    Mean,
    Moment,
    Moments,
    Multiset,
    Percentile,
    has_order,
)

MARKER = pa.bool_()
"""Input of a count with an input or a condition: any value where the row counts, null where it does not."""

_MAX_PRECISION = 38
Types = tuple[pa.DataType, ...]


class EventTime(enum.Enum):
    """An input that stands for the row's event time."""

    EVENT_TIME = "event time"


class Function(enum.Enum):
    """What an aggregate computes."""

    COUNT = "count"
    COUNT_DISTINCT = "count_distinct"
    APPROX_COUNT_DISTINCT = "approx_count_distinct"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    MIN_BY = "min_by"
    MAX_BY = "max_by"
    FIRST = "first"
    LAST = "last"
    COLLECT_LIST = "collect_list"
    COLLECT_SET = "collect_set"
    PERCENTILE = "percentile"
    APPROX_PERCENTILE = "approx_percentile"
    BOOL_AND = "bool_and"
    BOOL_OR = "bool_or"
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"
    VAR_POP = Moment.VAR_POP.value
    VAR_SAMP = Moment.VAR_SAMP.value
    STDDEV_POP = Moment.STDDEV_POP.value
    STDDEV_SAMP = Moment.STDDEV_SAMP.value
    COVAR_POP = Moment.COVAR_POP.value
    COVAR_SAMP = Moment.COVAR_SAMP.value
    CORR = Moment.CORR.value
    REGR_COUNT = Moment.REGR_COUNT.value
    REGR_AVGX = Moment.REGR_AVGX.value
    REGR_AVGY = Moment.REGR_AVGY.value
    REGR_SXX = Moment.REGR_SXX.value
    REGR_SYY = Moment.REGR_SYY.value
    REGR_SXY = Moment.REGR_SXY.value
    REGR_SLOPE = Moment.REGR_SLOPE.value
    REGR_INTERCEPT = Moment.REGR_INTERCEPT.value
    REGR_R2 = Moment.REGR_R2.value


@dataclass(frozen=True)
class Aggregate:
    """An aggregate as the user writes it; inputs and `where` are a column name or SQL text, or a Spark Column."""

    function: Function
    inputs: tuple[Any, ...] = ()
    where: Any = None
    options: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if any(one is None for one in self.inputs):
            name = self.function.value
            raise InputError(f"{name}() has no input", fix=f"name a column: {name}('fare')")

    @property
    def needs_input(self) -> bool:
        """Whether batches carry columns for it; only a plain count() needs none."""
        return bool(self.inputs) or self.where is not None

    def bind(self, name: str, *, input_types: Types = (), text: str = "") -> "BoundAggregate":
        """The aggregate as a subtask runs it; `text` tells one expression from another in the fingerprint."""
        if self.function is Function.COUNT:
            input_types = (MARKER,) if self.needs_input else ()
        return BoundAggregate(name, self.function, input_types, text=text, options=self.options)


@dataclass(frozen=True)
class BoundAggregate:
    """An aggregate with its output name and the Arrow types of its inputs; picklable, no Spark in it."""

    name: str
    function: Function
    input_types: Types
    """Types of its input columns in a batch."""
    text: str = ""
    options: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _ = self.accumulator  # a type that cannot be aggregated is refused here, on the driver

    @cached_property
    def accumulator(self) -> Accumulator:
        """The arithmetic of this aggregate."""
        if self.function is Function.COUNT:
            return Count(name=self.name)
        accumulator = _accumulator(self)
        if accumulator is None:
            what, fix = _NEEDED[self.function]
            raise InputError(
                f"{self.function.value} cannot {what} of the type {', '.join(map(str, self.input_types))}",
                where=f"aggregate {self.name!r}",
                fix=fix,
            )
        return accumulator

    @property
    def output_field(self) -> pa.Field:
        return self.accumulator.output_field


# ---- how they are computed -----------------------------------------------------------------------------------


def _sum(name: str, kinds: Types) -> IntegerSum | FloatSum | DecimalSum | None:
    kind = kinds[0] if kinds else pa.null()
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return IntegerSum(name=name)
    if pa.types.is_floating(kind):
        return FloatSum(name=name)
    if pa.types.is_decimal128(kind):
        return DecimalSum(name=name, precision=_precision(kind.precision + 10), scale=kind.scale)
    return None


def _mean(name: str, kinds: Types) -> Accumulator | None:
    total = _sum(name, kinds)
    if total is None:
        return None
    kind = pa.float64()
    if isinstance(total, DecimalSum):
        # Spark keeps the digits before the point and gives up those after it when there are too many.
        precision, scale = kinds[0].precision + MORE_DIGITS, kinds[0].scale + MORE_DIGITS
        excess = precision - _precision(precision)
        kind = pa.decimal128(precision - excess, scale - excess)
    return Mean(name=name, sum=total, kind=kind)


def _accumulator(bound: BoundAggregate) -> Accumulator | None:
    """None: its inputs have types that it cannot take."""
    name, kinds = bound.name, bound.input_types
    if bound.function is Function.PERCENTILE:
        return Multiset(name, kinds[0], Percentile(bound.options[0])) if _sum(name, kinds) else None
    if bound.function is Function.APPROX_PERCENTILE:
        return ApproximatePercentile(name, *bound.options) if _sum(name, kinds) else None
    if bound.function is Function.APPROX_COUNT_DISTINCT:
        return DistinctSketch(name, int(bound.options[0])) if has_order(kinds[0]) else None
    return _ACCUMULATORS[bound.function](name, kinds)


def _multiset(finishing: DistinctCount | CollectedSet) -> Callable[[str, Types], Accumulator | None]:
    return lambda name, kinds: Multiset(name, kinds[0], finishing) if has_order(kinds[0]) else None


def _collected_list(name: str, kinds: Types) -> Accumulator | None:
    return CollectedList(name, kinds[0], kinds[1]) if has_order(kinds[0]) else None


def _extreme(end: End) -> Callable[[str, Types], Accumulator | None]:
    return lambda name, kinds: Extreme(name, kinds[0], end) if all(map(has_order, kinds)) else None


def _extreme_by(end: End) -> Callable[[str, Types], Accumulator | None]:
    return lambda name, kinds: ExtremeBy(name, kinds[0], kinds[1], end) if all(map(has_order, kinds)) else None


def _logic(end: End) -> Callable[[str, Types], Accumulator | None]:
    return lambda name, kinds: Extreme(name, kinds[0], end) if pa.types.is_boolean(kinds[0]) else None


def _bits(operation: BitOperation) -> Callable[[str, Types], Accumulator | None]:
    return lambda name, kinds: Bits(name, kinds[0], operation) if pa.types.is_signed_integer(kinds[0]) else None


def _moments(moment: Moment) -> Callable[[str, Types], Accumulator | None]:
    return lambda name, kinds: Moments(name, moment) if all(_sum(name, (kind,)) for kind in kinds) else None


def _precision(wanted: int) -> int:
    return min(_MAX_PRECISION, wanted)


_ACCUMULATORS: dict[Function, Callable[[str, Types], Accumulator | None]] = {
    Function.SUM: _sum,
    Function.MEAN: _mean,
    Function.MIN: _extreme(End.SMALLEST),
    Function.MAX: _extreme(End.LARGEST),
    Function.MIN_BY: _extreme_by(End.SMALLEST),
    Function.MAX_BY: _extreme_by(End.LARGEST),
    Function.FIRST: _extreme_by(End.SMALLEST),
    Function.LAST: _extreme_by(End.LARGEST),
    Function.COUNT_DISTINCT: _multiset(DistinctCount()),
    Function.COLLECT_SET: _multiset(CollectedSet()),
    Function.COLLECT_LIST: _collected_list,
    Function.BOOL_AND: _logic(End.SMALLEST),
    Function.BOOL_OR: _logic(End.LARGEST),
    Function.BIT_AND: _bits(BitOperation.AND),
    Function.BIT_OR: _bits(BitOperation.OR),
    Function.BIT_XOR: _bits(BitOperation.XOR),
} | {Function(moment.value): _moments(moment) for moment in Moment}

_NUMBERS = ("add values", "give integers, floats or decimals; cast the column first")
_ORDERED = ("order values", "give numbers, text, binaries, booleans, dates or times; take a struct or list apart first")
_NEEDED: dict[Function, tuple[str, str]] = dict.fromkeys(Function, _NUMBERS) | {
    **dict.fromkeys((Function.MIN, Function.MAX, Function.MIN_BY, Function.MAX_BY), _ORDERED),
    **dict.fromkeys((Function.FIRST, Function.LAST, Function.COUNT_DISTINCT), _ORDERED),
    Function.APPROX_COUNT_DISTINCT: _ORDERED,
    **dict.fromkeys((Function.COLLECT_LIST, Function.COLLECT_SET), _ORDERED),
    **dict.fromkeys((Function.BOOL_AND, Function.BOOL_OR), ("combine values", "give a boolean, such as 'fare > 30'")),
    **dict.fromkeys((Function.BIT_AND, Function.BIT_OR, Function.BIT_XOR), ("combine values", "give a signed integer")),
}
