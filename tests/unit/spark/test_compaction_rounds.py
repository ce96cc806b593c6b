"""Rounds of compaction beside epochs: when they begin, what epochs take of them, and what goes wrong without harm."""

import io
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import duck
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unit.subtasks.subtask_world import SubtaskWorld, Told

from statebed.aggregates import functions as f
from statebed.flow import Flow
from statebed.flow.graph import OperatorNode
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.operators.window_definition import tumbling
from statebed.spark.compaction.round_job import Result, Round
from statebed.spark.compaction.rounds import CompactionOptions, CompactionRounds, FilesInFlight, chosen, options_for
from statebed.storage import ObjectStore
from statebed.subtasks import CompactedSubtask, CompactionTask, SubtaskReport, compact_subtask

SCHEMA = pa.schema([("rider", pa.int64()), ("fare", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
EAGER = CompactionOptions(every_epochs=1, min_bytes=1, round_seconds=60, wait_seconds=5)
WINDOW_US = 3000
LIFE_US = 600
"""Time that the operator `expiring` remembers riders: ten epochs."""
MAX_FILES = 20
"""Files of a table in a subtask: a base, deltas up to the hard bound, and what an epoch adds."""


def node_of(kind: str) -> OperatorNode:
    flow = Flow("job")
    rides = flow.source("rides", SCHEMA, watermark=("ts", "0 us"))
    if kind == "keyed":
        rides.key_by("rider", name="out").agg(n=f.count(), total=f.sum("fare"), ttl="1 second")
    elif kind == "expiring":
        rides.key_by("rider", name="out").agg(n=f.count(), total=f.sum("fare"), ttl=f"{LIFE_US} us")
    else:
        rides.group_by("rider", tumbling(f"{WINDOW_US} us"), name="out").agg(n=f.count(), total=f.sum("fare"))
    (node,) = [one for one in flow.graph.nodes if isinstance(one, OperatorNode)]
    return node


@dataclass
class LateRound:
    """A round whose work is done at once, and whose end is visible after `done` was read `looks` times."""

    results: Sequence[Result] | Exception
    asked_left: int
    began: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    waits: int = 0

    @property
    def done(self) -> bool:
        self.asked_left -= 1
        return self.asked_left < 0

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        self.waits += 1
        self.asked_left = 0

    def result(self) -> Sequence[Result]:
        if isinstance(self.results, Exception):
            raise self.results
        return self.results

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class HereRounds:
    """Runs rounds in this process; each takes longer than the one before, and then again less."""

    store: ObjectStore
    lateness: Sequence[int] = (0, 1, 3, 6)
    fails: bool = False
    rounds: list[LateRound] = field(default_factory=list)
    tasks: list[Sequence[CompactionTask]] = field(default_factory=list)
    closed: bool = False

    def begin(self, tasks: Sequence[CompactionTask]) -> Round:
        self.tasks.append(tasks)
        results: Sequence[Result] | Exception = RuntimeError("the cluster is gone")
        if not self.fails:
            results = [compact_subtask(task, self.store) for task in tasks]
        self.rounds.append(LateRound(results, self.lateness[len(self.rounds) % len(self.lateness)]))
        return self.rounds[-1]

    def close(self) -> None:
        self.closed = True


class Job:
    """An operator, its epochs as the controller runs them, and compaction beside them."""

    def __init__(self, kind: str, *, options: CompactionOptions = EAGER, world: SubtaskWorld | None = None) -> None:
        self.kind = kind
        self.world = world or SubtaskWorld(node_of(kind))
        self.rounds = HereRounds(self.world.store)
        self.compaction = CompactionRounds(
            self.rounds,
            run=self.world.run.number,
            operators={self.world.operator.operator_id: self.world.operator},
            options=options,
        )
        self.max_files = 0
        self.all_rows: list[pa.Table] = []
        self.output: list[pa.Table] = []

    def epoch(self, rows: pa.Table, *, clean_up: bool = False) -> None:
        operator_id = self.world.operator.operator_id
        told = self.compaction.before_epoch(self.world.run.next_epoch)
        watermark_us = int(np.asarray(rows["ts"].cast(pa.int64())).min()) - 1 if rows.num_rows else None
        timed = rows.append_column("_time", rows["ts"])
        record = self.world.epoch(
            [timed],
            watermark_us=watermark_us,
            told=Told(told.edits.get(operator_id, ()), told.compacting_epoch.get(operator_id)),
        )
        self.all_rows.append(rows)
        for file in record.outbox:
            self.output.append(pq.read_table(io.BytesIO(self.world.store.get(file.path))))
        if clean_up:
            self.world.run.clean_up(in_flight=self.compaction.in_flight)
        self.compaction.after_epoch(record, self.world.reports)
        files = self.world.files().values()
        self.max_files = max([self.max_files, *(len({file.path for file in some}) for some in files)])

    def run(self, epochs: int, *, first: int = 0) -> None:
        for number in range(first, first + epochs):
            self.epoch(rides(number), clean_up=number % 8 == 7)


def rides(epoch: int, *, count: int = 50) -> pa.Table:
    """Some riders come again and again, others once."""
    chance = np.random.default_rng(epoch)
    riders = np.where(chance.random(count) < 0.5, chance.integers(20, size=count), 1000 * epoch + np.arange(count))
    times = pa.array(epoch * 60 + np.sort(chance.integers(60, size=count))).cast(SCHEMA.field("ts").type)
    return pa.Table.from_arrays([pa.array(riders), pa.array(chance.integers(9, size=count)), times], schema=SCHEMA)


def referenced(world: SubtaskWorld) -> Iterator[str]:
    """The files of compactions that retained records name."""
    run = world.run
    for epoch in run.chain:
        for path in run._references.of(run.record(epoch)).sizes:
            if names.run_of_compaction(path) is not None:
                yield path


@pytest.mark.parametrize(
    ("kind", "epochs"),
    [
        ("expiring", 60),
        ("windows", 60),
        pytest.param("expiring", 300, marks=pytest.mark.long),
        pytest.param("keyed", 300, marks=pytest.mark.long),
        pytest.param("windows", 300, marks=pytest.mark.long),
    ],
)
def test_p5_over_many_epochs_files_stay_few_and_results_are_duckdbs(kind: str, epochs: int) -> None:
    job = Job(kind)
    job.run(epochs)
    counts = job.compaction.counts
    assert job.max_files <= MAX_FILES
    assert counts.rounds > epochs // 20
    assert 0 < counts.edits_applied <= counts.edits_handed
    assert counts.failures == 0
    check_results(job)
    # Nothing of what was merged on the way is left: the live files, and those of the epochs that are retained.
    job.world.run._cleanups = 0
    job.world.run.clean_up(in_flight=job.compaction.in_flight)
    left = {path for path in job.world.names() if names.run_of_compaction(path) is not None}
    in_flight = set(job.compaction.in_flight)
    assert left <= set(referenced(job.world)) | in_flight | (left if job.compaction.in_flight.writing_run else set())
    assert len(job.world.names()) < 100


def check_results(job: Job) -> None:
    rows = pa.concat_tables(job.all_rows)
    if job.kind == "windows":
        end_us = int(np.asarray(rows["ts"].cast(pa.int64())).max()) // WINDOW_US * WINDOW_US
        given = pa.concat_tables(job.output)
        expected = answer(
            "select rider, epoch_us(ts) // $width * $width as start, count(*), sum(fare) from input "
            "where epoch_us(ts) < $end group by all order by all",
            rows,
            width=WINDOW_US,
            end=end_us,
        )
        assert given.num_rows > 1000
        assert answer("select rider, epoch_us(window_start), n, total from input order by all", given) == expected
        return
    state = job.world.tables()["groups"]
    if job.kind == "keyed":
        expected = answer("select rider, count(*), sum(fare) from input group by all order by all", rows)
        assert answer("select rider, n, total from input order by all", state) == expected
        return
    assert job.world.late_us is not None
    until = job.world.late_us - LIFE_US
    query = "select rider from input group by all having max(epoch_us(ts)) > $until order by all"
    assert answer("select rider from input order by all", state) == answer(query, rows, until=until)
    assert job.world.reports[0].state_rows < 4 * state.num_rows, "what has expired is still in files"


def answer(query: str, rows: pa.Table, **params: int) -> list[Any]:
    with duck.cursor() as connection:
        connection.register("input", rows)
        found: list[Any] = connection.execute(query, params or None).fetchall()
        return found


def test_an_epoch_waits_for_a_round_that_lags_too_far_behind() -> None:
    job = Job("keyed", options=CompactionOptions(every_epochs=1, max_epochs=2))
    job.rounds.lateness = (1000,)
    job.run(12)
    assert [one.waits for one in job.rounds.rounds[:1]] == [1]
    assert job.compaction.counts.waits >= 1
    assert job.compaction.counts.edits_applied >= 1


def test_an_epoch_waits_when_the_debt_is_too_large() -> None:
    job = Job("keyed", options=CompactionOptions(max_debt_bytes=1))
    job.rounds.lateness = (1000,)
    job.run(4)
    assert job.compaction.counts.waits == 2, "the first epoch leaves nothing to compact"


def test_a_failed_round_is_counted_and_the_next_ones_come_less_often() -> None:
    job = Job("keyed")
    job.rounds.fails = True
    job.run(14)
    counts = job.compaction.counts
    assert 2 <= counts.failures <= 4
    assert counts.edits_handed == 0
    check_results(job)
    job.rounds.fails = False
    job.run(16, first=14)
    assert job.compaction.counts.edits_applied
    check_results(job)


@pytest.mark.parametrize(("min_bytes", "rounds"), [(1 << 20, 2), (1, 3)])
def test_a_round_begins_after_some_epochs_and_the_first_at_once_where_there_is_much(
    min_bytes: int, rounds: int
) -> None:
    job = Job("keyed", options=CompactionOptions(every_epochs=10, min_bytes=min_bytes))
    job.run(22)
    begun = [tasks[0].epoch for tasks in job.rounds.tasks]
    assert len(begun) == rounds
    assert all(later - earlier >= 10 for earlier, later in itertools.pairwise(begun))


def test_a_round_that_was_asked_for_begins_after_the_next_epoch() -> None:
    job = Job("keyed", options=CompactionOptions(every_epochs=1000, min_bytes=1 << 40))
    job.run(6)
    assert not job.rounds.tasks
    job.compaction.start_soon()
    job.run(3, first=6)
    assert len(job.rounds.tasks) == 1


def test_a_round_that_takes_too_long_is_given_up() -> None:
    job = Job("keyed")
    job.rounds.lateness = (1000,)
    job.run(2)
    assert not job.rounds.rounds[0].cancelled
    job.rounds.rounds[0].began -= EAGER.round_seconds
    job.run(1, first=2)
    assert job.rounds.rounds[0].cancelled


def test_p5_a_driver_that_dies_during_a_round_loses_nothing_and_its_files_are_collected() -> None:
    job = Job("keyed")
    job.rounds.lateness = (1000,)
    job.run(12)
    assert job.compaction.in_flight.writing_run == job.world.run.number
    orphans = {path for path in job.world.names() if names.run_of_compaction(path) is not None}
    assert orphans, "the round has written before it died"
    before = job.world.state()
    job.world.restart()
    again = Job("keyed", world=job.world)
    again.all_rows = job.all_rows
    assert job.world.state() == before
    again.run(12, first=12)
    again.world.run.clean_up(in_flight=again.compaction.in_flight)
    assert not orphans & again.world.names()
    check_results(again)


def test_p3_files_of_a_running_round_are_not_deleted() -> None:
    job = Job("keyed")
    job.rounds.lateness = (5,)
    job.run(3)
    assert job.compaction.in_flight.writing_run is not None
    removed = job.world.run.clean_up(in_flight=job.compaction.in_flight)
    assert removed.swept
    job.run(6, first=3)
    assert job.compaction.counts.edits_applied
    check_results(job)


def test_at_the_end_of_the_input_a_round_is_awaited_if_there_was_much_to_compact() -> None:
    job = Job("keyed")
    job.rounds.lateness = (1000,)
    job.run(2)
    assert job.compaction.settle()
    assert job.compaction.before_epoch(job.world.run.next_epoch).edits
    little = Job("keyed", options=CompactionOptions(every_epochs=1))
    little.rounds.lateness = (1000,)
    little.run(3)
    assert little.compaction.counts.rounds == 1
    assert not little.compaction.settle()


def report_of(operator_id: str, index: int, due_bytes: int) -> SubtaskReport:
    numbers: dict[str, Any] = dict.fromkeys(
        ("rows_in", "rows_late", "rows_out", "state_rows", "state_bytes", "state_files", "bytes_written"), 0
    )
    return SubtaskReport(
        operator_id=operator_id,
        subtask_index=index,
        epoch=9,
        reference=pb.SubtaskReference(subtask_index=index),
        outbox=(),
        due_bytes=due_bytes,
        **numbers,
    )


def test_a_round_takes_the_largest_debts_within_its_bytes_and_those_first_that_waited_longest() -> None:
    reports = [report_of("a", 0, 50), report_of("a", 1, 80), report_of("b", 0, 0), report_of("b", 1, 30)]
    taken = chosen(reports, compacted_in={}, max_bytes=100, subtask_bytes=10**9)
    assert [(one.operator_id, one.subtask_index) for one in taken] == [("a", 1)]
    taken = chosen(reports, compacted_in={("a", 1): 7}, max_bytes=100, subtask_bytes=10**9)
    assert [(one.operator_id, one.subtask_index) for one in taken] == [("a", 0), ("b", 1)]
    taken = chosen([report_of("a", 0, 10**12)], compacted_in={}, max_bytes=100, subtask_bytes=10**9)
    assert len(taken) == 1, "one that is larger than all that a round may do goes alone"


def test_while_a_round_goes_on_all_files_of_its_run_are_in_flight() -> None:
    mine, other = (names.compacted_file(run, "op", "t", 0, "ab" * 16) for run in (7, 6))
    assert mine in FilesInFlight(writing_run=7)
    assert other not in FilesInFlight(writing_run=7)
    assert mine not in FilesInFlight()
    assert list(FilesInFlight(frozenset({other}))) == [other]


def test_stopping_cancels_the_round() -> None:
    job = Job("keyed")
    job.rounds.lateness = (1000,)
    job.run(3)
    assert job.compaction.under_way
    job.compaction.stop()
    assert not job.compaction.under_way
    assert job.rounds.closed
    assert job.rounds.rounds[-1].cancelled


def test_a_subtask_that_fails_in_a_round_does_not_take_the_others_with_it() -> None:
    job = Job("keyed")
    job.run(3)
    (task,) = job.world.tasks()
    made = compact_subtask(task, job.world.store)
    assert isinstance(made, CompactedSubtask)
    job.compaction._round = LateRound(["subtask 1: the disk is full", made], 0)
    told = job.compaction.before_epoch(job.world.run.next_epoch)
    assert told.edits["out"] == made.edits
    assert job.compaction.counts.failures == 1


def test_a_round_takes_as_many_large_subtasks_as_it_compacts_parts_of() -> None:
    reports = [report_of("a", index, 10**12) for index in range(10)]
    assert len(chosen(reports, compacted_in={}, max_bytes=100, subtask_bytes=25)) == 4


def test_a_round_grows_with_the_cluster_and_not_below_the_default() -> None:
    default = CompactionOptions()
    small, large = (options_for(slots, every_epochs=7, subtask_bytes=256 << 20) for slots in (2, 1000))
    assert (small.round_bytes, small.max_debt_bytes) == (default.round_bytes, default.max_debt_bytes)
    assert large.round_bytes == 250 * (256 << 20)
    assert large.max_debt_bytes == 4 * large.round_bytes
    assert (large.every_epochs, large.subtask_bytes) == (7, 256 << 20)
