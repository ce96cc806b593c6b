"""P6 against Spark's own operator: the same batches give the same rows in the same batch, lateness included."""

import datetime as dt
import math
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark.native import batches_of_spark

import statebed as sb
from statebed.operators import Window
from statebed.sinks import MemorySink

NOON = dt.datetime(2024, 3, 10, 6, 58, tzinfo=dt.UTC)  # clocks change in New York two minutes later
MICROSECOND = dt.timedelta(microseconds=1)
SCHEMA = (
    "ratio double, small float, price decimal(20,3), day date, at timestamp, wall timestamp_ntz, n bigint, ts timestamp"
)
KEYS = ["ratio", "small", "price", "day", "at", "wall"]
# Each batch begins with rows at the very edges that the watermark of the batches before makes, in seconds after NOON.
EDGES: list[list[float | None]] = [
    [0, 60, 120],  # the next watermark is 60: the first window closes by nothing to spare
    [0, 59.999999, 60, 60.000001, None],  # not late yet: no watermark was known before this batch
    [59.999999, 60, 179.999999],  # the first is late; the watermark falls short of 120 by a microsecond
    [60, 119.999999, 180],
    [119.999999, 120, -86400, None],
    [120, 400],
    [179.999999, 339.999999, 340, 480],
]


def write_batches(folder: Path) -> None:
    chance = random.Random(11)
    folder.mkdir()
    for number, edges in enumerate(EDGES):
        around = max(second for second in edges if second is not None)
        seconds = edges + [around - chance.randrange(-1, 150) for _ in range(40)]
        times = [None if one is None else NOON + round(one * 1_000_000) * MICROSECOND for one in seconds]
        instants = [NOON + dt.timedelta(hours=chance.randrange(3), microseconds=5) for _ in times]
        rows = pa.table(
            {
                "ratio": [chance.choice([math.nan, -math.nan, 0.0, -0.0, 1.5, None]) for _ in times],
                "small": pa.array([chance.choice([math.nan, 0.0, -0.0]) for _ in times], pa.float32()),
                "price": pa.array([chance.choice([Decimal("-1.500"), None]) for _ in times], pa.decimal128(20, 3)),
                "day": pa.array([chance.choice([dt.date(1969, 12, 31), None]) for _ in times], pa.date32()),
                "at": pa.array([chance.choice([one, None]) for one in instants], pa.timestamp("us", "UTC")),
                "wall": pa.array([one.replace(tzinfo=None) for one in instants], pa.timestamp("us")),
                "n": [chance.randrange(-9, 9) for _ in times],
                "ts": pa.array(times, pa.timestamp("us", "UTC")),
            }
        )
        path = folder / f"{number}.parquet"
        pq.write_table(rows, path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def windows_of_spark(frame: DataFrame, folder: Path, *window: str) -> dict[int, list[str]]:
    windows = frame.withWatermark("ts", "1 minute").groupBy(*KEYS, F.window("ts", *window).alias("window"))
    results = windows.agg(F.count("*").alias("rows"), F.sum("n").alias("total"))
    columns = [*KEYS, "window.start", "window.end", "rows", "total"]
    return batches_of_spark(results.select(*columns), folder / "native", lambda batch: comparable(batch.toArrow()))


def comparable(table: pa.Table) -> list[str]:
    """Rows as text, sorted: NaN equals itself there, and 0.0 is not -0.0."""
    utc = [
        column.cast(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(column.type) and column.type.tz else column
        for column in table.columns
    ]
    rows = pa.Table.from_arrays(utc, names=[f"c{place}" for place in range(len(utc))]).to_pylist()
    return sorted(repr(list(row.values())) for row in rows)


@pytest.mark.parametrize(
    ("window", "native_window"),
    [
        pytest.param(sb.tumbling("1 minute"), ("1 minute",), id="tumbling", marks=pytest.mark.long),
        pytest.param(sb.sliding("1 minute", "25 seconds"), ("1 minute", "25 seconds"), id="sliding"),
    ],
)
def test_p6_every_batch_puts_out_what_sparks_own_windows_put_out(
    spark: SparkSession, tmp_path: Path, window: Window, native_window: tuple[str, ...]
) -> None:
    write_batches(tmp_path / "in")
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    sink = MemorySink("kept")
    job = sb.Job("ours", state=tmp_path / "state", parallelism=3, spark=spark)
    grouped = job.source(frame, watermark=("ts", "1 minute")).group_by(*KEYS, window)
    results = grouped.agg(rows=sb.count(), total=sb.sum("n")).write(sink)
    query = job.start(available_now=True)
    assert query.await_termination(120)

    epochs = query.recent_progress
    assert [epoch.batch_id for epoch in epochs] == [*range(len(EDGES)), None]
    schema = results.output.columns
    ours = [comparable(pa.Table.from_pylist(sink.epochs[epoch.epoch], schema=schema)) for epoch in epochs]
    native = windows_of_spark(frame, tmp_path, *native_window)
    assert ours == [native[batch] for batch in range(len(EDGES) + 1)]
    assert sum(map(len, ours)) > 100
    assert sum(epoch.rows_late for epoch in epochs) > 10


def test_rows_before_1970_are_windowed_like_all_others(spark: SparkSession, tmp_path: Path) -> None:
    start = dt.datetime(1969, 12, 31, 23, 57, 30, tzinfo=dt.UTC)
    (tmp_path / "in").mkdir()
    for number in range(3):
        times = [start + dt.timedelta(minutes=number, seconds=second) for second in (0, 29, 30, 59)]
        rows = pa.table({"k": ["a"] * 4, "ts": pa.array(times, pa.timestamp("us", "UTC"))})
        pq.write_table(rows, tmp_path / "in" / f"{number}.parquet")
        os.utime(tmp_path / "in" / f"{number}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))
    frame = spark.readStream.schema("k string, ts timestamp").option("maxFilesPerTrigger", 1)
    seen: dict[Any, int] = {}

    def keep(df: DataFrame, _: int) -> None:
        seen.update({row["start"]: row["n"] for row in df.selectExpr("unix_micros(window_start) start", "n").collect()})

    job = sb.Job("old", state=tmp_path / "state", spark=spark)
    stream = job.source(frame.parquet(str(tmp_path / "in")), watermark=("ts", "0 seconds"))
    stream.group_by("k", sb.tumbling("1 minute")).agg(n=sb.count()).write(keep)
    query = job.start(available_now=True)
    assert query.await_termination(120)
    assert {start // 60_000_000: n for start, n in seen.items()} == {-3: 2, -2: 4, -1: 4}
    assert sum(epoch.rows_late for epoch in query.recent_progress) == 0
