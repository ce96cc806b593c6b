"""Metrics of a manager: by table, by tier, by step of a checkpoint; cheaply."""

import datetime as dt
import threading
import time

import pyarrow as pa
import pytest
from unit.state.table_cluster import COUNTERS, JOB, OPERATOR, TABLE

from statebed.state import (
    CompactionMode,
    DeleteKey,
    ManagerOptions,
    RecordBatch,
    TableData,
    TableManager,
    TaskInfo,
    keyed_table_config,
    timestamp_table_config,
)
from statebed.storage import MemoryStore, ObjectStore, ScopedStore
from statebed.testing.faults import FaultStore, Operation, Verb

SCHEMA = pa.schema([("rider", pa.int64()), ("fare", pa.int64())])
HOUR = dt.timedelta(hours=1)
TABLES = {
    **COUNTERS,
    "riders": keyed_table_config("riders", "", ["rider"], SCHEMA, HOUR),
    "trips": timestamp_table_config("trips", "", HOUR, False, SCHEMA, keys=["rider"]),
}
TASK = TaskInfo(JOB, OPERATOR)
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def manager_on(store: ObjectStore) -> TableManager:
    return TableManager(TASK, TABLES, store, options=ManagerOptions(compaction=CompactionMode.OFF))


def write(manager: TableManager, count: int, *, at: dt.datetime = START) -> None:
    rows = pa.record_batch(
        {
            "rider": pa.array(range(count), pa.int64()),
            "_time": pa.array([at] * count, pa.timestamp("us", "UTC")),
            "fare": pa.array(range(count), pa.int64()),
        }
    )
    for table in ("riders", "trips"):
        manager.send(TableData(table, RecordBatch(rows)))
    manager.get_global_keyed_state(TABLE).insert("count", count)


def test_each_table_says_what_it_holds_and_where() -> None:
    with manager_on(ScopedStore(MemoryStore(), JOB)) as manager:
        write(manager, 1000)
        before = manager.metrics().tables
        assert before["trips"].rows == 1000
        assert before["trips"].memory_bytes >= 1000 * 16
        assert before["riders"].memory_bytes >= 1000 * 16
        assert (before["trips"].store_bytes, before["trips"].files) == (0, {})
        manager.checkpoint(2).result(timeout=30)
        after = manager.metrics().tables
        for table in TABLES:
            assert sum(after[table].files.values()) == 1
            assert after[table].store_bytes > 0
        assert [after[table].rows for table in TABLES] == [1, 1000, 1000]
        assert after[TABLE].memory_bytes > 0


def test_deletions_late_and_expired_rows_are_counted() -> None:
    with manager_on(ScopedStore(MemoryStore(), JOB)) as manager:
        write(manager, 10)
        manager.checkpoint(2).result(timeout=30)
        keys = pa.record_batch({"rider": pa.array([3], pa.int64())})
        manager.send(TableData("trips", RecordBatch(keys, DeleteKey())))
        assert manager.metrics().tables["trips"].tombstones == 1
        manager.checkpoint(3, watermark=START + 2 * HOUR).result(timeout=30)
        write(manager, 5)
        counts = manager.metrics().tables
        assert counts["riders"].expired_rows == 10
        assert counts["trips"].late_rows == 5
        assert counts["trips"].tombstones == 0


def test_the_steps_of_a_checkpoint_are_timed() -> None:
    def slow(operation: Operation) -> None:
        if operation.verb is Verb.PUT:
            time.sleep(0.05 if operation.path.endswith(".parquet") else 0.02)

    with manager_on(FaultStore(ScopedStore(MemoryStore(), JOB), before=slow)) as manager:
        write(manager, 1000)
        start = time.perf_counter()
        manager.checkpoint(2).result(timeout=30)
        elapsed = time.perf_counter() - start
        (spans,) = manager.metrics().checkpoints
        assert spans.epoch == 2
        assert spans.take > 0
        assert spans.encode + spans.upload >= 0.05
        assert spans.metadata >= 0.02
        assert spans.total == pytest.approx(elapsed, rel=0.5)
        for epoch in range(3, 40):
            manager.checkpoint(epoch).result(timeout=30)
        assert [one.epoch for one in manager.metrics().checkpoints] == list(range(24, 40)), "the last sixteen"


def test_what_is_under_way_shows() -> None:
    opened = threading.Event()

    def hold(operation: Operation) -> None:
        if operation.verb is Verb.PUT:
            assert opened.wait(timeout=30)

    with manager_on(FaultStore(ScopedStore(MemoryStore(), JOB), before=hold)) as manager:
        write(manager, 1000)
        waiting = manager.checkpoint(2)
        deadline = time.monotonic() + 30
        while not manager.metrics().upload_bytes and time.monotonic() < deadline:
            time.sleep(0.01)
        metrics = manager.metrics()
        assert (metrics.pending_checkpoints, metrics.upload_bytes > 0) == (1, True)
        opened.set()
        waiting.result(timeout=30)
        metrics = manager.metrics()
        assert (metrics.pending_checkpoints, metrics.upload_bytes) == (0, 0)


def test_metrics_cost_next_to_nothing() -> None:
    with manager_on(ScopedStore(MemoryStore(), JOB)) as manager:
        for epoch in range(2, 10):
            write(manager, 20_000)
            manager.checkpoint(epoch).result(timeout=30)
        times = []
        for _ in range(20):
            start = time.perf_counter()
            manager.metrics()
            times.append(time.perf_counter() - start)
        assert min(times) < 0.005
