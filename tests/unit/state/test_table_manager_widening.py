"""Every type that may be widened, in every kind of table: stored values are read as they were, new ones beside them."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from unit.state.table_cluster import Cluster

from statebed.state import Compaction, RecordBatch, TableConfig, TableData, keyed_table_config, timestamp_table_config

HOUR = dt.timedelta(hours=1)
TIME = pa.array([1], pa.timestamp("us", "UTC"))
CASES: list[tuple[pa.DataType, pa.DataType, Any, Any]] = [
    (pa.int8(), pa.int16(), -128, 1 << 14),
    (pa.int16(), pa.int32(), -(1 << 15), 1 << 30),
    (pa.int32(), pa.int64(), -(1 << 31), 1 << 62),
    (pa.uint8(), pa.uint64(), 255, (1 << 64) - 1),
    (pa.uint32(), pa.int64(), (1 << 32) - 1, -(1 << 63)),
    (pa.float32(), pa.float64(), 1.5, 0.1),
    (pa.decimal128(9, 2), pa.decimal128(20, 4), Decimal("1234567.89"), Decimal("9876543210.1234")),
    (pa.decimal128(38, 2), pa.decimal256(60, 2), Decimal("0.01"), Decimal("1" * 50)),
    (pa.date32(), pa.date64(), dt.date(2024, 2, 29), dt.date(1999, 1, 1)),
    (pa.date32(), pa.timestamp("ms"), dt.date(2024, 2, 29), dt.datetime(1999, 1, 1, 12)),  # noqa: DTZ001 - no zone
    (pa.time32("s"), pa.time64("us"), dt.time(23, 59, 59), dt.time(0, 0, 0, 1)),
    (pa.string(), pa.large_string(), "ä€漢", ""),
    (pa.binary(), pa.large_binary(), b"\x00", b"x" * 100),
]


def config(kind: str, column: pa.DataType) -> TableConfig:
    schema = pa.schema([("rider", pa.int64()), ("value", column)])
    if kind == "keyed":
        return keyed_table_config("rows", "", ["rider"], schema)
    return timestamp_table_config("rows", "", HOUR, False, schema, keys=["rider"])


def write(cluster: Cluster, kind: str, rider: int, value: Any, column: pa.DataType) -> None:
    times = {} if kind == "keyed" else {"_time": TIME}
    rows = pa.record_batch({"rider": pa.array([rider], pa.int64()), **times, "value": pa.array([value], column)})
    cluster.managers[0].send(TableData("rows", RecordBatch(rows)))


def contents(cluster: Cluster, kind: str) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for manager in cluster.managers:
        tables = manager.get_keyed("rows").scan() if kind == "keyed" else [manager.get_time_keyed("rows").read()]
        for rows in tables:
            found |= dict(zip(rows["rider"].to_pylist(), rows["value"].to_pylist(), strict=True))
    return found


@pytest.mark.parametrize("kind", ["keyed", "timed"])
@pytest.mark.parametrize(("narrow", "wide", "old", "new"), CASES, ids=[f"{case[0]} to {case[1]}" for case in CASES])
def test_stored_values_are_read_as_wider_ones(
    kind: str, narrow: pa.DataType, wide: pa.DataType, old: Any, new: Any
) -> None:
    cluster = Cluster(1, {"rows": config(kind, narrow)})
    write(cluster, kind, 1, old, narrow)
    write(cluster, kind, 2, None, narrow)
    cluster.commit()
    cluster.restart(1, {"rows": config(kind, wide)})
    write(cluster, kind, 3, new, wide)
    # A date is midnight as a time.
    kept = dt.datetime(2024, 2, 29) if pa.types.is_timestamp(wide) else old  # noqa: DTZ001 - the column has no zone
    expected = {1: kept, 2: None, 3: new}
    assert contents(cluster, kind) == expected
    cluster.commit()
    cluster.managers[0].send(Compaction()).result(timeout=30)
    cluster.commit()
    assert contents(cluster, kind) == expected
    cluster.restart(2)
    assert contents(cluster, kind) == expected
    cluster.close()
