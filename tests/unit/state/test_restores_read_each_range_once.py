"""State that is read by key after a restore: no byte of a data file is fetched from the store twice."""

import datetime as dt
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from statebed.format import checkpoint_pb2 as pb
from statebed.state import (
    CompactionMode,
    ManagerOptions,
    TableManager,
    TaskInfo,
    keyed_table_config,
    operator_entry,
    timestamp_table_config,
)
from statebed.state.memory.controller import MemoryController
from statebed.state.tiers.shared_tiers import Tiers
from statebed.storage import MemoryStore

TASK = TaskInfo("job", "fares")
HOUR = dt.timedelta(hours=1)
COLUMNS = pa.schema([("id", pa.int64()), ("fare", pa.int64())])
TABLES = {
    "last": keyed_table_config("last", "", ["id"], COLUMNS),
    "all": timestamp_table_config("all", "", 24 * HOUR, False, COLUMNS, keys=["id"], bin_width=HOUR),
}
ROWS = 60_000
BUDGET = 2 << 20
"""Small, so that a keyed table has many blocks, each smaller than a row group."""


class CountingStore(MemoryStore):
    """Counts how often each byte of a data file is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: dict[str, NDArray[np.uint16]] = {}

    def count(self, path: str, start: int, length: int) -> None:
        counts = self.fetched.setdefault(path, np.zeros(len(MemoryStore.get(self, path)), np.uint16))
        counts[start : start + length] += 1

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self.count(path, start, length)
        return MemoryStore.get(self, path)[start : start + length]

    def get(self, path: str) -> bytes:
        data = super().get(path)
        if path.endswith(".parquet"):
            self.count(path, 0, len(data))
        return data

    @property
    def most_often(self) -> int:
        return max(int(counts.max(initial=0)) for counts in self.fetched.values())


@pytest.fixture(scope="module")
def stored() -> tuple[CountingStore, pb.CheckpointMetadata]:
    store = CountingStore()
    ids = np.arange(ROWS)
    options = ManagerOptions(compaction=CompactionMode.OFF)
    with TableManager(TASK, TABLES, store, options=options, tiers=Tiers(MemoryController(64 << 20))) as manager:
        for epoch in (1, 2):
            rows = pa.table({"id": ids, "fare": ids * epoch})
            manager.get_keyed("last").upsert(rows.select(["id"]), rows.select(["fare"]))
            times = pa.array(ids * 50_000, pa.timestamp("us", "UTC"))
            manager.get_time_keyed("all").append(rows.append_column("_time", times))
            done = manager.checkpoint(epoch).result(60)
    return store, pb.CheckpointMetadata(job_id="job", epoch=2, operators=[operator_entry([done])])


def keys(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def get_keyed(manager: TableManager) -> None:
    for number in range(0, ROWS, ROWS // 8):
        values, found = manager.get_keyed("last").get(keys(number, number + 5))
        assert found.all()
        assert values["fare"].to_pylist() == [2 * number, 2 * (number + 5)]


def scan_keyed(manager: TableManager) -> None:
    assert sum(piece.num_rows for piece in manager.get_keyed("last").scan()) == ROWS


def read_time_keyed(manager: TableManager) -> None:
    for number in range(0, ROWS, ROWS // 8):
        assert manager.get_time_keyed("all").read(keys=keys(number)).num_rows == 2


@pytest.mark.parametrize("read", [get_keyed, scan_keyed, read_time_keyed])
def test_a_restore_by_key_fetches_each_byte_once(
    stored: tuple[CountingStore, pb.CheckpointMetadata], read: Callable[[TableManager], None]
) -> None:
    store, record = stored
    with TableManager(TASK, TABLES, store, restore_from=record, tiers=Tiers(MemoryController(BUDGET))) as manager:
        store.fetched.clear()
        read(manager)
        assert store.most_often == 1


def test_a_copy_that_is_damaged_is_fetched_again(stored: tuple[CountingStore, pb.CheckpointMetadata]) -> None:
    store, record = stored
    tiers = Tiers(MemoryController(BUDGET))
    with TableManager(TASK, TABLES, store, restore_from=record, tiers=tiers) as manager:
        store.fetched.clear()
        read_time_keyed(manager)
        for copy in tiers.folder.path.glob("**/*.range"):
            copy.write_bytes(b"damaged")
        read_time_keyed(manager)
        assert store.most_often == 2


def test_copies_leave_when_the_cache_is_full(stored: tuple[CountingStore, pb.CheckpointMetadata]) -> None:
    store, record = stored
    tiers = Tiers(MemoryController(BUDGET), cache_bytes=200_000)
    with TableManager(TASK, TABLES, store, restore_from=record, tiers=tiers) as manager:
        read_time_keyed(manager)
        scan_keyed(manager)
        assert sum(copy.stat().st_size for copy in tiers.folder.path.glob("**/*.range")) <= 200_000


def test_a_range_that_arrives_damaged_is_fetched_again_and_kept_intact(
    stored: tuple[CountingStore, pb.CheckpointMetadata],
) -> None:
    store, record = stored

    class Flaky(CountingStore):
        flipped = 0

        def get_range(self, path: str, start: int, length: int) -> bytes:
            data = store.get_range(path, start, length)
            self.flipped += 1
            return data[:-1] + bytes([data[-1] ^ 1]) if self.flipped == 2 else data

        def get(self, path: str) -> bytes:
            return store.get(path)

    with TableManager(TASK, TABLES, Flaky(), restore_from=record, tiers=Tiers(MemoryController(BUDGET))) as manager:
        read_time_keyed(manager)
        get_keyed(manager)
