"""Processes of a real cluster die while a job of three levels runs on it: nothing is lost, nothing is there twice.

The state is on a real S3 server; the two workers have caches of their own, which get lost, too.
"""

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from spark.cluster import Cluster, kill, started_cluster
from spark.faults_driver import POINTS, Settings
from spark.faults_drivers import SIGKILLED, Driver, Watched, started
from spark.faults_job import TROUBLE
from spark.faults_world import FileWorld, GroupsWorld, SketchesWorld

KILLS = int(os.environ.get("KILLS", "50"))
"""Number of kills in the long test."""
AHEAD = 2
"""Number of files that wait to be read while a driver runs."""
SPECULATION = (
    ("spark.speculation", "true"),
    ("spark.speculation.interval", "100ms"),
    ("spark.speculation.multiplier", "1.5"),
    ("spark.speculation.quantile", "0.5"),
)


@dataclass
class Stage:
    """Setting of a test: the cluster, the world, the log of records, and the faults to inject."""

    cluster: Cluster
    world: FileWorld
    log: Watched
    environment: dict[str, str]
    chance: random.Random
    orders: int = 0

    @property
    def trouble(self) -> Path:
        return Path(self.environment[TROUBLE])

    @property
    def projections(self) -> Path:
        """Folder of Spark's checkpoints of the drivers."""
        return Path(self.environment["XDG_CACHE_HOME"])

    def settings(self, **more: Any) -> Settings:
        place = {"folder": str(self.world.folder), "state": self.log.state, "master": self.cluster.url}
        return Settings(**{**place, "world": self.world.kind, **more})

    def until(self, done: Callable[[], object], driver: Driver, what: str, seconds: float = 400.0) -> None:
        """Wait, and let input come meanwhile."""
        deadline = time.monotonic() + seconds
        while not done():
            assert driver.process.poll() is None, driver.output()
            assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s\n{driver.output()}"
            self.let_input_come()

    def let_input_come(self) -> None:
        """Let input arrive for a moment."""
        head = self.log.head()
        if head is not None and self.world.files - head.source_position.batch_id <= AHEAD:
            self.world.add()
        time.sleep(0.2)

    def epochs(self, count: int, driver: Driver) -> None:
        """Wait for `count` more records."""
        wanted = self.log.epoch() + count
        self.until(lambda: self.log.epoch() >= wanted, driver, f"epoch {wanted}")

    def order(self, kind: str) -> Path:
        """Have one task suffer; the file that says it did."""
        self.orders += 1
        order = self.trouble / f"{kind}.{self.orders}.order"
        order.touch()
        return order.with_suffix(".done")

    def suffered(self, kind: str, driver: Driver) -> None:
        """Have one task suffer, and wait until the job has gone on."""
        done = self.order(kind)
        self.until(done.exists, driver, done.name)
        self.epochs(1, driver)

    def kill_one(self, pids: Callable[[], list[int]], driver: Driver) -> None:
        """Kill one of these processes, whatever it is doing, and wait until the job has gone on."""
        self.until(lambda: pids() and kill(self.chance.choice(pids() or [-1])), driver, "a process to kill")
        self.epochs(1, driver)

    def until_killed(self, driver: Driver, seconds: float = 500.0) -> None:
        """Let input come until the driver has killed itself."""
        deadline = time.monotonic() + seconds
        while driver.process.poll() is None:
            assert time.monotonic() < deadline, driver.output()
            self.let_input_come()
        assert driver.wait() == SIGKILLED, driver.output()

    def run_to_the_end(self) -> None:
        """Read all that is left, with nothing in the way and without the cluster: a local Spark starts sooner."""
        self.world.finish()
        with started(self.settings(master="local[2]"), self.environment) as driver:
            assert driver.wait() == 0, driver.output()


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trouble")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, s3_server: Any, trouble: Path) -> Iterator[Cluster]:
    """One cluster for all tests: executors come and go with the drivers."""
    folder = tmp_path_factory.mktemp("cluster")
    with started_cluster(folder, {**s3_server.environment, TROUBLE: str(trouble)}) as cluster:
        yield cluster


@pytest.fixture
def stage(tmp_path: Path, cluster: Cluster, trouble: Path, s3_server: Any, s3_url: str) -> Stage:
    environment = {**s3_server.environment, TROUBLE: str(trouble), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for order in trouble.iterdir():
        order.unlink()
    world = FileWorld(tmp_path / "world")
    world.add(3)
    log = Watched(s3_url, tuple(s3_server.options.items()))
    return Stage(cluster, world, log, environment, random.Random(5))


@pytest.mark.cluster
@pytest.mark.timeout(1800)
def test_p1_p2_p3_p6_executors_workers_tasks_and_drivers_die_and_nothing_is_lost_or_there_twice(stage: Stage) -> None:
    armed = stage.world.folder / "armed"
    death = {"point": "after_record", "occasion": 2, "armed_by": str(armed)}
    with started(stage.settings(available_now=False, spark=SPECULATION, **death), stage.environment) as driver:
        stage.epochs(2, driver)
        stage.suffered("exit", driver)
        stage.suffered("kill-worker", driver)
        stage.cluster.drop_caches()
        stage.suffered("kill-executor", driver)
        # Others of its stage had ended; for the rest the stages before were attempted again, where they were lost.
        assert "FetchFailed" in driver.log.read_text()
        stage.kill_one(stage.cluster.executors, driver)
        slept = stage.order("sleep")
        stage.until(slept.exists, driver, slept.name)
        stage.epochs(1, driver)
        assert not slept.with_suffix(".woke").exists()  # a second attempt was quicker, and the first was ended
        armed.touch()
        stage.until_killed(driver)
    shutil.rmtree(stage.projections)  # Spark's own checkpoint is lost as well
    stage.run_to_the_end()
    stage.world.check()


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [GroupsWorld, pytest.param(SketchesWorld, marks=pytest.mark.long)])
def test_p1_p2_p6_stages_that_add_rows_up_in_the_jvm_are_attempted_again(
    stage: Stage, world: type[GroupsWorld]
) -> None:
    stage.world = world(stage.world.folder.with_name("groups"))
    stage.world.add(3)
    with started(stage.settings(available_now=False), stage.environment) as driver:
        stage.epochs(2, driver)
        stage.suffered("kill-executor", driver)
        assert "FetchFailed" in driver.log.read_text()
        driver.kill()
    head = stage.log.head()
    assert head is not None
    assert head.figures.preaggregated
    stage.run_to_the_end()
    stage.world.check()


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_p1_p2_p3_p6_fifty_kills_at_random_moments_lose_and_repeat_nothing(stage: Stage) -> None:
    kills = {"executor": 0, "worker": 0, "driver": 0, "task": 0}
    points = sorted(POINTS)
    while sum(kills.values()) < KILLS:
        exact = stage.chance.random() < 0.4
        point = {"point": stage.chance.choice(points), "occasion": stage.chance.randint(2, 9)} if exact else {}
        spark = stage.chance.choice([(), SPECULATION])
        with started(stage.settings(available_now=False, spark=spark, **point), stage.environment) as driver:
            kills_of_this_driver(stage, driver, kills, exact=exact)
        kills["driver"] += 1
        if stage.chance.random() < 0.3:
            shutil.rmtree(stage.projections, ignore_errors=True)
        print(kills)  # noqa: T201 - a long test says how far it is
    stage.run_to_the_end()
    stage.world.check()


def kills_of_this_driver(stage: Stage, driver: Driver, kills: dict[str, int], *, exact: bool) -> None:
    """Kill executors, workers and tasks; then the driver at some moment, if it does not die at an exact point."""
    if exact:
        stage.until_killed(driver)
        return
    stage.epochs(1, driver)
    for _ in range(stage.chance.randint(2, 6)):
        time.sleep(stage.chance.uniform(0, 2))
        kind = stage.chance.choice(["executor", "worker", "task", "task"])
        if kind == "executor":
            stage.kill_one(stage.cluster.executors, driver)
        elif kind == "worker":
            stage.kill_one(stage.cluster.python_workers, driver)
        else:
            stage.suffered(stage.chance.choice(["exit", "kill-worker", "kill-executor"]), driver)
        kills[kind] += 1
        if stage.chance.random() < 0.5:
            stage.cluster.drop_caches()
    time.sleep(stage.chance.uniform(0, 3))
    driver.kill()
