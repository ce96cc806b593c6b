"""A thread that may have to wait for room holds no lock of the engine, whatever it is doing."""

import contextlib
import datetime as dt
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from unit.state.fare_rows import batch, counted, rows_of, view_on
from unit.state.segment_rows import opened_tiers, rows, rows_in, sequences, spec
from unit.state.table_cluster import Cluster

from statebed.arrays.columns import from_numpy
from statebed.errors import SpillTimeoutError
from statebed.format.schema import TIMESTAMP
from statebed.state import (
    AppendBuffer,
    CompactionMode,
    ManagerOptions,
    MemoryController,
    Purpose,
    Tiers,
    keyed_table_config,
    timestamp_table_config,
)
from statebed.state.host_cache import HostCache, cache
from statebed.state.keyed.durable import MAX_DELTAS
from statebed.storage import MemoryStore

BUDGET = 128 << 10
ROWS = 600
FARES = pa.schema([("driver", pa.int64()), ("fare", pa.int64())])
TOTALS = pa.schema([("id", pa.int64()), ("total", pa.int64())])
TABLES = {
    "fares": timestamp_table_config(
        "fares", "", dt.timedelta(days=1), False, FARES, keys=["driver"], bin_width=dt.timedelta(microseconds=10)
    ),
    "totals": keyed_table_config("totals", "", ["id"], TOTALS, dt.timedelta(days=1)),
}


class WatchedLock:
    """A lock that its watch knows to be held."""

    def __init__(self, watch: "Watch", module: str) -> None:
        self._lock = threading.Lock()
        self._watch = watch
        self.module = module

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._watch.held.append(self)
        return taken

    def release(self) -> None:
        self._watch.held.remove(self)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class Watch:
    """Records which locks of the engine a thread holds when it requests room, for which it may have to wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step = ""
        self.asked: Counter[str] = Counter()
        self.wrong: list[tuple[str, str]] = []
        self._thread = threading.local()
        for name, module in list(sys.modules.items()):
            if name.startswith("statebed.state"):
                self._watch_locks_of(name, module, monkeypatch)
        make_room = MemoryController.make_room

        def watched(memory: MemoryController) -> None:
            # What moving a segment charges waits for nothing.
            if not getattr(memory._moving, "now", False):
                self.asked[self.step] += 1
                self.wrong += [(self.step, lock.module) for lock in self.held]
            make_room(memory)

        monkeypatch.setattr(MemoryController, "make_room", watched)

    @property
    def held(self) -> list[WatchedLock]:
        """Return the locks held by this thread."""
        if not hasattr(self._thread, "held"):
            self._thread.held = []
        held: list[WatchedLock] = self._thread.held
        return held

    @contextlib.contextmanager
    def during(self, step: str) -> Iterator[None]:
        self.step = step
        yield
        assert not self.held
        self.step = ""

    def _watch_locks_of(self, name: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        lock = partial(WatchedLock, self, name)
        if getattr(module, "Lock", None) is threading.Lock:
            monkeypatch.setattr(module, "Lock", lock)
        if getattr(module, "threading", None) is threading:
            own = ModuleType("threading")
            vars(own).update(vars(threading) | {"Lock": lock})
            monkeypatch.setattr(module, "threading", own)


def fares(epoch: int) -> pa.Table:
    numbers = np.arange(ROWS, dtype=np.int64)
    return pa.table(
        {
            "driver": from_numpy(numbers * 7919 % 1000, pa.int64()),
            "_time": from_numpy(100 * epoch + numbers % 100, TIMESTAMP),
            "fare": from_numpy(numbers, pa.int64()),
        }
    )


def totals(epoch: int) -> tuple[pa.Table, pa.Table, pa.Array]:
    ids = np.arange(epoch, 4 * ROWS, 3, dtype=np.int64)
    times = from_numpy(np.full(len(ids), 100 * epoch), TIMESTAMP)
    return pa.table({"id": from_numpy(ids, pa.int64())}), pa.table({"total": from_numpy(ids, pa.int64())}), times


def add(old: pa.Table, new: pa.Table) -> pa.Table:
    return pa.table([pc.add(old["total"], new["total"])], schema=new.schema)


def an_epoch(watch: Watch, cluster: Cluster, epoch: int) -> None:
    fare_view = cluster.managers[0].get_time_keyed("fares")
    keys, values, times = totals(epoch)
    with watch.during("append"):
        for piece in (fares(epoch), *(fares(epoch).slice(start, 20) for start in range(0, ROWS, 100))):
            fare_view.append(piece)
    with watch.during("time-keyed deletions"):
        fare_view.delete_times(100 * epoch + 10, 100 * epoch + 20)
        fare_view.delete(pa.table({"driver": [epoch]}))
    with watch.during("time-keyed reads"):
        fare_view.read(keys=pa.table({"driver": [1, 2, 3]}))
        assert sum(piece.num_rows for piece in fare_view.scan()) > 0
        for one in fare_view.prefetch():
            one.result(timeout=30)
    total_view = cluster.managers[0].get_keyed("totals")
    with watch.during("upsert"):
        total_view.upsert(keys, values, times=times)
    with watch.during("merge"):
        total_view.merge(keys, values, add, times=times)
    with watch.during("keyed deletions"):
        total_view.delete(keys.slice(0, 10))
        total_view.delete_times(-1000, 100 * epoch - 300)
    with watch.during("keyed reads"):
        total_view.get(keys)
        assert sum(piece.num_rows for piece in total_view.scan()) > 0
    with watch.during("checkpoint"):
        cluster.commit()


@pytest.mark.parametrize("cached", [False, True])
def test_p4_nobody_asks_for_room_with_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool) -> None:
    watch = Watch(monkeypatch)
    monkeypatch.setattr(cache, "_checked", cache._VerifiedFiles())
    shared = HostCache(tmp_path / "copies", 1 << 30) if cached else None
    with opened_tiers(tmp_path / "spill", budget=BUDGET) as tiers:
        tiers.compacting = threading.Lock()  # only other compactions wait for it
        off = ManagerOptions(compaction=CompactionMode.OFF)
        cluster = Cluster(configs=TABLES, tiers=tiers, cache=shared, options=off)
        for epoch in range(1, MAX_DELTAS + 3):
            for path in (tmp_path / "copies").glob("*.columns"):
                path.unlink()  # so that the checkpoint which compactions deltas has to make copies of them
            an_epoch(watch, cluster, epoch)
        with watch.during("compaction"):
            assert cluster.managers[0].compact().result(timeout=60).compactions == 2
            cluster.commit()
        cluster.restart(1)
        an_epoch(watch, cluster, MAX_DELTAS + 3)
        cluster.close()
        assert watch.wrong == []
        assert watch.asked.keys() >= {
            "append",
            "time-keyed deletions",
            "time-keyed reads",
            "upsert",
            "merge",
            "keyed deletions",
            "keyed reads",
            "checkpoint",
            "compaction",
        }
        assert tiers.memory.snapshot().events["spills"] > 50
    if shared is not None:
        assert shared.counts.written > MAX_DELTAS


def test_p4_times_are_deleted_while_a_segment_of_another_table_hangs_on_its_way_to_disk(tmp_path: Path) -> None:
    memory = MemoryController(1 << 20, wait_seconds=0.2)
    tiers = Tiers(memory, folder=tmp_path)
    view = view_on(MemoryStore(), tiers=tiers)
    view.append(batch([(1.0, time, time) for time in range(100)]))
    hangs, may_end = threading.Event(), threading.Event()
    charge = memory.charge("rides", Purpose.SEGMENTS, 1 << 20)

    def move() -> None:
        hangs.set()
        may_end.wait(30)
        charge.release()

    memory.offer("rides", 1 << 20, move).touch(-1)
    other = threading.Thread(target=memory.make_room)
    other.start()
    try:
        assert hangs.wait(30)
        view.delete_times(10, 90)
        assert memory.snapshot().events.get("waits", 0) == 0
        with pytest.raises(SpillTimeoutError):
            view.append(batch([(1.0, 200, 200)]))
    finally:
        may_end.set()
        other.join(30)
    assert rows_of(view.read()) == counted([(1.0, time, time) for time in (*range(10), *range(90, 100))])
    view.release()
    assert memory.used == 0
    tiers.close()


def test_who_waits_for_a_buffer_in_use_waits_until_a_deadline(tmp_path: Path) -> None:
    tiers = Tiers(MemoryController(1 << 20, wait_seconds=0.05), folder=tmp_path)
    buffer = AppendBuffer(tiers, spec=spec(), owner="rides")
    buffer.append(rows(100))
    with buffer.still():
        with pytest.raises(SpillTimeoutError, match="appended rows of the table 'rides'"):
            buffer.seal()
        with pytest.raises(SpillTimeoutError):
            buffer.close()
    assert (len(buffer.segments), sequences(*rows_in(buffer))) == (0, list(range(100)))
    buffer.seal()
    assert len(buffer.segments) == 1
    buffer.close()
    assert tiers.memory.used == 0
    tiers.close()
