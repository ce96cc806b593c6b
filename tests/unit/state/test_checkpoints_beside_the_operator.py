"""A checkpoint takes what changed and returns: other threads sort and encode it while the operator continues."""

import datetime as dt
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest

from statebed.errors import SubtaskError
from statebed.format import checkpoint_pb2 as pb
from statebed.state import (
    CheckpointCompleted,
    CompactionMode,
    ManagerOptions,
    TableConfig,
    TableManager,
    TaskInfo,
    keyed_table_config,
    operator_entry,
    timestamp_table_config,
)
from statebed.state.keyed import checkpoint as keyed_checkpoint
from statebed.state.memory.controller import MemoryController, Purpose
from statebed.state.tiers.shared_tiers import Tiers
from statebed.storage import MemoryStore

TASK = TaskInfo("job", "fares")
OPTIONS = ManagerOptions(compaction=CompactionMode.OFF)
COLUMNS = pa.schema([("id", pa.int64()), ("fare", pa.int64()), ("tip", pa.float64()), ("city", pa.string())])
HOUR = dt.timedelta(hours=1)
TIME_KEYED = {"rides": timestamp_table_config("rides", "", 1000 * HOUR, False, COLUMNS, keys=["id"], bin_width=HOUR)}
KEYED = {"fares": keyed_table_config("fares", "", ["id"], COLUMNS)}
ROWS = 300_000


def rows_of(ids: np.ndarray, fare: int) -> pa.Table:
    cities = pa.array(["Lisbon", "Oslo", "a city with a rather long name", "Rome"])
    return pa.table(
        {
            "id": ids,
            "fare": np.full(len(ids), fare, dtype=np.int64) + ids % 7,
            "tip": np.sqrt(ids.astype(np.float64)),
            "city": cities.take(pa.array(ids % 4)),
        },
        schema=COLUMNS,
    )


def put(manager: TableManager, ids: np.ndarray, fare: int) -> None:
    rows = rows_of(ids, fare)
    manager.get_keyed("fares").upsert(rows.select(["id"]), rows.drop_columns(["id"]))


def record_of(done: CheckpointCompleted) -> pb.CheckpointMetadata:
    return pb.CheckpointMetadata(job_id="job", epoch=done.epoch, operators=[operator_entry([done])])


def contents(manager: TableManager) -> dict[int, int]:
    return {
        row["id"]: row["fare"]
        for piece in manager.get_keyed("fares").scan()
        for row in piece.select(["id", "fare"]).to_pylist()
    }


class Held:
    """A manager whose thread stands still between two checkpoints, so that what is taken is written later."""

    def __init__(self, configs: dict[str, TableConfig], *, memory: int = 64 << 20, pending: int = 3) -> None:
        self.store = MemoryStore()
        self.go = threading.Event()
        self.stopped = threading.Event()
        self.tiers = Tiers(MemoryController(memory))
        options = ManagerOptions(compaction=CompactionMode.OFF, max_pending=pending)
        self.manager = TableManager(
            TASK, configs, self.store, options=options, tiers=self.tiers, on_completed=self._completed
        )

    def _completed(self, done: CheckpointCompleted) -> None:
        if done.epoch == 1:
            self.stopped.set()
            assert self.go.wait(60)

    def stop(self) -> None:
        self.manager.checkpoint(1)
        assert self.stopped.wait(60)

    def restored(self, done: CheckpointCompleted, configs: dict[str, TableConfig]) -> TableManager:
        return TableManager(TASK, configs, self.store, restore_from=record_of(done), tiers=self.tiers)


@contextmanager
def held(configs: dict[str, TableConfig], **more: int) -> Iterator[Held]:
    place = Held(configs, **more)
    try:
        yield place
    finally:
        place.go.set()
        place.manager.close()


def caller_share(manager: TableManager, epoch: int) -> float:
    """Processor time of the caller inside `checkpoint`, as a part of all that the process takes until it is durable."""
    before_all, before = time.process_time(), time.thread_time()
    durable = manager.checkpoint(epoch)
    taken = time.thread_time() - before
    durable.result(120)
    return taken / (time.process_time() - before_all)


def test_the_caller_of_a_keyed_checkpoint_does_little_of_the_work() -> None:
    with TableManager(TASK, KEYED, MemoryStore(), options=OPTIONS, tiers=Tiers(MemoryController(1 << 30))) as manager:
        put(manager, np.arange(ROWS), 1)
        assert caller_share(manager, 1) < 0.25
        put(manager, np.arange(0, ROWS, 2), 2)
        assert caller_share(manager, 2) < 0.25


def test_what_is_written_after_a_keyed_checkpoint_was_taken_is_not_in_it() -> None:
    ids = np.arange(20_000)
    with held(KEYED) as place:
        put(place.manager, ids, 1)
        place.stop()
        put(place.manager, ids[::2], 1000)  # half of the rows: the run lends its arrays
        second = place.manager.checkpoint(2)
        expected = contents(place.manager)
        put(place.manager, ids, 2000)
        put(place.manager, ids[:10] + len(ids), 2000)
        place.manager.get_keyed("fares").delete(pa.table({"id": ids[:100]}))
        third = place.manager.checkpoint(3)
        last = contents(place.manager)
        put(place.manager, ids[5:15], 3000)  # few rows: they are copied when they are taken
        assert not second.done()
        place.go.set()
        for future, wanted in ((second, expected), (third, last)):
            with place.restored(future.result(60), KEYED) as restored:
                assert contents(restored) == wanted
        assert contents(place.manager)[5] == 3000 + 5


def test_rows_that_only_a_checkpoint_holds_are_charged_until_they_are_written() -> None:
    ids = np.arange(50_000)
    with held(KEYED) as place:
        put(place.manager, ids, 1)
        place.stop()
        put(place.manager, ids, 2)
        before = place.tiers.memory.used
        done = place.manager.checkpoint(2)
        put(place.manager, ids, 3)  # copies what the checkpoint still has to read
        charged = sum(
            nbytes
            for (_, purpose), nbytes in place.tiers.memory.snapshot().accounts.items()
            if purpose is Purpose.WRITES
        )
        assert charged >= len(ids) * 16
        assert place.tiers.memory.used >= before + len(ids) * 16
        place.go.set()
        done.result(60)
        purposes = {purpose for _, purpose in place.tiers.memory.snapshot().accounts}
        assert Purpose.WRITES not in purposes


def test_a_write_waits_for_the_checkpoint_when_there_is_no_room_for_a_copy() -> None:
    ids = np.arange(60_000)
    with held(KEYED, memory=8 << 20) as place:
        put(place.manager, ids, 1)
        place.stop()
        put(place.manager, ids, 2)
        done = place.manager.checkpoint(2)
        threading.Timer(0.2, place.go.set).start()
        put(place.manager, ids, 3)
        with place.restored(done.result(60), KEYED) as restored:
            assert set(contents(restored).values()) == {2 + number for number in range(7)}


def test_a_checkpoint_that_cannot_be_encoded_fails_by_the_name_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "no space left on device")

    with TableManager(TASK, KEYED, MemoryStore(), options=OPTIONS, tiers=Tiers(MemoryController(64 << 20))) as manager:
        put(manager, np.arange(1000), 1)
        monkeypatch.setattr(keyed_checkpoint, "write_delta", fails)
        done = manager.checkpoint(1)
        with pytest.raises(OSError, match="no space left") as caught:
            done.result(60)
        assert caught.value.__notes__ == [
            "while table 'fares' of epoch 1 was written (job job, operator 'fares', subtask 0 of 1)"
        ]
        with pytest.raises(SubtaskError, match="earlier checkpoint of this subtask failed"):
            manager.checkpoint(2)


def test_a_checkpoint_after_one_that_failed_gives_up_what_it_took() -> None:
    ids = np.arange(50_000)
    with held(KEYED) as place:
        put(place.manager, ids, 1)
        place.stop()
        put(place.manager, ids, 2)
        second = place.manager.checkpoint(2)
        put(place.manager, ids, 3)
        third = place.manager.checkpoint(3)
        place.manager._failure = OSError("of somebody else")
        place.go.set()
        for one in (second, third):
            with pytest.raises(SubtaskError):
                one.result(60)
        assert Purpose.WRITES not in {purpose for _, purpose in place.tiers.memory.snapshot().accounts}


# ---- time-keyed tables -----------------------------------------------------------------------------------------


def append(manager: TableManager, ids: np.ndarray, fare: int) -> None:
    """One ride a second."""
    rows = rows_of(ids, fare).append_column("_time", pa.array(ids * 1_000_000, pa.timestamp("us", "UTC")))
    for start in range(0, len(ids), 10_000):
        manager.get_time_keyed("rides").append(rows.slice(start, 10_000))


def rides(manager: TableManager) -> list[tuple[int, int]]:
    rows = manager.get_time_keyed("rides").read().select(["id", "fare"])
    return sorted(zip(rows["id"].to_pylist(), rows["fare"].to_pylist(), strict=True))


def test_the_caller_of_a_time_keyed_checkpoint_does_little_of_the_work() -> None:
    tiers = Tiers(MemoryController(1 << 30))
    with TableManager(TASK, TIME_KEYED, MemoryStore(), options=OPTIONS, tiers=tiers) as manager:
        for epoch in (1, 2):
            append(manager, np.random.default_rng(epoch).permutation(ROWS), epoch)
            assert caller_share(manager, epoch) < 0.25


def test_the_caller_does_little_of_the_work_for_rows_that_fill_no_segment_either() -> None:
    tiers = Tiers(MemoryController(1 << 30))
    with TableManager(TASK, TIME_KEYED, MemoryStore(), options=OPTIONS, tiers=tiers) as manager:
        shares = []
        for epoch in range(1, 6):
            append(manager, np.random.default_rng(epoch).permutation(ROWS // 6), epoch)
            assert manager.get_time_keyed("rides")._state.buffer.loose_bytes > 0, "they are sorted already"
            shares.append(caller_share(manager, epoch))
        assert sorted(shares)[2] < 0.25


def test_a_time_keyed_table_is_read_written_and_deleted_from_while_its_checkpoint_waits() -> None:
    ids = np.arange(20_000)
    with held(TIME_KEYED, pending=4) as place:
        view = place.manager.get_time_keyed("rides")
        append(place.manager, ids, 1)
        place.stop()
        append(place.manager, ids[:5000], 1000)
        second, at_second = place.manager.checkpoint(2), rides(place.manager)
        view.delete_times(0, 2500 * 1_000_000)  # reaches rows of a file, and rows that are in none yet
        view.delete(pa.table({"id": pa.array([3000, 3001], pa.int64())}))
        append(place.manager, ids[:100], 2000)
        third, at_third = place.manager.checkpoint(3), rides(place.manager)
        view.delete_times(0, 5000 * 1_000_000)  # covers all that the last two checkpoints appended
        fourth, at_fourth = place.manager.checkpoint(4), rides(place.manager)
        assert not second.done()
        place.go.set()
        for future, wanted in ((second, at_second), (third, at_third), (fourth, at_fourth)):
            with place.restored(future.result(60), TIME_KEYED) as restored:
                assert rides(restored) == wanted
        assert rides(place.manager) == at_fourth
        assert len(at_second) == 25_000
        assert len(at_third) == 25_000 - 5000 - 4 + 100
        assert at_fourth == [one for one in at_second if one[0] >= 5000]


def test_rows_of_merged_files_that_were_deleted_meanwhile_do_not_come_back() -> None:
    ids = np.arange(3000)
    with held(TIME_KEYED) as place:
        view = place.manager.get_time_keyed("rides")
        append(place.manager, ids, 1)
        place.stop()
        append(place.manager, ids[:10] + 5000, 1)
        job = view._state.job(lambda live: live.files)
        assert job is not None
        view.offer_edit(job.run())
        second = place.manager.checkpoint(2)  # takes the merge, and has not applied it yet
        view.delete_times(0, 3000 * 1_000_000)  # the file that was merged lies inside
        third = place.manager.checkpoint(3)
        place.go.set()
        second.result(60)
        with place.restored(third.result(60), TIME_KEYED) as restored:
            assert rides(restored) == rides(place.manager)
            assert [key for key, _ in rides(restored)] == list(range(5000, 5010))


def test_checkpoints_with_merges_in_line_show_what_was_there_when_they_were_taken() -> None:
    rng = np.random.default_rng(3)
    options = ManagerOptions(compaction=CompactionMode.IN_LINE, max_pending=4)
    store, tiers = MemoryStore(), Tiers(MemoryController(2 << 20))
    taken: list[tuple[Future[CheckpointCompleted], list[tuple[int, int]]]] = []
    with TableManager(TASK, TIME_KEYED, store, options=options, tiers=tiers) as manager:
        for epoch in range(1, 25):
            append(manager, rng.integers(0, 20_000, 1500), epoch)
            if epoch % 3 == 0:
                start = int(rng.integers(0, 15_000))
                manager.get_time_keyed("rides").delete_times(start * 1_000_000, (start + 4000) * 1_000_000)
            if epoch % 4 == 0:
                manager.get_time_keyed("rides").delete(pa.table({"id": rng.integers(0, 20_000, 50)}))
            taken.append((manager.checkpoint(epoch), rides(manager)))
        for future, wanted in taken[1::2]:
            record = record_of(future.result(60))
            with TableManager(TASK, TIME_KEYED, store, restore_from=record, tiers=tiers) as restored:
                assert rides(restored) == wanted
