"""Tables of the two larger kinds, with rows sent to the subtasks that own them; for tests of known failures."""

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from statebed.arrays.key_hash import HASH_SEED, hash_columns
from statebed.format.ranges import subtask_of
from statebed.state import RecordBatch, TableConfig, TableData, TableManager, keyed_table_config, timestamp_table_config

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TIMESTAMP = pa.timestamp("us", tz="UTC")
TRIPS = "trips"
FARES = "fares"
Fare = tuple[int, int, int]
"""Driver, time in microseconds, fare."""


def micros(count: int) -> dt.timedelta:
    return dt.timedelta(microseconds=count)


def trips_config(*, ttl_us: int | None = None) -> dict[str, TableConfig]:
    """A keyed table: trips by driver."""
    schema = pa.schema([("driver", pa.int64()), ("trips", pa.int64())])
    ttl = None if ttl_us is None else micros(ttl_us)
    return {TRIPS: keyed_table_config(TRIPS, "", ["driver"], schema, ttl)}


def fares_config(
    *, retention_us: int = 1 << 50, bin_us: int = 1 << 20, keys: Sequence[str] = ("driver",)
) -> dict[str, TableConfig]:
    """A time-keyed table: fares by driver."""
    schema = pa.schema([("driver", pa.int64()), ("fare", pa.int64())])
    retention, width = micros(retention_us), micros(bin_us)
    return {FARES: timestamp_table_config(FARES, "", retention, False, schema, keys=keys, bin_width=width)}


def put_trips(managers: Sequence[TableManager], trips: Mapping[int, int], *, time_us: int | None = None) -> None:
    columns = {"driver": pa.array(list(trips), pa.int64()), "trips": pa.array(list(trips.values()), pa.int64())}
    if time_us is not None:
        columns["_time"] = pa.array([time_us] * len(trips), TIMESTAMP)
    _send(managers, TRIPS, pa.record_batch(columns), keyed=True)


def trips_of(managers: Iterable[TableManager]) -> dict[int, int]:
    tables = [table for manager in managers for table in manager.get_keyed(TRIPS).scan()]
    return {row["driver"]: row["trips"] for table in tables for row in table.to_pylist()}


def append_fares(managers: Sequence[TableManager], fares: Sequence[Fare], *, keyed: bool = True) -> None:
    _send(managers, FARES, fares_batch(fares), keyed=keyed)


def fares_of(managers: Iterable[TableManager]) -> Counter[Fare]:
    found: Counter[Fare] = Counter()
    for manager in managers:
        rows = manager.get_time_keyed(FARES).read()
        times = rows["_time"].cast(pa.int64()).to_pylist()
        found.update(zip(rows["driver"].to_pylist(), times, rows["fare"].to_pylist(), strict=True))
    return found


def fares_batch(fares: Sequence[Fare]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "driver": pa.array([fare[0] for fare in fares], pa.int64()),
            "_time": pa.array([fare[1] for fare in fares], TIMESTAMP),
            "fare": pa.array([fare[2] for fare in fares], pa.int64()),
        }
    )


def _send(managers: Sequence[TableManager], table: str, rows: pa.RecordBatch, *, keyed: bool) -> None:
    hashes = hash_columns([rows.column("driver")]) if keyed else np.full(rows.num_rows, HASH_SEED, dtype=np.uint64)
    owners = subtask_of(hashes, len(managers))
    for index, manager in enumerate(managers):
        mine = rows.filter(pa.array((owners == index).tolist(), pa.bool_()))
        if mine.num_rows:
            manager.send(TableData(table, RecordBatch(mine)))
