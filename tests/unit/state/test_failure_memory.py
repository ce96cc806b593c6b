"""Failures of earlier systems around memory: reads that miss what is spilled (3), hanging (4), refused inserts (18)."""

import threading
from pathlib import Path

import pytest
from unit.state.failure_tables import append_fares, fares_config, put_trips, trips_config
from unit.state.segment_rows import opened_tiers, rows, rows_in, sequences, spec
from unit.state.table_cluster import COUNTERS, JOB, OPERATOR, TABLE

from statebed.errors import StoreUnavailableError
from statebed.state import AppendBuffer, MemoryController, Purpose, TableManager, TaskInfo, Tier, Tiers
from statebed.storage import MemoryStore, ScopedStore
from statebed.testing.faults import Fault, FaultStore, Operation, Verb

BUDGET = 1 << 20


def test_failure_3_rows_are_read_at_every_moment_of_spilling(tmp_path: Path) -> None:
    """3. Reads miss a table that is being spilled."""
    with opened_tiers(tmp_path, budget=64 * BUDGET) as tiers:
        buffer = AppendBuffer(tiers, spec=spec(), owner="rides")
        for start in range(0, 60_000, 2_000):
            buffer.append(rows(2_000, start=start))
            buffer.seal()
        mover = threading.Thread(target=lambda: [segment.spill() for segment in buffer.segments])
        mover.start()
        counts = set[int]()
        try:
            while mover.is_alive():
                counts.add(sum(table.num_rows for table in rows_in(buffer)))
        finally:
            mover.join(30)
        assert counts == {60_000}
        assert all(segment.tier is Tier.DISK for segment in buffer.segments)
        assert sequences(*rows_in(buffer)) == list(range(60_000))


def test_failure_4_a_batch_larger_than_the_budget_is_taken(tmp_path: Path) -> None:
    """4. A batch larger than the quota hangs for ever: here it is even in use as a whole, so that nothing can leave."""
    memory = MemoryController(BUDGET, wait_seconds=2)
    tiers = Tiers(memory, folder=tmp_path)
    batch = rows(100_000)
    whole = memory.hold("rides", Purpose.READS, batch)
    buffer = AppendBuffer(tiers, spec=spec(), owner="rides")
    buffer.append(batch)
    whole.release()
    assert memory.used <= BUDGET
    assert sequences(*rows_in(buffer)) == list(range(100_000))
    tiers.close()


@pytest.mark.parametrize("small", [100, 7_000])
def test_failure_18_inserts_far_beyond_the_budget_are_spilled_and_not_refused(tmp_path: Path, small: int) -> None:
    """18. Strict memory limit that fails inserts instead of spilling."""
    with opened_tiers(tmp_path, budget=BUDGET) as tiers:
        buffer = AppendBuffer(tiers, spec=spec(), owner="rides")
        for start in range(0, 70_000, small):
            buffer.append(rows(small, start=start))
            assert tiers.memory.used <= BUDGET
        assert tiers.memory.snapshot().events["spills"] > 0
        assert sum(table.num_rows for table in rows_in(buffer)) == 70_000


@pytest.mark.parametrize("stored", ["nothing", "some files"])
def test_failure_5_a_manager_that_failed_and_was_given_up_holds_nothing(tmp_path: Path, stored: str) -> None:
    """5. Copies that no budget sees: here the opposite, memory of tables that are gone and that could not be freed."""
    puts: list[str] = []

    def fail(operation: Operation) -> Fault | None:
        if operation.verb is not Verb.PUT:
            return None
        puts.append(operation.path)
        return None if stored == "some files" and len(puts) == 1 else Fault.UNAVAILABLE

    with opened_tiers(tmp_path, budget=BUDGET) as tiers:
        configs = COUNTERS | trips_config() | fares_config()
        store = FaultStore(ScopedStore(MemoryStore(), JOB), fail)
        manager = TableManager(TaskInfo(JOB, OPERATOR), configs, store, tiers=tiers)
        put_trips([manager], dict.fromkeys(range(3_000), 1))
        append_fares([manager], [(number, number, 1) for number in range(3_000)])
        manager.get_global_keyed_state(TABLE).insert("ann", 1)
        assert tiers.memory.used > 0
        with pytest.raises(StoreUnavailableError):
            manager.checkpoint(2).result(timeout=30)
        manager.close()
        assert tiers.memory.snapshot().accounts == {}
        assert list(tiers.folder.path.iterdir()) == []
