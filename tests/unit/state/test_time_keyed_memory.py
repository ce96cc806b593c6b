"""Time-keyed tables inside the memory budget: spilled rows, streaming checkpoints, scans that nothing disturbs."""

import math
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from unit.state.fare_rows import Row, batch, counted, rows_of, store_all, view_on
from unit.state.segment_rows import opened_tiers

from statebed.arrays.columns import from_numpy
from statebed.errors import InputError, SpillError
from statebed.format.schema import TIMESTAMP
from statebed.state.memory.controller import Purpose
from statebed.state.tiers.segments import Segment
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.tier import Tier
from statebed.state.time_keyed.files import file_bytes
from statebed.state.time_keyed.view import TimeKeyedView
from statebed.storage import MemoryStore
from statebed.testing.faults import FaultStore

BUDGET = 400_000


def many(count: int, *, start: int = 0, times: int = 200) -> pa.Table:
    """Return rows distinguished by their fares, spread over 20 bins."""
    numbers = np.arange(start, start + count, dtype=np.int64)
    return pa.table(
        {
            "driver": from_numpy((numbers * 7919 % 1000).astype(np.float64), pa.float64()),
            "_time": from_numpy(numbers * 31 % times, TIMESTAMP),
            "fare": from_numpy(numbers, pa.int64()),
        }
    )


class CountingStore(MemoryStore):
    """The objects of another store, and how many bytes of them were read."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self._other = store
        self.bytes_read = 0

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self.bytes_read += length
        return self._other.get_range(path, start, length)


def fares(*tables: pa.Table) -> list[int]:
    return sorted(fare for table in tables for fare in table["fare"].to_pylist())


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    with opened_tiers(tmp_path, budget=BUDGET, cache_bytes=100_000) as opened:
        yield opened


def test_p4_a_scan_has_let_go_of_a_piece_before_it_reads_the_next_one(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = view_on(MemoryStore(), tiers=tiers)
    for start in range(0, 80_000, 2_000):
        view.append(many(2_000, start=start))
    held: list[weakref.ref[pa.Table]] = []

    def counted(*arguments: Any, **options: Any) -> Iterator[Any]:
        for rows in row_groups(*arguments, **options):
            assert not any(ref() is not None for ref in held)
            held.append(weakref.ref(rows))
            yield rows
            del rows

    row_groups = Segment.row_groups
    monkeypatch.setattr(Segment, "row_groups", counted)
    total = 0
    for piece in view.scan():
        total += piece.num_rows
        del piece
    assert total == 80_000
    assert len(held) > 3


def test_p4_ten_times_the_budget_is_appended_scanned_and_checkpointed_inside_it(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    total = 0
    while total * 48 < 10 * BUDGET:
        view.append(many(2_000, start=total))
        total += 2_000
    snapshot = tiers.memory.snapshot()
    assert snapshot.events["spills"] > 10
    assert sum(piece.num_rows for piece in view.scan()) == total
    assert view.statistics().disk_bytes > BUDGET
    uploads = store_all(view, store, 1)
    assert uploads <= 1 + math.ceil(total * 48 / file_bytes(tiers))
    assert fares(*view.scan()) == list(range(total))
    snapshot = tiers.memory.snapshot()
    # What is merged into one file, the piece that comes out of it, and a row group that is read.
    assert snapshot.peak <= 1.6 * BUDGET
    assert snapshot.used <= BUDGET
    restored = view_on(store, tiers=tiers, parts=[view.metadata()])
    assert fares(*restored.scan()) == list(range(total))
    view.release()
    restored.release()
    assert tiers.memory.used == 0


def test_a_batch_larger_than_the_budget_is_taken_whole_or_not_at_all(tiers: Tiers) -> None:
    view = view_on(MemoryStore(), tiers=tiers)
    view.append(many(100))
    tiers.folder.path.rmdir()
    with pytest.raises(SpillError):
        view.append(many(30_000, start=100))
    assert fares(view.read()) == list(range(100))
    tiers.folder.path.mkdir()
    view.append(many(30_000, start=100))
    assert fares(*view.scan()) == list(range(30_100))
    assert tiers.memory.snapshot().events.get("overcommits", 0) == 0


def test_a_spilled_segment_becomes_the_file_of_its_checkpoint_as_it_is(tiers: Tiers) -> None:
    view = view_on(MemoryStore(), tiers=tiers)
    view.append(many(300))
    view._state.buffer.seal()
    (segment,) = view._state.buffer.segments
    segment.spill()
    (file,) = tiers.folder.path.iterdir()
    (upload,) = view.checkpoint(lambda digest: digest)
    assert upload.content() == file.read_bytes()
    assert not upload.resident
    assert list(tiers.folder.path.iterdir()) == [file]
    assert segment.tier is Tier.DISK


@pytest.mark.parametrize("generational", [False, True])
@pytest.mark.parametrize("rows", [300, 3_000])
def test_p6_neither_spills_nor_the_order_inside_a_batch_show_in_files(
    tiers: Tiers, generational: bool, rows: int
) -> None:
    names = []
    for spilling in (False, True, True):
        view = view_on(MemoryStore(), tiers=tiers, generational=generational)
        for start in range(0, 3 * rows, rows):
            batch = many(rows, start=start, times=1 << 40 if generational else 200)
            view.append(batch if not spilling else batch.take(pa.array(range(rows - 1, -1, -1))))
            if start == rows:
                view.delete(pa.table({"driver": [5.0, 6.0]}))
            if spilling:
                view._state.buffer.seal()
                for segment in view._state.buffer.segments:
                    segment.spill()
        paths = [upload.path for upload in view.checkpoint(lambda digest: digest)]
        part = view.metadata()
        assert [file.path for file in part.files] == paths
        names.append((paths, [file.applied_sequence for file in part.files], len(part.tombstones)))
        view.release()
    assert len(names[0][0]) == (1 if rows == 300 else 6)
    assert names[0] == names[1] == names[2]


def test_a_scan_shows_the_moment_at_which_it_began_whatever_is_done_meanwhile(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    view.append(many(3_000))
    store_all(view, store, 1)
    view.append(many(3_000, start=3_000))
    scans = [view.scan() for _ in range(3)]
    begun = [next(scan) for scan in scans]
    view.append(many(20_000, start=6_000))  # spills
    view.delete(pa.table({"driver": [1.0, 2.0]}))
    store_all(view, store, 2)
    assert fares(begun[0], *scans[0]) == list(range(6_000))
    job = view.plan_compaction(max_bytes=1 << 30, everything=True)
    assert job is not None
    view.offer_edit(job.run())
    view.delete_times(0, 100)
    store_all(view, store, 3)
    assert fares(begun[1], *scans[1]) == list(range(6_000))
    view.delete_times(0, 200)
    store_all(view, store, 4)
    assert not view.read().num_rows
    assert fares(begun[2], *scans[2]) == list(range(6_000))


def test_a_view_that_is_given_up_takes_along_what_an_unfinished_scan_holds(tiers: Tiers) -> None:
    view = view_on(MemoryStore(), tiers=tiers)
    view.append(many(4_000))
    unfinished = view.scan()
    next(unfinished)
    view.delete_times(0, 1_000)  # the segment leaves, as far as the scan lets it go
    assert tiers.memory.used > 0
    view.release()
    assert tiers.memory.snapshot().accounts == {}
    assert list(tiers.folder.path.iterdir()) == []
    assert unfinished is not None


def test_p5_rows_that_a_scan_holds_after_their_checkpoint_leave_no_file_when_memory_is_short(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    for start in range(0, 400, 100):
        view.append(many(100, start=start, times=10))
        view._state.buffer.seal()
    unfinished = view.scan()
    store_all(view, store, 1)
    assert fares(view.read()) == list(range(400))  # from the file of the checkpoint
    with tiers.memory.reserve("test", Purpose.READS, BUDGET):
        assert list(tiers.folder.path.iterdir())  # what the scan holds had to leave memory
    assert fares(*unfinished) == list(range(400))
    del unfinished
    view.release()
    assert list(tiers.folder.path.iterdir()) == []


def test_reading_a_range_or_a_key_fetches_only_what_may_hold_it(tmp_path: Path) -> None:
    store = MemoryStore()
    wanted: list[dict[str, Any]] = [
        {"start_us": 500, "end_us": 510},
        {"keys": pa.table({"driver": [3.0]}), "start_us": 0, "end_us": 3_000},
    ]
    with opened_tiers(tmp_path) as tiers:
        view = view_on(store, tiers=tiers)
        view.append(many(30_000, times=100_000))
        store_all(view, store, 1)
        (file,) = view.metadata().files
        for read in wanted:
            counting = CountingStore(store)
            fresh = view_on(counting, tiers=tiers, parts=[view.metadata()])
            assert not counting.bytes_read
            expected = rows_of(view.read(**read))
            assert expected
            assert rows_of(fresh.read(**read)) == expected
            assert counting.bytes_read < file.size / 2


def test_deletions_are_charged_and_their_charge_goes_with_them(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    view.append(many(2_000))
    store_all(view, store, 1)
    view.delete(pa.table({"driver": [float(number) for number in range(500)]}))
    charged = tiers.memory.snapshot().accounts[("fares", Purpose.TOMBSTONES)]
    assert charged >= 500 * 16
    view.read()  # has an index made of them
    assert tiers.memory.snapshot().accounts[("fares", Purpose.TOMBSTONES)] > charged
    view.delete_times(-1, 1_000)
    assert ("fares", Purpose.TOMBSTONES) not in tiers.memory.snapshot().accounts


@pytest.mark.parametrize("count", [10, 5_000])
def test_closing_a_window_reads_and_writes_nothing_however_many_rows_it_has(tiers: Tiers, count: int) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    for epoch in (1, 2, 3):
        view.append(many(count))
        store_all(view, store, epoch)
    view.append(many(count))  # in no file yet, and partly spilled
    log = FaultStore(store)
    restored = view_on(log, tiers=tiers, parts=[view.metadata()])
    files, spilled = set(tiers.folder.path.iterdir()), tiers.memory.snapshot().events.get("spills", 0)
    for closed in (view, restored):
        reads = closed.statistics()
        closed.delete_times(0, 100)
        closed.advance(200)
        assert len(closed.metadata().tombstones) == 1
        after = closed.statistics()
        assert (after.loads, after.hits) == (reads.loads, reads.hits)
    assert not log.log
    assert set(tiers.folder.path.iterdir()) <= files
    assert tiers.memory.snapshot().events.get("spills", 0) == spilled
    assert view.read(0, 100).num_rows == 0
    view.delete_times(100, 200)
    assert not view.metadata().files
    assert not view.metadata().tombstones


def test_of_a_generation_the_newest_row_counts_across_segments_and_files(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers, generational=True)
    expected: dict[tuple[str, int], int] = {}
    for number in range(12):
        rows: list[Row] = [(float(key), time, 100 * number + key) for key in range(number, 60) for time in (1, 11)]
        view.append(batch(rows))
        expected |= {(str(key), time): fare for key, time, fare in rows}
        if number % 4 == 1:
            view._state.buffer.seal()
            for segment in view._state.buffer.segments:
                segment.spill()
        if number % 4 == 3:
            store_all(view, store, number)
    view.append(many(3_000).slice(0, 0))
    newest = Counter((driver, time, fare) for (driver, time), fare in expected.items())
    assert rows_of(view.read()) == newest
    assert rows_of(pa.concat_tables(view.scan())) == newest
    store_all(view, store, 99)
    assert rows_of(view_on(store, tiers=tiers, generational=True, parts=[view.metadata()]).read()) == newest


def test_what_is_flushed_leaves_memory_and_is_the_file_of_the_checkpoint(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    view.append(many(500))
    view.append(many(500, start=500))
    view.flush()
    flushed = view.statistics()
    assert (flushed.memory_bytes, flushed.spills, flushed.rows) == (0, 1, 1_000)
    (path,) = tiers.folder.path.glob("*.parquet")
    written = path.read_bytes()
    assert fares(view.read()) == list(range(1_000))
    assert store_all(view, store, 1) == 1
    (file,) = view.metadata().files
    assert store.get(file.path) == written
    view.flush()
    assert view.statistics().spills == 1, "there was nothing"
    view.close()
    with pytest.raises(InputError, match="accepts no more"):
        view.flush()


def test_a_range_is_brought_nearer_in_the_background(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    for epoch in (1, 2):
        view.append(batch([(1.0, epoch * 100 + number, 0) for number in range(50)]))
        store_all(view, store, epoch)
    log = FaultStore(store)
    restored = view_on(log, tiers=tiers, parts=[view.metadata()])
    assert [future.result(30) for future in restored.prefetch(100, 150)] == [True]
    fetched = len(log.log)
    assert fetched
    assert rows_of(restored.read(100, 150)) == counted([(1.0, 100 + number, 0) for number in range(50)])
    assert len(log.log) == fetched
    assert restored.statistics().hits == 1


def test_what_holds_some_keys_is_brought_nearer_and_nothing_else_is_read(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    rows: list[Row] = [(float(driver), 100 + number, 0) for driver in (1, 2) for number in range(50)]
    for epoch in (1, 2):
        view.append(batch(rows[50 * (epoch - 1) : 50 * epoch]))
        store_all(view, store, epoch)
    log = FaultStore(store)
    restored = view_on(log, tiers=tiers, parts=[view.metadata()])

    def driver(number: float) -> pa.Table:
        return pa.table({"driver": [number]})

    assert not restored.prefetch(keys=driver(3.0))
    assert not restored.prefetch(0, 100, keys=driver(1.0))
    assert not restored.read(keys=driver(3.0)).num_rows
    assert not log.log
    assert [future.result(30) for future in restored.prefetch(keys=driver(1.0))] == [True]
    fetched = len(log.log)
    assert fetched
    assert rows_of(restored.read(keys=driver(1.0))) == counted(rows[:50])
    assert len(log.log) == fetched
    assert rows_of(restored.read(keys=driver(2.0))) == counted(rows[50:])
    assert len(log.log) > fetched


def test_a_view_that_was_released_is_read_from_the_store_and_brings_nothing_nearer(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    view.append(batch([(1.0, number, number) for number in range(50)]))
    store_all(view, store, 1)
    view.release()
    assert view.prefetch() == []
    assert fares(view.read()) == list(range(50))
    assert not tiers.memory.snapshot().accounts
    assert tiers.cache.used == 0


def test_tables_share_one_budget_and_each_can_move_what_another_holds(tiers: Tiers) -> None:
    views = [view_on(MemoryStore(), tiers=tiers, owner=f"table {number}") for number in range(20)]
    for start in range(0, 2_000, 500):
        for view in views:
            view.append(many(500, start=start))  # less than a segment each
    assert tiers.memory.used <= BUDGET
    assert all(fares(view.read()) == list(range(2_000)) for view in views)
    for view in views:
        view.release()
    assert tiers.memory.used == 0


def test_a_view_without_tiers_uses_those_of_the_process() -> None:
    def charged() -> int:
        return Tiers.shared().memory.snapshot().accounts.get(("fares", Purpose.SEGMENTS), 0)

    before = charged()  # by views of other tests of this process
    view = view_on(MemoryStore())
    assert isinstance(view, TimeKeyedView)
    view.append(many(10))
    assert charged() > before
    view.release()
    assert charged() == before
