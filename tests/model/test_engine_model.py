"""The engine against plain dicts: all kinds of tables in one operator, through spills, checkpoints, crashes at any
operation of the store, rescaling, compaction, clean-up, forks, savepoints and copies of the whole job.
"""

import dataclasses
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from effort import examples
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from model.engine_model import KEYED, TABLES, TIME_KEYED, TIMED, Model, Row
from model.engine_shape import Shape
from model.engine_world import World

from statebed.checkpoint import Origin
from statebed.state import CompactionMode, DeleteKey, DeleteTimeKey, DeleteValue
from statebed.testing.faults import SimulatedCrash

PARALLELISM = st.integers(1, 4)
PICKS = st.integers(0, 999)
"""Choice among the things that exist by then."""
KEYS: list[int | None] = [None, *range(9)]
rows = st.builds(
    Row,
    key=st.sampled_from(KEYS),
    time=st.integers(-60, 120),
    number=st.integers(0, 3),
    text=st.sampled_from([None, "", "a", "bb"]),
    extra=st.none() | st.integers(0, 2),
)
batches = st.lists(rows, min_size=1, max_size=8)
tables = st.sampled_from(TABLES)


def many_rows(seed: int, count: int, time: int) -> list[Row]:
    """Enough rows for the budget to matter."""
    shuffled = random.Random(seed).sample(range(100, 100 + 2 * count), count)
    return [Row(key, time + key % 50, key + seed, f"{key:>20}") for key in shuffled]


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        parallelism=PARALLELISM, compaction=st.sampled_from([CompactionMode.IN_LINE, CompactionMode.BACKGROUND])
    )
    def start(self, parallelism: int, compaction: CompactionMode = CompactionMode.IN_LINE) -> None:
        self.world = World(parallelism, compaction=compaction)
        self.names = 0

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()

    @property
    def model(self) -> Model:
        return self.world.model

    def fitting(self, table: str, batch: Sequence[Row]) -> list[Row]:
        """The rows with what the table has: a time or none, a column `extra` or none."""
        extra = self.world.shape.extra
        return [
            row._replace(time=row.time if table in TIMED else 0, extra=row.extra if extra else None) for row in batch
        ]

    # ---- rows --------------------------------------------------------------------------------------------

    @rule(key=st.sampled_from("abcdef"), value=st.none() | st.integers(0, 9))
    def put_a_counter(self, key: str, value: int | None) -> None:
        self.world.put_counter(key, value)

    @rule(steps=st.lists(st.tuples(tables, batches, st.booleans()), min_size=2, max_size=8))
    def write_some(self, steps: list[tuple[str, list[Row], bool]]) -> None:
        for table, batch, merging in steps:
            (self.merge if merging and table in KEYED else self.write)(table, batch)

    def write(self, table: str, batch: list[Row]) -> None:
        batch = self.fitting(table, batch)
        self.world.send(table, batch)
        self.model.write(table, batch)

    def merge(self, table: str, batch: list[Row]) -> None:
        batch = self.fitting(table, batch)
        self.world.merge(table, batch)
        self.model.merge(table, batch)

    @rule(table=tables, seed=st.integers(0, 3), count=st.integers(200, 1500), merged=st.booleans())
    def write_much(self, table: str, seed: int, count: int, merged: bool) -> None:
        batch = many_rows(seed, count, self.model.watermark_us or 0)
        (self.merge if merged and table in KEYED else self.write)(table, batch)

    @rule(table=tables, batch=batches)
    def delete_keys(self, table: str, batch: list[Row]) -> None:
        self.world.send(table, self.fitting(table, batch), DeleteKey())
        self.model.delete_keys(table, {row.key for row in batch})

    @rule(table=st.sampled_from(TIMED), batch=batches, pick=PICKS)
    def delete_keys_at_times(self, table: str, batch: list[Row], pick: int) -> None:
        batch = self.fitting(table, self._some_of_the_model(table, batch, pick))
        self.world.send(table, batch, DeleteTimeKey())
        self.model.delete_at(table, batch)

    @rule(table=tables, batch=batches, pick=PICKS)
    def delete_values(self, table: str, batch: list[Row], pick: int) -> None:
        batch = self.fitting(table, self._some_of_the_model(table, batch, pick))
        self.world.send(table, batch, DeleteValue())
        self.model.delete_values(table, batch)

    @rule(table=st.sampled_from(TIMED), start=st.integers(-70, 130), width=st.integers(0, 40))
    def delete_a_range_of_time(self, table: str, start: int, width: int) -> None:
        self.world.send_range(table, start, start + width)
        self.model.delete_times(table, start, start + width)

    @rule()
    def spill(self) -> None:
        self.world.spill()

    @rule(table=tables, keys=st.lists(st.sampled_from([*KEYS, 150, 777, 3000]), min_size=1))
    def prefetch(self, table: str, keys: list[int | None]) -> None:
        self.world.prefetch(table, keys)

    @rule(step=st.integers(0, 12))
    def advance(self, step: int) -> None:
        self.world.advance((self.model.watermark_us or 0) + step)

    def _some_of_the_model(self, table: str, batch: list[Row], pick: int) -> list[Row]:
        """Mostly rows that are there, since others match nothing."""
        there = sorted(self.model.rows(table), key=repr)[:50]
        if not there:
            return batch
        return [*batch[:1], *random.Random(pick).choices(there, k=1 + pick % 5)]

    # ---- epochs ------------------------------------------------------------------------------------------

    @rule()
    def checkpoint(self) -> None:
        self.world.commit()

    @rule(some=st.lists(st.tuples(tables, rows), min_size=3, max_size=12))
    def write_in_epochs_of_their_own(self, some: list[tuple[str, Row]]) -> None:
        for table, row in some:
            self.write(table, [row])
            self.checkpoint()

    @precondition(lambda self: len(self.world.process.under_way) < 2)
    @rule()
    def begin_a_checkpoint(self) -> None:
        self.world.begin_checkpoint()

    @precondition(lambda self: bool(self.world.process.under_way))
    @rule()
    def finish_a_checkpoint(self) -> None:
        self.world.finish_checkpoint()

    @rule(some=st.sets(tables), wait=st.booleans())
    def compact(self, some: set[str], wait: bool) -> None:
        self.world.compact(*sorted(some), wait=wait)

    @rule()
    def clean_up(self) -> None:
        self.world.process.run.clean_up()

    # ---- starts ------------------------------------------------------------------------------------------

    @rule(parallelism=PARALLELISM)
    def stop_and_restore(self, parallelism: int) -> None:
        self.world.commit()
        self.world.process.end()
        self.world.start(parallelism)

    @rule(parallelism=PARALLELISM)
    def crash_and_restore(self, parallelism: int) -> None:
        self.world.crash()
        self.world.start(parallelism)

    @rule(operations=st.integers(1, 60), collecting=st.booleans(), parallelism=PARALLELISM)
    def crash_in_mid_checkpoint(self, operations: int, collecting: bool, parallelism: int) -> None:
        world = self.world
        world.doomed_at = len(world.process.store.log) + operations
        try:
            world.commit()
            if collecting:
                world.process.run.clean_up()
        except BaseException as error:
            if not _is_crash(error):
                raise
        world.crash()
        world.start(parallelism)

    @rule(pick=PICKS, parallelism=PARALLELISM)
    def fork(self, pick: int, parallelism: int) -> None:
        chain = self.world.process.run.chain
        if not chain:
            return
        self.world.crash()
        self.world.start(parallelism, Origin(epoch=chain[pick % len(chain)]))

    @rule()
    def save(self) -> None:
        self.names += 1
        self.world.save(f"savepoint-{self.names}")

    @precondition(lambda self: bool(self.world.savepoints))
    @rule(pick=PICKS, parallelism=PARALLELISM)
    def restore_a_savepoint(self, pick: int, parallelism: int) -> None:
        saved = sorted(self.world.savepoints)
        self.world.crash()
        self.world.start(parallelism, Origin(savepoint=saved[pick % len(saved)]))

    @rule(shape=st.builds(Shape, *[st.booleans()] * 4), parallelism=PARALLELISM)
    def evolve(self, shape: Shape, parallelism: int) -> None:
        """The program starts again with other definitions of its tables."""
        self.world.crash()
        # What was widened once cannot be narrowed.
        self.world.shape = dataclasses.replace(shape, wide=shape.wide or self.world.shape.wide)
        self.world.start(parallelism)

    @rule(parallelism=PARALLELISM)
    def clone(self, parallelism: int) -> None:
        """Another job continues elsewhere with a copy of the state."""
        self.world.clone(parallelism)

    # ---- what must hold ----------------------------------------------------------------------------------

    @rule(pick=PICKS, parallelism=PARALLELISM)
    def restore_a_retained_epoch_aside(self, pick: int, parallelism: int) -> None:
        chain = self.world.process.run.chain
        if chain:
            self.world.check_epoch(chain[pick % len(chain)], parallelism)

    @rule(table=st.sampled_from(KEYED), keys=st.lists(st.sampled_from([*KEYS, 150, 777, 3000]), min_size=1))
    def get(self, table: str, keys: list[int | None]) -> None:
        found = self.world.get(table, keys)
        rows = {key: self.model.at(table, key) for key in keys}
        assert found == {key: (row.number, row.text) if row else None for key, row in rows.items()}

    @rule(table=st.sampled_from(TIME_KEYED), start=st.integers(-70, 130), width=st.integers(0, 40))
    def read_a_range_of_time(self, table: str, start: int, width: int) -> None:
        wanted = {row: n for row, n in self.model.rows(table).items() if start <= row.time < start + width}
        assert self.world.range(table, start, start + width) == Counter(wanted)

    @invariant()
    def all_tables_equal_the_model(self) -> None:
        for table in TABLES:
            assert self.world.rows(table) == self.model.rows(table), table
        self.world.check_counters()

    @invariant()
    def memory_is_within_the_promise(self) -> None:
        self.world.check_memory()
        self.world.check_merges()


def _is_crash(error: BaseException | None) -> bool:
    """Whether the process died, or failed because a part of it had died."""
    while error is not None:
        if isinstance(error, SimulatedCrash):
            return True
        error = error.__cause__ or error.__context__
    return False


EngineMachine.TestCase.settings = settings(
    max_examples=examples(8),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestEngine = EngineMachine.TestCase


def test_the_budget_is_small_enough_to_matter_and_files_are_merged() -> None:
    """The machine's steps make tables spill and compact; otherwise it would show little."""
    world = World(2)
    for seed in range(6):
        for table in TABLES:
            batch = [row if table in TIMED else row._replace(time=0) for row in many_rows(seed, 1500, 0)]
            world.send(table, batch)
            world.model.write(table, batch)
        world.commit()
    assert world.process.tiers.memory.snapshot().events["spills"] > 10
    assert sum(manager.metrics().compaction.compactions for manager in world.process.managers) > 0
    for table in TABLES:
        assert world.rows(table) == world.model.rows(table)
    world.check_memory()
    world.end()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_p1_p2_p4_p6_hold_over_thousands_of_steps() -> None:
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=400,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )
