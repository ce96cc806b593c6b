"""Conversion of the rows of a pinned table to finished results."""

from statebed.inspect.tables.pinned import PinnedTable
from statebed.inspect.tables.table_shape import TableShape
from statebed.operators.finished_results import Results, StoredTable, UserAggregates, results_of


def finished_results(table: PinnedTable, shape: TableShape, users: UserAggregates | None) -> Results | None:
    """Return what finishes the rows of a table; None: they are results already."""
    reached = [input_.watermark_us for input_ in table.entry.inputs if input_.HasField("watermark_us")]
    if table.entry.HasField("highest_closed_end_us"):
        reached.append(table.entry.highest_closed_end_us)
    stored = StoredTable(
        table.operator,
        table.entry.definition,
        keys=tuple(shape.schema.field(name) for name in shape.keys),
        columns=shape.schema,
        watermark_us=max(reached, default=None),
    )
    return results_of(table.table, stored, users)
