"""Keyed views with less memory than state: same answers and bytes within the budget, whichever thread makes room."""

import datetime as dt
import io
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from statebed.errors import InputError, SpillError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.ranges import WHOLE_SPACE, owned_range
from statebed.state import KeyedView, TableConfig, Tiers, keyed_table_config
from statebed.state.keyed.block_set import BLOCKS_IN_BUDGET
from statebed.state.keyed.cuts import joined
from statebed.state.keyed.output import row_bytes
from statebed.state.memory.controller import MemoryController, Purpose
from statebed.storage import MemoryStore

KB = 1 << 10
ROWS = 12_000
BUDGET = 128 * KB
SCHEMA = pa.schema([("id", pa.int64()), ("total", pa.int64()), ("name", pa.string())])
CONFIG = keyed_table_config("totals", "", ["id"], SCHEMA)
Parts = list[pb.TableSubtaskCheckpointMetadata]


def keys_of(ids: np.ndarray) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def values_of(ids: np.ndarray, factor: int = 1) -> pa.Table:
    totals = np.asarray(ids) * factor
    return pa.table({"total": pa.array(totals), "name": pa.array([f"name {one}" for one in totals])})


def add(old: pa.Table, new: pa.Table) -> pa.Table:
    return pa.table([pc.add(old["total"], new["total"]), new["name"]], schema=new.schema)


def totals_of(*views: KeyedView) -> dict[int, int]:
    return {one: total for one, (total, _) in contents(*views).items()}


def name_of(epoch: int) -> Callable[[str], str]:
    return lambda digest: names.data_file(epoch, "op", "totals", 0, digest)


def commit(view: KeyedView, store: MemoryStore, epoch: int) -> Parts:
    checkpoint = view.checkpoint(name_of(epoch))
    for upload in checkpoint.uploads:
        store.put(upload.path, upload.content())
        upload.on_stored()
    return [checkpoint.metadata]


def contents(*views: KeyedView) -> dict[int, tuple[int, str]]:
    parts = [part for view in views for part in view.scan()]
    columns = ([part[name].to_pylist() for name in ("id", "total", "name")] for part in parts)
    return {key: (total, name) for part in columns for key, total, name in zip(*part, strict=True)}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("keyed")


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController(BUDGET), folder=tmp_path / "spill")
    yield made
    made.close()


def opened(store: MemoryStore, tiers: Tiers, parts: Parts | None = None, config: TableConfig = CONFIG) -> KeyedView:
    return KeyedView(config, owned=WHOLE_SPACE, store=store, tiers=tiers, parts=parts or [])


def filled(store: MemoryStore, tiers: Tiers) -> KeyedView:
    view = opened(store, tiers)
    for ids in np.array_split(np.random.default_rng(1).permutation(ROWS), 5):
        view.upsert(keys_of(ids), values_of(ids))
    return view


def test_p4_state_of_many_times_the_budget_is_read_and_written_within_it(store: MemoryStore, tiers: Tiers) -> None:
    view = filled(store, tiers)
    state = dict(zip(range(ROWS), range(ROWS), strict=True))
    rng = np.random.default_rng(2)
    for epoch in range(1, 6):
        ids = rng.choice(ROWS, 1000, replace=False)
        view.merge(keys_of(ids), values_of(ids, 2), add)
        state |= {int(one): state.get(int(one), 0) + 2 * int(one) for one in ids}
        gone = rng.choice(ROWS, 200, replace=False)
        assert view.delete(keys_of(gone)).tolist() == [int(one) in state for one in gone]
        for one in gone:
            state.pop(int(one), None)
        if epoch % 3 == 0:
            commit(view, store, epoch)
        values, found = view.get(keys_of(ids))
        assert found.tolist() == [int(one) in state for one in ids]
        assert values["total"].to_pylist() == [state.get(int(one)) for one in ids]
    assert totals_of(view) == state
    statistics = view.statistics()
    assert statistics.disk_bytes > 4 * tiers.memory.budget
    assert statistics.spills > 20
    snapshot = tiers.memory.snapshot()
    assert snapshot.used <= tiers.memory.budget
    # What is reserved counts before room is made for it.
    assert snapshot.peak <= 2 * tiers.memory.budget


def test_p4_a_batch_of_many_times_the_budget_is_written_within_it(store: MemoryStore, tiers: Tiers) -> None:
    view, ids = opened(store, tiers), np.random.default_rng(7).permutation(2 * ROWS)
    view.upsert(keys_of(ids), values_of(ids))
    view.merge(keys_of(ids[:ROWS]), values_of(ids[:ROWS], 2), add)
    assert view.statistics().disk_bytes > 8 * tiers.memory.budget
    assert tiers.memory.snapshot().peak <= 2 * tiers.memory.budget
    assert totals_of(view) == {int(one): int(one) * (3 if place < ROWS else 1) for place, one in enumerate(ids)}


def test_p6_a_checkpoint_has_the_same_bytes_whether_rows_were_spilled_or_not(store: MemoryStore, tiers: Tiers) -> None:
    digests = []
    for pressed in (False, True):
        view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, tiers=tiers, block_bytes=16 * KB)
        for round_ in range(4):
            ids = np.arange(round_, 4000, round_ + 1)
            view.upsert(keys_of(ids), values_of(ids, round_))
            view.delete(keys_of(np.arange(0, 4000, 7 + round_)))
            if pressed:
                tiers.memory.reserve("other", Purpose.WRITES, tiers.memory.budget).release()
                assert view.held_bytes == 0
        digests.append([file.path for file in commit(view, store, 1)[0].files])
    assert digests[0] == digests[1]
    assert len(digests[0]) > 1


def test_all_rows_changed_become_files_of_the_size_of_a_block(store: MemoryStore, tiers: Tiers) -> None:
    view = filled(store, tiers)
    uploads = view.checkpoint(name_of(1)).uploads
    assert len(uploads) > 10
    assert not any(upload.resident for upload in uploads)
    assert max(upload.size for upload in uploads) <= tiers.memory.budget // 8
    nbytes = 0.0
    for upload in uploads:
        store.put(upload.path, upload.content())
        upload.on_stored()
        nbytes += row_bytes(pq.read_table(io.BytesIO(bytes(store.get(upload.path))))).sum()
    assert len(uploads) <= nbytes / (tiers.memory.budget // BLOCKS_IN_BUDGET) + 1
    metadata = [view.metadata()]
    ranges = [(file.owned.first, file.owned.last) for file in metadata[0].files]
    assert [first for first, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]
    assert tiers.memory.snapshot().peak <= 2 * tiers.memory.budget
    assert contents(opened(store, tiers, metadata)) == contents(view)
    assert not view.checkpoint(name_of(2)).uploads


def test_merged_deltas_stay_within_the_budget_and_keep_the_newest_rows(store: MemoryStore, tiers: Tiers) -> None:
    view = filled(store, tiers)
    parts = commit(view, store, 1)
    for epoch in range(2, 11):
        ids = np.arange(epoch, ROWS, 11)
        view.upsert(keys_of(ids), values_of(ids, epoch))
        view.delete(keys_of(np.array([epoch])))
        parts = commit(view, store, epoch)
    assert len({file.max_sequence for file in parts[0].files}) <= 8
    assert tiers.memory.snapshot().peak <= 2 * tiers.memory.budget
    halves = [
        KeyedView(CONFIG, owned=owned_range(index, 2), store=store, tiers=tiers, parts=parts) for index in range(2)
    ]
    assert contents(*halves) == contents(view)


def test_blocks_of_a_restored_view_go_straight_to_mapped_files(store: MemoryStore, tiers: Tiers) -> None:
    parts = commit(filled(store, tiers), store, 1)
    view = opened(store, tiers, parts)
    assert view.statistics().memory_bytes == view.statistics().disk_bytes == 0
    view.get(keys_of(np.arange(0, ROWS, 10)))
    statistics = view.statistics()
    assert statistics.loads > 10
    assert statistics.disk_bytes > 2 * tiers.memory.budget
    assert statistics.memory_bytes <= tiers.memory.budget
    view.get(keys_of(np.arange(0, ROWS, 7)))
    assert view.statistics().loads == statistics.loads


def test_a_failing_disk_refuses_a_write_that_then_has_changed_nothing(store: MemoryStore, tiers: Tiers) -> None:
    view = filled(store, tiers)
    state = dict(zip(range(ROWS), range(ROWS), strict=True))
    shutil.rmtree(tiers.folder.path)
    refused = 0
    rng = np.random.default_rng(3)
    for _ in range(30):
        ids = rng.choice(ROWS, 300, replace=False)
        try:
            view.merge(keys_of(ids), values_of(ids), add)
        except SpillError:
            refused += 1
        else:
            state |= {int(one): state[int(one)] + int(one) for one in ids}
    assert refused
    tiers.folder.path.mkdir(mode=0o700)
    view.upsert(keys_of(np.array([1])), values_of(np.array([5])))
    state[1] = 5
    assert totals_of(view) == state


def test_a_write_that_fails_in_a_later_piece_ends_writes_and_checkpoints(store: MemoryStore, tiers: Tiers) -> None:
    view = filled(store, tiers)
    before, calls = totals_of(view), 0

    def fails(old: pa.Table, new: pa.Table) -> pa.Table:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ZeroDivisionError
        return add(old, new)

    with pytest.raises(ZeroDivisionError):
        view.merge(keys_of(np.arange(ROWS)), values_of(np.arange(ROWS)), fails)
    assert totals_of(view) != before, "the first pieces are written"
    for refused in (
        lambda: view.upsert(keys_of(np.array([1])), values_of(np.array([5]))),
        lambda: commit(view, store, 1),
    ):
        with pytest.raises(InputError, match="a write failed when a part of it was done"):
            refused()


def test_a_failing_checkpoint_may_be_repeated(store: MemoryStore, tiers: Tiers) -> None:
    view = filled(store, tiers)
    shutil.rmtree(tiers.folder.path)
    with pytest.raises(SpillError):
        view.checkpoint(name_of(1))
    assert not view.metadata().files
    tiers.folder.path.mkdir(mode=0o700)
    assert contents(opened(store, tiers, commit(view, store, 1))) == contents(view)


def test_other_threads_make_room_at_any_moment(store: MemoryStore, tiers: Tiers) -> None:
    view, done = filled(store, tiers), threading.Event()
    state = dict(zip(range(ROWS), range(ROWS), strict=True))

    def press() -> None:
        while not done.is_set():
            tiers.memory.reserve("other", Purpose.WRITES, tiers.memory.budget).release()
            time.sleep(0.002)

    others = [threading.Thread(target=press, daemon=True) for _ in range(2)]
    for other in others:
        other.start()
    rng = np.random.default_rng(4)
    try:
        for epoch in range(1, 7):
            ids = rng.choice(ROWS, 1000, replace=False)
            view.merge(keys_of(ids), values_of(ids), add)
            state |= {int(one): state[int(one)] + int(one) for one in ids}
            commit(view, store, epoch)
            values, found = view.get(keys_of(ids))
            assert found.all()
            assert values["total"].to_pylist() == [state[int(one)] for one in ids]
    finally:
        done.set()
    for other in others:
        other.join(30)
    assert totals_of(view) == state


def test_local_copies_are_dropped_only_when_the_store_has_the_rows(tmp_path: Path, store: MemoryStore) -> None:
    tiers = Tiers(MemoryController(64 * KB), folder=tmp_path, cache_bytes=0)
    view = opened(store, tiers)
    ids = np.arange(4000)
    view.upsert(keys_of(ids), values_of(ids))
    uploads = view.checkpoint(name_of(1)).uploads
    tiers.memory.reserve("other", Purpose.WRITES, tiers.memory.budget).release()
    assert view.release(1 << 30) == 0
    assert view.get(keys_of(ids))[1].all()
    assert view.statistics().loads == 1  # of a table without files
    for upload in uploads:
        store.put(upload.path, upload.content())
        upload.on_stored()
    view.get(keys_of(ids[:1]))
    assert view.statistics().disk_bytes == 0
    assert view.get(keys_of(ids))[1].all()
    assert view.statistics().loads > 1
    tiers.close()


def test_p4_large_blocks_that_were_dropped_are_loaded_again_piece_by_piece(tmp_path: Path, store: MemoryStore) -> None:
    tiers = Tiers(MemoryController(BUDGET), folder=tmp_path, cache_bytes=0)
    view = filled(store, tiers)
    commit(view, store, 1)
    for _ in range(3):
        view.get(keys_of(np.arange(1)))
    assert view.statistics().disk_bytes < tiers.memory.budget
    assert totals_of(view) == dict(zip(range(ROWS), range(ROWS), strict=True))
    assert tiers.memory.snapshot().peak <= 2 * tiers.memory.budget
    tiers.close()


def test_neighbours_are_joined_up_to_a_size() -> None:
    ranges = [pb.HashRange(first=10 * one, last=10 * one + 9) for one in range(6)]
    found = joined(ranges, [1, 2, 3, 9, 1, 1], max_size=4)
    assert [(one.first, one.last) for one in found] == [(0, 19), (20, 29), (30, 39), (40, 59)]
    assert joined([], [], max_size=4) == []


def test_blocks_in_mapped_files_are_few_and_large(store: MemoryStore, tiers: Tiers) -> None:
    view = filled(store, tiers)
    for _ in range(5):
        ids = np.random.default_rng(6).integers(0, ROWS, 1000)
        view.merge(keys_of(ids), values_of(ids), add)
    statistics = view.statistics()
    files = list(tiers.folder.path.glob("*.columns"))
    assert statistics.disk_bytes / len(files) > tiers.memory.budget / 16 / 2
    assert len(files) <= 5 * 32


def test_rows_of_spilled_blocks_expire_while_running(store: MemoryStore, tiers: Tiers) -> None:
    config = keyed_table_config("totals", "", ["id"], SCHEMA, dt.timedelta(microseconds=1000))
    view = opened(store, tiers, config=config)
    ids = np.arange(5000)
    view.upsert(keys_of(ids), values_of(ids), times=pa.array(ids))
    commit(view, store, 1)
    tiers.memory.reserve("other", Purpose.WRITES, tiers.memory.budget).release()
    view.upsert(keys_of(ids[:10]), values_of(ids[:10]), times=pa.array(ids[:10] + 4000))
    assert view.advance(3000) == 2001 - 10
    assert view.advance(3000) == 0
    assert sorted(contents(view)) == [*range(10), *range(2001, 5000)]
    parts = commit(view, store, 2)
    assert sorted(contents(opened(store, tiers, parts, config))) == [*range(10), *range(2001, 5000)]


def test_a_block_comes_back_to_memory_when_there_is_plenty(store: MemoryStore, tiers: Tiers) -> None:
    view = opened(store, tiers)
    ids = np.arange(500)
    view.upsert(keys_of(ids), values_of(ids))
    tiers.memory.reserve("other", Purpose.WRITES, tiers.memory.budget).release()
    assert view.held_bytes == 0
    view.merge(keys_of(ids), values_of(ids), add)
    for _ in range(3):
        view.get(keys_of(ids))
    assert view.statistics().disk_bytes == 0
    assert totals_of(view) == {int(one): 2 * int(one) for one in ids}
    assert not list(tiers.folder.path.glob("*.columns"))


def test_a_view_that_is_gone_takes_neither_memory_nor_disk(store: MemoryStore, tiers: Tiers) -> None:
    view = filled(store, tiers)
    assert tiers.memory.used
    assert list(tiers.folder.path.iterdir())
    del view
    assert not tiers.memory.used
    assert not list(tiers.folder.path.iterdir())


def test_a_view_that_is_given_up_takes_nothing_and_answers_nothing_wrong(store: MemoryStore, tiers: Tiers) -> None:
    view = filled(store, tiers)
    commit(view, store, 1)
    view.upsert(keys_of(np.array([1])), values_of(np.array([5])))
    view.give_up()
    assert not tiers.memory.used
    assert not list(tiers.folder.path.iterdir())
    with pytest.raises(InputError, match="changes that no checkpoint contains"):
        view.get(keys_of(np.array([1])))
    saved = opened(store, tiers, [view.metadata()])
    saved.give_up()
    assert saved.get(keys_of(np.array([1])))[0]["total"].to_pylist() == [1]
    with pytest.raises(InputError, match="given up"):
        saved.upsert(keys_of(np.array([1])), values_of(np.array([5])))


def test_a_merge_function_must_not_use_the_view(store: MemoryStore, tiers: Tiers) -> None:
    view = opened(store, tiers)
    view.upsert(keys_of(np.array([1])), values_of(np.array([1])))

    def peeking(old: pa.Table, new: pa.Table) -> pa.Table:
        view.get(keys_of(np.array([1])))
        return add(old, new)

    with pytest.raises(InputError, match="inside a merge function"):
        view.merge(keys_of(np.array([1])), values_of(np.array([1])), peeking)
    assert totals_of(view) == {1: 1}


def test_keys_are_fetched_in_the_background(store: MemoryStore, tiers: Tiers) -> None:
    parts = commit(filled(store, tiers), store, 1)
    view = opened(store, tiers, parts)
    ids = np.arange(10)
    waiting = view.prefetch(keys_of(ids))
    assert waiting
    assert all(one.result(timeout=30) for one in waiting)
    loads = view.statistics().loads
    assert loads == len(waiting)
    assert view.get(keys_of(ids))[0]["total"].to_pylist() == ids.tolist()
    assert view.statistics().loads == loads


def test_a_scan_goes_on_through_writes_and_shows_each_key_once(store: MemoryStore, tiers: Tiers) -> None:
    view = filled(store, tiers)
    seen: list[int] = []
    rng = np.random.default_rng(5)
    for count, part in enumerate(view.scan()):
        seen += part["id"].to_pylist()
        assert part.nbytes < tiers.memory.budget // 4
        if count % 10 == 0:
            ids = rng.integers(0, ROWS, 500)
            view.upsert(keys_of(ids), values_of(ids))
    assert sorted(seen) == list(range(ROWS))
