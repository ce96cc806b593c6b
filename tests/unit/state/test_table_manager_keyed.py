"""Keyed tables under a manager: one epoch with other tables, restores, rescaling, reads while uploads are under way."""

import datetime as dt
import time
from typing import Any

import pyarrow as pa
import pytest
from unit.state.table_cluster import COUNTERS, JOB, OPERATOR, TABLE, Cluster

from statebed.arrays.key_hash import hash_columns
from statebed.errors import InputError, UnknownTableError
from statebed.format.ranges import subtask_of
from statebed.state import (
    Compaction,
    DeleteKey,
    DeleteTimeRange,
    KeyedData,
    ManagerOptions,
    RecordBatch,
    TableData,
    TableManager,
    TaskInfo,
    keyed_table_config,
)
from statebed.state.keyed.durable import MAX_DELTAS
from statebed.storage import MemoryStore, ScopedStore
from statebed.testing.faults import FaultStore, Operation, Verb

SCHEMA = pa.schema([("driver", pa.string()), ("fare", pa.int64())])
FARES = {"fares": keyed_table_config("fares", "", ["driver"], SCHEMA)}
TASK = TaskInfo(JOB, OPERATOR)


def batch(fares: dict[str, int], **more: Any) -> pa.RecordBatch:
    columns = {"driver": pa.array(list(fares), pa.string()), "fare": pa.array(list(fares.values()), pa.int64())}
    return pa.record_batch({**columns, **more})


def upsert(cluster: Cluster, fares: dict[str, int]) -> None:
    """Write each row at its owner."""
    rows = batch(fares)
    owners = subtask_of(hash_columns([rows.column("driver")]), len(cluster.managers))
    for index, manager in enumerate(cluster.managers):
        mine = rows.filter(pa.array((owners == index).tolist(), pa.bool_()))
        manager.send(TableData("fares", RecordBatch(mine)))


def contents(managers: list[TableManager]) -> dict[str, int]:
    tables = [table for manager in managers for table in manager.get_keyed("fares").scan()]
    return {row["driver"]: row["fare"] for table in tables for row in table.to_pylist()}


def test_tables_of_both_kinds_are_one_epoch_and_survive_kills_and_rescaling() -> None:
    cluster = Cluster(2, COUNTERS | FARES)
    expected: dict[str, int] = {}
    for epoch, parallelism in enumerate((2, 3, 1, 2)):
        cluster.restart(parallelism)
        assert contents(cluster.managers) == expected
        for step in range(MAX_DELTAS):
            changed = {f"driver {number}": epoch * 100 + step for number in range(step, 40, 3)}
            upsert(cluster, changed)
            cluster.owner("epochs").insert("epochs", (epoch, step))
            expected |= changed
            cluster.commit()
        cluster.run.clean_up()
        upsert(cluster, {"lost": 1})
        cluster.store_epoch()  # killed before the record
    cluster.restart(3)
    assert contents(cluster.managers) == expected
    assert {view.get("epochs") for view in cluster.views()} == {(3, MAX_DELTAS - 1)}


def test_a_keyed_table_reads_files_that_are_still_being_uploaded() -> None:
    def slow(operation: Operation) -> None:
        if operation.verb is Verb.PUT:
            time.sleep(0.01)

    store = ScopedStore(MemoryStore(), JOB)
    options = ManagerOptions(max_pending=8)
    with TableManager(TASK, FARES, FaultStore(store, before=slow), options=options) as manager:
        view = manager.get_keyed("fares")
        waiting = []
        for number in range(3 * MAX_DELTAS):
            manager.send(TableData("fares", RecordBatch(batch({f"driver {number}": number, "always": number}))))
            waiting.append(manager.checkpoint(number + 2))
            view.release(1 << 30)  # what is wanted again is read from files
            assert contents([manager])["always"] == number
        for one in waiting:
            one.result(timeout=30)
        assert not manager._in_flight._waiting
        assert len(contents([manager])) == 3 * MAX_DELTAS + 1


def test_messages_delete_keys_and_compact() -> None:
    cluster = Cluster(1, FARES)
    upsert(cluster, {f"driver {number}": number for number in range(10)})
    cluster.commit()
    (manager,) = cluster.managers
    manager.send(TableData("fares", RecordBatch(batch({"driver 3": 0}), DeleteKey())))
    upsert(cluster, {f"driver {number}": -number for number in range(4, 10)})
    manager.send(Compaction())
    cluster.commit()
    cluster.restart(2)
    expected = {"driver 0": 0, "driver 1": 1, "driver 2": 2} | {f"driver {n}": -n for n in range(4, 10)}
    assert contents(cluster.managers) == expected


def test_the_watermark_of_a_checkpoint_expires_rows_by_event_time() -> None:
    hour = dt.timedelta(hours=1)
    config = keyed_table_config("fares", "", ["driver"], SCHEMA, hour)
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    with TableManager(TASK, {"fares": config}, ScopedStore(MemoryStore(), JOB)) as manager:
        times = pa.array([start, start + hour], pa.timestamp("us", tz="UTC"))
        manager.send(TableData("fares", RecordBatch(batch({"old": 1, "new": 2}, _time=times))))
        with pytest.raises(InputError, match="_time"):
            manager.send(TableData("fares", RecordBatch(batch({"timeless": 1}))))
        manager.checkpoint(2, watermark=start + hour).result(timeout=30)
        assert contents([manager]) == {"new": 2}


def test_a_stopped_manager_takes_no_more_rows() -> None:
    with TableManager(TASK, FARES, ScopedStore(MemoryStore(), JOB)) as manager:
        manager.checkpoint(2, then_stop=True).result(timeout=30)
        with pytest.raises(InputError, match="accepts no more"):
            manager.send(TableData("fares", RecordBatch(batch({"ann": 1}))))


def test_what_a_keyed_table_cannot_take_is_refused() -> None:
    with TableManager(TASK, COUNTERS | FARES, ScopedStore(MemoryStore(), JOB)) as manager:
        with pytest.raises(InputError, match="time"):
            manager.send(TableData("fares", RecordBatch(batch({}), DeleteTimeRange(0, 1))))
        with pytest.raises(UnknownTableError, match="KeyedData"):
            manager.send(TableData("fares", KeyedData(b"", None)))
        with pytest.raises(InputError, match="fare"):
            manager.send(TableData("fares", RecordBatch(batch({"ann": 1}).select(["driver"]))))
        with pytest.raises(UnknownTableError, match="is a global_keyed table"):
            manager.get_keyed(TABLE)
        with pytest.raises(UnknownTableError, match="is a keyed table"):
            manager.get_global_keyed_state("fares")
