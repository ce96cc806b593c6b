"""Parts of an operator's aggregates, the format of pre-aggregated groups, and their conversion to partials."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators import (
    CODES,
    Bits,
    Count,
    DecimalSum,
    DistinctSketch,
    End,
    Extreme,
    ExtremeBy,
    IntegerSum,
    Mean,
    Moments,
)
from statebed.aggregates.accumulators.bits import BitOperation
from statebed.aggregates.aggregate import BoundAggregate
from statebed.aggregates.partials import Partials, input_column
from statebed.aggregates.preaggregation.moment_parts import moment_partial, moment_parts
from statebed.aggregates.preaggregation.parts import Factor, Part, Reduce, can_be_reversed
from statebed.arrays.columns import from_numpy, int64_values, one_chunk, validity
from statebed.arrays.key_hash import normalise_key
from statebed.format.schema import TIMESTAMP
from statebed.format.stream_schema import Changes, Input

ROW_COUNT = "_row_count"
LATEST = "_latest_time"
"""Greatest event time of a group's rows."""
GROUPS_IN = "groups_in"
"""Metric of operators: number of groups among the rows of an epoch."""
MOST_DIGITS = 28
"""Maximum precision of decimals; ten more digits leave room for the sum of all rows of a batch."""
_LOW_BITS = np.int64((1 << 32) - 1)
_WORD = np.int64(32)
_BITS = {BitOperation.AND: Reduce.BIT_AND, BitOperation.OR: Reduce.BIT_OR, BitOperation.XOR: Reduce.BIT_XOR}


def parts_of(partials: Partials) -> tuple[Part, ...] | None:
    """Return the parts to compute for each group, or None if an aggregate does not consist of parts."""
    if partials.changes is Changes.CHANGELOG:
        return None
    found: list[Part] = []
    for position, aggregate in enumerate(partials.aggregates):
        some = aggregate_parts(position, aggregate)
        if some is None:
            return None
        found += some
    return tuple(found)


def preaggregated_input(partials: Partials) -> Input | None:
    """Return the format of groups: keys, row count, latest time and parts; None if they cannot be pre-aggregated."""
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
    """Return the partials of groups, in the order of `partials.fields`."""
    columns: list[pa.Array] = []
    for position, aggregate in enumerate(partials.aggregates):
        parts = aggregate_parts(position, aggregate)
        assert parts is not None
        columns += _partial(position, aggregate, [one_chunk(rows[part.name]) for part in parts])
    return columns


def aggregate_parts(position: int, aggregate: BoundAggregate) -> list[Part] | None:  # noqa: PLR0911 - one for each kind
    """Return the parts of one aggregate, or None if it does not consist of parts."""
    accumulator, kinds = aggregate.accumulator, aggregate.input_types
    inputs = _inputs(position, aggregate)
    factors = tuple(map(Factor, inputs))
    counted = Part(f"_c{position}", Reduce.COUNT, pa.int64(), factors)
    if isinstance(accumulator, Count):
        return [counted]
    if isinstance(accumulator, IntegerSum | DecimalSum):
        return _sum_parts(position, factors, kinds[0])
    if isinstance(accumulator, Mean):
        sums = _sum_parts(position, factors, kinds[0])
        return None if sums is None else [*sums, counted]
    if isinstance(accumulator, Extreme):
        return [Part(f"_e{position}", _end(accumulator.end), accumulator.kind, factors)]
    if isinstance(accumulator, ExtremeBy):
        return _extreme_by(position, accumulator, factors)
    if isinstance(accumulator, Bits):
        return [Part(f"_b{position}", _BITS[accumulator.operation], accumulator.kind, factors)]
    if isinstance(accumulator, Moments) and all(map(pa.types.is_signed_integer, kinds)):
        return moment_parts(position, accumulator, inputs, kinds)
    if isinstance(accumulator, DistinctSketch):
        return [Part(f"_d{position}", Reduce.SKETCH, CODES, factors, precision=accumulator.precision)]
    return None


def _sum_parts(position: int, factors: tuple[Factor, ...], kind: pa.DataType) -> list[Part] | None:
    if pa.types.is_decimal128(kind):
        summed = Part(f"_s{position}", Reduce.SUM, pa.decimal128(38, kind.scale), factors)
        return [summed] if kind.precision <= MOST_DIGITS else None
    if not pa.types.is_signed_integer(kind):
        return None
    if kind.bit_width < _WORD * 2:
        return [Part(f"_s{position}", Reduce.SUM, pa.int64(), factors)]
    return [
        Part(f"_l{position}", Reduce.LOW_SUM, pa.int64(), factors),
        Part(f"_h{position}", Reduce.HIGH_SUM, pa.int64(), factors),
    ]


def _extreme_by(position: int, accumulator: ExtremeBy, factors: tuple[Factor, ...]) -> list[Part] | None:
    """Return the parts of min_by or max_by. For max_by, value or order column must be reversible, as ties go to the
    least.
    """
    value, by = factors
    largest = accumulator.end is End.LARGEST
    if largest and not (can_be_reversed(accumulator.by) or can_be_reversed(accumulator.kind)):
        return None
    reduce = Reduce.MAX_BY if largest else Reduce.MIN_BY
    return [
        Part(f"_v{position}", reduce, accumulator.kind, (value,), by=by),
        Part(f"_e{position}", _end(accumulator.end), accumulator.by, (by,)),
    ]


def _end(end: End) -> Reduce:
    return Reduce.MIN if end is End.SMALLEST else Reduce.MAX


def _inputs(position: int, aggregate: BoundAggregate) -> tuple[str, ...]:
    return tuple(input_column(position, part) for part in range(len(aggregate.input_types)))


def _partial(position: int, aggregate: BoundAggregate, parts: Sequence[pa.Array]) -> list[pa.Array]:
    accumulator = aggregate.accumulator
    if isinstance(accumulator, Mean):
        sums = list(parts[:-1]) if isinstance(accumulator.sum, DecimalSum) else _sum(parts[:-1])
        return [*sums, parts[-1]]
    if isinstance(accumulator, IntegerSum):
        return _sum(parts)
    if isinstance(accumulator, Extreme | ExtremeBy):
        return list(map(normalise_key, parts))
    if isinstance(accumulator, Moments):
        return moment_partial(position, accumulator, _inputs(position, aggregate), aggregate.input_types, parts)
    return list(parts)


def _sum(parts: Sequence[pa.Array]) -> list[pa.Array]:
    """Return a sum modulo 2**64, and the multiple of 2**64 to add, which is null if zero."""
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
