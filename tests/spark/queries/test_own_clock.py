"""Windows as values by statebed's own clock: rows are late after the delay, and state stays until a window is over."""

import datetime as dt
import os
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark.queries.harness import by_statebed

import statebed as sb

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
FILES = [[(1, 5), (2, 60), (9, 540)], [(1, 50), (2, 61), (3, 180), (5, 300)], [(6, 360), (3, 239), (10, 600)]]
"""Rows of each file: a value, and the seconds after noon. Nearly all rows are late by less than ten minutes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rows")
    for number, rows in enumerate(FILES):
        times = pa.array([NOON + dt.timedelta(seconds=seconds) for _, seconds in rows], pa.timestamp("us", "UTC"))
        path = place / f"{number}.parquet"
        pq.write_table(pa.table({"v": pa.array([v for v, _ in rows], pa.int64()), "ts": times}), path)
        os.utime(path, (1_700_000_000 + number,) * 2)
    return place


def windowed(spark: SparkSession, folder: Path, *, delay: str, names: tuple[str, str] = ("w", "v")) -> DataFrame:
    reader = spark.readStream.schema("v bigint, ts timestamp").option("maxFilesPerTrigger", 1)
    rows = reader.parquet(str(folder)).withWatermark("ts", delay)
    return rows.select(F.window("ts", "1 minute").alias(names[0]), F.col("v").alias(names[1]))


def values(df: DataFrame, state: Path) -> list[int]:
    rows = chain(*by_statebed(df, "append", state=state, clock="statebed").values())
    return sorted(row[0] for row in rows)


def test_a_value_is_there_once_for_each_window(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    once = [1, 2, 3, 5, 6, 9, 10]
    rows = windowed(spark, folder, delay="10 minutes").dropDuplicates(["v", "w"]).select("v")
    assert values(rows, tmp_path / "late") == once
    # Without a delay, only the newest row of the third file is in time: the first file had the ninth minute.
    rows = windowed(spark, folder, delay="0 seconds").dropDuplicates(["v", "w"]).select("v")
    assert values(rows, tmp_path / "early") == [1, 2, 3, 5, 9, 10]


@pytest.mark.parametrize("how", ["inner", "left"])
def test_rows_of_one_window_are_joined(spark: SparkSession, folder: Path, tmp_path: Path, how: str) -> None:
    left = windowed(spark, folder, delay="10 minutes")
    right = windowed(spark, folder, delay="10 minutes", names=("w2", "v2"))
    joined = left.join(right, F.expr("v = v2 and w = w2"), how).select("v")
    # The values 1, 2 and 3 are twice in a window: each row has two partners.
    assert values(joined, tmp_path / "state") == [1] * 4 + [2] * 4 + [3] * 4 + [5, 6, 9, 10]


def test_sql_text_takes_windows_as_keys_of_tables_with_a_delay(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    job = sb.Job("own", state=tmp_path, spark=spark, parallelism=2)
    reader = spark.readStream.schema("v bigint, ts timestamp").parquet(str(folder))
    job.source(reader, name="rows", watermark=("ts", "10 minutes"))
    text = "SELECT DISTINCT v, w FROM (SELECT v, window(ts, '1 minute') AS w FROM rows)"
    got: list[int] = []
    job.sql(text).write(lambda batch, epoch: got.extend(row.v for row in batch.collect()))
    query = job.start(available_now=True)
    assert query.await_termination(120)
    assert sorted(got) == [1, 2, 3, 5, 6, 9, 10]
