"""What is written to keyed tables, checked before anything changes."""

from typing import TypeAlias

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import int64_values
from statebed.errors import InputError
from statebed.state.arguments import check_rows, check_times
from statebed.state.config import TimeToLiveClock
from statebed.state.keyed.batch import table_columns
from statebed.state.keyed.sorted_run import Times
from statebed.state.keyed.table import KeyedTable

Batch: TypeAlias = pa.Table | pa.RecordBatch


def checked_values(table: KeyedTable, keys: Batch, values: Batch) -> pa.Table:
    """The values as the table has them, one row for each key."""
    where = f"table {table.name!r}"
    check_rows(keys, "keys", where=where)
    check_rows(values, "values", where=where)
    if values.num_rows != keys.num_rows:
        raise InputError(
            f"a write has {keys.num_rows} keys and {values.num_rows} rows of values",
            where=where,
            fix="give one row of values for each key",
        )
    columns = table_columns(values, table.value_schema, what="values", where=where)
    return pa.Table.from_arrays(columns, schema=table.value_schema)


def written_times(table: KeyedTable, count: int, times: pa.Array | None, *, now_us: int | None) -> Times | None:
    """The time of each row that is written; None in a table whose rows have none."""
    where = f"table {table.name!r}"
    if table.clock is TimeToLiveClock.EVENT_TIME:
        return given_times(table, count, times)
    if times is not None:
        raise InputError(
            "a write has times, but the rows of the table have no event time",
            where=where,
            fix="leave times= out, or give the table a time to live by event time",
        )
    if not table.expires:
        return None
    if now_us is None:
        raise InputError("the time of the epoch is not known", where=where, fix="call advance(now_us) first")
    return np.full(count, now_us, dtype=np.int64)


def given_times(table: KeyedTable, count: int, times: pa.Array | pa.ChunkedArray | None) -> Times:
    """Times that were given, one for each row."""
    where = f"table {table.name!r}"
    if times is not None:
        check_times(times, where=where)
    if times is None or len(times) != count or times.null_count:
        raise InputError("a write needs the event time of each row", where=where, fix="give times=, without nulls")
    if times.type != pa.int64() and not (pa.types.is_timestamp(times.type) and times.type.unit == "us"):
        raise InputError(f"event times have the type {times.type}", where=where, fix="cast them to microseconds")
    return int64_values(times)


def check_timed(table: KeyedTable, what: str) -> None:
    """Refuse what needs times in a table whose rows have none."""
    if not table.expires:
        raise InputError(
            f"{what} needs times, and the rows of the table have none",
            where=f"table {table.name!r}",
            fix="give the table a time to live, or delete by key",
        )
