"""Failures of earlier systems around memory: reads that miss what is spilled (3), hanging (4), refused inserts (18)."""

import threading
from pathlib import Path

import pytest
from unit.state.segment_rows import opened_tiers, rows, sequences, spec

from statebed.state import AppendBuffer, MemoryController, Purpose, Tier, Tiers

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
                counts.add(sum(table.num_rows for table in buffer.scan()))
        finally:
            mover.join(30)
        assert counts == {60_000}
        assert all(segment.tier is Tier.DISK for segment in buffer.segments)
        assert sequences(*buffer.scan()) == list(range(60_000))


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
    assert sequences(*buffer.scan()) == list(range(100_000))
    tiers.close()


@pytest.mark.parametrize("small", [100, 7_000])
def test_failure_18_inserts_far_beyond_the_budget_are_spilled_and_not_refused(tmp_path: Path, small: int) -> None:
    """18. Strict memory limit that fails inserts instead of spilling."""
    with opened_tiers(tmp_path, budget=BUDGET) as tiers:
        buffer = AppendBuffer(tiers, spec=spec(), owner="rides")
        for start in range(0, 140_000, small):
            buffer.append(rows(small, start=start))
            assert tiers.memory.used <= BUDGET
        assert tiers.memory.snapshot().events["spills"] > 0
        assert sum(table.num_rows for table in buffer.scan()) == 140_000
