"""Pre-aggregated input: values computed for each group before the rows arrive, and the partials made of them.

A Spark job can aggregate rows in the JVM, where they are, and send one row per group instead. It computes *parts*:
plain counts, sums and extremes that do not depend on the order of rows. They are converted to exactly the partials that
the rows would have produced, so the state has the same bytes either way. Only aggregates whose partials consist of such
parts can be pre-aggregated. Only the number of late rows is known then, not the rows themselves.
"""

import pyarrow as pa

from statebed.aggregates.accumulators import MadeOfParts
from statebed.aggregates.aggregate import BoundAggregate
from statebed.aggregates.partials import Partials, input_column
from statebed.aggregates.parts import Part, PartInputs
from statebed.arrays.columns import one_chunk
from statebed.format.schema import TIMESTAMP
from statebed.format.stream_schema import Changes, Input

ROW_COUNT = "_row_count"
LATEST = "_latest_time"
"""Greatest event time of a group's rows."""
GROUPS_IN = "groups_in"
"""Metric of operators: number of groups among the rows of an epoch."""


def parts_of(partials: Partials) -> tuple[Part, ...] | None:
    """Return the parts to compute for each group, or None if an aggregate does not consist of parts."""
    if partials.changes is Changes.CHANGELOG:
        return None
    parts: list[Part] = []
    for position, aggregate in enumerate(partials.aggregates):
        of_aggregate = aggregate_parts(position, aggregate)
        if of_aggregate is None:
            return None
        parts += of_aggregate
    return tuple(parts)


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
        accumulator, inputs = aggregate.accumulator, _inputs(position, aggregate)
        assert isinstance(accumulator, MadeOfParts)
        parts = accumulator.parts(inputs)
        assert parts is not None
        columns += accumulator.from_parts(inputs, [one_chunk(rows[part.name]) for part in parts])
    return columns


def aggregate_parts(position: int, aggregate: BoundAggregate) -> list[Part] | None:
    """Return the parts of one aggregate, or None if it does not consist of parts."""
    accumulator = aggregate.accumulator
    return accumulator.parts(_inputs(position, aggregate)) if isinstance(accumulator, MadeOfParts) else None


def _inputs(position: int, aggregate: BoundAggregate) -> PartInputs:
    columns = tuple(input_column(position, part) for part in range(len(aggregate.input_types)))
    return PartInputs(position, columns, aggregate.input_types)
