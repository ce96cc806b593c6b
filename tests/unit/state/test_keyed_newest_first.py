"""Keyed state without copies on this host: files are read from the newest on, until all keys are found."""

import datetime as dt
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from effort import diagonals

from statebed.format import checkpoint_pb2 as pb
from statebed.state import (
    CompactionMode,
    KeyedView,
    ManagerOptions,
    MemoryController,
    TableManager,
    TaskInfo,
    Tiers,
    keyed_table_config,
    operator_entry,
)
from statebed.state.host_cache import HostCache
from statebed.storage import MemoryStore

COLUMNS = pa.schema([("id", pa.int64()), ("total", pa.int64())])
CONFIGS = {
    "totals": keyed_table_config("totals", "", ["id"], COLUMNS),
    "fresh": keyed_table_config("fresh", "", ["id"], COLUMNS, ttl=dt.timedelta(microseconds=50)),
}
OLD, HOT = range(400), range(7)
Step = Callable[[KeyedView], object]


class WatchedStore(MemoryStore):
    """Remembers which objects were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def get(self, path: str) -> bytes:
        self.read.add(path)
        return super().get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self.read.add(path)
        return super().get_range(path, start, length)


class Restarted:
    """A subtask that restores each epoch from the store, with a new host cache or without any."""

    def __init__(self, folder: Path | None, budget: int = 64 << 20) -> None:
        self.store = WatchedStore()
        self.folder = folder
        self.tiers = Tiers(MemoryController(budget))
        self.record: pb.CheckpointMetadata | None = None
        self.epoch = 0

    def manager(self) -> TableManager:
        self.epoch += 1
        cache = None if self.folder is None else HostCache(self.folder / f"cache-{self.epoch}", 1 << 30)
        return TableManager(
            TaskInfo("job", "op"),
            CONFIGS,
            self.store,
            restore_from=self.record,
            options=ManagerOptions(compaction=CompactionMode.OFF),
            tiers=self.tiers,
            cache=cache,
        )

    def run(self, *steps: Step, table: str = "totals") -> list[object]:
        """Restore, run the steps, and take a checkpoint."""
        with self.manager() as manager:
            results = [step(manager.get_keyed(table)) for step in steps]
            done = manager.checkpoint(self.epoch, watermark=10 * self.epoch).result(60)
        self.record = pb.CheckpointMetadata(job_id="job", epoch=self.epoch, operators=[operator_entry([done])])
        return results

    def data_read(self, step: Step) -> set[int]:
        """Return the epochs whose data files a step reads in a manager of its own."""
        with self.manager() as manager:
            self.store.read.clear()
            step(manager.get_keyed("totals"))
        return {int(path.split("/")[1]) for path in self.store.read if "/data/" in path}


def keys_of(ids: Sequence[int]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def put(ids: Sequence[int], total: int, time: int | None = None) -> Step:
    times = None if time is None else pa.array(np.full(len(ids), time), pa.timestamp("us", "UTC"))
    values = pa.table({"total": pa.array([total] * len(ids), pa.int64())})
    return lambda view: view.upsert(keys_of(ids), values, times=times)


def get(ids: Sequence[int]) -> Step:
    def step(view: KeyedView) -> object:
        values, found = view.get(keys_of(ids))
        return values["total"].to_pylist(), list(found)

    return step


def delete(ids: Sequence[int]) -> Step:
    return lambda view: list(view.delete(keys_of(ids)))


def add(ids: Sequence[int], total: int) -> Step:
    def added(old: pa.Table, new: pa.Table) -> pa.Table:
        return pa.table({"total": pa.compute.add(old["total"], new["total"])})

    values = pa.table({"total": pa.array([total] * len(ids), pa.int64())})
    return lambda view: view.merge(keys_of(ids), values, added)


def scan(view: KeyedView) -> list[tuple[int, int]]:
    return sorted((row["id"], row["total"]) for piece in view.scan() for row in piece.to_pylist())


@pytest.fixture
def subtask(tmp_path: Path) -> Restarted:
    subtask = Restarted(tmp_path)
    subtask.run(put(OLD, 1))
    subtask.run(put(HOT, 2))
    subtask.run(put([3], 3))
    return subtask


def test_keys_of_the_last_epochs_are_found_without_reading_older_files(subtask: Restarted) -> None:
    assert subtask.data_read(get([3])) == {3}
    assert subtask.data_read(get(HOT)) == {2, 3}
    assert subtask.data_read(get([3, 300])) == {1, 2, 3}
    assert subtask.data_read(get([3, 1000])) == {1, 2, 3}  # a key that is in no file
    assert subtask.data_read(scan) == {1, 2, 3}


def test_older_files_are_read_when_a_later_key_needs_them(subtask: Restarted) -> None:
    answers = subtask.run(get([3]), get([3, 300]), get(HOT))
    assert answers == [([3], [True]), ([3, 1], [True, True]), ([2, 2, 2, 3, 2, 2, 2], [True] * 7)]


def test_rows_written_over_the_newest_files_stay_the_newest(subtask: Restarted) -> None:
    after = [(id_, {3: 30, 5: 7}.get(id_, 2 if id_ in HOT else 1)) for id_ in OLD if id_ != 4]
    answers = subtask.run(add([3], 27), delete([4]), get([4]), put([5], 7), get([300]), scan)
    assert answers[1:3] == [[True], ([None], [False])]
    assert answers[5] == after
    assert subtask.run(scan) == [after]


def test_a_deleted_key_is_not_looked_for_in_older_files(subtask: Restarted) -> None:
    subtask.run(delete([3]))
    assert subtask.data_read(get([3])) == {4}
    assert subtask.run(get([3]), get([300]), get([3])) == [([None], [False]), ([1], [True]), ([None], [False])]


def test_the_rest_is_read_after_a_checkpoint_of_the_same_view(subtask: Restarted) -> None:
    with subtask.manager() as manager:
        view = manager.get_keyed("totals")
        add([3], 10)(view)
        manager.checkpoint(subtask.epoch).result(60)
        assert get([3, 300])(view) == ([13, 1], [True, True])
        assert len(scan(view)) == len(OLD)


def test_rows_expire_in_files_that_were_not_read(tmp_path: Path) -> None:
    subtask = Restarted(tmp_path)
    subtask.run(put(OLD, 1, time=10), table="fresh")
    subtask.run(put(HOT, 2, time=40), table="fresh")
    with subtask.manager() as manager:
        view = manager.get_keyed("fresh")
        assert get([3])(view) == ([2], [True])
        assert view.advance(70) == len(OLD) - len(HOT)
        assert [id_ for id_, _ in scan(view)] == list(HOT)


def test_a_cache_that_fills_up_before_the_older_files_costs_time_only(
    subtask: Restarted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subtask.manager() as manager:
        view = manager.get_keyed("totals")
        assert get([3])(view) == ([3], [True])
        monkeypatch.setattr(HostCache, "add", lambda *_, **__: False)
        assert get([3, 300])(view) == ([3, 1], [True, True])
        assert len(scan(view)) == len(OLD)


@pytest.mark.parametrize(("seed", "budget"), diagonals(range(6), [64 << 20, 1 << 20]))
def test_p6_answers_and_bytes_are_those_without_a_cache(tmp_path: Path, seed: int, budget: int) -> None:
    draw = random.Random(seed)
    jobs = [Restarted(tmp_path, budget), Restarted(None, budget)]
    hot = list(HOT)
    for _ in range(12):
        steps: list[Step] = []
        for _ in range(draw.randrange(1, 5)):
            ids = sorted({draw.choice(hot) if draw.random() < 0.9 else draw.randrange(40) for _ in range(6)})
            kind = draw.choice([put, add])
            steps.append(draw.choice([get(ids), kind(ids, draw.randrange(9)), delete(ids[:1])]))
            hot = (hot + ids)[-8:]
        if draw.random() < 0.3:
            steps.insert(draw.randrange(len(steps) + 1), scan)
        first, second = (job.run(*steps) for job in jobs)
        assert first == second
    stored = [{info.path: job.store.get(info.path) for info in job.store.list("")} for job in jobs]
    assert stored[0] == stored[1]
