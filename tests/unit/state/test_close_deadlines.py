"""Closing, and waiting for a checkpoint, end at a deadline, with an error that names what still runs."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.state.segment_rows import opened_tiers, sorted_rows, spec
from unit.state.table_cluster import COUNTERS, JOB, OPERATOR, TABLE

from statebed.errors import CheckpointTimeoutError, CloseTimeoutError, StoreUnavailableError
from statebed.state import (
    CompactionMode,
    ManagerOptions,
    MemoryController,
    RecordBatch,
    TableData,
    TableManager,
    TaskInfo,
    Tiers,
    Upload,
    keyed_table_config,
)
from statebed.state.manager.in_flight import InFlight
from statebed.state.manager.uploads import Uploads
from statebed.storage import MemoryStore, ObjectStore, ScopedStore
from statebed.testing.faults import FaultStore, Operation, Verb

TASK = TaskInfo(JOB, OPERATOR)
RIDERS = {
    "riders": keyed_table_config("riders", "", ["rider"], pa.schema([("rider", pa.int64()), ("fare", pa.int64())]))
}
SECONDS = 0.2
LONGEST = 5.0
"""Timeout of tests that set no deadline."""


class Gate:
    """Holds operations of one kind while it is shut."""

    def __init__(self, verb: Verb, *, data: bool) -> None:
        """`data`: those of data files; otherwise those of other objects."""
        self.opened = threading.Event()
        self.reached = threading.Event()
        self._verb = verb
        self._data = data

    def hold(self, operation: Operation) -> None:
        if operation.verb is self._verb and operation.path.endswith(".parquet") is self._data:
            self.reached.set()
            self.opened.wait(timeout=LONGEST)


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    with opened_tiers(tmp_path) as made:
        yield made


def manager_on(store: ObjectStore, tiers: Tiers, tables: Any = COUNTERS) -> TableManager:
    options = ManagerOptions(timeout_seconds=SECONDS, compaction=CompactionMode.OFF)
    return TableManager(TASK, tables, ScopedStore(store, JOB), options=options, tiers=tiers)


def test_a_compaction_behind_a_stuck_checkpoint_ends_with_a_typed_error(tiers: Tiers) -> None:
    gate = Gate(Verb.PUT, data=False)
    with manager_on(FaultStore(MemoryStore(), before=gate.hold), tiers) as manager:
        manager.get_global_keyed_state(TABLE).insert("ann", 1)
        checkpoint = manager.checkpoint(2)
        with pytest.raises(CheckpointTimeoutError, match=r"epochs \[2\] are not durable after 0\.2 seconds") as caught:
            manager.compact().result(timeout=LONGEST)
        assert TASK.where in caught.value.where
        assert "nothing was compacted" in caught.value.fix
        gate.opened.set()
        checkpoint.result(timeout=30)
        manager.compact().result(timeout=30)


def test_a_manager_is_not_closed_for_ever_and_keeps_what_a_stuck_checkpoint_needs(tiers: Tiers) -> None:
    gate = Gate(Verb.PUT, data=False)
    manager = manager_on(FaultStore(MemoryStore(), before=gate.hold), tiers)
    manager.get_global_keyed_state(TABLE).insert("ann", 1)
    waiting = [manager.checkpoint(epoch) for epoch in (2, 3)]
    begin = time.monotonic()
    with pytest.raises(CloseTimeoutError, match=r"the checkpoint of epoch 2, the checkpoint of epoch 3") as caught:
        manager.close()
    assert time.monotonic() - begin < LONGEST / 2
    assert TASK.where in caught.value.where
    assert "keeps memory and local files of its tables" in caught.value.fix
    assert tiers.memory.used > 0
    gate.opened.set()
    assert [one.result(timeout=30).epoch for one in waiting] == [2, 3], "they were left to end"
    manager.close()
    assert tiers.memory.used == 0


def test_a_merge_that_hangs_is_named_and_its_files_leave_when_it_has_ended(tiers: Tiers, tmp_path: Path) -> None:
    gate = Gate(Verb.GET_RANGE, data=True)
    gate.opened.set()
    manager = manager_on(FaultStore(MemoryStore(), before=gate.hold), tiers, RIDERS)
    for epoch in (2, 3, 4):
        rows = pa.record_batch({"rider": pa.array(range(500), pa.int64()), "fare": pa.array([epoch] * 500, pa.int64())})
        manager.send(TableData("riders", RecordBatch(rows)))
        manager.checkpoint(epoch).result(timeout=30)
    gate.opened.clear()
    gate.reached.clear()
    asked = manager.compact()
    assert gate.reached.wait(30)
    with pytest.raises(CloseTimeoutError, match="seconds: a compaction of files of riders"):
        manager.close()
    gate.opened.set()
    assert asked.result(timeout=30).compactions == 1
    manager.close()
    assert not list(tmp_path.rglob("*.parquet"))
    assert tiers.memory.used == 0


def test_uploads_that_hang_are_named_and_those_that_never_began_are_not_waited_for() -> None:
    gate = Gate(Verb.PUT, data=True)
    store = InFlight(FaultStore(MemoryStore(), before=gate.hold), MemoryController(1 << 20), owner=OPERATOR)
    uploads = Uploads(store, threads=1, max_bytes=1 << 20, timeout_seconds=SECONDS)
    for number in range(3):
        uploads.submit(Upload.of_bytes(f"data/{number}.parquet", b"x"))
    assert gate.reached.wait(30)
    with pytest.raises(CloseTimeoutError, match=r"(?m)seconds: data/0\.parquet$"):
        uploads.close()
    gate.opened.set()
    uploads.close()


def test_a_checkpoint_that_failed_is_closed_as_soon_as_nothing_runs(tiers: Tiers) -> None:
    def fail(operation: Operation) -> None:
        if operation.verb is Verb.PUT:
            raise StoreUnavailableError("gone")

    manager = manager_on(FaultStore(MemoryStore(), before=fail), tiers)
    manager.get_global_keyed_state(TABLE).insert("ann", 1)
    waiting = manager.checkpoint(2)
    manager.close()
    with pytest.raises(StoreUnavailableError):
        waiting.result(timeout=0)


def test_tiers_with_a_load_that_hangs_keep_their_files_until_they_are_closed_again(tmp_path: Path) -> None:
    tiers = Tiers(MemoryController(64 << 20, wait_seconds=SECONDS), folder=tmp_path)
    gate = Gate(Verb.GET, data=True)
    store = FaultStore(MemoryStore(), before=gate.hold)
    made = tiers.segment(sorted_rows(100), spec=spec(), owner="rides")
    entry = made.upload(store, name_of=lambda digest: f"{digest}.parquet", owned=made.entry.owned)
    loading = tiers.stored(entry, store, spec=spec(), owner="trips").prefetch()
    assert gate.reached.wait(30)
    with pytest.raises(CloseTimeoutError, match=r"(?m)seconds: a load of rows of trips$") as caught:
        tiers.close()
    assert caught.value.where == str(tiers.folder.path)
    assert tiers.folder.path.is_dir()
    gate.opened.set()
    assert loading.result(timeout=30)
    tiers.close()
    assert not tiers.folder.path.exists()
