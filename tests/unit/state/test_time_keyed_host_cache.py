"""Time-keyed state read from copies that the host shares: the same answers and the same bytes as without them."""

import datetime as dt
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statebed.arrays.key_hash import hash_columns
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import in_range
from statebed.state import (
    CompactionMode,
    ManagerOptions,
    MemoryController,
    TableManager,
    TaskInfo,
    Tiers,
    timestamp_table_config,
)
from statebed.state.host_cache import HostCache, cache
from statebed.storage import MemoryStore

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
CONFIGS = {
    "rows": timestamp_table_config(
        "rows", "", dt.timedelta(seconds=1), False, COLUMNS, keys=["id"], bin_width=dt.timedelta(microseconds=10)
    )
}
OFF = ManagerOptions(compaction=CompactionMode.OFF)


class Job:
    """Some subtasks, each a new manager in every epoch."""

    def __init__(self, shared: HostCache | None) -> None:
        self.store = MemoryStore()
        self.shared = shared
        self.tiers = Tiers(MemoryController(64 << 20))
        self.record = pb.CheckpointMetadata(job_id="job", epoch=0)
        self.draw = random.Random(7)
        self.seen: list[Any] = []

    def epoch(self, parallelism: int, rows: int = 100, keys: int = 50) -> None:
        number = self.record.epoch + 1
        ids = np.array([self.draw.randrange(keys) for _ in range(rows)])
        times = np.array([20 * number + self.draw.randrange(60) for _ in range(rows)])
        wanted = np.array([self.draw.randrange(keys) for _ in range(5)])
        entry = pb.OperatorEntry(operator_id="op", parallelism=parallelism)
        for index in range(parallelism):
            with self.manager(index, parallelism) as manager:
                view = manager.get_time_keyed("rows")
                some = pa.table({"id": wanted[in_range(hash_columns([pa.array(wanted)]), manager.task.owned)]})
                self.seen.append(view.read(20 * number, None, keys=some).to_pylist())
                self.seen.append(view.read(20 * (number - 3), 20 * number).to_pylist())
                mine = in_range(hash_columns([pa.array(ids)]), manager.task.owned)
                view.append(
                    pa.table(
                        {
                            "id": ids[mine],
                            "_time": pa.array(times[mine]).cast(pa.timestamp("us", "UTC")),
                            "name": pa.array([f"{one}" if one % 3 else None for one in times[mine].tolist()]),
                        }
                    )
                )
                if number % 4 == 0:
                    view.delete(some)
                view.delete_times(0, max(20 * (number - 4), 0))
                taken = manager.checkpoint(number, 0, None, then_stop=True)
                entry.subtasks.append(taken.result(60).reference)
        self.record = pb.CheckpointMetadata(job_id="job", epoch=number, operators=[entry])

    def manager(self, index: int, parallelism: int) -> TableManager:
        return TableManager(
            TaskInfo("job", "op", index, parallelism),
            CONFIGS,
            self.store,
            restore_from=self.record if self.record.epoch else None,
            options=OFF,
            tiers=self.tiers,
            cache=self.shared,
        )

    def objects(self) -> dict[str, bytes]:
        return {info.path: self.store.get(info.path) for info in self.store.list("")}


@pytest.fixture
def shared(tmp_path: Path) -> HostCache:
    return HostCache(tmp_path / "cache", 1 << 30)


@pytest.fixture(autouse=True)
def nothing_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_checked", cache._VerifiedFiles())


def test_p6_answers_and_state_bytes_are_the_same_with_and_without_copies(shared: HostCache) -> None:
    plain, copied = Job(None), Job(shared)
    draw = random.Random(1)
    for number, parallelism in enumerate([2, 2, 2, 2, 5, 5, 1, 1, 3]):
        for job in (plain, copied):
            job.epoch(parallelism)
        if number > 3:
            for path in draw.sample(sorted(shared.folder.glob("*.columns")), 3):
                path.unlink()
            victim = draw.choice(sorted(shared.folder.glob("*.columns")))
            data = bytearray(victim.read_bytes())
            data[draw.randrange(len(data))] ^= 4
            victim.write_bytes(data)
    assert plain.seen == copied.seen
    assert any(plain.seen)
    assert plain.objects() == copied.objects()
    assert shared.counts.hits > 10


def test_an_epoch_after_one_on_this_host_reads_no_data_file(shared: HostCache, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(shared)
    job.epoch(2)
    read: list[str] = []
    get_range = MemoryStore.get_range

    def counted(store: MemoryStore, path: str, start: int, length: int) -> bytes:
        read.append(path)
        return get_range(store, path, start, length)

    monkeypatch.setattr(MemoryStore, "get_range", counted)
    for _ in range(4):
        job.epoch(2)
    assert read == []


def test_only_a_read_by_keys_makes_a_copy_of_a_file(shared: HostCache) -> None:
    job = Job(None)
    job.epoch(1)
    job.shared = shared
    with job.manager(0, 1) as manager:
        view = manager.get_time_keyed("rows")
        everything = view.read()
        assert shared.used == 0
        assert view.read(keys=pa.table({"id": pa.array(range(50))})).sort_by("_time") == everything.sort_by("_time")
        assert shared.counts.written == 1
    with job.manager(0, 1) as manager:
        assert manager.get_time_keyed("rows").read() == everything
    assert shared.counts.hits == 2
