"""Makers of accumulators that several families of functions use."""

import pyarrow as pa

from statebed.aggregates.accumulators import (
    Accumulator,
    Counted,
    DecimalSum,
    Finish,
    FloatSum,
    IntegerSum,
    has_order,
    multiset_of,
)
from statebed.aggregates.declaration import AccumulatorRequest, Maker

MAX_PRECISION = 38
"""Maximum number of digits of a decimal."""
_DIGITS_OF_A_SUM = 10
"""Number of digits that a sum of decimals has in addition to theirs."""


def sum_accumulator(request: AccumulatorRequest) -> IntegerSum | FloatSum | DecimalSum | None:
    """Return the accumulator of a sum; None if the input is not a number."""
    kind = request.kinds[0] if request.kinds else pa.null()
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return IntegerSum(request.name, changelog=request.changelog)
    if pa.types.is_floating(kind):
        return FloatSum(request.name, changelog=request.changelog)
    if pa.types.is_decimal128(kind):
        digits = min(MAX_PRECISION, kind.precision + _DIGITS_OF_A_SUM)
        return DecimalSum(request.name, precision=digits, scale=kind.scale, changelog=request.changelog)
    return None


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of the type can be added."""
    return sum_accumulator(AccumulatorRequest("", (kind,))) is not None


def counted(maker: Maker) -> Maker:
    """Return a maker that also counts the values of a changelog, so that the result is null when none is left."""

    def make(request: AccumulatorRequest) -> Accumulator | None:
        inner = maker(request)
        return Counted(inner) if inner is not None and request.changelog else inner

    return make


def multiset_finished_by(finish: Finish) -> Maker:
    """Return a maker of multisets of ordered values."""
    return lambda request: multiset_of(request.name, request.kinds[0], finish) if has_order(request.kinds[0]) else None
