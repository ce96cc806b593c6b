"""Every operation of a message, on every kind of table: as a model of plain rows does it, through restarts."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.state.table_cluster import JOB, OPERATOR, Cluster

from statebed.arrays.key_hash import hash_columns
from statebed.errors import InputError
from statebed.format.ranges import subtask_of
from statebed.state import (
    Checkpoint,
    CheckpointMessage,
    CommitData,
    DataOperation,
    DeleteKey,
    DeleteTimeKey,
    DeleteTimeRange,
    DeleteValue,
    Insert,
    RecordBatch,
    TableData,
    TableManager,
    TaskInfo,
    TimeToLiveClock,
    keyed_table_config,
    timestamp_table_config,
)
from statebed.storage import MemoryStore, ScopedStore

DAY = dt.timedelta(days=1)
SCHEMA = pa.schema([("rider", pa.int64()), ("fare", pa.int64())])
TABLES = {
    "riders": keyed_table_config("riders", "", ["rider"], SCHEMA, DAY),
    "trips": timestamp_table_config("trips", "", DAY, False, SCHEMA, keys=["rider"]),
    "prices": timestamp_table_config("prices", "", DAY, True, SCHEMA, keys=["rider"]),
}
TASK = TaskInfo(JOB, OPERATOR)
START = dt.datetime(1970, 1, 2, tzinfo=dt.UTC)
Row = tuple[int, int, int]
"""Rider, time, fare."""


class Model:
    """The rows of each table, as a list."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {table: [] for table in TABLES}

    def insert(self, table: str, new: list[Row]) -> None:
        rows = self.rows[table]
        for row in new:
            if table == "riders":
                # The time of a key is the latest that it was written with.
                times = [old[1] for old in rows if old[0] == row[0]]
                rows[:] = [old for old in rows if old[0] != row[0]]
                rows.append((row[0], max([row[1], *times]), row[2]))
                continue
            if table == "prices":
                rows[:] = [old for old in rows if old[:2] != row[:2]]
            rows.append(row)

    def delete(self, table: str, hides: Callable[[Row], bool]) -> None:
        self.rows[table] = [row for row in self.rows[table] if not hides(row)]


def batch(rows: list[Row], columns: list[str]) -> pa.RecordBatch:
    every = {
        "rider": pa.array([row[0] for row in rows], pa.int64()),
        "_time": pa.array([row[1] for row in rows], pa.timestamp("us", "UTC")),
        "fare": pa.array([row[2] for row in rows], pa.int64()),
    }
    return pa.record_batch({name: every[name] for name in columns})


def send(cluster: Cluster, table: str, rows: pa.RecordBatch, operation: DataOperation) -> None:
    """Send rows to their owners; a range of time is sent to all."""
    if isinstance(operation, DeleteTimeRange):
        for manager in cluster.managers:
            manager.send(TableData(table, RecordBatch(rows, operation)))
        return
    owners = subtask_of(hash_columns([rows.column("rider")]), len(cluster.managers))
    for index, manager in enumerate(cluster.managers):
        mine = rows.filter(pa.array((owners == index).tolist(), pa.bool_()))
        manager.send(TableData(table, RecordBatch(mine, operation)))


def contents(cluster: Cluster, table: str) -> list[Row]:
    found = []
    for manager in cluster.managers:
        keyed = table == "riders"
        tables = manager.get_keyed(table).scan() if keyed else [manager.get_time_keyed(table).read()]
        for rows in tables:
            times = rows["_time"].cast(pa.int64()).to_pylist()
            found += list(zip(rows["rider"].to_pylist(), times, rows["fare"].to_pylist(), strict=True))
    return sorted(found)


ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 2)), min_size=1, max_size=6)
OPERATIONS = ["insert", "insert", "insert", "key", "time key", "value", "range", "commit", "restart"]


@settings(max_examples=examples(15), deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(list(TABLES)), ROWS), max_size=14))
def test_every_operation_does_what_a_model_does(steps: list[tuple[str, str, list[Row]]]) -> None:
    cluster, model = Cluster(1, TABLES, store=MemoryStore()), Model()
    try:
        for number, (operation, table, rows) in enumerate(steps):
            apply(cluster, model, operation, table, rows, number=number)
            assert contents(cluster, table) == sorted(model.rows[table]), (operation, table)
        cluster.commit()
        cluster.restart(2)
        for table in TABLES:
            assert contents(cluster, table) == sorted(model.rows[table])
    finally:
        cluster.close()


def apply(cluster: Cluster, model: Model, operation: str, table: str, rows: list[Row], *, number: int) -> None:
    match operation:
        case "insert":
            send(cluster, table, batch(rows, ["rider", "_time", "fare"]), Insert())
            model.insert(table, rows)
        case "key":
            send(cluster, table, batch(rows, ["rider"]), DeleteKey())
            model.delete(table, lambda row: row[0] in {one[0] for one in rows})
        case "time key":
            send(cluster, table, batch(rows, ["rider", "_time"]), DeleteTimeKey())
            model.delete(table, lambda row: row[:2] in {one[:2] for one in rows})
        case "value":
            send(cluster, table, batch(rows, ["rider", "fare"]), DeleteValue())
            model.delete(table, lambda row: (row[0], row[2]) in {(one[0], one[2]) for one in rows})
        case "range":
            start, end = sorted((rows[0][1], rows[-1][1]))
            send(cluster, table, batch([], ["rider"]), DeleteTimeRange(start, end))
            model.delete(table, lambda row: start <= row[1] < end)
        case "commit":
            cluster.commit()
        case _:
            cluster.commit()
            cluster.restart(1 + number % 3)


def test_delete_put_delete_inside_one_epoch_is_right() -> None:
    cluster = Cluster(1, TABLES)
    for table in TABLES:
        row = batch([(1, 1, 1)], ["rider", "_time", "fare"])
        key = batch([(1, 1, 1)], ["rider"])
        send(cluster, table, row, Insert())
    cluster.commit()
    for table in TABLES:
        send(cluster, table, key, DeleteKey())
        send(cluster, table, row, Insert())
        assert contents(cluster, table) == [(1, 1, 1)]
        send(cluster, table, key, DeleteKey())
        assert contents(cluster, table) == []
    cluster.commit()
    cluster.restart(2)
    assert [contents(cluster, table) for table in TABLES] == [[], [], []]
    cluster.close()


def test_the_time_of_an_epoch_expires_rows_of_tables_with_that_clock() -> None:
    hour = dt.timedelta(hours=1)
    config = keyed_table_config("riders", "", ["rider"], SCHEMA, hour, ttl_clock=TimeToLiveClock.EPOCH_TIME)
    with TableManager(TASK, {"riders": config}, ScopedStore(MemoryStore(), JOB)) as manager:
        rows = pa.record_batch({"rider": pa.array([1], pa.int64()), "fare": pa.array([1], pa.int64())})
        with pytest.raises(InputError, match="time of the epoch is not known"):
            manager.send(TableData("riders", RecordBatch(rows)))
        manager.send(Checkpoint(CheckpointMessage(2, START))).result(timeout=30)
        manager.send(TableData("riders", RecordBatch(rows)))
        manager.send(Checkpoint(CheckpointMessage(3, START + hour / 2, watermark=START + 9 * hour))).result(timeout=30)
        assert sum(table.num_rows for table in manager.get_keyed("riders").scan()) == 1
        manager.send(Checkpoint(CheckpointMessage(4, START + hour))).result(timeout=30)
        assert sum(table.num_rows for table in manager.get_keyed("riders").scan()) == 0
        assert manager.metrics().tables["riders"].expired_rows == 1


@pytest.mark.parametrize("ending", ["stopped", "closed"])
def test_views_of_a_manager_that_ended_take_no_more_writes(ending: str) -> None:
    manager = TableManager(TASK, TABLES, ScopedStore(MemoryStore(), JOB))
    riders, trips = manager.get_keyed("riders"), manager.get_time_keyed("trips")
    if ending == "stopped":
        manager.checkpoint(2, then_stop=True).result(timeout=30)
    else:
        manager.close()
    rows = batch([(1, 1, 1)], ["rider", "_time", "fare"])
    keys = rows.select(["rider"])
    refused: list[Callable[[], Any]] = [
        lambda: riders.upsert(keys, rows.select(["fare"]), times=rows.column("_time")),
        lambda: riders.delete(keys),
        lambda: trips.append(rows),
        lambda: trips.delete(keys),
        lambda: trips.delete_times(0, 1),
        manager.compact,
    ]
    for write in refused:
        with pytest.raises(InputError, match="no more"):
            write()
    manager.close()


@pytest.mark.parametrize("table", ["trips", "prices"])
def test_a_view_of_a_closed_manager_is_not_read_without_the_rows_that_no_checkpoint_has(table: str) -> None:
    cluster = Cluster(1, TABLES)
    rows = batch([(1, 5, 7)], ["rider", "_time", "fare"])
    (manager,) = cluster.managers
    view = manager.get_time_keyed(table)
    view.append(rows)
    cluster.commit()
    manager.close()
    assert view.read().num_rows == sum(piece.num_rows for piece in view.scan()) == 1
    cluster.restart(1)
    (manager,) = cluster.managers
    view = manager.get_time_keyed(table)
    view.append(rows)
    manager.close()
    for read in (view.read, view.scan, view.prefetch):
        with pytest.raises(InputError, match="with changes that no checkpoint contains"):
            read()


def test_tables_of_rows_take_no_data_of_other_kinds() -> None:
    with TableManager(TASK, TABLES, ScopedStore(MemoryStore(), JOB)) as manager:
        for table in TABLES:
            with pytest.raises(InputError, match="does not accept CommitData"):
                manager.send(TableData(table, CommitData(b"")))
            with pytest.raises(InputError, match=r"lacks the columns \['rider'\]"):
                manager.send(TableData(table, RecordBatch(batch([], ["fare"]), DeleteKey())))


@pytest.mark.parametrize("operation", [DeleteKey, "Insert", None])
def test_an_operation_that_is_none_is_refused_when_the_message_is_made(operation: Any) -> None:
    with pytest.raises(InputError, match="not an operation on rows") as refused:
        RecordBatch(batch([], ["rider"]), operation)
    assert "DeleteKey()" in refused.value.fix
