"""Choice of the accumulator that computes a function, by the types of its inputs and by whether rows are retracted.

Over append-only rows, an aggregate keeps as little as possible. Over a changelog it keeps what a retraction needs: only
the number of values if it is invertible, the multiset of values otherwise.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from statebed.aggregates.accumulators import (
    MORE_DIGITS,
    Accumulator,
    AllValues,
    ApproximatePercentile,
    AtEnd,
    BitOperation,
    Bits,
    CollectedList,
    CollectedSet,
    CombinedBits,
    Count,
    Counted,
    DecimalSum,
    DistinctCount,
    DistinctSketch,
    DistinctSum,
    End,
    EntryColumn,
    Extreme,
    ExtremeBy,
    Finish,
    FloatSum,
    IntegerSum,
    Joined,
    Mean,
    MomentFunction,
    Moments,
    MostFrequent,
    Multiset,
    Percentile,
    UserAggregate,
    UserDefined,
    has_order,
    multiset_of,
)

_MAX_PRECISION = 38
Types = tuple[pa.DataType, ...]
Options = tuple[float | str, ...]


class Function(enum.Enum):
    """Function that an aggregate computes."""

    COUNT = "count"
    COUNT_DISTINCT = "count_distinct"
    APPROX_COUNT_DISTINCT = "approx_count_distinct"
    SUM = "sum"
    SUM_DISTINCT = "sum_distinct"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    MIN_BY = "min_by"
    MAX_BY = "max_by"
    FIRST = "first"
    LAST = "last"
    ANY_VALUE = "any_value"
    MODE = "mode"
    COLLECT_LIST = "collect_list"
    COLLECT_SET = "collect_set"
    STRING_AGG = "string_agg"
    PERCENTILE = "percentile"
    APPROX_PERCENTILE = "approx_percentile"
    BOOL_AND = "bool_and"
    BOOL_OR = "bool_or"
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"
    VAR_POP = MomentFunction.VAR_POP.value
    VAR_SAMP = MomentFunction.VAR_SAMP.value
    STDDEV_POP = MomentFunction.STDDEV_POP.value
    STDDEV_SAMP = MomentFunction.STDDEV_SAMP.value
    COVAR_POP = MomentFunction.COVAR_POP.value
    COVAR_SAMP = MomentFunction.COVAR_SAMP.value
    CORR = MomentFunction.CORR.value
    REGR_COUNT = MomentFunction.REGR_COUNT.value
    REGR_AVGX = MomentFunction.REGR_AVGX.value
    REGR_AVGY = MomentFunction.REGR_AVGY.value
    REGR_SXX = MomentFunction.REGR_SXX.value
    REGR_SYY = MomentFunction.REGR_SYY.value
    REGR_SXY = MomentFunction.REGR_SXY.value
    REGR_SLOPE = MomentFunction.REGR_SLOPE.value
    REGR_INTERCEPT = MomentFunction.REGR_INTERCEPT.value
    REGR_R2 = MomentFunction.REGR_R2.value
    USER_DEFINED = "aggregate"


OPTION_COUNTS = {
    Function.APPROX_COUNT_DISTINCT: 1,
    Function.STRING_AGG: 1,
    Function.PERCENTILE: 1,
    Function.APPROX_PERCENTILE: 2,
    Function.USER_DEFINED: 4,
}
"""Number of options, for the functions that have any."""


class Retraction(enum.Enum):
    """How an aggregate handles retractions."""

    INVERTIBLE = "invertible"
    """The partial itself can be inverted, such as a sum by subtracting."""
    MULTISET = "multiset"
    """Keeps all its values: after the smallest is retracted, the second smallest must be known."""
    REFUSES = "refuses"
    """Does not support retractions."""


@dataclass(frozen=True)
class AccumulatorRequest:
    """Properties by which an accumulator is chosen."""

    function: Function
    name: str
    kinds: Types
    options: Options = ()
    user: UserAggregate | None = None
    """Implementation of a user-defined aggregate."""
    changelog: bool = False


Maker = Callable[[AccumulatorRequest], Accumulator | None]


def accumulator_of(wanted: AccumulatorRequest) -> Accumulator | None:
    """Return the accumulator, or None if the function does not support the types of the inputs."""
    return _MAKERS[wanted.function](wanted)


def retraction_of(function: Function, user: UserAggregate | None = None) -> Retraction:
    """Return how a function handles retractions; a user-defined one supports them if it has a method `retract`."""
    if function is Function.USER_DEFINED and not hasattr(user, "retract"):
        return Retraction.REFUSES
    return _RETRACTIONS.get(function, Retraction.INVERTIBLE)


# ---- sums ----------------------------------------------------------------------------------------------------


def _sum(wanted: AccumulatorRequest) -> IntegerSum | FloatSum | DecimalSum | None:
    kind = wanted.kinds[0] if wanted.kinds else pa.null()
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return IntegerSum(wanted.name, changelog=wanted.changelog)
    if pa.types.is_floating(kind):
        return FloatSum(wanted.name, changelog=wanted.changelog)
    if pa.types.is_decimal128(kind):
        digits = _precision(kind.precision + 10)
        return DecimalSum(wanted.name, precision=digits, scale=kind.scale, changelog=wanted.changelog)
    return None


def _counted(maker: Maker) -> Maker:
    def made(wanted: AccumulatorRequest) -> Accumulator | None:
        inner = maker(wanted)
        return Counted(inner) if inner is not None and wanted.changelog else inner

    return made


def _mean(wanted: AccumulatorRequest) -> Accumulator | None:
    total = _sum(wanted)
    if total is None:
        return None
    kind = pa.float64()
    if isinstance(total, DecimalSum):
        # If there are too many digits, Spark keeps those before the point and drops some after it.
        precision, scale = wanted.kinds[0].precision + MORE_DIGITS, wanted.kinds[0].scale + MORE_DIGITS
        excess = precision - _precision(precision)
        kind = pa.decimal128(precision - excess, scale - excess)
    return Mean(wanted.name, sum=total, kind=kind, changelog=wanted.changelog)


def _moments(wanted: AccumulatorRequest) -> Accumulator | None:
    made = Moments(wanted.name, MomentFunction(wanted.function.value), changelog=wanted.changelog)
    return made if all(map(_is_number, wanted.kinds)) else None


def _precision(digits: int) -> int:
    return min(_MAX_PRECISION, digits)


def _is_number(kind: pa.DataType) -> bool:
    return _sum(AccumulatorRequest(Function.SUM, "", (kind,))) is not None


# ---- the order of values -------------------------------------------------------------------------------------


def _extreme(end: End, *, takes: Callable[[pa.DataType], bool] = has_order) -> Maker:
    def made(wanted: AccumulatorRequest) -> Accumulator | None:
        name, kind = wanted.name, wanted.kinds[0]
        if not takes(kind):
            return None
        return multiset_of(name, kind, AtEnd(end)) if wanted.changelog else Extreme(name, kind, end)

    return made


def _extreme_by(end: End) -> Maker:
    def made(wanted: AccumulatorRequest) -> Accumulator | None:
        if not all(map(has_order, wanted.kinds)):
            return None
        kind, by = wanted.kinds
        if not wanted.changelog:
            return ExtremeBy(wanted.name, kind, by, end)
        columns = (EntryColumn("by", by, 1), EntryColumn("values", kind, 0, needed=False))
        return Multiset(wanted.name, columns, AtEnd(end))

    return made


def _of_values(finishing: Finish) -> Maker:
    return lambda wanted: multiset_of(wanted.name, wanted.kinds[0], finishing) if has_order(wanted.kinds[0]) else None


def _collected_list(wanted: AccumulatorRequest) -> Accumulator | None:
    kind, time = wanted.kinds
    if not has_order(kind):
        return None
    if not wanted.changelog:
        return CollectedList(wanted.name, kind, time)
    return Multiset(wanted.name, (EntryColumn("times", time, 1), EntryColumn("values", kind, 0)), AllValues())


def _string_agg(wanted: AccumulatorRequest) -> Accumulator | None:
    collected = _collected_list(wanted) if pa.types.is_string(wanted.kinds[0]) else None
    return None if collected is None else Joined(collected, delimiter=str(wanted.options[0]))


def _sum_distinct(wanted: AccumulatorRequest) -> Accumulator | None:
    # The sum is computed from distinct values when it is read, so nothing is retracted from it.
    total = _sum(AccumulatorRequest(Function.SUM, wanted.name, wanted.kinds))
    return None if total is None else multiset_of(wanted.name, wanted.kinds[0], DistinctSum(total))


# ---- bits, shares, sketches ----------------------------------------------------------------------------------


def _bits(operation: BitOperation) -> Maker:
    def made(wanted: AccumulatorRequest) -> Accumulator | None:
        name, kind = wanted.name, wanted.kinds[0]
        if not pa.types.is_signed_integer(kind):
            return None
        if wanted.changelog and operation is not BitOperation.XOR:
            return multiset_of(name, kind, CombinedBits(operation))
        return Bits(name, kind, operation, changelog=wanted.changelog)

    return made


def _percentile(wanted: AccumulatorRequest) -> Accumulator | None:
    if not _is_number(wanted.kinds[0]):
        return None
    return multiset_of(wanted.name, wanted.kinds[0], Percentile(float(wanted.options[0])))


def _approximate_percentile(wanted: AccumulatorRequest) -> Accumulator | None:
    made = ApproximatePercentile(wanted.name, *map(float, wanted.options))
    return made if _is_number(wanted.kinds[0]) else None


def _distinct_sketch(wanted: AccumulatorRequest) -> Accumulator | None:
    return DistinctSketch(wanted.name, int(wanted.options[0])) if has_order(wanted.kinds[0]) else None


def _user_defined(wanted: AccumulatorRequest) -> Accumulator | None:
    return None if wanted.user is None else UserDefined(wanted.name, wanted.user, changelog=wanted.changelog)


_MAKERS: dict[Function, Maker] = {
    Function.COUNT: lambda wanted: Count(wanted.name),
    Function.COUNT_DISTINCT: _of_values(DistinctCount()),
    Function.APPROX_COUNT_DISTINCT: _distinct_sketch,
    Function.SUM: _counted(_sum),
    Function.SUM_DISTINCT: _sum_distinct,
    Function.MEAN: _mean,
    Function.MIN: _extreme(End.SMALLEST),
    Function.MAX: _extreme(End.LARGEST),
    Function.MIN_BY: _extreme_by(End.SMALLEST),
    Function.MAX_BY: _extreme_by(End.LARGEST),
    Function.FIRST: _extreme_by(End.SMALLEST),
    Function.LAST: _extreme_by(End.LARGEST),
    Function.ANY_VALUE: _extreme(End.SMALLEST),
    Function.MODE: _of_values(MostFrequent()),
    Function.COLLECT_LIST: _collected_list,
    Function.COLLECT_SET: _of_values(CollectedSet()),
    Function.STRING_AGG: _string_agg,
    Function.PERCENTILE: _percentile,
    Function.APPROX_PERCENTILE: _approximate_percentile,
    Function.BOOL_AND: _extreme(End.SMALLEST, takes=pa.types.is_boolean),
    Function.BOOL_OR: _extreme(End.LARGEST, takes=pa.types.is_boolean),
    Function.BIT_AND: _bits(BitOperation.AND),
    Function.BIT_OR: _bits(BitOperation.OR),
    Function.BIT_XOR: _counted(_bits(BitOperation.XOR)),
    Function.USER_DEFINED: _user_defined,
} | {Function(moment.value): _moments for moment in MomentFunction}

_OF_ALL_VALUES = (
    *(Function.MIN, Function.MAX, Function.MIN_BY, Function.MAX_BY, Function.FIRST, Function.LAST, Function.ANY_VALUE),
    *(Function.COUNT_DISTINCT, Function.SUM_DISTINCT, Function.MODE, Function.PERCENTILE),
    *(Function.COLLECT_LIST, Function.COLLECT_SET, Function.STRING_AGG),
    *(Function.BOOL_AND, Function.BOOL_OR, Function.BIT_AND, Function.BIT_OR),
)
_RETRACTIONS: dict[Function, Retraction] = dict.fromkeys(_OF_ALL_VALUES, Retraction.MULTISET) | {
    Function.APPROX_COUNT_DISTINCT: Retraction.REFUSES,
}

_NUMBERS = ("add values", "give integers, floats or decimals; cast the column first")
_ORDERED = ("order values", "give numbers, text, binaries, booleans, dates or times; take a struct or list apart first")
NEEDED: dict[Function, tuple[str, str]] = dict.fromkeys(Function, _NUMBERS) | {
    **dict.fromkeys((*_OF_ALL_VALUES, Function.APPROX_COUNT_DISTINCT), _ORDERED),
    **dict.fromkeys((Function.PERCENTILE, Function.SUM_DISTINCT), _NUMBERS),
    **dict.fromkeys((Function.BOOL_AND, Function.BOOL_OR), ("combine values", "give a boolean, such as 'fare > 30'")),
    **dict.fromkeys((Function.BIT_AND, Function.BIT_OR, Function.BIT_XOR), ("combine values", "give a signed integer")),
    Function.STRING_AGG: ("join values", "give text: cast the column to a string first"),
}
"""Parts of the error for inputs of a wrong type: what the function cannot do, and the fix."""
