"""Keyed and time-keyed tables after crashes: while rows are deleted, files merged, and columns changed."""

import datetime as dt
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from effort import diagonals
from unit.state.table_cluster import JOB, OPERATOR, managers_at

from statebed.checkpoint import EpochDraft, Run
from statebed.errors import StatebedError
from statebed.state import (
    CompactionMode,
    DataOperation,
    DeleteKey,
    DeleteTimeRange,
    DeleteValue,
    Insert,
    ManagerOptions,
    RecordBatch,
    TableConfig,
    TableData,
    TableManager,
    keyed_table_config,
    operator_entry,
    timestamp_table_config,
)
from statebed.storage import MemoryStore, ObjectStore, ScopedStore
from statebed.testing.faults import Fault, FaultStore, SimulatedCrash

EPOCHS = 6
CHANGED_AT = 3
"""Epoch from which the program has another definition."""
OPTIONS = ManagerOptions(compaction=CompactionMode.IN_LINE, upload_threads=1, timeout_seconds=30)
DAY = dt.timedelta(days=1)
Contents = tuple[dict[int, Any], list[tuple[int, int, Any]]]


def configs(step: int) -> dict[str, TableConfig]:
    changed = step >= CHANGED_AT
    fare = pa.field("amount", pa.int64()) if changed else pa.field("fare", pa.int32())
    schema = pa.schema([pa.field("rider", pa.int64()), fare])
    renames = {"amount": "fare"} if changed else {}
    return {
        "riders": keyed_table_config("riders", "", ["rider"], schema, renames=renames),
        "trips": timestamp_table_config("trips", "", DAY, False, schema, keys=["rider"], renames=renames),
    }


def send(manager: TableManager, table: str, operation: DataOperation, **columns: list[int]) -> None:
    kinds = {"_time": pa.timestamp("us", "UTC"), "fare": pa.int32()}
    arrays = {name: pa.array(values, kinds.get(name, pa.int64())) for name, values in columns.items()}
    manager.send(TableData(table, RecordBatch(pa.record_batch(arrays), operation)))


def change(manager: TableManager, step: int, riders: dict[int, Any], trips: list[tuple[int, int, Any]]) -> None:
    """Change the tables as each epoch does, and plain ones."""
    name = "amount" if step >= CHANGED_AT else "fare"
    keys, fares = list(range(6)), [step] * 6
    send(manager, "riders", Insert(), rider=keys, **{name: fares})
    send(manager, "trips", Insert(), rider=keys, _time=[step] * 6, **{name: fares})
    riders.update(dict.fromkeys(keys, step))
    trips += [(key, step, step) for key in keys]
    gone = step % 6
    send(manager, "riders", DeleteKey(), rider=[gone])
    send(manager, "trips", DeleteKey(), rider=[gone])
    send(manager, "trips", DeleteValue(), rider=[5], **{name: [step - 1]})
    send(manager, "trips", DeleteTimeRange(0, step - 2) if step > 2 else DeleteTimeRange(0, 0), rider=[])
    riders.pop(gone)
    hidden = [row for row in trips if row[0] == gone or (row[0] == 5 and row[2] == step - 1) or row[1] < step - 2]
    trips[:] = [row for row in trips if row not in hidden]


def contents(managers: list[TableManager]) -> Contents:
    riders: dict[int, Any] = {}
    trips: list[tuple[int, int, Any]] = []
    for manager in managers:
        for rows in manager.get_keyed("riders").scan():
            riders |= dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        rows = manager.get_time_keyed("trips").read()
        times = rows["_time"].cast(pa.int64()).to_pylist()
        trips += zip(rows["rider"].to_pylist(), times, rows.column(2).to_pylist(), strict=True)
    return riders, sorted(trips)


def work(store: ObjectStore, history: dict[int, Contents]) -> None:
    """Epochs of one subtask, with a new manager for the new definition; merges run after each checkpoint."""
    riders: dict[int, Any] = {}
    trips: list[tuple[int, int, Any]] = []
    step = 0
    while step < EPOCHS:
        run = Run.open(store, JOB)
        (manager,) = managers_at(store, run.head, 1, configs(step), options=OPTIONS)
        with manager:
            for _ in range(CHANGED_AT):
                change(manager, step, riders, trips)
                history[run.next_epoch] = (dict(riders), sorted(trips))
                stored = manager.checkpoint(run.next_epoch).result(timeout=30)
                run.commit(EpochDraft(operators=[operator_entry([stored])]))
                step += 1


@pytest.mark.parametrize(("fault", "first"), diagonals([Fault.CRASH_BEFORE, Fault.CRASH_AFTER], [1, 3, 5, 7, 9, 11]))
def test_p2_a_crash_at_any_operation_leaves_exactly_one_committed_epoch_of_rows(fault: Fault, first: int) -> None:
    survived: set[int] = set()
    # A crash after an operation leaves what one before the next leaves: with the same numbers, they take turns.
    for number in count(first, 12):
        disk = ScopedStore(MemoryStore(), JOB)
        history: dict[int, Contents] = {0: ({}, [])}
        faulty = FaultStore(disk, {number: fault})
        try:
            work(faulty, history)
        except (SimulatedCrash, StatebedError):
            assert faulty.crashed
        run = Run.open(disk, JOB)
        managers = managers_at(disk, run.head, 2, configs(EPOCHS), options=OPTIONS)
        # A run_start carries the state of the epoch before it.
        base = max(epoch for epoch in history if epoch <= run.head.base)
        assert contents(managers) == history[base], number
        for manager in managers:
            manager.close()
        survived.add(base)
        if not faulty.crashed:
            break
    # An epoch may have fewer operations than there are between two crashes.
    assert len(survived) >= EPOCHS - 1


def test_files_are_merged_during_the_sweep() -> None:
    disk = ScopedStore(MemoryStore(), JOB)
    history: dict[int, Contents] = {}
    work(disk, history)
    paths = [info.path for info in disk.list("")]
    assert sum(f"{OPERATOR}-riders" in path for path in paths) > EPOCHS, "merged files are in the folders of epochs"
