"""Conversion between rows of runs and rows of files."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import boolean_array, boolean_values, from_numpy, int64_values, one_chunk, uint64_values
from statebed.arrays.mutable import FixedColumn, Rows, column_of, taken
from statebed.format.schema import DELETED as DELETED_COLUMN
from statebed.format.schema import KEY_HASH, SEQUENCE, TIME, TIMESTAMP
from statebed.state.keyed.batch import take_rows
from statebed.state.keyed.sorted_run import DELETED, STORED, Marks, SortedRun
from statebed.state.keyed.table import KeyedTable


def file_rows(table: KeyedTable, run: SortedRun, rows: Rows | None, marks: Marks | None) -> pa.Table:
    """Return rows of a run as rows of files, with sequence 0. Deletions have neither time nor values.

    If `rows` is None, return all rows, which may share memory with the run: it must not be written later. If `marks` is
    None, no row is deleted.
    """
    count = len(run) if rows is None else len(rows)
    deleted = np.zeros(count, dtype=np.bool_) if marks is None else (marks & DELETED) != 0
    alive = ~deleted if deleted.any() else None
    columns: dict[str, pa.Array] = {
        KEY_HASH: from_numpy(run.hashes if rows is None else run.hashes.take(rows), pa.uint64()),
        SEQUENCE: from_numpy(np.zeros(count, dtype=np.uint64), pa.uint64()),
        DELETED_COLUMN: boolean_array(deleted),
    }
    for name, key in zip(table.key_schema.names, run.keys, strict=True):
        columns[name] = key.array() if rows is None else key.take(rows)
    if run.times is not None:
        columns[TIME] = from_numpy(run.times if rows is None else run.times.take(rows), TIMESTAMP, valid=~deleted)
    for name, value in zip(table.value_schema.names, run.values, strict=True):
        if alive is not None and isinstance(value, FixedColumn):
            columns[name] = (value if rows is None else value.select(rows)).where(alive).array()
            continue
        array = value.array() if rows is None else value.take(rows)
        columns[name] = array if alive is None else taken(array, np.arange(count, dtype=np.int64), alive)
    schema = table.file_schema
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def run_of(table: KeyedTable, rows: pa.Table) -> SortedRun:
    """Return rows of files, with each key once and none deleted, as a run in memory."""
    return SortedRun.of(
        uint64_values(rows[KEY_HASH]),
        [column_of(one_chunk(rows[name])) for name in table.key_schema.names],
        [one_chunk(rows[name]) for name in table.value_schema.names],
        int64_values(rows[TIME]) if table.expires else None,
        STORED,
    )


def without_deleted(rows: pa.Table, *, expired_until: int | None = None) -> pa.Table:
    """Return the rows of files that are neither deleted nor expired."""
    gone = boolean_values(rows[DELETED_COLUMN])
    if expired_until is not None and TIME in rows.column_names:
        gone = gone | boolean_values(pc.less_equal(rows[TIME].cast(pa.int64()), expired_until))
    return take_rows(rows, np.flatnonzero(~gone)) if gone.any() else rows
