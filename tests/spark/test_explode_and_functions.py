"""Elements as rows and Python functions in a job on Spark: before the first operator, between operators, and after a
restart.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import user_functions
from pyspark.sql import SparkSession
from user_functions import doubled, looked_up, with_tip

import statebed as sb

SCHEMA = "driver string, items array<string>, fare double, tip int, ts timestamp"


def write(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    rows = {
        "driver": ["ann", "bob", "cid"],
        "items": [["x", "y"], [], [f"only-{number}", "x"]],
        "fare": [1.0, 2.0, 3.0],
        "tip": pa.array([1, None, 2], pa.int32()),
        "ts": pa.array([number * 60_000_000] * 3, pa.timestamp("us", "UTC")),
    }
    pq.write_table(pa.table(rows), folder / f"{number}.parquet")


def run(spark: SparkSession, folder: Path) -> dict[str, list[dict[str, Any]]]:
    job = sb.Job("orders", state=folder / "state", spark=spark, parallelism=2)
    job.register_function("with_tip", with_tip)
    job.register_function("looked_up", looked_up)
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    orders = job.source(frame, name="orders", watermark=("ts", "0 seconds"))
    totals = orders.explode("items", "item", position="n").key_by("item", name="totals").agg(n=sb.count(), ttl="7 days")
    listed = (
        orders.select("driver", "explode_outer(items) as item")
        .key_by("driver", name="listed")
        .agg(n=sb.count(), ttl="7 days")
    )
    paid = (
        orders.with_columns(paid="with_tip(fare, coalesce(tip, 0))")
        .key_by("driver", name="paid")
        .agg(paid=sb.sum("paid"), ttl="7 days")
    )
    streams = {
        "steps": totals.select("item", "explode(sequence(1L, n)) as step"),
        "listed": listed,
        "paid": paid.select("looked_up(driver) as who", "with_tip(paid, 1) as paid"),
        "twice": orders.transform(doubled, schema="driver string, twice double"),
    }
    out = {name: sb.MemorySink(name) for name in streams}
    for name, stream in streams.items():
        stream.write(out[name])
    assert job.start(available_now=True).await_termination(120)
    return {name: list(sink.rows) for name, sink in out.items()}


def test_elements_and_functions_give_the_same_before_and_between_operators_and_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.sparkContext.addPyFile(str(user_functions.__file__))  # as spark-submit --py-files does
    write(tmp_path / "in", 0)
    first = run(spark, tmp_path)
    assert sorted((row["driver"], row["twice"]) for row in first["twice"]) == [("ann", 2.0), ("bob", 4.0), ("cid", 6.0)]
    write(tmp_path / "in", 1)
    write(tmp_path / "in", 2)
    found = run(spark, tmp_path)
    assert {row["step"] for row in found["steps"] if row["item"] == "x"} >= {3, 4, 5, 6}
    assert {row["driver"]: row["n"] for row in found["listed"]} == {"ann": 6, "bob": 3, "cid": 6}
    assert {row["who"]: row["paid"] for row in found["paid"]} == {"<ann>": 7.0, "<bob>": 7.0, "<cid>": 16.0}
