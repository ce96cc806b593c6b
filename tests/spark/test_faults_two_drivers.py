"""Two drivers of one job that live at the same time: one continues, the other ends with its own exit code."""

import time
from pathlib import Path

import pytest
from spark.faults_driver import Settings
from spark.faults_drivers import Driver, Watched, started
from spark.faults_world import FileWorld

from statebed.errors import FENCED_EXIT_CODE
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.sealed import open_sealed


def settings(world: FileWorld, *, available_now: bool = True) -> Settings:
    return Settings(
        folder=str(world.folder),
        state=str(world.state),
        master="local[1]",
        parallelism=2,
        available_now=available_now,
    )


def check_log(log: Watched) -> None:
    """Once a run has begun, no older one has a record or publishes one of its own."""
    records = log.log()
    live = 0
    for number in records.numbers():
        record = records.read(number)
        live = number if record.kind == pb.RUN_START else live or record.run
        assert record.run == live
        for sink in record.sinks:
            path = names.published(number, sink.sink_id)
            assert open_sealed(pb.PublishedMarker, records.store.get(path), where=path).run >= record.run


def ended(drivers: list[Driver], log: Watched, world: FileWorld) -> tuple[Driver, Driver]:
    """The one that has ended, and the one that lives; input comes while we wait."""
    for _ in range(1200):
        over = [driver for driver in drivers if driver.process.poll() is not None]
        if over:
            (alive,) = set(drivers) - set(over)
            return over[0], alive
        head = log.head()
        if head is not None and world.files - head.source_position.batch_id <= 2:
            world.add()
        time.sleep(0.3)
    raise AssertionError("both drivers are still there")


@pytest.mark.long  # tests/spark/test_crash.py has a driver that is superseded by a later one
@pytest.mark.timeout(1800)
def test_p3_of_two_drivers_started_at_once_one_goes_on_and_the_other_ends_with_its_own_exit_code(
    tmp_path: Path,
) -> None:
    world = FileWorld(tmp_path)
    world.add(3)
    log = Watched(str(world.state))
    continuous = settings(world, available_now=False)
    with started(continuous) as one, started(continuous) as other:
        over, alive = ended([one, other], log, world)
        assert over.process.returncode == FENCED_EXIT_CODE, over.output()
        assert "[FENCED]" in over.output()
        log.wait_for(log.epoch() + 2, alive)
        alive.kill()
    world.finish()
    with started(settings(world)) as last:
        assert last.wait() == 0, last.output()
    check_log(log)
    world.check()
