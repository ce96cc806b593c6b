"""Merges alongside the running tables: when they run, what the next checkpoint takes, and harmless failures."""

import datetime as dt
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.state.table_cluster import JOB, OPERATOR, Cluster

from statebed.checkpoint.objects import fetch_subtask
from statebed.errors import StoreUnavailableError
from statebed.state import (
    CompactionMode,
    CompactionReport,
    ManagerOptions,
    MemoryController,
    RecordBatch,
    TableData,
    TableManager,
    TaskInfo,
    Tiers,
    keyed_table_config,
    timestamp_table_config,
)
from statebed.state.metrics import CompactionMetrics
from statebed.state.time_keyed import compaction
from statebed.storage import MemoryStore, ObjectStore, ScopedStore
from statebed.testing.faults import Fault, FaultStore, Operation, Verb

SCHEMA = pa.schema([("rider", pa.int64()), ("fare", pa.int64())])
RIDERS = keyed_table_config("riders", "", ["rider"], SCHEMA)
TRIPS = timestamp_table_config("trips", "", dt.timedelta(days=1), False, SCHEMA, keys=["rider"])
BOTH = {"riders": RIDERS, "trips": TRIPS}
TASK = TaskInfo(JOB, OPERATOR)
ROWS = 500


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController(64 << 20), folder=tmp_path)
    yield made
    made.close()


def manager_on(store: ObjectStore, tiers: Tiers, mode: CompactionMode, **more: Any) -> TableManager:
    options = ManagerOptions(compaction=mode, timeout_seconds=30, **more)
    return TableManager(TASK, BOTH, store, options=options, tiers=tiers)


def write(manager: TableManager, step: int) -> None:
    """New values for all riders, and as many trips."""
    riders = pa.array(range(ROWS), pa.int64())
    fares = pa.array([step] * ROWS, pa.int64())
    times = pa.array([step * 1000 + number for number in range(ROWS)], pa.timestamp("us", "UTC"))
    manager.send(TableData("riders", RecordBatch(pa.record_batch({"rider": riders, "fare": fares}))))
    manager.send(TableData("trips", RecordBatch(pa.record_batch({"rider": riders, "_time": times, "fare": fares}))))


def run(manager: TableManager, steps: int) -> None:
    for step in range(steps):
        write(manager, step)
        manager.checkpoint(step + 2).result(timeout=30)


def check(manager: TableManager, steps: int) -> None:
    fares = [row["fare"] for table in manager.get_keyed("riders").scan() for row in table.to_pylist()]
    assert fares == [steps - 1] * ROWS
    assert manager.get_time_keyed("trips").read().num_rows == steps * ROWS


def files_of(manager: TableManager, table: str) -> int:
    return sum(manager.metrics().tables[table].files.values())


@pytest.mark.parametrize("mode", [CompactionMode.BACKGROUND, CompactionMode.IN_LINE])
def test_files_are_merged_without_being_asked_for(mode: CompactionMode, tiers: Tiers) -> None:
    store = ScopedStore(MemoryStore(), JOB)
    with manager_on(store, tiers, mode) as manager:
        run(manager, 20)
        for epoch in range(100, 200):
            manager.checkpoint(epoch).result(timeout=30)
            if all(table.edits_applied for table in manager.metrics().tables.values()):
                break
            time.sleep(0.05)
        check(manager, 20)
        counts = manager.metrics().compaction
        assert counts.compactions > 0
        assert counts.read_bytes > counts.written_bytes > 0
        assert counts.failures == 0
        tables = manager.metrics().tables
        assert min(table.edits_applied for table in tables.values()) > 0
        assert max(sum(table.files.values()) for table in tables.values()) < 20


def test_files_are_merged_by_default(tiers: Tiers) -> None:
    with TableManager(TASK, BOTH, ScopedStore(MemoryStore(), JOB), tiers=tiers) as manager:
        run(manager, 6)
        deadline = time.monotonic() + 10
        while not manager.metrics().compaction.compactions and time.monotonic() < deadline:
            time.sleep(0.01)
        assert manager.metrics().compaction.compactions > 0
        assert ManagerOptions().compaction is CompactionMode.BACKGROUND


def test_without_compaction_nothing_is_merged_but_what_bounds_the_number_of_files(tiers: Tiers) -> None:
    with manager_on(ScopedStore(MemoryStore(), JOB), tiers, CompactionMode.OFF) as manager:
        run(manager, 40)
        check(manager, 40)
        assert manager.metrics().compaction.compactions == 0
        assert max(files_of(manager, table) for table in BOTH) < 40


def test_p6_merges_in_line_make_the_same_files_in_every_run(tiers: Tiers) -> None:
    found = []
    for _ in range(2):
        store = ScopedStore(MemoryStore(), JOB)
        with manager_on(store, tiers, CompactionMode.IN_LINE) as manager:
            run(manager, 12)
        found.append([info.path for info in store.list("")])
    assert found[0] == found[1]


def test_what_is_asked_for_is_merged_whole_and_taken_by_the_next_checkpoint(tiers: Tiers) -> None:
    store = ScopedStore(MemoryStore(), JOB)
    with manager_on(store, tiers, CompactionMode.OFF) as manager:
        run(manager, 5)
        assert min(files_of(manager, table) for table in BOTH) == 5
        report = manager.compact().result(timeout=30)
        assert report.compactions == 2
        assert report.read_bytes > report.written_bytes > 0
        assert min(files_of(manager, table) for table in BOTH) == 5, "not before the next checkpoint"
        completed = manager.checkpoint(100).result(timeout=30)
        assert [files_of(manager, table) for table in BOTH] == [1, 1]
        check(manager, 5)
        parts = fetch_subtask(store, completed.reference).tables
        assert all(part.files[0].path.startswith("checkpoints/000000000100/") for part in parts_of(parts))
        assert manager.compact().result(timeout=30) == CompactionReport(), "there is nothing left to do"


def parts_of(tables: Any) -> list[Any]:
    return [table.subtasks[0] for table in tables.values()]


def test_some_tables_alone_can_be_merged(tiers: Tiers) -> None:
    with manager_on(ScopedStore(MemoryStore(), JOB), tiers, CompactionMode.OFF) as manager:
        run(manager, 3)
        manager.compact("trips")
        manager.checkpoint(100).result(timeout=30)  # waits for it
        assert (files_of(manager, "riders"), files_of(manager, "trips")) == (3, 1)


class Gate:
    """Holds every put until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def hold(self, operation: Operation) -> None:
        if operation.verb is Verb.PUT:
            assert self.opened.wait(timeout=30)


def test_what_is_asked_for_waits_until_its_files_are_durable(tiers: Tiers) -> None:
    gate = Gate()
    store = FaultStore(ScopedStore(MemoryStore(), JOB), before=gate.hold)
    with manager_on(store, tiers, CompactionMode.OFF) as manager:
        write(manager, 0)
        first = manager.checkpoint(2)
        write(manager, 1)
        second = manager.checkpoint(3)
        asked = manager.compact()
        assert not asked.done()
        gate.opened.set()
        assert asked.result(timeout=30).compactions == 2
        assert first.done()
        assert second.done()


def test_a_merge_whose_inputs_left_meanwhile_is_discarded_with_its_local_files(tiers: Tiers, tmp_path: Path) -> None:
    with manager_on(ScopedStore(MemoryStore(), JOB), tiers, CompactionMode.OFF) as manager:
        run(manager, 4)
        assert manager.compact("trips").result(timeout=30).compactions == 1
        view = manager.get_time_keyed("trips")
        view.delete_times(0, 1000)  # all of the first file
        manager.checkpoint(100).result(timeout=30)
        assert view.read().num_rows == 3 * ROWS
        assert manager.metrics().tables["trips"].edits_discarded == 1
        assert not list(tmp_path.rglob("*.parquet"))


def test_a_merge_that_fails_is_counted_and_told_to_who_asked_and_harms_nothing(tiers: Tiers) -> None:
    broken = threading.Event()

    def plan(operation: Operation) -> Fault | None:
        return Fault.UNAVAILABLE if broken.is_set() and operation.verb is Verb.GET_RANGE else None

    store = FaultStore(ScopedStore(MemoryStore(), JOB), plan)
    with manager_on(store, tiers, CompactionMode.OFF) as manager:
        run(manager, 3)
        broken.set()
        with pytest.raises(StoreUnavailableError):
            manager.compact("riders").result(timeout=30)
        broken.clear()
        assert manager.metrics().compaction.failures == 1
        manager.checkpoint(100).result(timeout=30)
        check(manager, 3)


def test_a_table_whose_merges_fail_does_not_keep_others_from_theirs(tiers: Tiers) -> None:
    def plan(operation: Operation) -> Fault | None:
        return Fault.UNAVAILABLE if operation.verb is Verb.GET_RANGE and "riders" in operation.path else None

    store = FaultStore(ScopedStore(MemoryStore(), JOB), plan)
    with manager_on(store, tiers, CompactionMode.IN_LINE) as manager:
        run(manager, 14)
        metrics = manager.metrics()
        assert metrics.compaction.failures > 2
        assert metrics.tables["riders"].edits_applied == 0
        assert metrics.tables["trips"].edits_applied > 2
        check(manager, 14)


@pytest.mark.parametrize(("max_bytes", "together"), [(1, False), (25_000, False), (80_000, True)])
def test_bytes_merged_after_one_checkpoint_are_bounded(tiers: Tiers, max_bytes: int, together: bool) -> None:
    store = ScopedStore(MemoryStore(), JOB)
    with manager_on(store, tiers, CompactionMode.IN_LINE, max_compaction_bytes=max_bytes) as manager:
        before, most = CompactionMetrics(), 0
        for step in range(24):
            write(manager, step)
            manager.checkpoint(step + 2).result(timeout=30)
            merged = manager.metrics().compaction
            count = merged.compactions - before.compactions
            assert merged.read_bytes - before.read_bytes <= max_bytes or count == 1, "a single larger merge runs alone"
            before, most = merged, max(most, count)
        assert (most > 1) == together, "with few bytes it is one table after a checkpoint"
        tables = manager.metrics().tables
        assert min(tables[name].edits_applied for name in BOTH) > 2, "tables take turns"
        check(manager, 24)


@pytest.mark.parametrize(("max_bytes", "merged"), [(1, 1), (1 << 30, 5)])
def test_a_checkpoint_that_has_to_merge_files_itself_keeps_to_the_same_bound(
    tiers: Tiers, max_bytes: int, merged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    most_tombstones = 8
    monkeypatch.setattr(compaction, "MAX_TOMBSTONES", most_tombstones)
    store = ScopedStore(MemoryStore(), JOB)
    with manager_on(store, tiers, CompactionMode.OFF, max_compaction_bytes=max_bytes) as manager:
        run(manager, 5)
        trips = manager.get_time_keyed("trips")
        before = {file.path for file in trips.metadata().files}
        # One time of each file in turn, far too many in all.
        times = [
            step * 1000 + number
            for number in range(compaction.FAR_TOO_MANY * most_tombstones // 5 + 1)
            for step in range(5)
        ]
        for time_us in times:
            trips.delete_times(time_us, time_us + 1)
        manager.checkpoint(7).result(timeout=30)
        assert len(before - {file.path for file in trips.metadata().files}) == merged
        assert trips.read().num_rows == 5 * ROWS - len(times)


def test_closing_ends_merges_and_leaves_no_files_behind(tiers: Tiers, tmp_path: Path) -> None:
    manager = manager_on(ScopedStore(MemoryStore(), JOB), tiers, CompactionMode.BACKGROUND)
    run(manager, 6)
    manager.compact()
    manager.close()
    assert not list(tmp_path.rglob("*.parquet"))
    assert tiers.memory.used == 0


def test_state_that_was_merged_is_restored_at_any_parallelism(tiers: Tiers) -> None:
    options = ManagerOptions(compaction=CompactionMode.IN_LINE)
    cluster = Cluster(1, BOTH, options=options, tiers=tiers)
    for step in range(10):
        write(cluster.managers[0], step)
        cluster.commit()
    cluster.restart(3)
    fares = [
        row["fare"]
        for manager in cluster.managers
        for table in manager.get_keyed("riders").scan()
        for row in table.to_pylist()
    ]
    assert fares == [9] * ROWS
    assert sum(manager.get_time_keyed("trips").read().num_rows for manager in cluster.managers) == 10 * ROWS
    cluster.close()


def test_every_merge_beside_fast_checkpoints_is_applied_or_discarded(tiers: Tiers) -> None:
    with manager_on(ScopedStore(MemoryStore(), JOB), tiers, CompactionMode.BACKGROUND, max_pending=8) as manager:
        answers = []
        for step in range(24):
            write(manager, step)
            answers.append(manager.checkpoint(step + 2))  # several are under way while files are merged
        for answer in answers:
            answer.result(timeout=30)
        check(manager, 24)
        metrics = manager.metrics()
        settled = sum(table.edits_applied + table.edits_discarded for table in metrics.tables.values())
        # What was merged last waits for the next checkpoint: at most one result of each table.
        assert settled <= metrics.compaction.compactions <= settled + len(metrics.tables)
        assert metrics.compaction.failures == 0
