"""Rows that were added up before they came: what somebody else computes of each group, and partials made of it.

A Spark job can add rows up in the JVM, where they are, and send one row for each group instead. What it computes are
*parts*: plain counts, sums and extremes that no order of rows changes. Here they become the very partials that the rows
would have become, so the state has the same bytes either way. Only aggregates whose partials are made of such parts can
be computed so; of rows that came too late only the number is known then.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.format.columns import from_numpy, int64_values, one_chunk, validity
from statebed.format.keyhash import normalise_key
from statebed.format.schema import TIMESTAMP
from statebed.operators.accumulators import Bits, Count, End, Extreme, IntegerSum, Mean
from statebed.operators.accumulators.bits import BitOperation
from statebed.operators.aggregates import BoundAggregate
from statebed.operators.operator import Changes, Input
from statebed.operators.partials import Partials, input_column

ROW_COUNT = "_row_count"
LATEST = "_latest_time"
"""The greatest event time of a group's rows."""
GROUPS_IN = "groups_in"
"""What operators count: of how many groups the rows of an epoch were."""
_LOW_BITS = np.int64((1 << 32) - 1)
_WORD = np.int64(32)


class Reduce(enum.Enum):
    """What is computed of the values of a group; nulls do not count."""

    COUNT = "count"
    SUM = "sum"
    """Of integers below 64 bits."""
    LOW_SUM = "low_sum"
    """Of the lower halves of 64-bit integers, as numbers from 0."""
    HIGH_SUM = "high_sum"
    """Of their upper halves."""
    MIN = "min"
    MAX = "max"
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"


@dataclass(frozen=True)
class Part:
    """One value of each group."""

    name: str
    reduce: Reduce
    column: str | None
    """Of the input; None: of the rows themselves."""
    type: pa.DataType


def parts_of(partials: Partials) -> tuple[Part, ...] | None:
    """What has to be computed of each group; None: something else than parts would be needed."""
    if partials.changes is Changes.CHANGELOG:
        return None
    found: list[Part] = []
    for position, aggregate in enumerate(partials.aggregates):
        some = _parts(position, aggregate)
        if some is None:
            return None
        found += some
    return tuple(found)


def preaggregated_input(partials: Partials) -> Input | None:
    """How groups come: the keys, how many rows, their latest time, the parts; None: they cannot be computed."""
    parts = parts_of(partials)
    if parts is None:
        return None
    fields = [
        *partials.keys,
        pa.field(ROW_COUNT, pa.int64()),
        pa.field(LATEST, TIMESTAMP),
        *(pa.field(part.name, part.type) for part in parts),
    ]
    return Input("preaggregated", pa.schema(fields), tuple(key.name for key in partials.keys))


def partial_columns(partials: Partials, rows: pa.Table) -> list[pa.Array]:
    """The partials of groups, in the order of `partials.fields`."""
    columns: list[pa.Array] = []
    for position, aggregate in enumerate(partials.aggregates):
        parts = _parts(position, aggregate)
        assert parts is not None
        columns += _partial(aggregate, [one_chunk(rows[part.name]) for part in parts])
    return columns


def _parts(position: int, aggregate: BoundAggregate) -> list[Part] | None:
    accumulator = aggregate.accumulator
    column = input_column(position) if aggregate.input_types else None
    if isinstance(accumulator, Count):
        return [Part(f"_c{position}", Reduce.COUNT, column, pa.int64())]
    if isinstance(accumulator, IntegerSum):
        return _sum_parts(position, aggregate.input_types[0])
    if isinstance(accumulator, Mean) and isinstance(accumulator.sum, IntegerSum):
        counted = Part(f"_c{position}", Reduce.COUNT, column, pa.int64())
        return [*_sum_parts(position, aggregate.input_types[0]), counted]
    if isinstance(accumulator, Extreme):
        reduce = Reduce.MIN if accumulator.end is End.SMALLEST else Reduce.MAX
        return [Part(f"_e{position}", reduce, column, accumulator.kind)]
    if isinstance(accumulator, Bits):
        return [Part(f"_b{position}", _BITS[accumulator.operation], column, accumulator.kind)]
    return None


_BITS = {BitOperation.AND: Reduce.BIT_AND, BitOperation.OR: Reduce.BIT_OR, BitOperation.XOR: Reduce.BIT_XOR}


def _sum_parts(position: int, kind: pa.DataType) -> list[Part]:
    column = input_column(position)
    if kind.bit_width < _WORD * 2:
        return [Part(f"_s{position}", Reduce.SUM, column, pa.int64())]
    return [
        Part(f"_l{position}", Reduce.LOW_SUM, column, pa.int64()),
        Part(f"_h{position}", Reduce.HIGH_SUM, column, pa.int64()),
    ]


def _partial(aggregate: BoundAggregate, parts: Sequence[pa.Array]) -> list[pa.Array]:
    accumulator = aggregate.accumulator
    if isinstance(accumulator, Mean):
        return [*_sum(parts[:-1]), parts[-1]]
    if isinstance(accumulator, IntegerSum):
        return _sum(parts)
    if isinstance(accumulator, Extreme):
        return [normalise_key(parts[0])]
    return list(parts)


def _sum(parts: Sequence[pa.Array]) -> list[pa.Array]:
    """A sum modulo 2**64, and how many times 2**64 is to be added: null for none."""
    if len(parts) == 1:
        return [parts[0], pa.nulls(len(parts[0]), pa.int64())]
    valid = validity(parts[0])
    lower, upper = (np.where(valid, int64_values(part), np.int64(0)) for part in parts)
    upper = upper + (lower >> _WORD)
    excess = (upper + np.int64(1 << 31)) >> _WORD
    total = ((upper - (excess << _WORD)) << _WORD) | (lower & _LOW_BITS)
    all_there = bool(valid.all())
    return [
        from_numpy(total, pa.int64(), valid=None if all_there else valid),
        from_numpy(excess, pa.int64(), valid=excess != 0),
    ]
