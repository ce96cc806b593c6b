"""Compaction by checkpoints of a time-keyed table: bounded bytes in each epoch, and all of it over several."""

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from unit.state.fare_rows import SCHEMA
from unit.state.segment_rows import file_entry, opened_tiers

from statebed.arrays.columns import from_numpy
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.schema import TIMESTAMP
from statebed.state import TimeKeyedView, timestamp_table_config
from statebed.state.live.files import LiveFiles
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.time_keyed.compaction import FAR_TOO_MANY, FEWER_AFTER, MAX_TOMBSTONES, files_for_checkpoint
from statebed.state.time_keyed.files import MAX_BUCKETS, file_bytes
from statebed.state.time_keyed.table import MAX_FILES
from statebed.storage import MemoryStore

FILES = 10
ROWS = 5_000
TIMES = 20_000
BOUND = 200_000
"""About two of the files."""
ENCODED_ANEW = 1.03
"""Rows of two files in one take a little more or less."""
FAR = FAR_TOO_MANY * MAX_TOMBSTONES
MANY_TIMES = range(1_000, 1_000 + 2 * FAR + 2, 2)
"""Times to be deleted one by one, which takes a tombstone too many."""
LARGE = 1 << 40


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    with opened_tiers(tmp_path, budget=2 << 20) as opened:
        yield opened


class CountingStore(MemoryStore):
    """Counts the bytes that are read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = self.written_bytes = 0

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self.read_bytes += length
        return super().get_range(path, start, length)

    def put(self, path: str, data: bytes) -> None:
        self.written_bytes += len(data)
        super().put(path, data)


class World:
    """A table that is restored for each epoch, so that all it merges is read from the store."""

    def __init__(self, tiers: Tiers, *, bin_us: int = TIMES) -> None:
        """All times are in one bin, unless told otherwise: no merge splits a file."""
        self.tiers = tiers
        width = dt.timedelta(microseconds=bin_us)
        self.config = timestamp_table_config(
            "fares", "", dt.timedelta(days=1), False, SCHEMA, keys=["driver"], bin_width=width
        )
        self.store = CountingStore()
        self.epoch = 0
        self.parts: list[pb.TableSubtaskCheckpointMetadata] = []
        self.rows = np.empty((2, 0), dtype=np.int64)
        """The fares of the rows and their times."""

    def restored(self) -> TimeKeyedView:
        return TimeKeyedView(self.config, owned=WHOLE_SPACE, store=self.store, tiers=self.tiers, parts=self.parts)

    def run_epoch(self, *, add: int = 0, delete: Sequence[int] = (), max_bytes: int | None = BOUND) -> tuple[int, int]:
        """Append rows of all times, delete some times; gives the bytes read and written by the checkpoint."""
        self.epoch += 1
        view = self.restored()
        chance = np.random.default_rng(self.epoch)
        fares = np.arange(self.epoch * ROWS, self.epoch * ROWS + add)
        times = chance.integers(0, TIMES, add)
        if add:
            drivers = from_numpy(chance.random(add), pa.float64())
            columns = {"driver": drivers, "_time": from_numpy(times, TIMESTAMP), "fare": from_numpy(fares, pa.int64())}
            view.append(pa.table(columns))
        self.rows = np.hstack([self.rows, [fares, times]])
        for time in delete:
            view.delete_times(time, time + 1)
        self.rows = self.rows[:, ~np.isin(self.rows[1], delete)]
        self.store.read_bytes = self.store.written_bytes = 0
        for upload in view.checkpoint(lambda digest: f"{self.epoch}/fares.{digest}.parquet", max_bytes=max_bytes):
            self.store.put(upload.path, upload.content())
            upload.on_stored()
        moved = self.store.read_bytes, self.store.written_bytes
        self.parts = [view.metadata()]
        view.release()
        return moved

    def check(self) -> None:
        rows = self.restored().read().sort_by("fare")
        assert np.array_equal([rows["fare"].to_numpy(), rows["_time"].cast(pa.int64()).to_numpy()], self.rows)

    @property
    def files(self) -> int:
        return len(self.parts[0].files)

    @property
    def tombstones(self) -> int:
        return len(self.parts[0].tombstones)

    @property
    def nbytes(self) -> int:
        return int(self.parts[0].bytes)


def filled(tiers: Tiers, *, bin_us: int = TIMES) -> World:
    """Files that no merge is due for, which all have rows of all times."""
    world = World(tiers, bin_us=bin_us)
    for _ in range(FILES):
        world.run_epoch(add=ROWS)
    assert world.files == FILES
    assert world.nbytes > 4 * BOUND
    return world


def test_a_checkpoint_with_far_too_many_tombstones_merges_bounded_bytes_and_the_next_ones_the_rest(
    tiers: Tiers,
) -> None:
    world = filled(tiers)
    before = world.nbytes
    moved = [world.run_epoch(delete=MANY_TIMES)]
    assert world.tombstones == len(MANY_TIMES)
    while world.tombstones:
        moved.append(world.run_epoch())
        world.check()
        assert len(moved) <= FILES, "each epoch merges a file at least"
    assert len(moved) >= before // BOUND
    for read, written in moved:
        assert 0 < read <= BOUND
        assert 0 < written <= ENCODED_ANEW * BOUND
    assert sum(read for read, _ in moved) <= 1.1 * before, "each file was merged once"
    assert world.run_epoch() == (0, 0)


@pytest.mark.parametrize("bin_us", [pytest.param(TIMES, marks=pytest.mark.long), 10])
def test_tombstones_and_files_stay_bounded_while_each_epoch_deletes(tiers: Tiers, bin_us: int) -> None:
    world = filled(tiers, bin_us=bin_us)
    each = 20
    round_epochs = 2 * world.nbytes // BOUND  # a merge takes more than half of what it may
    world.run_epoch(delete=MANY_TIMES, max_bytes=1)
    most = 0
    for number in range(2 * round_epochs):
        read, written = world.run_epoch(delete=[2_000 + (number * each + one) * 17 for one in range(each)])
        assert read <= BOUND
        assert written <= ENCODED_ANEW * BOUND
        most = max(most, world.tombstones)
        assert world.files <= FILES + MAX_BUCKETS
    # What was there when a round began is gone when it ends; what came meanwhile waits for the next one.
    assert FAR < most <= len(MANY_TIMES) + 2 * each * round_epochs
    assert world.tombstones <= FAR + each
    world.check()


def test_a_file_that_alone_is_larger_than_the_bound_is_merged_alone(tiers: Tiers) -> None:
    world = filled(tiers)
    largest = max(file.size for file in world.parts[0].files)
    moved = [world.run_epoch(delete=MANY_TIMES, max_bytes=1)]
    for _ in range(FILES - 1):
        assert world.tombstones == len(MANY_TIMES)
        moved.append(world.run_epoch(max_bytes=1))
    assert world.tombstones == 0
    assert all(0 < nbytes <= largest for pair in moved for nbytes in pair)
    world.check()


def test_unless_told_otherwise_a_checkpoint_merges_as_many_bytes_as_a_file_gets(tmp_path: Path) -> None:
    with opened_tiers(tmp_path, budget=2 << 20) as tiers:
        world = World(tiers)
        for _ in range(FILES):
            world.run_epoch(add=ROWS)
        before = world.nbytes
        bound = file_bytes(tiers)
        assert before > 1.8 * bound
        read, written = world.run_epoch(delete=MANY_TIMES, max_bytes=None)
        assert bound / 2 < read <= bound
        assert bound / 2 < written <= bound
        world.check()


def test_p4_tombstones_that_take_much_of_the_budget_leave_at_once(tiers: Tiers) -> None:
    world = filled(tiers)
    before = world.nbytes
    view = world.restored()
    gone = from_numpy(np.arange(tiers.memory.budget // 4 // 16, dtype=np.float64) + 2, pa.float64())
    view.delete(pa.table({"driver": gone}))  # no such rows, but that must be looked up
    assert view.statistics().tombstones == 1
    world.parts = [view.metadata()]
    view.release()
    assert world.run_epoch()[0] > 0.9 * before
    assert world.tombstones == 0
    world.check()


def test_small_files_of_many_subtasks_are_merged_over_several_epochs(tiers: Tiers) -> None:
    worlds = [World(tiers) for _ in range(4)]
    for number, world in enumerate(worlds):
        world.store = worlds[0].store
        for _ in range(MAX_FILES):
            world.epoch += number * MAX_FILES
            world.run_epoch(add=ROWS // 4)
            world.epoch -= number * MAX_FILES
    joined = World(tiers)
    joined.store, joined.epoch = worlds[0].store, 100
    joined.parts = [part for world in worlds for part in world.parts]
    joined.rows = np.hstack([world.rows for world in worlds])
    files, moved = len(worlds) * MAX_FILES, []
    while files > MAX_FILES:
        moved.append(joined.run_epoch())
        assert joined.files < files
        files = joined.files
    assert len(moved) > 2
    assert all(0 < nbytes <= BOUND for pair in moved for nbytes in pair)
    joined.check()


# ---- which files --------------------------------------------------------------------------------------------


def with_tombstones(files: Sequence[pb.FileEntry], start: Callable[[int], int]) -> LiveFiles:
    live = LiveFiles(owned=WHOLE_SPACE, next_sequence=5, files=tuple(files))
    for number in range(FAR + 1):
        live = live.delete_range(start(number), start(number) + 1)
    return live


def chosen(live: LiveFiles, *, max_bytes: int, max_files: int = MAX_FILES, full_bytes: int = LARGE) -> list[str]:
    files = files_for_checkpoint(live, max_files=max_files, full_bytes=full_bytes, max_bytes=max_bytes)
    return [one.path for one in files]


def test_those_files_come_first_that_the_oldest_tombstones_wait_for() -> None:
    early, late = file_entry("early", (5_000, 10_000), 900), file_entry("late", (0, 4_999), 100)
    live = with_tombstones([late, early], lambda number: 9_000 - 30 * number)
    assert chosen(live, max_bytes=1) == ["early"]
    assert chosen(live, max_bytes=1000) == ["early", "late"]


def test_a_surplus_of_files_goes_first_and_leaves_fewer_files() -> None:
    files = [file_entry(f"{number}", size=100) for number in range(MAX_FILES + 3)]
    live = LiveFiles(owned=WHOLE_SPACE, files=tuple(files))
    assert len(chosen(live, max_bytes=LARGE)) == 3 + MAX_FILES // 2
    assert len(chosen(live, max_bytes=600)) == 6
    assert len(chosen(live, max_bytes=1)) == FEWER_AFTER


def test_what_a_surplus_leaves_of_the_bytes_is_for_files_with_hidden_rows() -> None:
    small = [file_entry(f"small {number}", size=10) for number in range(MAX_FILES + 1)]
    full = [file_entry(f"full {number}") for number in range(4)]
    live = with_tombstones([*small, *full], lambda number: 20 * number)
    surplus = 1 + MAX_FILES // 2
    hidden = len(chosen(live, max_bytes=LARGE, full_bytes=1000))
    assert hidden == len(small) + len(full)
    some = chosen(live, max_bytes=2_200, full_bytes=1000)
    assert [one for one in some if one.startswith("full")] == ["full 0", "full 1"]
    assert len(chosen(live, max_bytes=10 * surplus, full_bytes=1000)) == surplus
