"""Changes between rows before and rows after: inserts, deletes, updates."""

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy
from statebed.operators.changelog import group_equal

CHANGE = "change"
INSERT, DELETE, UPDATE_BEFORE, UPDATE_AFTER = KINDS = ("insert", "delete", "update_before", "update_after")


def change_schema(rows: pa.Schema) -> pa.Schema:
    """Return the schema of changes of rows."""
    return pa.schema([pa.field(CHANGE, pa.string(), nullable=False), *rows])


def changes_of(before: pa.Table, after: pa.Table, identity: list[str], schema: pa.Schema) -> pa.Table:
    """Return the changes. Rows that agree in the columns of `identity` are versions of the same row, and both sides of
    an update are adjacent. All rows of an identity must be passed together. Rows that occur equally often on both sides
    are left out.
    """
    sides = [pa.Table.from_arrays([rows[name] for name in schema.names], schema=schema) for rows in (before, after)]
    both = pa.concat_tables(sides).combine_chunks()
    is_after = np.arange(both.num_rows) >= before.num_rows
    grouping = group_equal(both)
    net = grouping.add(np.where(is_after, np.int64(1), np.int64(-1)))
    changed = np.flatnonzero(net)
    rows = np.repeat(grouping.first_rows[changed], np.abs(net[changed]))
    came = np.repeat(net[changed] > 0, np.abs(net[changed]))
    found = both.take(from_numpy(rows, pa.int64()))
    if identity:
        same = group_equal(found.select(identity))
        groups, updated = same.group_of_rows(), same.any(came) & same.any(~came)
    else:
        groups, updated = np.zeros(len(rows), dtype=np.int64), np.zeros(1, dtype=np.bool_)
    order = np.lexsort((came, groups))
    kinds = np.where(updated[groups], 2 + came.astype(np.int64), 1 - came.astype(np.int64))
    labels = pa.array(KINDS).take(from_numpy(kinds[order], pa.int64()))
    ordered = found.take(from_numpy(order.astype(np.int64), pa.int64()))
    return pa.Table.from_arrays([labels, *ordered.columns], schema=change_schema(schema))
