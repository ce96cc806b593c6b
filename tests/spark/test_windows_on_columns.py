"""Windows that name their time column, in whole jobs: before and behind a join, and what explain says of them."""

import datetime as dt
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import statebed as sb
from statebed.errors import InputError

T = pa.timestamp("us", "UTC")
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def at(minute: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minute)


class Shop:
    """Orders of minutes 0 to 5, each paid 3.5 minutes later, one file per minute."""

    def __init__(self, spark: SparkSession, folder: Path, minutes: int = 6) -> None:
        self.spark, self.folder = spark, folder
        for name, column, later in (("orders", "ordered_at", 0.0), ("payments", "paid_at", 3.5)):
            (folder / name).mkdir()
            for minute in range(minutes):
                times = pa.array([at(minute + later)], T)
                path = folder / name / f"{minute}.parquet"
                pq.write_table(pa.table({"id": [minute], column: times}), path)
                os.utime(path, (minute + 1, minute + 1))  # Spark reads files in the order of these times

    def source(self, job: sb.Job, name: str, column: str) -> Any:
        reader = self.spark.readStream.schema(f"id bigint, {column} timestamp").option("maxFilesPerTrigger", 1)
        return job.source(reader.parquet(str(self.folder / name)), name=name, watermark=(column, "0 seconds"))

    def job(self, within: Any) -> tuple[sb.Job, sb.MemorySink]:
        job = sb.Job("shop", state=self.folder / "state", spark=self.spark, parallelism=2)
        orders, payments = self.source(job, "orders", "ordered_at"), self.source(job, "payments", "paid_at")
        paid = orders.join(payments, on="id", within=within, name="paid")
        windows = paid.group_by(sb.tumbling("1 minute", on="ordered_at"), name="by_order").agg(n=sb.count())
        sink = sb.MemorySink("windows")
        windows.write(sink)
        return job, sink


def test_a_window_behind_a_join_counts_by_the_column_it_names_and_explain_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    job, sink = Shop(spark, tmp_path).job(
        "payments.paid_at BETWEEN orders.ordered_at AND orders.ordered_at + INTERVAL 4 MINUTES"
    )
    text = str(job.explain())
    assert "interval: the right row is 0 seconds to 4 minutes after the left one" in text
    assert "event time of results: paid_at" in text
    assert "windows on ordered_at, at most 4 minutes behind the event time (paid_at)" in text
    query = job.start(available_now=True)
    assert query.await_termination(120)
    assert sum(one.rows_late for one in query.recent_progress) == 0
    # The last order is of 12:05, and an order may be paid four minutes later.
    assert [(row["window_start"], row["n"]) for row in sink.rows] == [(at(0), 1)]


def test_a_join_whose_bounds_still_count_the_other_way_is_refused_with_those_to_write(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(spark, tmp_path, minutes=1)
    job, _ = shop.job(sb.between("0s", "4 minutes"))
    assert job.start(available_now=True).await_termination(120)
    job, _ = shop.job(sb.between("-4 minutes", "0s"))
    with pytest.raises(InputError, match=r"between\('0 seconds', '4 minutes'\)"):
        job.start(available_now=True)


def test_a_window_on_another_column_of_the_source(rides: Any) -> None:
    rides.add_files(3)
    job = sb.Job("rides", state=rides.state, spark=rides.spark)
    stream = job.source(rides.frame(), name="rides", watermark=("ts", "0 seconds"))
    earlier = stream.with_columns(booked="ts - interval 30 seconds")
    sink = sb.MemorySink("windows")
    earlier.group_by("driver", sb.tumbling("1 minute", on="booked"), name="by_booking").agg(
        n=sb.count(), least=sb.min("booked"), most=sb.max("booked")
    ).write(sink)
    assert "windows on booked; rows behind the watermark of the event time are late" in str(job.explain())
    query = job.start(available_now=True)
    assert query.await_termination(120)
    assert sink.rows
    for row in sink.rows:
        assert row["window_start"] <= row["least"] <= row["most"] < row["window_end"]
    assert sum(one.rows_in for one in query.recent_progress) == 360
