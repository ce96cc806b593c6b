"""Compaction as a Spark job of its own, alongside the epochs of a query."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark.trips import expected, live_files, per_driver, state_of
from unit.subtasks.subtask_world import JOB, SubtaskWorld
from unit.subtasks.test_subtask_compaction import COUNTS, grown

from statebed.errors import SubtaskError
from statebed.format import names
from statebed.spark.compaction.round_job import Round, SparkRounds
from statebed.storage import LocalStore
from statebed.subtasks import compact_subtask

SECONDS = 120.0


@pytest.fixture
def world(tmp_path: Path) -> SubtaskWorld:
    return grown(COUNTS, 5, parallelism=3, store=LocalStore(tmp_path / "state"))


@pytest.fixture
def rounds(spark: SparkSession, tmp_path: Path) -> Iterator[SparkRounds]:
    made = SparkRounds(spark, state_url=str(tmp_path / "state"), job_id=JOB)
    yield made
    made.close()
    assert not made.alive


def ended(one: Round) -> Any:
    one.wait(SECONDS)
    assert one.done
    return one.result()


def test_a_round_gives_what_the_same_work_here_gives(world: SubtaskWorld, rounds: SparkRounds) -> None:
    tasks = world.tasks()
    results = ended(rounds.begin(tasks))
    assert sorted(results, key=lambda one: one.subtask_index) == [compact_subtask(task, world.store) for task in tasks]
    assert all(one.edits for one in results)


def test_a_round_is_no_query_of_spark_sql(spark: SparkSession, world: SubtaskWorld, rounds: SparkRounds) -> None:
    """Python workers of Spark SQL are others than those of the epochs, and starting them held up an epoch."""
    executions = spark._jsparkSession.sharedState().statusStore().executionsCount
    before = executions()
    ended(rounds.begin(world.tasks()))
    assert executions() == before
    spark.range(1).collect()
    assert executions() > before


def test_what_one_subtask_raises_is_told_and_the_others_are_merged(world: SubtaskWorld, rounds: SparkRounds) -> None:
    tasks = world.tasks()
    broken = replace(tasks[1], job_id="another")
    results = ended(rounds.begin([tasks[0], broken, tasks[2]]))
    (told,) = [one for one in results if isinstance(one, str)]
    assert SubtaskError.__name__ in told
    assert "subtask 1 of 3" in told
    assert sorted(one.subtask_index for one in results if not isinstance(one, str)) == [0, 2]


def test_a_round_that_is_cancelled_ends_and_the_next_one_runs(world: SubtaskWorld, rounds: SparkRounds) -> None:
    tasks = world.tasks()
    cancelled = rounds.begin(tasks * 200)
    time.sleep(1)
    cancelled.cancel()
    cancelled.wait(SECONDS)
    with pytest.raises(Exception, match="cancelled"):
        cancelled.result()
    assert len(ended(rounds.begin(tasks))) == len(tasks)


def test_p5_a_query_merges_beside_its_epochs_and_its_state_is_duckdbs(rides: Any) -> None:
    rides.add_files(24, rows=60)
    job = per_driver(rides)
    query = job.start(available_now=True)
    assert query.await_termination(300)
    counts = query.compaction
    assert counts.failures == 0
    assert counts.rounds >= 2
    assert counts.edits_applied >= 2
    assert state_of(rides, job) == expected(rides)
    assert len(live_files(rides)) <= 2 * 10
    assert any(names.run_of_compaction(path) == query.run for path in live_files(rides)), "no record names an output"
