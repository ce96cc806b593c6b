"""Checks of the input of writes to keyed tables, made before anything changes."""

from typing import TypeAlias

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import int64_values
from statebed.arrays.mutable import Mask
from statebed.errors import InputError
from statebed.state.arguments import check_rows, check_times
from statebed.state.config import TimeToLiveClock
from statebed.state.keyed.batch import table_columns
from statebed.state.keyed.sorted_run import Times
from statebed.state.keyed.table import KeyedTable

Batch: TypeAlias = pa.Table | pa.RecordBatch


def checked_values(table: KeyedTable, keys: Batch, values: Batch, *, kept: Mask | None = None) -> pa.Table:
    """Return the values in the table's columns. Raise if there is not exactly one row for each key that is `kept`; all
    are by default.
    """
    where = f"table {table.name!r}"
    check_rows(keys, "keys", where=where)
    check_rows(values, "values", where=where)
    if kept is not None and len(kept) != keys.num_rows:
        raise InputError(
            f"`kept` has {len(kept)} flags for {keys.num_rows} keys", where=where, fix="pass one flag for each key"
        )
    count = keys.num_rows if kept is None else int(np.count_nonzero(kept))
    if values.num_rows != count:
        raise InputError(
            f"got {count} keys and {values.num_rows} rows of values",
            where=where,
            fix="pass one row of values for each key",
        )
    columns = table_columns(values, table.value_schema, what="values", where=where)
    return pa.Table.from_arrays(columns, schema=table.value_schema)


def written_times(table: KeyedTable, count: int, times: pa.Array | None, *, now_us: int | None) -> Times | None:
    """Return the time of each row to write, or None if rows of the table have no time."""
    where = f"table {table.name!r}"
    if table.clock is TimeToLiveClock.EVENT_TIME:
        return given_times(table, count, times)
    if times is not None:
        raise InputError(
            "the write has times, but rows of this table have no event time",
            where=where,
            fix="leave times= out, or define the table with a time to live by event time",
        )
    if not table.expires:
        return None
    if now_us is None:
        raise InputError("the time of the epoch is not known yet", where=where, fix="call `advance(now_us)` first")
    return np.full(count, now_us, dtype=np.int64)


def given_times(table: KeyedTable, count: int, times: pa.Array | pa.ChunkedArray | None) -> Times:
    """Return the event times passed with a write. Raise unless there is one for each row."""
    where = f"table {table.name!r}"
    if times is not None:
        check_times(times, where=where)
    if times is None or len(times) != count or times.null_count:
        raise InputError(
            "a write to this table needs the event time of each row", where=where, fix="pass times=, without nulls"
        )
    if times.type != pa.int64() and not (pa.types.is_timestamp(times.type) and times.type.unit == "us"):
        raise InputError(
            f"`times` must be int64 or timestamps in microseconds, got {times.type}",
            where=where,
            fix="cast them to microseconds",
        )
    return int64_values(times)


def check_timed(table: KeyedTable, what: str) -> None:
    """Raise if the rows of the table have no times; `what` names the operation that needs them."""
    if not table.expires:
        raise InputError(
            f"{what} needs times, but rows of this table have none",
            where=f"table {table.name!r}",
            fix="define the table with a time to live, or delete by key",
        )
