"""Blocks that come back to memory in the background because their keys will be asked for."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from statebed.arrays.key_hash import Hashes
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Tiers, keyed_table_config
from statebed.state.keyed import block_reload
from statebed.state.keyed.block_set import BLOCKS_IN_BUDGET, Blocks
from statebed.state.keyed.mapped_run import FrozenRun, newest
from statebed.state.keyed.slots import Slot
from statebed.state.keyed.sorted_run import SortedRun
from statebed.state.memory.controller import MemoryController, Purpose
from statebed.state.tiers.shared_tiers import LOADING_THREADS
from statebed.state.tiers.spill_cache import CachedFile
from statebed.storage import MemoryStore

CONFIG = keyed_table_config("t", "", ["id"], pa.schema([("id", pa.int64()), ("n", pa.int64())]))
ROWS = 3000
BUDGET = 4 << 20


def keys_of(ids: range) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def upsert(view: KeyedView, ids: range, n: int) -> None:
    view.upsert(keys_of(ids), pa.table({"n": pa.array([n] * len(ids), pa.int64())}))


def numbers(view: KeyedView) -> dict[int, int]:
    return {row["id"]: row["n"] for piece in view.scan() for row in piece.to_pylist()}


def spill(tiers: Tiers) -> None:
    tiers.memory.reserve("other", Purpose.WRITES, tiers.memory.budget).release()


def files(tiers: Tiers) -> list[Path]:
    return sorted(tiers.folder.path.glob("*.columns"))


def checkpoint(view: KeyedView, store: MemoryStore) -> None:
    for upload in view.checkpoint(str).uploads:
        store.put(upload.path, upload.content())
        upload.on_stored()


def ended(waiting: tuple[Future[bool], ...]) -> list[bool]:
    return [one.result(timeout=30) for one in waiting]


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController(BUDGET, wait_seconds=20), folder=tmp_path)
    yield made
    made.close()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("m")


@pytest.fixture
def view(store: MemoryStore, tiers: Tiers) -> KeyedView:
    """One block: a mapped file, and rows that lie over it."""
    view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, tiers=tiers)
    upsert(view, range(ROWS), 1)
    spill(tiers)
    upsert(view, range(100), 2)
    view.delete(keys_of(range(100, 110)))
    assert len(files(tiers)) == 1
    return view


EXPECTED = {**dict.fromkeys(range(100), 2), **dict.fromkeys(range(110, ROWS), 1)}


@contextmanager
def coming_back(view: KeyedView, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[bool]]]:
    """Copy the rows on a thread, which then waits; calling the yielded function lets it continue."""
    copied, go = threading.Event(), threading.Event()

    def slow(frozen: tuple[FrozenRun, ...], over: SortedRun | None) -> SortedRun:
        run = newest(frozen, over)
        copied.set()
        assert go.wait(20)
        return run

    def go_on() -> list[bool]:
        go.set()
        return ended(waiting)

    monkeypatch.setattr(block_reload, "newest", slow)
    waiting = view.prefetch(keys_of(range(10)))
    try:
        assert copied.wait(20)
        yield go_on
    finally:
        go.set()


def test_rows_in_mapped_files_come_back_to_memory(view: KeyedView, tiers: Tiers) -> None:
    loads = view.statistics().loads
    assert ended(view.prefetch(keys_of(range(10)))) == [True]
    assert not files(tiers)
    assert view.statistics().loads == loads + 1
    assert view.prefetch(keys_of(range(10))) == (), "it is there"
    assert 0 < view.held_bytes <= tiers.memory.used
    assert numbers(view) == EXPECTED


def test_what_is_colder_leaves_for_them(view: KeyedView, tiers: Tiers) -> None:
    spill(tiers)
    assert view.held_bytes == 0
    other = KeyedView(CONFIG, owned=WHOLE_SPACE, store=MemoryStore("o"), tiers=tiers, owner="cold")
    step = 10_000
    for start in range(0, 20 * step, step):
        upsert(other, range(start, start + step), 3)
    held, spills = other.held_bytes, other.statistics().spills
    with tiers.memory.charge("more", Purpose.WRITES, tiers.memory.budget - tiers.memory.used):
        assert ended(view.prefetch(keys_of(range(10)))) == [True]
    assert view.held_bytes
    assert other.held_bytes < held
    assert other.statistics().spills > spills
    assert tiers.memory.used <= tiers.memory.budget
    assert numbers(view) == EXPECTED


def test_no_more_come_back_than_stay_there_together(store: MemoryStore, tiers: Tiers) -> None:
    view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, tiers=tiers)
    step = 20_000
    for start in range(0, 20 * step, step):
        upsert(view, range(start, start + step), 1)
    spill(tiers)
    every = keys_of(range(20 * step))
    assert view.statistics().disk_bytes > 2 * tiers.memory.budget
    assert all(ended(view.prefetch(every)))
    assert 0 < view.held_bytes <= tiers.memory.low_bytes
    assert tiers.memory.used <= tiers.memory.budget
    assert view.get(every)[1].all()


def test_rows_are_read_while_they_come_back(view: KeyedView, tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    with coming_back(view, monkeypatch) as go_on:
        values, found = view.get(keys_of(range(105)))
        assert values["n"].to_pylist() == [2] * 100 + [None] * 5
        assert found.sum() == 100
        assert go_on() == [True]
    assert not files(tiers)
    assert numbers(view) == EXPECTED


@pytest.mark.parametrize("write", ["over a file", "in memory", "delete", "new key"])
def test_a_block_that_is_written_meanwhile_stays_as_it_is(
    view: KeyedView, tiers: Tiers, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    expected = dict(EXPECTED)
    with coming_back(view, monkeypatch) as go_on:
        if write == "delete":
            view.delete(keys_of(range(7, 8)))
            del expected[7]
        else:
            ids = {"over a file": range(500, 503), "in memory": range(3), "new key": range(ROWS, ROWS + 1)}[write]
            upsert(view, ids, 5)
            expected |= dict.fromkeys(ids, 5)
        assert go_on() == [False]
    assert files(tiers), "the copy was discarded"
    assert numbers(view) == expected
    monkeypatch.undo()
    assert ended(view.prefetch(keys_of(range(10)))) == [True]
    assert not files(tiers)
    assert numbers(view) == expected


def test_a_checkpoint_meanwhile_is_not_forgotten(
    view: KeyedView, store: MemoryStore, tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with coming_back(view, monkeypatch) as go_on:
        checkpoint(view, store)
        assert go_on() == [False]
    assert view.dirty_rows == 0
    assert not view.checkpoint(str).uploads, "nothing has changed since"
    restored = KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, tiers=tiers, parts=[view.metadata()], owner="restored")
    assert numbers(view) == numbers(restored) == EXPECTED


def test_a_file_that_goes_meanwhile_harms_nobody(
    view: KeyedView, store: MemoryStore, tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(view, store)
    with coming_back(view, monkeypatch) as go_on:
        assert view.release(1 << 30) > 0
        assert not files(tiers)
        assert go_on() == [False]
    assert view.held_bytes == 0, "what was copied is old"
    assert numbers(view) == EXPECTED
    assert tiers.memory.used <= tiers.memory.budget


def test_a_copy_that_fails_because_the_block_has_changed_is_in_vain(
    view: KeyedView, tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_written(frozen: tuple[FrozenRun, ...], over: SortedRun | None) -> SortedRun:
        upsert(view, range(3), 6)
        raise IndexError("a row that is not there")

    monkeypatch.setattr(block_reload, "newest", half_written)
    assert ended(view.prefetch(keys_of(range(10)))) == [False]
    monkeypatch.setattr(block_reload, "newest", lambda frozen, over: list(frozen)[len(frozen)])
    with pytest.raises(IndexError):
        ended(view.prefetch(keys_of(range(10))))
    monkeypatch.undo()
    assert files(tiers)
    assert numbers(view) == {**EXPECTED, **dict.fromkeys(range(3), 6)}


def test_a_block_that_is_in_memory_again_is_left_as_it_is_charged(store: MemoryStore, tiers: Tiers) -> None:
    def charged() -> int:
        accounts = tiers.memory.snapshot().accounts
        return sum(accounts.get(("t", one), 0) for one in (Purpose.SEGMENTS, Purpose.INDEXES))

    view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, tiers=tiers, block_bytes=1 << 20)
    upsert(view, range(20_000), 2)
    spill(tiers)
    go = threading.Event()
    busy = [tiers.load_soon(lambda: go.wait(20), owner="busy") for _ in range(LOADING_THREADS)]
    waiting = view.prefetch(keys_of(range(10)))
    (slot,) = view._blocks
    assert view._blocks.reload(slot)
    upsert(view, range(100_000, 105_000), 2)  # new keys, in a small run with hints
    held = view.held_bytes
    go.set()
    assert ended((*busy, *waiting)) == [True, True, False]
    assert view.held_bytes == charged() == held


def test_what_was_asked_for_before_a_view_was_given_up_takes_no_memory_afterwards(
    view: KeyedView, store: MemoryStore, tiers: Tiers
) -> None:
    checkpoint(view, store)
    view.release(1 << 30)
    assert not files(tiers)
    go = threading.Event()
    busy = [tiers.load_soon(lambda: go.wait(20), owner="busy") for _ in range(LOADING_THREADS)]
    waiting = view.prefetch(keys_of(range(10)))
    view.give_up()
    go.set()
    assert ended((*busy, *waiting)) == [True, True, False]
    assert not tiers.memory.snapshot().accounts
    assert not files(tiers)
    assert numbers(view) == EXPECTED, "it is read from the store"


def test_files_that_come_back_while_the_cache_begins_to_count_them_are_not_counted(
    view: KeyedView, store: MemoryStore, tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(view, store)
    spill(tiers)
    add = tiers.cache.add

    def slow(nbytes: int, drop: Callable[[], None]) -> CachedFile:
        assert ended(waiting) == [True]
        return add(nbytes, drop)

    waiting = view.prefetch(keys_of(range(10)))
    monkeypatch.setattr(tiers.cache, "add", slow)
    view.get(keys_of(range(1)))
    assert not files(tiers)
    assert tiers.cache.used == 0
    assert numbers(view) == EXPECTED


class SlowLock:
    """A lock that one thread acquires only when it is signalled."""

    def __init__(self, slow: threading.Thread) -> None:
        self._lock = threading.Lock()
        self._slow = slow
        self.asked, self.go = threading.Event(), threading.Event()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if threading.current_thread() is self._slow:
            self.asked.set()
            assert self.go.wait(20)
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()


def test_a_block_whose_file_is_dropped_when_an_operation_begins_is_read_as_a_whole(
    view: KeyedView, store: MemoryStore, tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(view, store)
    spill(tiers)
    view.get(keys_of(range(1)))
    assert tiers.cache.used
    dropping = threading.Thread(target=tiers.cache.add, args=(tiers.cache.capacity, lambda: None))
    lock, fetch = SlowLock(dropping), Blocks.fetch

    def fetched(blocks: Blocks, slot: Slot, hashes: Hashes | None = None) -> bool:
        moved = fetch(blocks, slot, hashes)
        lock.go.set()
        dropping.join(20)
        return moved

    monkeypatch.setattr(view._blocks, "_lock", lock)
    monkeypatch.setattr(Blocks, "fetch", fetched)
    dropping.start()
    assert lock.asked.wait(20)
    assert view.get(keys_of(range(100)))[1].all()
    assert numbers(view) == EXPECTED
    assert not dropping.is_alive()


@pytest.mark.parametrize("is_short", [False, True])
def test_new_rows_of_a_spilled_block_leave_memory_only_if_it_is_short(
    store: MemoryStore, tiers: Tiers, is_short: bool
) -> None:
    view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, tiers=tiers)
    upsert(view, range(ROWS), 1)
    spill(tiers)
    spills = view.statistics().spills
    others = tiers.memory.charge("other", Purpose.READS, tiers.memory.low_bytes if is_short else 0)
    upsert(view, range(ROWS, 5 * ROWS), 2)
    assert view.held_bytes > BUDGET // BLOCKS_IN_BUDGET, "the new rows are to be larger than a block"
    view.get(keys_of(range(1)))  # deferred work is done first
    assert (view.statistics().spills > spills) == is_short
    assert (view.held_bytes == 0) == is_short
    others.release()
    assert numbers(view) == {number: 1 if number < ROWS else 2 for number in range(5 * ROWS)}
