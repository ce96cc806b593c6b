"""Keyed state looked up in copies that the host shares: the same answers and the same bytes as without them."""

import datetime as dt
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
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
    keyed_table_config,
)
from statebed.state.host_cache import HostCache, cache
from statebed.state.keyed.cached_runs import CachedRuns
from statebed.storage import MemoryStore

COLUMNS = pa.schema([("id", pa.int64()), ("part", pa.string()), ("total", pa.int64()), ("name", pa.string())])
CONFIGS = {
    "totals": keyed_table_config("totals", "", ["id", "part"], COLUMNS),
    "fresh": keyed_table_config("fresh", "", ["id", "part"], COLUMNS, ttl=dt.timedelta(microseconds=30)),
}
OFF = ManagerOptions(compaction=CompactionMode.OFF)
Content = dict[str, list[dict[str, Any]]]


class Job:
    """Some subtasks, each a new manager in every epoch, as on a cluster whose workers have no memory of their own."""

    def __init__(self, shared: HostCache | None, budget: int = 64 << 20) -> None:
        self.store = MemoryStore()
        self.shared = shared
        self.tiers = Tiers(MemoryController(budget))
        self.record = pb.CheckpointMetadata(job_id="job", epoch=0)
        self.draw = random.Random(7)

    def epoch(self, parallelism: int, rows: int, keys: int) -> None:
        number = self.record.epoch + 1
        ids = [self.draw.randrange(keys) for _ in range(rows)]
        batch = pa.table(
            [
                pa.array(ids, pa.int64()),
                pa.array([None if one % 5 == 0 else f"part {one % 3}" for one in ids]),
                pa.array([None if one % 7 == 0 else number * one for one in ids], pa.int64()),
                pa.array([None if one % 11 == 0 else "x" * (one % 40) for one in ids]),
            ],
            schema=COLUMNS,
        )
        gone = pa.table(
            [pa.array([self.draw.randrange(keys)]), pa.array(["part 1"])], schema=COLUMNS.remove(3).remove(2)
        )
        entry = pb.OperatorEntry(operator_id="op", parallelism=parallelism)
        for index in range(parallelism):
            entry.subtasks.append(self._subtask(index, parallelism, number, batch, gone))
        self.record = pb.CheckpointMetadata(job_id="job", epoch=number, operators=[entry])

    def _subtask(self, index: int, parallelism: int, number: int, batch: pa.Table, gone: pa.Table) -> Any:
        with self.manager(index, parallelism) as manager:
            for name in CONFIGS:
                view = manager.get_keyed(name)
                mine, lost = _owned(batch, view.owned), _owned(gone, view.owned)
                keys, values = mine.select(["id", "part"]), mine.select(["total", "name"])
                stored, found = view.get(keys)
                assert stored.num_rows == len(found) == mine.num_rows
                times = pa.array(np.full(mine.num_rows, 10 * number), pa.timestamp("us", "UTC"))
                view.upsert(keys, values, times=times if name == "fresh" else None)
                view.delete(lost)
            taken = manager.checkpoint(number, 0, 10 * number, then_stop=True)
            return taken.result(60).reference

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

    def content(self) -> Content:
        with self.manager(0, 1) as manager:
            return {
                name: [row for piece in manager.get_keyed(name).scan() for row in piece.to_pylist()] for name in CONFIGS
            }

    def objects(self) -> dict[str, bytes]:
        return {info.path: self.store.get(info.path) for info in self.store.list("")}


def _owned(rows: pa.Table, owned: pb.HashRange) -> pa.Table:
    hashes = hash_columns([rows["id"].combine_chunks(), rows["part"].combine_chunks()])
    return rows.take(pa.array(np.flatnonzero(in_range(hashes, owned))))


@pytest.fixture
def shared(tmp_path: Path) -> HostCache:
    return HostCache(tmp_path / "cache", 1 << 30)


@pytest.fixture(autouse=True)
def nothing_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_checked", cache._VerifiedFiles())


def both(shared: HostCache, **options: int) -> Iterator[tuple[Job, Job]]:
    jobs = Job(None, **options), Job(shared, **options)
    yield jobs
    assert jobs[0].content() == jobs[1].content()
    assert jobs[0].objects() == jobs[1].objects()


def test_p6_state_bytes_and_answers_are_the_same_with_and_without_copies(shared: HostCache) -> None:
    for plain, copied in both(shared):
        for number in range(11):
            for job in (plain, copied):
                job.epoch(2, 300, 200 + 40 * number)
            if number == 8:
                assert plain.content() == copied.content()
    assert shared.counts.hits > 100
    assert shared.counts.failures == shared.counts.damaged == 0


def test_p6_nor_do_rescaling_damage_and_eviction_show(shared: HostCache) -> None:
    draw = random.Random(1)
    for plain, copied in both(shared):
        for number, parallelism in enumerate([1, 3, 2, 2, 5, 1, 4]):
            for job in (plain, copied):
                job.epoch(parallelism, 200, 300)
            files = sorted(shared.folder.glob("*.columns"))
            for path in draw.sample(files, len(files) // 3):
                path.unlink()
            victim = draw.choice(sorted(shared.folder.glob("*.columns")))
            data = bytearray(victim.read_bytes())
            data[draw.randrange(len(data))] ^= 1 << (number % 8)
            victim.write_bytes(data)
    assert shared.counts.damaged


def test_p6_nor_does_a_budget_that_makes_it_spill(shared: HostCache) -> None:
    for plain, copied in both(shared, budget=1 << 18):
        for _ in range(3):
            for job in (plain, copied):
                job.epoch(1, 2000, 3000)
        assert copied.tiers.memory.snapshot().events["spills"]


def test_an_epoch_after_one_on_this_host_reads_no_data_file(shared: HostCache, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(shared)
    job.epoch(2, 300, 200)
    read: list[str] = []
    get_range = MemoryStore.get_range

    def counted(store: MemoryStore, path: str, start: int, length: int) -> bytes:
        read.append(path)
        return get_range(store, path, start, length)

    monkeypatch.setattr(MemoryStore, "get_range", counted)
    for _ in range(5):
        job.epoch(2, 300, 200)
    assert read == []
    for path in shared.folder.glob("*.columns"):
        path.unlink()
    job.epoch(2, 300, 200)
    assert read


def test_p4_copies_take_no_memory_of_the_budget(shared: HostCache) -> None:
    job = Job(shared)
    job.epoch(1, 20_000, 20_000)
    with job.manager(0, 1) as manager:
        view = manager.get_keyed("totals")
        keys = pa.table([pa.array([1, 2, 3]), pa.array(["part 1", "part 2", "part 0"])], schema=view.table.key_schema)
        view.get(keys)
        assert view.held_bytes == 0
        assert manager.metrics().tables["totals"].disk_bytes > 100_000
        assert job.tiers.cache.used == 0


def test_after_a_rescale_a_subtask_copies_only_what_it_owns(shared: HostCache) -> None:
    job = Job(shared)
    job.epoch(1, 20_000, 1 << 40)
    before = shared.used
    for path in shared.folder.glob("*.columns"):
        path.unlink()
    with job.manager(1, 5) as manager:
        view = manager.get_keyed("totals")
        assert sum(piece.num_rows for piece in view.scan()) == pytest.approx(4000, rel=0.1)
    assert shared.used < 0.25 * before


def test_a_manager_that_warms_the_cache_leaves_nothing_to_decode(shared: HostCache) -> None:
    job = Job(None)
    job.epoch(2, 300, 200)
    job.shared = shared
    for index in range(2):
        with job.manager(index, 2) as manager:
            manager.warm()
    assert shared.counts.written == 4
    job.epoch(2, 300, 200)
    assert shared.counts.hits >= 4
    assert shared.counts.written == 8


@pytest.mark.parametrize(("rows", "files"), [(120_000, 1), pytest.param(400_000, 2, marks=pytest.mark.long)])
def test_changes_that_are_written_in_pieces_are_not_decoded_again(
    shared: HostCache, monkeypatch: pytest.MonkeyPatch, rows: int, files: int
) -> None:
    budget = 256 << 20
    job, alone = Job(shared, budget), Job(None, budget)
    for one in (job, alone):
        one.epoch(1, rows, 1 << 40)
    assert job.objects() == alone.objects()
    assert sum("totals" in path for path in job.objects()) == files
    monkeypatch.setattr(CachedRuns, "_rows", lambda *_: pytest.fail("a file is decoded"))
    with job.manager(0, 1) as copied, alone.manager(0, 1) as decoded:
        for name in CONFIGS:
            content = [pa.concat_tables(manager.get_keyed(name).scan()) for manager in (copied, decoded)]
            assert content[0].equals(content[1])


def test_a_copy_of_other_columns_is_another_copy(shared: HostCache) -> None:
    job = Job(shared)
    job.epoch(1, 300, 200)
    fewer = COLUMNS.remove(COLUMNS.get_field_index("total"))
    configs = {**CONFIGS, "totals": keyed_table_config("totals", "", ["id", "part"], fewer)}
    task = TaskInfo("job", "op", 0, 1)
    with TableManager(task, configs, job.store, restore_from=job.record, tiers=job.tiers, cache=shared) as manager:
        (rows,) = manager.get_keyed("totals").scan()
    assert rows.to_pylist() == [{name: row[name] for name in fewer.names} for row in job.content()["totals"]]


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
sys.path[:0] = sys.argv[2:]
from test_keyed_host_cache import Job
from statebed.state.host_cache import HostCache
from statebed.state.host_cache import cache
cache.mapped = None
shared = HostCache(sys.argv[1], 1 << 30)
plain, job = Job(None), Job(shared)
for _ in range(5):
    for one in (plain, job):
        one.epoch(2, 300, 200)
assert plain.content() == job.content()
assert plain.objects() == job.objects()
assert shared.counts.hits and not shared.counts.failures
with job.manager(0, 1) as manager:
    list(manager.get_keyed("totals").scan())
    print(manager.get_keyed("totals").held_bytes)
"""


def test_where_address_space_is_limited_copies_are_read_and_charged(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "cache"), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000


def test_a_cache_that_cannot_be_written_makes_no_difference_but_time(
    shared: HostCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostCache, "writable", property(lambda _: False))
    monkeypatch.setattr(CachedRuns, "_copied", lambda *_: pytest.fail("prepared a copy that cannot be written"))
    for plain, copied in both(shared):
        for _ in range(4):
            for job in (plain, copied):
                job.epoch(2, 300, 200)
    assert shared.used == 0
