"""Compaction apart from epochs: what is merged, how a later epoch takes it, and that no answer depends on it."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conformance.every_operator import KINDS, OPERATORS
from conformance.streams import LEFT, RIGHT, SCHEMA, source
from effort import diagonals
from unit.subtasks.subtask_world import SubtaskWorld, Told, edits_of

from statebed.aggregates import functions as f
from statebed.errors import LostWriteError
from statebed.flow import Flow
from statebed.flow.graph import OperatorNode
from statebed.format import names
from statebed.format.schema import TIMESTAMP
from statebed.format.segment_writer import ROW_GROUP_BYTES
from statebed.operators.window_definition import tumbling
from statebed.state import MemoryController, StoredEdit, Tiers
from statebed.state.host_cache import HostCache
from statebed.storage import MemoryStore
from statebed.subtasks import CompactedSubtask, SubtaskTask, compact_subtask, run_subtask
from statebed.testing.faults import Fault, FaultStore, Operation, SimulatedCrash, Verb

EPOCHS = 9
KEYS = 40


def node_of(step: Callable[..., Any]) -> OperatorNode:
    flow = Flow("job")
    step(source(flow, LEFT), source(flow, RIGHT))
    (node,) = [one for one in flow.graph.nodes if isinstance(one, OperatorNode)]
    return node


COUNTS = node_of(lambda left, _: left.key_by("k", name="out").agg(n=f.count(), all=f.sum("v")))
WINDOWS = node_of(lambda left, _: left.group_by("k", tumbling("1 hour"), name="out").agg(n=f.count(), all=f.sum("v")))
SHORT_LIVED = node_of(lambda left, _: left.key_by("k", name="out").agg(n=f.count(), ttl="20 us"))


def rows_of(epoch: int, *, seed: int = 0, count: int = 60, keys: int = KEYS, step_us: int = 9) -> pa.Table:
    chance = np.random.default_rng([seed, epoch])
    numbers = pa.array(chance.integers(keys, size=count))
    times = pa.array(epoch * step_us + chance.integers(-5, 9, size=count))
    values = {
        "k": numbers.cast(pa.string()),
        "v": numbers,
        "t": pa.array(chance.integers(3, size=count)).cast(pa.string()),
        "x": pa.array(chance.random(count)),
        "ts": times.cast(SCHEMA.field("ts").type),
    }
    columns = [values.get(field.name, pa.nulls(count)).cast(field.type) for field in SCHEMA]
    return pa.Table.from_arrays([*columns, times.cast(TIMESTAMP)], names=[*SCHEMA.names, "_time"])


def fed(world: SubtaskWorld, epoch: int, **more: Any) -> list[pa.Table]:
    return [rows_of(epoch, seed=number, **more) for number in range(len(world.operator.inputs))]


def grown(node: OperatorNode, epochs: int, **more: Any) -> SubtaskWorld:
    """A world after some epochs without compaction."""
    world = SubtaskWorld(node, **more)
    for epoch in range(epochs):
        world.epoch(fed(world, epoch), watermark_us=None)
    return world


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController(64 << 20), folder=tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    "operator", [pytest.param(name, marks=() if name in KINDS[::2] else pytest.mark.long) for name in OPERATORS]
)
def test_p6_every_operator_gives_the_same_rows_and_state_with_and_without_compaction(operator: str) -> None:
    node = node_of(OPERATORS[operator])
    merged, plain = SubtaskWorld(node), SubtaskWorld(node)
    applied = 0
    told = Told()
    for epoch in range(EPOCHS):
        given = fed(plain, epoch, count=25, step_us=3)
        # The watermark stands still for some epochs, so that state gathers.
        watermark_us = epoch // 7 * 21 - 10
        for world, some in ((merged, told), (plain, Told())):
            world.epoch(given, watermark_us=watermark_us, told=some)
        outbox = [[file.path for report in world.reports for file in report.outbox] for world in (merged, plain)]
        assert outbox[0] == outbox[1], "the bytes of the output depend on compaction"
        applied += sum(report.edits_applied for report in merged.reports)
        told = Told(edits_of(merged.compact()))
    assert applied, "the test merged nothing"
    assert merged.state() == plain.state()


@pytest.mark.parametrize(
    ("operator", "seed"),
    [
        *diagonals(["updating_aggregate", "tumbling"], [1, 2, 3]),
        *diagonals(["process", "session", "interval_join_full"], [1, 2, 3], kept=0),
    ],
)
def test_p6_edits_that_come_late_twice_or_never_and_rescales_change_no_answer(operator: str, seed: int) -> None:
    node, chance = node_of(OPERATORS[operator]), Random(f"{operator} {seed}")
    merged, plain = SubtaskWorld(node), SubtaskWorld(node)
    made: list[tuple[int, tuple[bytes, ...]]] = []
    applied = 0
    for epoch in range(12):
        if chance.random() < 0.15:
            merged.parallelism = plain.parallelism = chance.randrange(1, 4)
        handed = [one for one in made if chance.random() < 0.5]
        made = [one for one in made if one not in handed or chance.random() < 0.2]
        reading = min((base for base, _ in made), default=None)
        told = Told(tuple(edit for _, edits in handed for edit in edits), reading)
        given = fed(plain, epoch, count=25, step_us=3)
        for world, some in ((merged, told), (plain, Told())):
            world.epoch(given, watermark_us=epoch // 6 * 18 - 10, told=some)
        outbox = [[file.path for report in world.reports for file in report.outbox] for world in (merged, plain)]
        assert outbox[0] == outbox[1], "the bytes of the output depend on compaction"
        applied += sum(report.edits_applied for report in merged.reports)
        if chance.random() < 0.6:
            made.append((merged.run.head.epoch, edits_of(merged.compact())))
    assert applied, "the test merged nothing"
    assert merged.state() == plain.state()


def test_base_and_deltas_become_one_base_and_outputs_lie_in_the_runs_own_folder() -> None:
    world = grown(COUNTS, 6)
    before = world.state()
    (made,) = world.compact()
    assert made.outputs
    assert {names.run_of_compaction(path) for path in made.outputs} == {world.run.number}
    assert world.state() == before, "an edit that was not applied changed something"
    world.epoch([rows_of(6)], watermark_us=None, told=Told(made.edits))
    files = world.files()[0, "groups"]
    assert len(files) == 2, "the base, and the delta of the new epoch"
    assert made.outputs < {file.path for file in files}
    assert [report.edits_applied for report in world.reports] == [1]


def test_an_edit_is_taken_even_by_an_epoch_without_rows() -> None:
    world = grown(COUNTS, 6)
    before, reference = world.state(), world.reports[0].reference
    (made,) = world.compact()
    world.epoch([rows_of(0, count=0)], watermark_us=None, told=Told(made.edits))
    assert world.reports[0].reference != reference
    assert {file.path for file in world.files()[0, "groups"]} == made.outputs
    assert world.state() == before


@pytest.mark.parametrize("node", [COUNTS, WINDOWS], ids=["keyed", "time_keyed"])
def test_an_edit_that_comes_some_epochs_late_is_applied_while_its_inputs_are_there(node: OperatorNode) -> None:
    merged, plain = grown(node, 5), grown(node, 5)
    (made,) = merged.compact()
    for epoch in (5, 6):
        for world in (merged, plain):
            world.epoch([rows_of(epoch)], watermark_us=None)
    told = Told(made.edits)
    merged.epoch([rows_of(7)], watermark_us=None, told=told)
    plain.epoch([rows_of(7)], watermark_us=None)
    assert merged.reports[0].edits_applied == 1
    assert merged.state() == plain.state()
    assert merged.reports[0].state_files < plain.reports[0].state_files


@pytest.mark.parametrize("node", [COUNTS, WINDOWS], ids=["keyed", "time_keyed"])
def test_an_edit_one_of_whose_inputs_has_left_is_discarded(node: OperatorNode) -> None:
    world = grown(node, 6)
    (old,) = world.compact()
    (also,) = world.compact()
    assert old == also
    world.epoch([rows_of(6)], watermark_us=None, told=Told(old.edits))
    again = SubtaskWorld(node, store=world.disk)
    again.late_us = world.late_us
    before = again.state()
    again.epoch([rows_of(7, count=0)], watermark_us=None, told=Told(old.edits))
    assert again.reports[0].edits_applied == 0
    assert again.state() == before


@pytest.mark.parametrize(("counts", "node"), diagonals([(2, 3), (4, 1), (3, 2), (1, 4)], [COUNTS, WINDOWS]))
def test_an_edit_is_applied_by_subtasks_at_another_parallelism(node: OperatorNode, counts: tuple[int, int]) -> None:
    before, after = counts
    merged, plain = grown(node, 6, parallelism=before), grown(node, 6, parallelism=before)
    edits = edits_of(merged.compact())
    assert len(edits) == before
    for world in (merged, plain):
        world.parallelism = after
    merged.epoch([rows_of(6)], watermark_us=None, told=Told(edits))
    plain.epoch([rows_of(6)], watermark_us=None)
    assert all(report.edits_applied for report in merged.reports)
    assert merged.state() == plain.state()
    outputs = {file.path for edit in edits for file in StoredEdit.from_bytes(edit).outputs}
    assert outputs & {file.path for files in merged.files().values() for file in files}


@pytest.mark.parametrize("node", [COUNTS, WINDOWS], ids=["keyed", "time_keyed"])
def test_an_edit_made_before_a_rescale_is_clipped_to_the_ranges_of_the_new_subtasks(node: OperatorNode) -> None:
    merged, plain = grown(node, 5, parallelism=2), grown(node, 5, parallelism=2)
    edits = edits_of(merged.compact())
    for world in (merged, plain):
        world.parallelism = 3
        world.epoch([rows_of(5)], watermark_us=None)
    merged.epoch([rows_of(6)], watermark_us=None, told=Told(edits))
    plain.epoch([rows_of(6)], watermark_us=None)
    assert any(report.edits_applied for report in merged.reports), "a new subtask that has too many files merges them"
    assert merged.state() == plain.state()


def test_rows_that_have_expired_leave_with_a_compaction() -> None:
    world = SubtaskWorld(SHORT_LIVED)
    for epoch in range(10):
        world.epoch([rows_of(epoch, keys=10**9)], watermark_us=epoch * 9 - 5)
    rows = sum(file.rows for file in world.files()[0, "groups"])
    world.epoch([rows_of(0, count=0)], watermark_us=None, told=Told(edits_of(world.compact())))
    left = sum(file.rows for file in world.files()[0, "groups"])
    alive = len(world.state()["groups"])
    assert alive <= left < rows / 2, "deleted rows are still in files"


def test_p6_two_attempts_give_the_same_bytes_and_a_task_travels() -> None:
    world = grown(COUNTS, 6)
    (task,) = world.tasks()
    first = compact_subtask(task, world.store)
    before = world.names()
    shipped = pickle.loads(pickle.dumps(task))  # noqa: S301 - made in the line itself
    second = compact_subtask(shipped, world.store)
    assert first.to_bytes() == second.to_bytes()
    assert world.names() == before
    assert CompactedSubtask.from_bytes(first.to_bytes()) == first


def test_nothing_is_merged_where_nothing_is_worth_it() -> None:
    world = grown(WINDOWS, 1)
    (made,) = world.compact()
    assert (made.edits, made.read_bytes, made.outputs) == ((), 0, frozenset())
    assert world.reports[0].due_bytes == 0


def test_what_is_worth_merging_is_reported_and_gone_once_it_is_merged() -> None:
    world = grown(COUNTS, 6)
    assert world.reports[0].due_bytes > 0
    world.epoch([rows_of(0, count=0)], watermark_us=None, told=Told(edits_of(world.compact())))
    assert world.reports[0].due_bytes == 0


def test_a_checkpoint_leaves_files_alone_that_a_compaction_reads() -> None:
    plain, told = grown(COUNTS, 7), grown(COUNTS, 7)
    base = told.run.head.epoch
    (made,) = told.compact()
    for epoch in range(7, 10):
        plain.epoch([rows_of(epoch)], watermark_us=None)
        told.epoch([rows_of(epoch)], watermark_us=None, told=Told(compacting_epoch=base))
    inputs = {file.path for edit in made.edits for file in StoredEdit.from_bytes(edit).inputs}
    assert not inputs <= {file.path for file in plain.files()[0, "groups"]}, "the deltas were merged meanwhile"
    assert inputs <= {file.path for file in told.files()[0, "groups"]}
    told.epoch([rows_of(10)], watermark_us=None, told=Told(made.edits))
    plain.epoch([rows_of(10)], watermark_us=None)
    assert told.reports[0].edits_applied == 1
    assert told.state() == plain.state()


@pytest.mark.parametrize("node", [COUNTS, WINDOWS], ids=["keyed", "time_keyed"])
def test_who_reads_what_was_merged_finds_it_in_the_cache_of_the_host(node: OperatorNode, tmp_path: Path) -> None:
    world = grown(node, 6)
    cache = HostCache(tmp_path / "cache", 1 << 30)
    (task,) = world.tasks()
    made = compact_subtask(task, world.store, cache=cache)
    reads: list[str] = []

    def watch(operation: Operation) -> None:
        if operation.verb in {Verb.GET, Verb.GET_RANGE}:
            reads.append(operation.path)

    told = SubtaskTask(
        job_id=task.job_id,
        epoch=task.epoch + 1,
        operator=task.operator,
        subtask_index=0,
        parallelism=1,
        base=(task.reference,),
        late_us=None,
        watermark_us=10**11,  # closes windows, which are read for that
        epoch_time_us=10,
        edits=made.edits,
    )
    batches = node.feeds[0].apply(rows_of(6)).to_batches()
    report = run_subtask(told, FaultStore(world.store, watch), batches, cache=cache)
    assert report.edits_applied == 1
    assert reads
    assert not made.outputs & set(reads), "it was fetched once more"


def test_p4_a_large_state_is_merged_within_a_small_budget(tmp_path: Path) -> None:
    store = MemoryStore()
    world = SubtaskWorld(COUNTS, store=store)
    for epoch in range(5):
        world.epoch([rows_of(epoch, count=15_000, keys=10**9)], watermark_us=None)
    small = Tiers(MemoryController(1 << 20), folder=tmp_path)
    try:
        (made,) = [compact_subtask(task, world.store, tiers=small) for task in world.tasks()]
        assert small.memory.snapshot().peak <= (1 << 20) + ROW_GROUP_BYTES
        assert small.memory.used == 0
    finally:
        small.close()
    before = world.tables()["groups"].sort_by("k")
    world.epoch([rows_of(0, count=0)], watermark_us=None, told=Told(made.edits))
    assert world.reports[0].edits_applied == 1
    assert world.tables()["groups"].sort_by("k") == before


def test_p2_a_compaction_that_dies_at_any_operation_has_changed_nothing(tiers: Tiers, tmp_path: Path) -> None:
    world = grown(COUNTS, 6)
    (task,) = world.tasks()
    counted = FaultStore(world.store)
    whole = compact_subtask(task, counted, tiers=tiers)
    before = world.state()
    for number in range(1, len(counted.log) + 1):
        attempts = 0

        def die(_: object, at: int = number) -> Fault | None:
            nonlocal attempts
            attempts += 1
            return Fault.CRASH_AFTER if attempts == at else None

        with pytest.raises(SimulatedCrash):
            compact_subtask(task, FaultStore(world.store, die), tiers=tiers)
        assert world.state() == before
        assert tiers.memory.used == 0
        assert not list(tmp_path.rglob("*.parquet")), "local files are left behind"
    assert compact_subtask(task, world.store, tiers=tiers) == whole


@pytest.mark.parametrize("fault", [Fault.STORE_HALF, Fault.STORE_FLIPPED, Fault.STORE_NOTHING])
def test_p1_a_compaction_whose_files_the_store_spoils_names_none_of_them(fault: Fault, tiers: Tiers) -> None:
    world = grown(COUNTS, 6)
    (task,) = world.tasks()
    with pytest.raises(LostWriteError, match="compactions/") as lost:
        compact_subtask(task, FaultStore(world.store, lambda o: fault if o.verb.writes else None), tiers=tiers)
    assert lost.value.where.endswith(".parquet")
    assert tiers.memory.used == 0
    assert compact_subtask(task, world.store, tiers=tiers).edits
