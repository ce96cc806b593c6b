"""statebed takes over Spark's own query over a topic: at its offsets of each partition, with its counts."""

from pathlib import Path

import pytest
from kafka.server import Broker
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import statebed as sb

pytestmark = pytest.mark.filterwarnings("ignore::statebed.UnboundedStateWarning")
Counts = dict[str, tuple[int, int]]


def counted(spark: SparkSession, broker: Broker, topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": broker.servers, "subscribe": topic, "startingOffsets": "earliest"}
    messages = spark.readStream.format("kafka").options(**options).load()
    return messages.groupBy(F.col("key").cast("string").alias("k")).agg(
        F.count("*").alias("n"), F.sum(F.col("value").cast("string").cast("bigint")).alias("total")
    )


def test_p1_a_query_over_a_topic_is_taken_over_at_its_offsets(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic = broker.new_topic(partitions=2)
    broker.send(topic, ["1", "2", "3"], key="a", partition=0)
    broker.send(topic, ["10"], key="b", partition=1)
    results: Counts = {}

    def keep(rows: DataFrame, _: int) -> None:
        results.update({row["k"]: (row["n"], row["total"]) for row in rows.collect()})

    by_spark = counted(spark, broker, topic).writeStream.outputMode("update").foreachBatch(keep)
    by_spark = by_spark.option("checkpointLocation", str(tmp_path / "taken"))
    assert by_spark.trigger(availableNow=True).start().awaitTermination(120)
    assert results == {"a": (3, 6), "b": (1, 10)}

    broker.send(topic, ["4"], key="a", partition=0)
    broker.send(topic, ["100"], key="c", partition=1)
    results.clear()
    writer = sb.write_stream(counted(spark, broker, topic), parallelism=3).outputMode("update").foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(tmp_path / "state")).takeOver(tmp_path / "taken")
    assert writer.trigger(availableNow=True).start().await_termination(120)
    assert results == {"a": (4, 10), "c": (1, 100)}, "counted on from Spark's counts, and only what was new"

    positions = sb.read_positions(tmp_path / "state").sources.to_pylist()
    assert {row["partition"]: row["position"] for row in positions} == {0: "4", 1: "2"}
