"""`readStream.format("statebed")`: the changes of a table of state as a stream, each of them once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from unit.inspect.table_world import TableWorld

import statebed as sb
from statebed.checkpoint import Origin
from statebed.errors import InputError
from statebed.spark.api.state_source import StateSource
from statebed.state import DeleteKey

Key = tuple[str, int]


class Follower:
    """A program that keeps a copy of a table up to date, and starts again where it stopped."""

    def __init__(self, spark: SparkSession, world: TableWorld, checkpoint: Path) -> None:
        self._spark, self._world, self._checkpoint = spark, world, checkpoint
        self.rows: dict[Key, int] = {}
        self.changes: list[str] = []
        self.epochs: set[int] = set()

    def start(self, fail: Callable[[], None] = lambda: None, **options: Any) -> StreamingQuery:
        stream = self._spark.readStream.format("statebed").options(table="drivers", changes="true", **options)
        writer = stream.load(self._world.url).writeStream.foreachBatch(lambda batch, _: self._apply(batch, fail))
        return writer.option("checkpointLocation", str(self._checkpoint)).start()

    def catch_up(self, fail: Callable[[], None] = lambda: None, **options: Any) -> None:
        """Start, apply what is there, and stop."""
        query = self.start(fail, **options)
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def _apply(self, batch: DataFrame, fail: Callable[[], None]) -> None:
        found = batch.collect()
        fail()
        for row in found:
            key = (row["city"], row["driver"])
            if row["change"] in {"delete", "update_before"}:
                assert self.rows.pop(key) == row["trips"]
        for row in found:
            key = (row["city"], row["driver"])
            if row["change"] in {"insert", "update_after"}:
                assert key not in self.rows
                self.rows[key] = row["trips"]
            self.changes.append(row["change"])
            self.epochs.add(row["_epoch"])


def write(world: TableWorld, **trips: int) -> int:
    drivers = [int(name.removeprefix("d")) for name in trips]
    count = len(drivers)
    world.write(
        "drivers", {"city": ["Ulm"] * count, "driver": drivers, "trips": list(trips.values()), "note": [None] * count}
    )
    return world.epoch()


def table(world: TableWorld) -> dict[Key, int]:
    rows = sb.read_state(world.url, table="drivers").to_arrow().to_pylist()
    return {(row["city"], row["driver"]): row["trips"] for row in rows}


def test_the_changes_of_a_table_reach_a_follower_once_over_restarts_failures_rescaling_and_forks(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = TableWorld(tmp_path / "state")
    write(world, d1=1, d2=2, d3=3)
    follower = Follower(spark, world, tmp_path / "checkpoint")
    follower.catch_up()
    assert follower.rows == table(world)
    assert follower.changes == ["insert"] * 3

    first = write(world, d1=10, d4=4)
    world.write("drivers", {"city": ["Ulm"], "driver": [2]}, DeleteKey())
    newest = world.epoch()

    def fails() -> None:
        raise RuntimeError("the follower fails before it has applied the batch")

    with pytest.raises(PySparkException, match="the follower fails"):
        follower.catch_up(fails)
    query = follower.start()
    query.processAllAvailable()
    assert follower.rows == table(world)
    assert sorted(follower.changes[3:]) == ["delete", "insert", "update_after", "update_before"]
    assert newest in follower.epochs

    world.parallelism = 3
    world.start(Origin(epoch=first))  # the deletion is taken back
    write(world, d5=5)
    query.processAllAvailable()
    query.stop()
    assert follower.rows == table(world)
    assert ("Ulm", 2) in follower.rows
    world.end()


def test_a_follower_that_came_too_late_is_told_so_and_may_begin_with_an_epoch(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = TableWorld(tmp_path / "state", retained=2)
    epochs = [write(world, d1=number) for number in range(1, 3)]
    follower = Follower(spark, world, tmp_path / "checkpoint")
    follower.catch_up()
    late = Follower(spark, world, tmp_path / "late")
    late.rows = {("Ulm", 1): 1}
    late.catch_up(startingEpoch=epochs[0])
    assert late.changes == ["update_before", "update_after"]
    for number in range(3, 9):
        write(world, d1=number)
    world.run.clean_up()
    with pytest.raises(PySparkException, match=r"the changes from epoch \d+ to \d+ cannot be read") as caught:
        follower.catch_up()
    assert "start the stream with a new checkpoint location" in str(caught.value)
    world.end()


def test_mistakes_are_said_with_what_to_write(spark: SparkSession, tmp_path: Path) -> None:
    world = TableWorld(tmp_path / "state")
    write(world, d1=1)

    def load() -> None:
        frame = spark.readStream.format("statebed").options(table="drivers").load(world.url)
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
        query.processAllAvailable()

    with pytest.raises(PySparkException, match=r'add \.option\("changes", "true"\)'):
        load()
    for options, words in (
        ({"startingEpoch": "1"}, "is for streams of changes"),
        ({"changes": "true", "epoch": "1"}, "a stream of changes has no epoch"),
        ({"changes": "true", "startingEpoch": "x"}, "must be the number of an epoch, got 'x'"),
    ):
        with pytest.raises(InputError, match=words):  # as Spark's own process for it does, which takes seconds to start
            StateSource({"path": world.url, "table": "drivers", **options})
    source = StateSource({"path": world.url, "table": "drivers", "changes": "true"})
    with pytest.raises(InputError, match='the option "changes" is for streams'):
        source.reader(source.schema())
    world.end()
