"""Throughput of a Structured Streaming query on statebed, against the same job in statebed's own API.

    python bench/queries.py [rows per file]

Prints rows per second of both, in alternating runs over the same files, their ratio, and the time and the calls of the
JVM that planning takes.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import statebed as sb

FILES = 4
RUNS = 3


def main(rows: int) -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        for file in range(FILES):
            times = f"timestamp_millis(1700000000000 + ({file} * {rows} + id) * 2) as ts"
            frame = spark.range(rows).selectExpr("id % 10000 as k", "id as v", times)
            frame.coalesce(1).write.mode("append").parquet(f"{folder}/in")
        reader = spark.readStream.schema("k bigint, v bigint, ts timestamp").option("maxFilesPerTrigger", 1)
        seconds: dict[str, list[float]] = {"own API": [], "query": []}
        for run in range(RUNS + 1):
            for name, build in (("own API", own), ("query", query)):
                took = timed(build, reader.parquet(f"{folder}/in"), Path(folder) / f"{name}{run}")
                if run:  # the first run warms up
                    seconds[name].append(took)
    total = FILES * rows
    for name, several in seconds.items():
        print(f"{name}: {total / median(several):,.0f} rows/s")
    print(f"query / own API: {median(seconds['own API']) / median(seconds['query']):.2f}")


def own(job: sb.Job, df: DataFrame) -> None:
    source = job.source(df, name="rows", watermark=("ts", "10 seconds"))
    window = source.group_by("k", sb.tumbling("1 minute"), name="window")
    window.agg(n=sb.count(), s=sb.sum("v")).write(lambda rows, _: rows.count())


def query(job: sb.Job, df: DataFrame) -> None:
    grouped = df.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "k")
    began = time.perf_counter()
    stream = job.from_dataframe(grouped.agg(F.count("*").alias("n"), F.sum("v").alias("s")), mode="append")
    print(f"planned in {time.perf_counter() - began:.2f} s")
    stream.write(lambda rows, _: rows.count())


def timed(build: Callable[[sb.Job, DataFrame], None], df: DataFrame, state: Path) -> float:
    job = sb.Job("bench", state=state, parallelism=2, spark=df.sparkSession)
    build(job, df)
    began = time.perf_counter()
    job.start(available_now=True).await_termination()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
