"""State of Spark's aggregations and deduplications as rows of statebed's tables.

Spark stores one row per group: its key, and the buffers of its aggregate functions in the order of the query. Each
aggregate of an operator takes its buffers from the left and makes its partials of them: a sum is a sum of one value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.aggregates.accumulators import Accumulator
from statebed.aggregates.accumulators.counts import Count
from statebed.aggregates.accumulators.extremes import Extreme
from statebed.aggregates.accumulators.means import Mean
from statebed.aggregates.accumulators.sums import DecimalSum, FloatSum, IntegerSum
from statebed.aggregates.partials import Partials
from statebed.arrays.columns import one_chunk
from statebed.arrays.grouping import Grouping, group_rows
from statebed.errors import InputError
from statebed.format.schema import TIMESTAMP

_SUMS = (IntegerSum, FloatSum, DecimalSum)
SUPPORTED = "count, sum, avg, min and max"


@dataclass
class Buffers:
    """Buffers of the groups of a state, which aggregates take one after the other."""

    columns: Sequence[tuple[str, pa.Array]]
    rows: int
    where: str
    taken: int = 0

    def next(self, name: str, wanted: str) -> pa.Array:
        """Take the next buffer, which must have a name."""
        if self.taken >= len(self.columns) or not self.columns[self.taken][0].startswith(name):
            there = f"a {_plain(self.columns[self.taken][0])}" if self.taken < len(self.columns) else "no more buffers"
            raise InputError(
                f"the state of Spark has {there} where {wanted} of the query has its {name}",
                where=self.where,
                fix="take over with the query that wrote the checkpoint, unchanged",
            )
        self.taken += 1
        return self.columns[self.taken - 1][1]

    @property
    def is_empty(self) -> bool:
        return self.taken >= len(self.columns)


def partials_of(partials: Partials, buffers: Buffers) -> list[pa.Array]:
    """Return the partials of groups, in the order of `partials.fields`."""
    each = group_rows(np.arange(buffers.rows, dtype=np.int64), np.zeros(buffers.rows, dtype=np.uint64), [])
    columns: list[pa.Array] = []
    for aggregate in partials.aggregates:
        columns += _aggregate(aggregate.accumulator, buffers, each)
    if not buffers.is_empty:
        more = [_plain(name) for name, _ in buffers.columns[buffers.taken :]]
        raise InputError(
            f"the state of Spark has more buffers than the query: {', '.join(more)}",
            where=buffers.where,
            fix="take over with the query that wrote the checkpoint, unchanged",
        )
    return [one_chunk(pc.cast(column, field.type)) for column, field in zip(columns, partials.fields, strict=True)]


def _plain(name: str) -> str:
    """Return the name that Spark gives a buffer, without the number that makes it unique."""
    return name.partition("#")[0]


def _aggregate(accumulator: Accumulator, buffers: Buffers, each: Grouping) -> Sequence[pa.Array]:
    name = accumulator.output_field.name
    if isinstance(accumulator, Count):
        # The last count of an operator may be its own, which Spark does not have.
        return [pa.array(np.ones(buffers.rows, dtype=np.int64)) if buffers.is_empty else buffers.next("count", name)]
    if isinstance(accumulator, _SUMS):
        return _sum(accumulator, buffers, each)
    if isinstance(accumulator, Mean):
        return [*_sum(accumulator.sum, buffers, each), buffers.next("count", name)]
    if isinstance(accumulator, Extreme):
        values = buffers.next("m", name)
        return accumulator.fold([_cast(values, accumulator.output_field.type)], each)
    raise InputError(
        f"{name}: the state of this aggregate cannot be taken over from Spark",
        where=buffers.where,
        fix=f"supported are {SUPPORTED}; for others, start the query at the beginning of its input",
    )


def _sum(accumulator: IntegerSum | FloatSum | DecimalSum, buffers: Buffers, each: Grouping) -> Sequence[pa.Array]:
    sums = buffers.next("sum", accumulator.output_field.name)
    if isinstance(accumulator, DecimalSum):
        empty = buffers.next("isEmpty", accumulator.output_field.name)
        sums = pc.if_else(empty, pa.scalar(None, sums.type), sums)
    if isinstance(accumulator, IntegerSum):
        sums = pc.cast(sums, pa.int64())  # avg() of integers has a double, which is a whole number
    return accumulator.fold([sums], each)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values if values.type == kind else pc.cast(values, kind)


def keys_of(key: pa.Array, fields: Sequence[pa.Field], *, where: str) -> list[pa.Array]:
    """Return the columns of Spark's key struct as the keys of an operator, by position."""
    columns = [one_chunk(column) for column in key.flatten()]
    if len(columns) != len(fields):
        raise InputError(
            f"the state of Spark has another number of keys ({len(columns)}) than the query ({len(fields)})",
            where=where,
            fix="take over with the query that wrote the checkpoint, unchanged",
        )
    keys = []
    for column, field in zip(columns, fields, strict=True):
        kind = TIMESTAMP if pa.types.is_timestamp(column.type) and column.type.tz else column.type
        if kind != field.type:
            raise InputError(
                f"the key {field.name} has the type {field.type} in the query, but {column.type} in the state of Spark",
                where=where,
                fix="take over with the query that wrote the checkpoint, unchanged",
            )
        keys.append(_cast(column, field.type))
    return keys
