"""Tables after crashes: at every operation of the store, and of a whole process."""

import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from unit.state.table_cluster import JOB, OPERATOR, TABLE, managers_at

from statebed.checkpoint import EpochDraft, Run
from statebed.errors import StatebedError
from statebed.state import Compaction, TableManager, operator_entry
from statebed.storage import MemoryStore, ObjectStore, ScopedStore, get_storage_provider
from statebed.testing.faults import Fault, FaultStore, SimulatedCrash

EPOCHS = 4


def change(managers: list[TableManager], step: int, expected: dict[Any, Any]) -> None:
    """Change the table as each epoch does, and a dict."""
    views = [manager.get_global_keyed_state(TABLE) for manager in managers]
    for key in range(6):
        (owner,) = [view for view in views if view.owns(key)]
        if (key + step) % 3 == 0:
            owner.remove(key)
            expected.pop(key, None)
        else:
            owner.insert(key, step)
            expected[key] = step
    if step == EPOCHS - 1:
        for manager in managers:
            manager.send(Compaction())


def work(store: ObjectStore, history: dict[int, dict[Any, Any]]) -> None:
    """A few epochs of two subtasks; `history` gets what each epoch is to hold before it is committed."""
    run = Run.open(store, JOB)
    managers = managers_at(store, run.head, 2)
    expected: dict[Any, Any] = {}
    try:
        for step in range(EPOCHS):
            change(managers, step, expected)
            history[run.next_epoch] = dict(expected)
            waiting = [manager.checkpoint(run.next_epoch) for manager in managers]
            run.commit(EpochDraft(operators=[operator_entry([one.result(timeout=30) for one in waiting])]))
    finally:
        for manager in managers:
            manager.close()


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_p2_a_crash_at_any_operation_leaves_exactly_one_committed_epoch(fault: Fault) -> None:
    survived: set[int] = set()
    # A crash after an operation leaves what one before the next leaves: with the same numbers, they take turns.
    for number in count(1, 2):
        disk = ScopedStore(MemoryStore(), JOB)
        history: dict[int, dict[Any, Any]] = {0: {}}
        faulty = FaultStore(disk, {number: fault})
        try:
            work(faulty, history)
        except (SimulatedCrash, StatebedError):
            assert faulty.crashed
        run = Run.open(disk, JOB)
        for manager in managers_at(disk, run.head, 3):
            with manager:
                assert dict(manager.get_global_keyed_state(TABLE).items()) == history[run.head.base]
        survived.add(run.head.base)
        if not faulty.crashed:
            break
    assert survived == set(history)


CHILD = """
import sys
from statebed.checkpoint import EpochDraft, Run
from statebed.state import TableManager, TaskInfo, global_table_config, operator_entry
from statebed.storage import ScopedStore, get_storage_provider

folder, job, operator, table = sys.argv[1:]
store = ScopedStore(get_storage_provider(folder), job)
run = Run.open(store, job)
manager = TableManager(TaskInfo(job, operator), global_table_config(table, ""), store, restore_from=run.head)
view = manager.get_global_keyed_state(table)
while True:
    epoch = run.next_epoch
    view.insert("epoch", epoch)
    view.insert(epoch, None)
    view.remove(epoch - 5)
    run.commit(EpochDraft(operators=[operator_entry([manager.checkpoint(epoch).result(timeout=60)])]))
    print(epoch, flush=True)
"""


def test_p1_what_a_process_committed_survives_its_sudden_death(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", CHILD, str(tmp_path), JOB, OPERATOR, TABLE]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        told = [int(child.stdout.readline()) for _ in range(12)]
        child.send_signal(signal.SIGKILL)
        told += [int(line) for line in child.stdout if line.endswith("\n")]
    store = ScopedStore(get_storage_provider(str(tmp_path)), JOB)
    run = Run.open(store, JOB)
    assert run.head.base >= told[-1]
    for manager in managers_at(store, run.head, 2):
        with manager:
            contents = dict(manager.get_global_keyed_state(TABLE).items())
            last = run.head.base
            assert contents == {"epoch": last} | dict.fromkeys(range(last - 4, last + 1))
