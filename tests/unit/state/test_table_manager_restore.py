"""Restores read what they own and nothing else, and lazily; memory is charged and given back."""

import datetime as dt
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from unit.state.table_cluster import JOB, OPERATOR, Cluster

from statebed.format import segment_writer
from statebed.state import (
    CompactionMode,
    ManagerOptions,
    MemoryController,
    Purpose,
    RecordBatch,
    TableConfig,
    TableData,
    TableManager,
    TaskInfo,
    Tiers,
    keyed_table_config,
    timestamp_table_config,
)
from statebed.storage import MemoryStore, ObjectStore

SCHEMA = pa.schema([("rider", pa.int64()), ("fare", pa.float64())])
RIDERS = keyed_table_config("riders", "", ["rider"], SCHEMA)
TRIPS = timestamp_table_config("trips", "", dt.timedelta(days=1), False, SCHEMA, keys=["rider"])
ROWS = 100_000
OFF = ManagerOptions(compaction=CompactionMode.OFF)


class CountedStore:
    """A store that counts the bytes of data files that are read."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.bytes_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, path: str) -> bytes:
        return self._counted(path, self._store.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self._counted(path, self._store.get_range(path, start, length))

    def _counted(self, path: str, data: bytes) -> bytes:
        with self._lock:
            self.bytes_read += len(data) if path.endswith(".parquet") else 0
        return data


def batch(table: str) -> pa.RecordBatch:
    riders = pa.array(np.arange(ROWS))
    fares = pa.array(np.random.default_rng(0).random(ROWS))
    times = pa.array(np.arange(ROWS), pa.timestamp("us", "UTC"))
    more = {} if table == "riders" else {"_time": times}
    return pa.record_batch({"rider": riders, **more, "fare": fares})


def rows_of(manager: TableManager, table: str) -> int:
    if table == "riders":
        return sum(rows.num_rows for rows in manager.get_keyed("riders").scan())
    return int(manager.get_time_keyed("trips").read().num_rows)


@pytest.mark.parametrize("config", [RIDERS, TRIPS], ids=lambda config: str(config.name))
def test_restores_read_only_what_they_own(config: TableConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 1024)
    table = config.name
    cluster = Cluster(1, {table: config}, store=MemoryStore(), options=OFF)
    (manager,) = cluster.managers
    manager.send(TableData(table, RecordBatch(batch(table))))
    record = cluster.commit()
    whole = manager.metrics().tables[table].store_bytes
    cluster.close()
    found, read = [], []
    parallelism = 8
    for index in range(parallelism):
        store = CountedStore(cluster.store)
        task = TaskInfo(JOB, OPERATOR, index, parallelism)
        with TableManager(task, {table: config}, store, restore_from=record, options=OFF) as one:
            assert store.bytes_read == 0, "nothing is read before it is wanted"
            found.append(rows_of(one, table))
            read.append(store.bytes_read)
    assert sum(found) == ROWS
    # Row groups are read whole, so a subtask reads a little beyond the edges of its own part.
    assert max(read) < 0.25 * whole
    assert sum(read) < 1.5 * whole


def test_p4_all_tables_of_a_manager_are_charged_to_one_budget_and_give_it_back(tmp_path: Any) -> None:
    tiers = Tiers(MemoryController(256 << 20), folder=tmp_path)
    cluster = Cluster(1, {"riders": RIDERS, "trips": TRIPS}, tiers=tiers, options=OFF)
    (manager,) = cluster.managers
    for table in ("riders", "trips"):
        manager.send(TableData(table, RecordBatch(batch(table))))
    memory = manager.metrics().memory
    owners = {owner for owner, _ in memory.accounts}
    assert {f"{OPERATOR}-riders-0", f"{OPERATOR}-trips-0"} <= owners
    assert memory.used > 2 * ROWS * 16
    cluster.commit()
    assert (OPERATOR, Purpose.WRITES) not in manager.metrics().memory.accounts, "uploads are done"
    cluster.close()
    del manager
    cluster.managers = []
    assert tiers.memory.used == 0
    tiers.close()
