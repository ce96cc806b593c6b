"""Global keyed tables and the budget of the process: charged at once, for others' keys too, and never refused."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from unit.state.segment_rows import opened_tiers, sorted_rows, spec
from unit.state.table_cluster import COUNTERS, JOB, OPERATOR, TABLE, Cluster

from statebed.errors import StoreUnavailableError
from statebed.state import Codec, GlobalKeyedView, MemoryController, Purpose, TableManager, TaskInfo, Tier, Tiers
from statebed.state.tiers.segments import Segment
from statebed.storage import MemoryStore, ScopedStore
from statebed.testing.faults import Fault, FaultStore, Operation, Verb

BUDGET = 1 << 20
ENTRY = 200
STEP = 16 << 10
"""A table is charged in such steps; what it shows is exact."""
TASK = TaskInfo(JOB, OPERATOR)


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    with opened_tiers(tmp_path, budget=BUDGET) as made:
        yield made


def manager_with(tiers: Tiers) -> TableManager:
    return TableManager(TASK, COUNTERS, ScopedStore(MemoryStore(), JOB), tiers=tiers)


def nbytes_of(contents: Mapping[Any, Any]) -> int:
    codec: Codec[Any] = Codec()
    return sum(len(codec.encode_key(key)) + len(codec.encode(value)) + ENTRY for key, value in contents.items())


def in_steps(nbytes: int) -> int:
    return -(-nbytes // STEP) * STEP


def charged(memory: MemoryController, subtask: int = 0) -> int:
    return memory.snapshot().accounts.get((f"{OPERATOR}-{TABLE}-{subtask}", Purpose.SEGMENTS), 0)


def shown(manager: TableManager) -> int:
    return manager.metrics().tables[TABLE].memory_bytes


def fill(view: GlobalKeyedView[Any, Any], count: int) -> None:
    for number in range(count):
        view.insert(number, "x" * 100)


def place(segment: Segment) -> Tier:
    """Return the tier through a call: mypy takes a property for a constant."""
    return segment.tier


def test_p4_the_charge_follows_every_insert_and_remove_before_the_first_checkpoint(tiers: Tiers) -> None:
    with manager_with(tiers) as manager:
        view = manager.get_global_keyed_state(TABLE)
        model: dict[str, str] = {}
        for number in range(2000):
            model[f"driver {number % 700}"] = "x" * (number % 300)
            view.insert(f"driver {number % 700}", "x" * (number % 300))
            if number % 3 == 0:
                model.pop(f"driver {number % 1000}", None)
                view.remove(f"driver {number % 1000}")
            if number % 50 == 0:
                assert shown(manager) == nbytes_of(model)
                assert charged(tiers.memory) == in_steps(nbytes_of(model))
        manager.checkpoint(2).result(timeout=30)
        assert shown(manager) == nbytes_of(model)
        assert charged(tiers.memory) == in_steps(nbytes_of(model))
        for key in model:
            view.remove(key)
        assert (charged(tiers.memory), shown(manager), tiers.memory.used) == (0, 0, 0)


def test_p4_restored_keys_are_charged_without_a_checkpoint_and_closing_gives_them_back(tiers: Tiers) -> None:
    cluster = Cluster(2, tiers=tiers)
    model = dict.fromkeys(range(300), "x" * 100)
    for key, value in model.items():
        cluster.owner(key).insert(key, value)
    cluster.commit()
    cluster.restart(3)
    assert [charged(tiers.memory, subtask) for subtask in range(3)] == [0, 0, 0], "nothing is read yet"
    views = cluster.views()
    assert [charged(tiers.memory, subtask) for subtask in range(3)] == [in_steps(nbytes_of(model))] * 3
    assert [shown(manager) for manager in cluster.managers] == [nbytes_of(model)] * 3
    cluster.close()
    assert tiers.memory.used == 0
    assert dict(views[0].items()) == model, "still there for who reads it"


def test_p4_keys_of_other_subtasks_are_charged_as_they_are_seen(tiers: Tiers) -> None:
    cluster = Cluster(2, tiers=tiers)
    model: dict[int, str] = {}
    for epoch in range(12):
        for number in range(epoch, epoch + 50):
            model[number] = "x" * (10 * epoch)
            cluster.owner(number).insert(number, model[number])
        for number in range(epoch, epoch + 50, 7):
            del model[number]
            cluster.owner(number).remove(number)
        cluster.commit()
        assert [shown(manager) for manager in cluster.managers] == [nbytes_of(model)] * 2
        assert [charged(tiers.memory, subtask) for subtask in range(2)] == [in_steps(nbytes_of(model))] * 2
    cluster.close()


@pytest.mark.parametrize("purpose", [Purpose.RESTORES, Purpose.MERGES])
def test_p4_files_are_charged_while_they_are_read_and_merged(tiers: Tiers, purpose: Purpose) -> None:
    seen: dict[int, list[int]] = {0: [], 1: []}

    def plan(operation: Operation) -> Fault | None:
        accounts = tiers.memory.snapshot().accounts
        for subtask, found in seen.items():
            if operation.verb is Verb.GET and f"{TABLE}-0." in operation.path:
                found.append(accounts.get((f"{OPERATOR}-{TABLE}-{subtask}", purpose), 0))
        return None

    cluster = Cluster(2, store=FaultStore(MemoryStore(), plan), tiers=tiers)
    for step in range(20):
        cluster.owner(step).insert(step, "x" * 5_000)
        cluster.commit()
    cluster.restart(1)
    cluster.views()
    assert max(seen[0]) > 5_000
    assert (max(seen[1]) > 5_000) == (purpose is Purpose.RESTORES), "others' files are seen, and not merged"
    assert all(key[1] is not purpose for key in tiers.memory.snapshot().accounts)
    cluster.close()


def test_p4_a_restore_that_failed_is_charged_once_when_it_is_tried_again(tiers: Tiers) -> None:
    broken = threading.Event()

    def plan(operation: Operation) -> Fault | None:
        second = operation.verb is Verb.GET and f"{TABLE}-1." in operation.path
        return Fault.UNAVAILABLE if second and broken.is_set() else None

    cluster = Cluster(2, store=FaultStore(MemoryStore(), plan), tiers=tiers)
    model = dict.fromkeys(range(100), "x")
    for key, value in model.items():
        cluster.owner(key).insert(key, value)
    cluster.commit()
    cluster.restart(1)
    broken.set()
    with pytest.raises(StoreUnavailableError):
        cluster.views()
    assert charged(tiers.memory) == 0
    broken.clear()
    assert len(cluster.managers[0].get_global_keyed_state(TABLE)) == len(model)
    assert shown(cluster.managers[0]) == nbytes_of(model)
    assert charged(tiers.memory) == in_steps(nbytes_of(model))
    cluster.close()


def test_p4_segments_of_other_tables_leave_memory_when_a_global_table_grows(tiers: Tiers) -> None:
    segment = tiers.segment(sorted_rows(8_000), spec=spec(), owner="rides")
    rows = segment.read()
    with manager_with(tiers) as manager:
        view = manager.get_global_keyed_state(TABLE)
        assert place(segment) is Tier.MEMORY
        for number in range(3_000):
            view.insert(number, "x" * 100)
            assert tiers.memory.used <= BUDGET
        assert place(segment) is Tier.DISK
        assert segment.read().equals(rows)
        again = tiers.segment(sorted_rows(1_000), spec=spec(), owner="rides")
        fill(view, 20_000)
        assert place(again) is Tier.DISK
        assert charged(tiers.memory) == tiers.memory.used > BUDGET, "it cannot leave itself, and takes every key"
        assert len(view) == 20_000


def test_p4_a_disk_that_fails_refuses_no_key_and_is_told(tiers: Tiers, caplog: pytest.LogCaptureFixture) -> None:
    segment = tiers.segment(sorted_rows(8_000), spec=spec(), owner="rides")
    tiers.folder.path.rmdir()
    with manager_with(tiers) as manager:
        view = manager.get_global_keyed_state(TABLE)
        fill(view, 5_000)
        assert len(view) == 5_000
        assert charged(tiers.memory) == in_steps(nbytes_of(dict.fromkeys(range(5000), "x" * 100)))
    assert place(segment) is Tier.MEMORY
    assert tiers.memory.snapshot().events["failed_spills"] > 0
    assert f"{OPERATOR}-{TABLE}-0, which grows beyond the memory budget: [SPILL]" in caplog.text


def test_p4_a_disk_that_hangs_delays_a_key_and_does_not_refuse_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = MemoryController(BUDGET, wait_seconds=0.1)
    tiers = Tiers(memory, folder=tmp_path)
    moving, resume = threading.Event(), threading.Event()
    slow = memory.charge("slow", Purpose.SEGMENTS, BUDGET)

    def hang() -> None:
        moving.set()
        assert resume.wait(30)
        slow.release()

    memory.offer("slow", BUDGET, hang)
    mover = threading.Thread(target=memory.make_room)
    mover.start()
    assert moving.wait(30)
    try:
        with manager_with(tiers) as manager:
            view = manager.get_global_keyed_state(TABLE)
            view.insert("ann", 1)
            assert view.get("ann") == 1
            assert shown(manager) == nbytes_of({"ann": 1})
        assert "[SPILL_TIMEOUT]" in caplog.text
    finally:
        resume.set()
        mover.join(30)
    assert memory.used == 0
    tiers.close()
