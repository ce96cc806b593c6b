"""Compaction of time-keyed tables: by bucket, as an edit that the next checkpoint applies or discards, bounded."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from unit.state.fare_rows import Row, batch, config, counted, rows_of, store_all, view_on
from unit.state.segment_rows import file_entry, opened_tiers

from statebed.errors import SpillError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import WHOLE_SPACE, owned_range
from statebed.state.live.files import LiveFiles
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.time_keyed.compaction import (
    MAX_TOMBSTONES,
    MERGED_AT_ONCE,
    all_due_files,
    due_files,
    smallest_files,
    surplus_files,
)
from statebed.state.time_keyed.files import MAX_BUCKETS, bucket_width
from statebed.state.time_keyed.table import MAX_FILES
from statebed.state.time_keyed.view import TimeKeyedView
from statebed.storage import MemoryStore
from statebed.testing.faults import FaultStore

HOUR = 3_600_000_000
LARGE = 1 << 40


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    with opened_tiers(tmp_path) as opened:
        yield opened


def live(*files: pb.FileEntry, next_sequence: int = 5) -> LiveFiles:
    return LiveFiles(owned=WHOLE_SPACE, next_sequence=next_sequence, files=files)


def paths(files: tuple[pb.FileEntry, ...] | list[pb.FileEntry]) -> list[str]:
    return sorted(one.path for one in files)


def compact(view: TimeKeyedView, *, everything: bool = True) -> bool:
    job = view.plan_compaction(max_bytes=LARGE, everything=everything)
    if job is not None:
        view.offer_edit(job.run())
    return job is not None


# ---- which files --------------------------------------------------------------------------------------------


def test_files_of_one_bucket_are_merged_with_each_other_and_not_with_those_of_another() -> None:
    early = [file_entry(f"early {number}", (0, HOUR - 1)) for number in range(MERGED_AT_ONCE)]
    late = [file_entry(f"late {number}", (HOUR, 2 * HOUR - 1)) for number in range(MERGED_AT_ONCE - 1)]
    due = due_files(live(*early, *late), bin_us=HOUR, full_bytes=LARGE, max_bytes=LARGE)
    assert paths(due) == paths(early)
    assert not due_files(live(*late), bin_us=HOUR, full_bytes=LARGE, max_bytes=LARGE)


def test_files_that_are_full_or_much_larger_than_the_others_are_left_alone() -> None:
    small = [file_entry(f"small {number}", (0, 9), size=100) for number in range(MERGED_AT_ONCE)]
    large = file_entry("large", (0, 9), size=100_000)
    assert paths(smallest_files([large, *small])) == paths(small)
    assert paths(due_files(live(large, *small), bin_us=10, full_bytes=LARGE, max_bytes=LARGE)) == paths(small)
    assert not due_files(live(large, *small), bin_us=10, full_bytes=100, max_bytes=LARGE)


def test_a_merge_reads_bounded_bytes() -> None:
    files = [file_entry(f"{number}", (0, 9), size=100) for number in range(20)]
    assert len(due_files(live(*files), bin_us=10, full_bytes=LARGE, max_bytes=700)) == 7
    assert len(due_files(live(*files), bin_us=10, full_bytes=LARGE, max_bytes=1)) == 2


def test_few_buckets_cover_any_times() -> None:
    for last in (1, HOUR, 1000 * HOUR, 1 << 62):
        files = [file_entry("first", (-5, 5)), file_entry("last", (last, last))]
        width = bucket_width(files, bin_us=HOUR)
        assert last // width - -5 // width < MAX_BUCKETS
        assert width % HOUR == 0


def test_many_tombstones_make_the_files_due_that_they_cover() -> None:
    state = live(file_entry("covered", (0, 10_000)), file_entry("other", (50_000, 60_000)))
    for number in range(MAX_TOMBSTONES):
        state = state.delete_range(number * 20, number * 20 + 10)
    assert not due_files(state, bin_us=10, full_bytes=LARGE, max_bytes=LARGE)
    state = state.delete_range(9_000, 9_001)
    assert paths(due_files(state, bin_us=10, full_bytes=LARGE, max_bytes=LARGE)) == ["covered"]


def test_everything_is_all_that_a_merge_can_do_something_for() -> None:
    alone = file_entry("alone", (0, 9))
    twins = [file_entry("one", (10, 19)), file_entry("two", (12, 13))]
    spread = file_entry("spread", (5, 25))
    assert not all_due_files(live(alone), bin_us=10, full_bytes=LARGE)
    assert paths(all_due_files(live(alone, *twins), bin_us=10, full_bytes=LARGE)) == ["one", "two"]
    assert paths(all_due_files(live(alone, *twins, spread), bin_us=10, full_bytes=LARGE)) == ["one", "spread", "two"]
    assert paths(all_due_files(live(alone).delete_range(3, 4), bin_us=10, full_bytes=LARGE)) == ["alone"]


def test_too_many_small_files_are_a_surplus_and_full_ones_are_not() -> None:
    small = [file_entry(f"{number}", (0, 9), size=number) for number in range(10)]
    assert not surplus_files(live(*small[:8]), max_files=8, full_bytes=LARGE)
    assert paths(surplus_files(live(*small), max_files=8, full_bytes=LARGE)) == ["0", "1", "2", "3", "4", "5"]
    assert not surplus_files(live(*small), max_files=8, full_bytes=4)


# ---- edits --------------------------------------------------------------------------------------------------


def rows_at(*times: int, fare: int = 0) -> list[Row]:
    return [(float(time % 7), time, fare) for time in times]


def test_a_merge_splits_files_by_bucket_so_that_closing_one_reads_nothing(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    every: list[Row] = []
    for epoch in range(1, 5):
        rows = rows_at(*range(0, 30, 3), fare=epoch)  # all three bins
        view.append(batch(rows))
        every += rows
        store_all(view, store, epoch)
    assert compact(view)
    assert len(view.metadata().files) == 4
    assert store_all(view, store, 5) == 3
    files = view.metadata().files
    assert sorted((one.min_time_us // 10, one.max_time_us // 10) for one in files) == [(0, 0), (1, 1), (2, 2)]
    assert {one.level for one in files} == {1}
    assert rows_of(view.read()) == counted(every)
    log = FaultStore(store)
    restored = view_on(log, tiers=tiers, parts=[view.metadata()])
    restored.delete_times(0, 20)
    assert not log.log
    assert len(restored.metadata().files) == 1
    assert not restored.metadata().tombstones


def test_an_edit_whose_input_is_gone_is_discarded_and_counted(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    for epoch in (1, 2):
        view.append(batch(rows_at(epoch)))
        store_all(view, store, epoch)
    assert compact(view)
    view.delete_times(1, 2)  # takes the first file away
    view.append(batch(rows_at(5)))
    before = set(tiers.folder.path.iterdir())
    assert store_all(view, store, 3) == 1
    assert view.edits == (0, 1)
    assert len(set(tiers.folder.path.iterdir()) - before) <= 1
    assert rows_of(view.read()) == counted(rows_at(2, 5))
    assert compact(view)
    store_all(view, store, 4)
    assert view.edits == (1, 1)


def test_deletions_after_the_plan_still_hide_rows_of_its_outputs_and_retire_later(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    for epoch in (1, 2):
        view.append(batch([(1.0, 1, epoch), (2.0, 2, epoch)]))
        store_all(view, store, epoch)
    view.delete_times(1, 2)
    job = view.plan_compaction(max_bytes=LARGE, everything=True)
    assert job is not None
    view.delete(pa.table({"driver": [2.0]}))
    view.append(batch([(2.0, 2, 9)]))
    view.offer_edit(job.run())
    store_all(view, store, 3)
    assert view.edits == (1, 0)
    assert rows_of(view.read()) == counted([(2.0, 2, 9)])
    # The range was applied by the merge; the keys were deleted after it began.
    assert [one.WhichOneof("operation") for one in view.metadata().tombstones] == ["delete_key"]
    assert compact(view)
    store_all(view, store, 4)
    assert not view.metadata().tombstones
    assert rows_of(view_on(store, tiers=tiers, parts=[view.metadata()]).read()) == counted([(2.0, 2, 9)])


@pytest.mark.parametrize("kind", ["key", "time key", "value", "range"])
def test_a_merge_drops_hidden_rows_and_the_tombstone_with_them(tiers: Tiers, kind: str) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    view.append(batch([(1.0, 1, 1), (2.0, 2, 2), (3.0, 3, 3)]))
    store_all(view, store, 1)
    two = batch([(2.0, 2, 2)])
    if kind == "key":
        view.delete(two.select(["driver"]))
    elif kind == "time key":
        view.delete_at(two.select(["driver"]), two.column("_time"))
    elif kind == "value":
        view.delete_values(two.select(["driver"]), two.select(["fare"]))
    else:
        view.delete_times(2, 3)
    store_all(view, store, 2)
    assert len(view.metadata().tombstones) == 1
    assert compact(view)
    store_all(view, store, 3)
    (only,) = view.metadata().files
    assert only.rows == 2
    assert not view.metadata().tombstones
    assert rows_of(view.read()) == counted([(1.0, 1, 1), (3.0, 3, 3)])
    assert not compact(view)


def test_a_subtask_that_shares_a_file_merges_its_own_part_of_it(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    rows: list[Row] = [(float(number), 1, number) for number in range(50)]
    for epoch, some in enumerate((rows[:25], rows[25:]), start=1):
        view.append(batch(some))
        store_all(view, store, epoch)
    view.delete(pa.table({"driver": [float(number) for number in range(10)]}))
    part = view.metadata()
    found = []
    for index in range(2):
        half = TimeKeyedView(
            config(), owned=owned_range(index, 2), store=store, parts=[part], tiers=tiers, owner=f"{index}"
        )
        assert compact(half)
        store_all(half, store, 10 + index)
        (only,) = half.metadata().files
        assert only.owned == owned_range(index, 2)
        assert not half.metadata().tombstones
        found.append(half.read())
    assert rows_of(pa.concat_tables(found)) == counted(rows[10:])


def test_a_checkpoint_merges_by_itself_when_nobody_else_does(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    for epoch in range(1, 60):
        view.append(batch(rows_at(epoch % 50, epoch % 20)))
        store_all(view, store, epoch)
        assert len(view.metadata().files) <= MAX_FILES
    assert view.read().num_rows == 2 * 59


def test_a_checkpoint_merges_what_far_too_many_tombstones_cover(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    view.append(batch(rows_at(*range(2_000))))
    store_all(view, store, 1)
    for number in range(0, 10 * MAX_TOMBSTONES, 2):
        view.delete_times(number, number + 1)
        if number % 100 == 0:
            store_all(view, store, number)
    store_all(view, store, 9_999)
    assert len(view.metadata().tombstones) <= 4 * MAX_TOMBSTONES
    kept = [time for time in range(2_000) if time % 2 or time >= 10 * MAX_TOMBSTONES]
    assert rows_of(view.read()) == counted(rows_at(*kept))


def test_a_merge_that_finds_no_disk_leaves_everything_as_it_was(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    for epoch in (1, 2):
        view.append(batch(rows_at(epoch)))
        store_all(view, store, epoch)
    job = view.plan_compaction(max_bytes=LARGE, everything=True)
    assert job is not None
    tiers.folder.path.rmdir()
    with pytest.raises(SpillError):
        job.run()
    tiers.folder.path.mkdir()
    assert rows_of(view.read()) == counted(rows_at(1, 2))
    assert list(tiers.folder.path.iterdir()) == []


def test_metrics_say_what_is_due_and_how_often_files_were_merged(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)

    def debt() -> int:
        return view.statistics().compaction_debt_bytes

    for epoch in range(3):
        view.append(batch([(float(key), epoch, key) for key in range(20)]))
        store_all(view, store, epoch)
        sizes = [file.size for file in view.metadata().files]
        assert view.statistics().files == {0: epoch + 1}
        assert debt() == (sum(sizes) if epoch else 0), "one file of a bucket can do nothing for itself"
    assert compact(view)
    assert view.statistics().files == {0: 3}, "the next checkpoint applies it"
    store_all(view, store, 9)
    assert (view.statistics().files, debt()) == ({1: 1}, 0)
    view.append(batch([(1.0, 5, 5)]))
    store_all(view, store, 10)
    assert view.statistics().files == {0: 1, 1: 1}
    assert compact(view)
    store_all(view, store, 11)
    assert (view.statistics().files, debt()) == ({2: 1}, 0)
    view.delete(pa.table({"driver": [1.0]}))
    assert view.statistics().tombstones == 1
    assert debt() == view.metadata().files[0].size, "rows are hidden in it"
    assert compact(view)
    store_all(view, store, 12)
    assert (view.statistics().tombstones, view.statistics().files, debt()) == (0, {3: 1}, 0)
