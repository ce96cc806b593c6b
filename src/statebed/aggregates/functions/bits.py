"""Bitwise functions of signed integers."""

import pyarrow as pa

from statebed.aggregates.accumulators import Accumulator, BitOperation, Bits, CombinedBits, multiset_of
from statebed.aggregates.aggregate import Aggregate
from statebed.aggregates.declaration import AccumulatorRequest, Function, Maker, Retraction, Takes, declare
from statebed.aggregates.functions.makers import counted
from statebed.expressions.column_like import ColumnLike

__all__ = ["bit_and", "bit_or", "bit_xor"]


def _bits(operation: BitOperation) -> Maker:
    def make(request: AccumulatorRequest) -> Accumulator | None:
        name, kind = request.name, request.kinds[0]
        if not pa.types.is_signed_integer(kind):
            return None
        if request.changelog and operation is not BitOperation.XOR:
            return multiset_of(name, kind, CombinedBits(operation))
        return Bits(name, kind, operation, changelog=request.changelog)

    return make


def _declare_bits(name: str, maker: Maker, retraction: Retraction) -> Function:
    return declare(Function(name, maker, takes=Takes.SIGNED_INTEGERS, state="a value", retraction=retraction))


_BIT_AND = _declare_bits("bit_and", _bits(BitOperation.AND), Retraction.MULTISET)
_BIT_OR = _declare_bits("bit_or", _bits(BitOperation.OR), Retraction.MULTISET)
_BIT_XOR = _declare_bits("bit_xor", counted(_bits(BitOperation.XOR)), Retraction.INVERTIBLE)


def bit_and(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Return the bits set in every value of an integer column.

    >>> sb.testing.evaluate([{"x": 6}, {"x": 3}], bits=sb.bit_and("x"))
    {'bits': 2}
    """
    return Aggregate(_BIT_AND, (column,), where)


def bit_or(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Return the bits set in at least one value of an integer column.

    >>> sb.testing.evaluate([{"x": 6}, {"x": 3}], bits=sb.bit_or("x"))
    {'bits': 7}
    """
    return Aggregate(_BIT_OR, (column,), where)


def bit_xor(column: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Return the bits set in an odd number of values of an integer column.

    >>> sb.testing.evaluate([{"x": 6}, {"x": 3}], bits=sb.bit_xor("x"))
    {'bits': 5}
    """
    return Aggregate(_BIT_XOR, (column,), where)
