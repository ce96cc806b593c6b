"""Compaction as a Spark job of its own, beside the epochs of a query."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duck
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from unit.operators.subtask_world import JOB, SubtaskWorld
from unit.operators.test_subtask_compaction import COUNTS, grown

import statebed as sb
from statebed.checkpoint.objects import fetch_subtask
from statebed.errors import SubtaskError
from statebed.format import names
from statebed.operators import compact_subtask
from statebed.spark.compaction_job import Round, SparkRounds
from statebed.state import TableManager, TaskInfo
from statebed.storage import LocalStore, ScopedStore, get_storage_provider

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


def per_driver(rides: Any, **settings: object) -> sb.Job:
    """Trips of each driver, with a round of compaction as often as can be."""
    job = sb.Job(
        "rides", state=rides.state, parallelism=2, spark=rides.spark, settings={"compaction_every": 1} | settings
    )
    source = job.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))
    trips = source.key_by("driver", name="per_driver").agg(trips=sb.count(), cents=sb.sum("cents"), ttl="1 day")
    trips.write(lambda rows, epoch: None, name="nowhere")
    return job


def state_of(rides: Any, job: sb.Job) -> list[tuple[Any, ...]]:
    store = ScopedStore(get_storage_provider(rides.state), "rides")
    operator = job.graph.operators["per_driver"]
    with TableManager(TaskInfo("rides", "per_driver"), operator.tables, store, restore_from=rides.record()) as manager:
        rows = [row for piece in manager.get_keyed("groups").scan() for row in piece.to_pylist()]
    return sorted(((row["driver"], row["trips"], row["cents"]) for row in rows), key=repr)


def expected(rides: Any) -> list[tuple[Any, ...]]:
    rows = pq.read_table(rides.input)
    with duck.cursor() as connection:
        connection.register("rides", rows)
        query = "select driver, count(*), sum(cents)::bigint from rides group by all"
        return sorted(connection.execute(query).fetchall(), key=repr)


def live_files(rides: Any) -> list[str]:
    store = ScopedStore(get_storage_provider(rides.state), "rides")
    return [
        file.path
        for entry in rides.record().operators
        for reference in entry.subtasks
        for table in fetch_subtask(store, reference).tables.values()
        for part in table.subtasks.values()
        for file in part.files
    ]


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


def test_p5_a_driver_killed_in_a_round_loses_nothing_and_leaves_nothing_for_ever(rides: Any) -> None:
    rides.add_files(8, rows=60)
    script = Path(__file__).with_name("compaction_driver.py")
    killed = subprocess.run(
        [sys.executable, str(script), str(rides.folder)], capture_output=True, text=True, timeout=280, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    folder = rides.state / "rides" / "compactions"
    orphans = set(folder.rglob("*.parquet"))
    assert orphans
    assert not [path for path in live_files(rides) if names.run_of_compaction(path)]
    job = per_driver(rides, reader_grace="0 seconds")
    query = job.start(available_now=True)
    assert query.await_termination(300)
    assert state_of(rides, job) == expected(rides)
    assert not orphans & set(folder.rglob("*.parquet"))


@pytest.mark.long
def test_p5_over_300_epochs_on_spark_files_and_objects_stay_few(rides: Any) -> None:
    rides.add_files(300, rows=20)
    job = per_driver(rides, reader_grace="0 seconds", collect_every=8)
    query = job.start(available_now=True)
    assert query.await_termination(1800)
    assert query.compaction.failures == 0
    assert query.compaction.edits_applied >= 20
    assert state_of(rides, job) == expected(rides)
    assert len(live_files(rides)) <= 2 * 10
    objects = [path for path in (rides.state / "rides" / "checkpoints").rglob("*") if path.is_file()]
    merged = list((rides.state / "rides" / "compactions").rglob("*.parquet"))
    # Ten epochs are retained; each has its record, two metadata objects, two files, and a marker.
    assert len(objects) < 150
    assert len(merged) < 40
