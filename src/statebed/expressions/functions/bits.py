"""Operators and functions on the bits of integers, as Java has them: shifts count modulo the width of the type."""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, int64_values, validity
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.functions.comparisons import in_common_type
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Datum, Term, arrays

_KERNELS: dict[str, Callable[..., pa.Array]] = {"&": pc.bit_wise_and, "|": pc.bit_wise_or, "^": pc.bit_wise_xor}
_SHIFTS = {"<<": "shiftleft", ">>": "shiftright", ">>>": "shiftrightunsigned"}


def _integer(site: Site, operand: Term) -> Term:
    if operand.type == types.NULL:
        return convert(operand, types.INT)
    if not types.is_integer(operand.type):
        raise site.wrong_types("integers", at=operand)
    return operand


def _combined(site: Site) -> Term:
    left, right = in_common_type(site, *(_integer(site, operand) for operand in site.operands))
    return site.apply(_KERNELS[site.function], left.type, left, right)


def _inverted(site: Site) -> Term:
    operand = _integer(site, site.operands[0])
    return site.apply(pc.bit_wise_not, operand.type, operand)


def _shifted(site: Site) -> Term:
    base, count = (_integer(site, operand) for operand in site.operands)
    kind = types.BIGINT if base.type == types.BIGINT else types.INT
    direction = _SHIFTS.get(site.function, site.function)
    return site.apply(partial(_moved, direction), kind, convert(base, kind), convert(count, types.INT))


def _moved(direction: str, base: Datum, count: Datum) -> pa.Array:
    bases, shifts = arrays(base, count)
    dtype = np.dtype(f"int{bases.type.bit_width}")
    values = fixed_width_values(bases, dtype)
    counts = (fixed_width_values(shifts, np.int32).astype(np.int64) & (bases.type.bit_width - 1)).astype(dtype)
    if direction == "shiftleft":
        moved = np.left_shift(values, counts)
    elif direction == "shiftright":
        moved = np.right_shift(values, counts)
    else:
        unsigned = np.dtype(f"uint{bases.type.bit_width}")
        moved = np.right_shift(values.view(unsigned), counts.astype(unsigned)).view(dtype)
    return from_numpy(moved, bases.type, valid=validity(bases) & validity(shifts))


def _bit_count(site: Site) -> Term:
    (operand,) = site.operands
    if operand.type == types.BOOLEAN:
        return convert(operand, types.INT)
    return site.apply(_ones, types.INT, convert(_integer(site, operand), types.BIGINT))


def _ones(array: pa.Array) -> pa.Array:
    counts: npt.NDArray[np.int32] = np.bitwise_count(int64_values(array).view(np.uint64)).astype(np.int32)
    return from_numpy(counts, types.INT, valid=validity(array))


def _bit_get(site: Site) -> Term:
    value, position = (_integer(site, operand) for operand in site.operands)
    operands = convert(value, types.BIGINT), convert(position, types.BIGINT)
    return site.apply(partial(_bit, value.type.bit_width), types.TINYINT, *operands, fallible=True)


def _bit(width: int, value: Datum, position: Datum) -> pa.Array:
    numbers, positions = arrays(value, position)
    valid, places = validity(numbers) & validity(positions), int64_values(positions)
    outside = valid & ((places < 0) | (places >= width))
    if outside.any():
        raise RowFailure(
            f"bit {int(places[outside][0])} of a value of {width} bits", fix=f"bits are numbered from 0 to {width - 1}"
        )
    bits = (int64_values(numbers) >> np.where(valid, places, 0)) & 1
    return from_numpy(bits.astype(np.int8), types.TINYINT, valid=valid)


BUILDERS: dict[str, Builder] = {
    **{sign: of(_combined, 2) for sign in _KERNELS},
    **{sign: of(_shifted, 2) for sign in _SHIFTS},
    **{name: of(_shifted, 2) for name in _SHIFTS.values()},
    "~": of(_inverted, 1),
    "bit_count": of(_bit_count, 1),
    "bit_get": of(_bit_get, 2),
    "getbit": of(_bit_get, 2),
}
