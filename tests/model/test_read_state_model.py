"""`read_state` and `diff_state` against the model of the engine's tables: any retained epoch and savepoint, through
spills, crashes, rescaling, compaction, clean-up, forks, changed columns and copies of the whole job.
"""

from collections import Counter
from typing import Any

from effort import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from model.engine_model import COUNTERS, KEYED, TABLES, TIME_KEYED, TIMED, Model, Row, Rows
from model.engine_shape import Shape
from model.test_engine_model import KEYS, PICKS, EngineMachine, many_rows, tables

from statebed.checkpoint import CheckpointLog
from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.tables.pinned import JobLocation
from statebed.inspect.tables.state_diff import StateDiff, diff_at
from statebed.inspect.tables.state_table import StateTable, table_at
from statebed.storage import ScopedStore


class ReadingMachine(EngineMachine):
    """The engine's machine, with readers of its files beside it."""

    @property
    def location(self) -> JobLocation:
        job = self.world.job  # a clone is another job
        location = JobLocation("memory://", job)
        location.__dict__["log"] = CheckpointLog(ScopedStore(self.world.disk, job), job)
        return location

    def table(self, name: str, **where: Any) -> StateTable:
        return table_at(self.location, table=name, **where)

    @property
    def epochs(self) -> list[int]:
        """Records that have state, and are retained."""
        head = self.location.log.head()
        kept = 0 if head is None else head.min_epoch
        return [one.epoch for one in self.location.log.records() if one.operators and one.epoch >= kept]

    def held_at(self, number: int) -> Model:
        record = self.location.log.read(number)
        while record.kind == pb.RUN_START and record.base not in self.world.epochs:
            record = self.location.log.read(record.base)
        return self.world.epochs[record.base if record.kind == pb.RUN_START else number]

    @precondition(lambda self: self.epochs)
    @rule(table=tables, pick=PICKS)
    def read_any_epoch(self, table: str, pick: int) -> None:
        number = self.epochs[pick % len(self.epochs)]
        found = self.table(table, epoch=number)
        held = self.held_at(number).rows(table)
        assert rows_of(found) == held
        assert found.count() == held.total()
        assert found.head(3).num_rows == min(3, held.total())

    @precondition(lambda self: self.epochs)
    @rule(pick=PICKS)
    def read_the_counters(self, pick: int) -> None:
        number = self.epochs[pick % len(self.epochs)]
        found = self.table(COUNTERS, epoch=number).to_arrow().to_pylist()
        held = self.held_at(number).counters
        assert {row["key"]: row["value"] for row in found} == {f'"{key}"': str(value) for key, value in held.items()}
        asked = self.table(COUNTERS, epoch=number).keys("a", "nobody").to_arrow().to_pylist()
        assert {row["key"]: row["value"] for row in asked} == ({'"a"': str(held["a"])} if "a" in held else {})

    @precondition(lambda self: self.epochs)
    @rule(table=tables, pick=PICKS, keys=st.lists(st.sampled_from([*KEYS, 150, 777, 3000]), min_size=1, max_size=4))
    def read_some_keys(self, table: str, pick: int, keys: list[int | None]) -> None:
        number = self.epochs[pick % len(self.epochs)]
        held = self.held_at(number).rows(table)
        asked = self.table(table, epoch=number).keys(*keys)
        assert rows_of(asked) == Counter({row: n for row, n in held.items() if row.key in keys})

    @precondition(lambda self: self.epochs)
    @rule(table=st.sampled_from(TIMED), pick=PICKS, start=st.integers(-70, 130), width=st.integers(0, 40))
    def read_some_times(self, table: str, pick: int, start: int, width: int) -> None:
        number = self.epochs[pick % len(self.epochs)]
        held = {row: n for row, n in self.held_at(number).rows(table).items() if start <= row.time < start + width}
        asked = self.table(table, epoch=number).between(start, start + width)
        assert rows_of(asked) == Counter(held)
        assert asked.select("text").count() == sum(held.values())

    @precondition(lambda self: self.epochs)
    @rule(table=tables, pick=PICKS)
    def read_by_a_condition(self, table: str, pick: int) -> None:
        number = self.epochs[pick % len(self.epochs)]
        held = self.held_at(number).rows(table)
        wanted = Counter({row.key: 0 for row in held})
        for row, count in held.items():
            wanted[row.key] += count if row.text == "a" else 0
        asked = self.table(table, epoch=number).filter("text = 'a'").select("key")
        assert Counter(asked.to_arrow()["key"].to_pylist()) == +wanted
        assert self.table(table, epoch=number).filter("text = 'a'").count() == wanted.total()

    @precondition(lambda self: self.world.savepoints)
    @rule(table=tables, pick=PICKS)
    def read_a_savepoint(self, table: str, pick: int) -> None:
        pins = sorted(pin.savepoint for pin in self.location.log.head().pins)  # type: ignore[union-attr]  # it has one
        if pins:
            name = pins[pick % len(pins)]
            assert rows_of(self.table(table, savepoint=name)) == self.world.savepoints[name].rows(table)

    @precondition(lambda self: self.epochs)
    @rule(table=tables, pick=PICKS, other=PICKS)
    def compare_two_epochs(self, table: str, pick: int, other: int) -> None:
        since, until = sorted((self.epochs[pick % len(self.epochs)], self.epochs[other % len(self.epochs)]))
        old, new = self.held_at(since).copy(), self.held_at(until)
        try:
            found = changes_in(diff_at(self.location, table=table, since=since, until=until))
        except InputError as error:
            # A fork may have changed its columns otherwise, or not yet.
            assert "evolved differently" in str(error) or "which cannot be read as int32" in str(error)  # noqa: PT017 - or none
            return
        old.evolve(has_extra=new.has_extra)
        assert found == changes_between(old.rows(table), new.rows(table), by_time=table in TIME_KEYED)


def changes_in(diff: StateDiff) -> Counter[tuple[str, Row]]:
    rows = diff.to_arrow()
    kinds = rows["change"].to_pylist()
    assert Counter(kinds) == Counter(diff.counts())
    befores = [place for place, kind in enumerate(kinds) if kind == "update_before"]
    assert all(kinds[place + 1].startswith("update") for place in befores)
    return Counter(zip(kinds, Shape(renamed="amount" in rows.column_names).rows(rows), strict=True))


def changes_between(old: Rows, new: Rows, *, by_time: bool) -> Counter[tuple[str, Row]]:
    def identity(row: Row) -> tuple[int | None, int]:
        return row.key, row.time if by_time else 0

    gone, come = old - new, new - old
    updated = {identity(row) for row in gone} & {identity(row) for row in come}
    changes: Counter[tuple[str, Row]] = Counter()
    for row, count in gone.items():
        changes["update_before" if identity(row) in updated else "delete", row] += count
    for row, count in come.items():
        changes["update_after" if identity(row) in updated else "insert", row] += count
    return changes


def rows_of(table: StateTable) -> Rows:
    rows = table.to_arrow()
    return Counter(Shape(renamed="amount" in rows.column_names).rows(rows))


ReadingMachine.TestCase.settings = settings(
    max_examples=examples(8),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestReading = ReadingMachine.TestCase


def test_p2_every_epoch_of_a_run_with_spills_and_merges_reads_as_it_was() -> None:
    """Twenty epochs, each read after the last one as the operator's own view showed it."""
    machine = ReadingMachine()
    machine.start(parallelism=2)
    world = machine.world
    numbers = []
    for seed in range(5):
        for table in TABLES:
            batch = machine.fitting(table, many_rows(seed, 700, 0))
            world.send(table, batch)
            world.model.write(table, batch)
        numbers.append(world.commit().epoch)
        for table in TABLES:
            assert rows_of(machine.table(table)) == world.rows(table), (seed, table)
    assert world.process.tiers.memory.snapshot().events["spills"] > 10
    assert sum(manager.metrics().compaction.compactions for manager in world.process.managers) > 0
    for number in numbers[-2:]:
        for table in KEYED:
            assert rows_of(machine.table(table, epoch=number)) == machine.held_at(number).rows(table)
    assert [row for row in rows_of(machine.table(KEYED[0])) if isinstance(row, Row)]
    machine.teardown()
