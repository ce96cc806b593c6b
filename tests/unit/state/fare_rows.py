"""Fares of drivers, a time-keyed table that tests share."""

import datetime as dt
from collections import Counter
from typing import Any

import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import owned_range
from statebed.state import TimeKeyedView, timestamp_table_config
from statebed.storage import ObjectStore

SCHEMA = pa.schema([("driver", pa.float64()), ("fare", pa.int64())])
RETENTION = 100
Row = tuple[float | None, int, int]


def config(*, generational: bool = False) -> pb.TableConfig:
    return timestamp_table_config(
        "fares",
        "",
        dt.timedelta(microseconds=RETENTION),
        generational,
        SCHEMA,
        keys=["driver"],
        bin_width=dt.timedelta(microseconds=10),
    )


def batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "driver": pa.array([row[0] for row in rows], pa.float64()),
            "_time": pa.array([row[1] for row in rows], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "fare": pa.array([row[2] for row in rows], pa.int64()),
        }
    )


def rows_of(table: pa.Table) -> Counter[tuple[str, int, int]]:
    """Return the rows as a multiset; drivers as text, because NaN is not equal to itself."""
    times = table["_time"].cast(pa.int64()).to_pylist()
    return Counter(zip(map(str, table["driver"].to_pylist()), times, table["fare"].to_pylist(), strict=True))


def counted(rows: list[Row]) -> Counter[tuple[str, int, int]]:
    # -0.0 and 0.0 are one key, which is stored as 0.0.
    return Counter((str(driver if driver is None else driver + 0.0), time, fare) for driver, time, fare in rows)


def view_on(store: ObjectStore, **more: Any) -> TimeKeyedView:
    return TimeKeyedView(
        config(generational=more.pop("generational", False)), owned=owned_range(0, 1), store=store, **more
    )


def store_all(view: TimeKeyedView, store: ObjectStore, epoch: int, **more: Any) -> int:
    uploads = view.checkpoint(lambda digest: f"{epoch}/fares.{digest}.parquet", **more)
    for one in uploads:
        store.put(one.path, one.content())
        one.on_stored()
    return len(uploads)
