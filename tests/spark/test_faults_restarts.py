"""A job of three levels continues from any chosen epoch, with files and with a user's own data source."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from spark import faults_job, faults_source
from spark.faults_drivers import Watched
from spark.faults_world import JOB, FileWorld, NumberedWorld, World

import statebed as sb
from statebed.checkpoint import send_request
from statebed.checkpoint.clone import clone_job
from statebed.format import checkpoint_pb2 as pb
from statebed.storage import ScopedStore, get_storage_provider

LONG = pytest.mark.long
# Each test runs with one of the two sources in `make test`, and with the other one in `make test-long`.
files_first = pytest.mark.parametrize("world", [FileWorld, pytest.param(NumberedWorld, marks=LONG)], indirect=True)
numbers_first = pytest.mark.parametrize("world", [pytest.param(FileWorld, marks=LONG), NumberedWorld], indirect=True)


@pytest.fixture
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
    while True:
        query = world.job(spark, **named).start(available_now=True, options=options)
        try:
            assert query.await_termination(300)
        except StreamingQueryException as error:
            check_slow(error)
            options = None  # a fork has been made
        else:
            return query


def feed(world: World, spark: SparkSession, count: int, savepoint: str = "") -> int:
    """Feed input `count` times, each time until all of it is read, and stop; the savepoint is created before the last.

    Return the first batch after the savepoint. Spark asks one source after the other, so that it may find the new input
    of one of them a batch before that of the other.
    """
    query = start(world, spark)
    after_savepoint = 0
    for number in range(count):
        if savepoint and number == count - 1:
            store = ScopedStore(get_storage_provider(world.state), JOB)
            send_request(store, pb.Request(savepoint=pb.SavepointRequest(name=savepoint)), timeout_s=200)
            after_savepoint = last_batch(world) + 1
        world.add()
        deadline = time.monotonic() + 250
        while not is_read(world):
            if not query.is_active:
                check_slow(query.exception)
                query = start(world, spark)
            assert time.monotonic() < deadline
            time.sleep(0.1)
    query.stop(timeout=200)
    return after_savepoint


def start(world: World, spark: SparkSession) -> sb.Query:
    return world.job(spark).start(processing_time="200 milliseconds")


def check_slow(error: BaseException | None) -> None:
    """Spark waits ten seconds for the Python of a data source; on a busy machine the job is started again."""
    assert "Python worker failed to connect back" in str(error), error


def head(world: World) -> pb.CheckpointMetadata:
    found = Watched(str(world.state)).head()
    assert found is not None
    return found


def last_batch(world: World) -> int:
    found = Watched(str(world.state)).head()
    if found is None or not found.source_position.HasField("batch_id"):
        return -1
    return int(found.source_position.batch_id)


def is_read(world: World) -> bool:
    """Return whether every source has been read to its end."""
    found = Watched(str(world.state)).head()
    if found is None or not found.source_position.offsets:
        return False
    _, _, *offsets = found.source_position.offsets[-1].content.decode().splitlines()  # a version and Spark's own line
    # Spark writes a dash for a source of which no batch had any rows yet.
    return all(offset != "-" and json.loads(offset) == world.end for offset in offsets)


def batches(query: sb.Query) -> list[int]:
    return [progress.batch_id for progress in query.recent_progress if progress.batch_id is not None]


@numbers_first
def test_p2_a_fork_from_three_epochs_back_reads_the_batches_since_then_again(world: World, spark: SparkSession) -> None:
    feed(world, spark, 4)
    told = head(world)
    back = sb.Origin(epoch=told.epoch - 3)
    world.finish()
    options = sb.RunOptions(origin=back, rollback=sb.RollbackPolicy.ALLOW)
    again = run(world, spark, options)
    assert batches(again)[0] <= told.source_position.batch_id
    assert head(world).lineage != told.lineage
    world.check()


@files_first
def test_p2_a_savepoint_is_gone_back_to_after_the_job_has_gone_on(world: World, spark: SparkSession) -> None:
    after_savepoint = feed(world, spark, 3, savepoint="before_the_third")
    keeps_one = sb.RunOptions(retention=sb.Retention(epochs=1, reader_grace="0 s"))
    world.add()
    run(world, spark, keeps_one)
    world.finish()
    origin = sb.Origin(savepoint="before_the_third")
    again = run(world, spark, sb.RunOptions(origin=origin, rollback=sb.RollbackPolicy.ALLOW))
    assert batches(again)[0] == after_savepoint
    world.check()


@pytest.mark.long  # test_operations.py has a clone of a smaller job
@files_first
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


@pytest.mark.long  # test_projection_rebuilt.py has a smaller job without Spark's checkpoint
@numbers_first
def test_p2_without_sparks_checkpoint_the_job_goes_on_from_the_record(world: World, spark: SparkSession) -> None:
    feed(world, spark, 3)
    before = last_batch(world)
    shutil.rmtree(world.state / JOB / "spark")
    feed(world, spark, 1)
    assert last_batch(world) > before
    shutil.rmtree(world.state / JOB / "spark")
    world.finish()
    run(world, spark)
    world.check()
