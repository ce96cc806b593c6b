"""A job of three levels goes on from wherever it is told to, with files and with a data source of the user's own."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from spark import faults_job, faults_source
from spark.faults_drivers import Watched
from spark.faults_world import JOB, FileWorld, NumberedWorld, World

import statebed as sb
from statebed.checkpoint import ask_live_run
from statebed.checkpoint.cloning import clone_job
from statebed.format import checkpoint_pb2 as pb
from statebed.storage import ScopedStore, get_storage_provider


@pytest.fixture(params=[FileWorld, NumberedWorld])
def world(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Iterator[World]:
    modules = (faults_job, faults_source)  # Spark's workers cannot import the tests
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # pyspark ships it without types
    yield request.param(tmp_path)
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]  # as above
    for query in spark.streams.active:
        query.stop()


def run(world: World, spark: SparkSession, options: sb.RunOptions | None = None, **named: Any) -> sb.Query:
    """Read all that is there and end."""
    query = world.job(spark, **named).start(available_now=True, options=options)
    assert query.await_termination(150)
    return query


def feed(world: World, spark: SparkSession, count: int, savepoint: str = "") -> sb.Query:
    """Let so many batches come, one after the other, and stop; the savepoint is made before the last of them."""
    query = world.job(spark).start(processing_time="50 milliseconds")
    for number in range(count):
        if savepoint and number == count - 1:
            store = ScopedStore(get_storage_provider(world.state), JOB)
            ask_live_run(store, pb.Request(savepoint=pb.SavepointRequest(name=savepoint)), timeout_s=60)
        world.add()
        deadline = time.monotonic() + 100
        while len(batches(query)) <= number:
            assert query.is_active, str(query.exception)
            assert time.monotonic() < deadline
            time.sleep(0.05)
    query.stop()
    return query


def head(world: World) -> pb.CheckpointMetadata:
    found = Watched(str(world.state)).head()
    assert found is not None
    return found


def batches(query: sb.Query) -> list[int]:
    return [progress.batch_id for progress in query.recent_progress if progress.batch_id is not None]


def test_p2_a_fork_from_three_epochs_back_reads_the_batches_since_then_again(world: World, spark: SparkSession) -> None:
    first = feed(world, spark, 5)
    fifth = next(progress.epoch for progress in first.recent_progress if progress.batch_id == 4)
    second = max(progress.epoch for progress in first.recent_progress if progress.epoch <= fifth - 3)
    told = head(world)
    world.finish()
    options = sb.RunOptions(origin=sb.Origin(epoch=second), rollback=sb.RollbackPolicy.ALLOW)
    again = run(world, spark, options)
    assert batches(again)[0] < 4
    assert head(world).lineage != told.lineage
    world.check()


def test_p2_a_savepoint_is_gone_back_to_after_the_job_has_gone_on(world: World, spark: SparkSession) -> None:
    feed(world, spark, 3, savepoint="before_the_third")
    keeps_one = sb.RunOptions(retention=sb.Retention(epochs=1, reader_grace_us=0))
    world.add()
    run(world, spark, keeps_one)
    world.finish()
    origin = sb.Origin(savepoint="before_the_third")
    again = run(world, spark, sb.RunOptions(origin=origin, rollback=sb.RollbackPolicy.ALLOW))
    assert batches(again)[0] == 2
    world.check()


def test_p2_a_clone_goes_on_from_where_it_was_made(world: World, spark: SparkSession, tmp_path: Path) -> None:
    feed(world, spark, 3)
    given = world.results()
    clone_job(str(world.state), JOB, "clone")
    feed(world, spark, 1)
    world.finish()
    run(world, spark)
    world.check()
    world.results_in = tmp_path / "clone"
    run(world, spark, name="clone")
    assert sorted([*given, *world.results()], key=repr) == world.expected()
    assert given != []


def test_p2_without_sparks_checkpoint_the_job_goes_on_from_the_record(world: World, spark: SparkSession) -> None:
    feed(world, spark, 3)
    shutil.rmtree(world.state / JOB / "spark")
    assert batches(feed(world, spark, 1)) == [3]
    shutil.rmtree(world.state / JOB / "spark")
    world.finish()
    run(world, spark)
    world.check()
