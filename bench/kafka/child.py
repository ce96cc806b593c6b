"""The process of one side: starts Spark, warms up on a small topic, then processes one batch at each signal.

Arguments: the name of the side, rows per batch and batches of the case, the broker's address, a folder of its own, and
the jars of Spark's Kafka connector.
Input topics are `small` and `in`, output topics `small-SIDE` and `out-SIDE`.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import statebed as sb
from bench.kafka.cases import PARTITIONS, SCHEMA, SMALL_ROWS, Side
from bench.spark.child import WITHOUT_ROWS
from bench.spark.gate import Gate
from bench.spark.ours import MEMORY
from statebed.java import use_java

HEAP = "3g"
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
_MESSAGE = ("cast(k as string) as key", "to_json(struct(k, n, total)) as value")


def main() -> None:
    gate = Gate()
    side, batch_rows, batches = Side[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])
    servers, own = sys.argv[4], Path(sys.argv[5])
    session = _session(side, own, jars=sys.argv[6])
    run = _run_theirs if side in {Side.ROCKSDB, Side.HDFS} else _run_ours
    run(session, side, _Trip(servers, "small", f"small-{side.name}", SMALL_ROWS, own / "small"), gate.stop_here)
    if run is _run_ours:
        # Spark ends Python workers that were idle for a minute; the turns of others are no idleness of ours.
        gate.when_idle = lambda: _use_workers(session, side)
    gate.close(batches)
    run(session, side, _Trip(servers, "in", f"out-{side.name}", batch_rows, own / "run"), gate.stop_here)
    gate.say(phases=[], waited=gate.waited)
    session.stop()


class _Trip:
    """Input and output topic of a run, and its folder."""

    def __init__(self, servers: str, source: str, target: str, batch_rows: int, folder: Path) -> None:
        self.servers, self.source, self.target, self.batch_rows = servers, source, target, batch_rows
        self.folder = folder
        folder.mkdir(parents=True)

    def write(self, totals: DataFrame) -> None:
        """Write totals with Spark's Kafka sink."""
        messages = totals.selectExpr(*_MESSAGE).write.format("kafka")
        messages.option("kafka.bootstrap.servers", self.servers).option("topic", self.target).save()


def _run_ours(session: SparkSession, side: Side, trip: _Trip, arrived: Callable[[], None]) -> None:
    job = sb.Job("bench", state=str(trip.folder / "state"), memory=MEMORY, parallelism=2, spark=session)
    options = {"maxOffsetsPerTrigger": trip.batch_rows}
    rows = job.kafka(trip.source, servers=trip.servers, schema=SCHEMA, name="rows", options=options)
    totals = rows.key_by("k", name="totals").agg(n=sb.count(), total=sb.sum("v"))

    def write(changes: DataFrame, _: int) -> None:
        trip.write(changes.where("_weight > 0"))
        arrived()

    if side is Side.OURS_PLAIN:
        totals.write(write, name="messages")
    else:
        totals.write("kafka", name="messages", servers=trip.servers, topic=trip.target, key="k", partitions=PARTITIONS)
        totals.write(_GateSink(arrived))
    job.start(available_now=True).await_termination()


class _GateSink:
    """Says that an epoch has arrived; sinks get an epoch in the order in which they were added."""

    guarantee = sb.Guarantee.AT_LEAST_ONCE
    sink_id = "z_gate"

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived

    def open(self, run: int) -> None:
        """Do nothing: the sink keeps no position."""

    def roll_back(self, run: int, epoch: int) -> None:
        """Do nothing: it is never called."""

    def publish(self, publication: sb.Publication) -> None:
        if publication.files:
            self._arrived()


def _run_theirs(session: SparkSession, _: Side, trip: _Trip, arrived: Callable[[], None]) -> None:
    reader = session.readStream.format("kafka").option("kafka.bootstrap.servers", trip.servers)
    reader = reader.option("subscribe", trip.source).option("startingOffsets", "earliest")
    messages = reader.option("maxOffsetsPerTrigger", trip.batch_rows).load()
    rows = messages.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")
    totals = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))

    def write(batch: DataFrame, _: int) -> None:
        trip.write(batch)
        arrived()

    writer = totals.writeStream.foreachBatch(write).outputMode("update").trigger(availableNow=True)
    writer.option("checkpointLocation", str(trip.folder / "checkpoint")).start().awaitTermination()


def _use_workers(session: SparkSession, side: Side) -> None:
    """Run a task on each worker of ours. Workers of RDDs run our epochs; those of DataFrames are others."""
    session.sparkContext.parallelize(range(2), 2).map(int).collect()
    if side is Side.OURS_PLAIN:
        session.range(0, 2, 1, 2).mapInArrow(_pass_on, "id bigint").collect()


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _session(side: Side, own: Path, *, jars: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    use_java()
    builder: Any = SparkSession.builder
    builder = builder.master("local[2]").appName(f"bench {side.value}")
    settings = {
        "spark.jars": jars,
        "spark.driver.memory": HEAP,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(own / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(own / "warehouse"),
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if side in {Side.ROCKSDB, Side.HDFS}:
        store = "HDFSBackedStateStoreProvider" if side is Side.HDFS else "RocksDBStateStoreProvider"
        settings |= {
            "spark.sql.streaming.stateStore.providerClass": _PROVIDERS + store,
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
        }
    if side is Side.OURS:
        settings |= WITHOUT_ROWS
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


if __name__ == "__main__":
    main()
