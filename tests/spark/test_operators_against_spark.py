"""P6 against Spark's own operators: the same batches give the same rows in the same batch, late rows too."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark.native import batches_of_spark

from statebed import testing
from statebed.aggregates import functions as f
from statebed.flow import Flow, Stream
from statebed.operators.window_definition import session, sliding, tumbling

SECOND = 1_000_000
NOON = 1_710_054_000 * SECOND
DELAY = "10 seconds"
COLUMNS = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
Batches = dict[int, list[tuple[Any, ...]]]


def batches() -> list[pa.Table]:
    """Rows by chance, and at the edges that the watermark of earlier batches makes: 10 s and a gap of 6 s behind."""
    chance = random.Random(23)
    found = []
    for number in range(8):
        around = number * 9
        edges = [around + 4 - 9 * back - 10 - gap for back in (1, 2) for gap in (0, 5, 6, 7, 16)]
        seconds = [around + 4, *edges, *(around + chance.randrange(-30, 4) for _ in range(20))]
        # A key of its own each, so that edges are seen, and few keys for the others, so that sessions merge.
        keys: list[int | None] = [90 + number, *(1000 + 100 * number + place for place in range(len(edges)))]
        keys += [chance.choice([1, 2, 3, 4, None]) for _ in range(20)]
        found.append(
            pa.table(
                {
                    "k": pa.array(keys, pa.int64()),
                    "n": pa.array([chance.choice([None, *range(9)]) for _ in seconds], pa.int64()),
                    "ts": pa.array([NOON + second * SECOND for second in seconds], pa.int64()).cast(COLUMNS.types[2]),
                }
            )
        )
    return found


def of_spark(spark: SparkSession, folder: Path, query: Callable[[DataFrame], DataFrame], mode: str) -> Batches:
    """Return the output of each batch of a streaming query."""
    rows = folder / "rows"
    if not rows.exists():
        rows.mkdir()
        for number, batch in enumerate(batches()):
            path = rows / f"{number}.parquet"
            pq.write_table(batch, path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    reader = spark.readStream.schema("k bigint, n bigint, ts timestamp").option("maxFilesPerTrigger", 1)
    made = query(reader.parquet(str(rows)).withWatermark("ts", DELAY))
    return batches_of_spark(made, folder / "native", lambda batch: plain(batch.toArrow()), mode=mode)


def of_ours(made: Callable[[Stream], Stream]) -> tuple[Batches, int]:
    """Return the output of each epoch (the insertions of a changelog) and the number of late rows."""
    flow = Flow("ours")
    made(flow.source("rows", COLUMNS, watermark=("ts", DELAY))).named("result")
    found: Batches = {}
    with testing.run(flow, parallelism=2) as t:
        for number, batch in enumerate(batches()):
            t.feed("rows", batch)
            if number % 3 == 1:
                t.crash()
        t.tick()
        changes = t.changes("result")
        if "_weight" in changes.column_names:
            changes = changes.filter(pa.compute.greater(changes["_weight"], 0)).drop_columns(["_weight"])
        for epoch in range(len(batches()) + 1):
            rows = changes.filter(pa.compute.equal(changes["epoch"], epoch)).drop_columns(["epoch", "_time"])
            found[epoch] = plain(rows)
        late = sum(count for (_, kind), count in t.counts.items() if kind == "rows_late")
    return found, late


def plain(rows: pa.Table) -> list[tuple[Any, ...]]:
    columns = [
        column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in rows.columns
    ]
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True), key=repr)


def windowed(frame: DataFrame, window: Any) -> DataFrame:
    counted = frame.groupBy("k", window.alias("w")).agg(F.count("*").alias("rows"), F.sum("n").alias("total"))
    return counted.select("k", "w.start", "w.end", "rows", "total")


def chained(frame: DataFrame) -> DataFrame:
    first = frame.groupBy("k", F.window("ts", "5 seconds")).agg(F.count("*").alias("rows"))
    timed = first.select(F.window_time("window").alias("at"), "rows")
    second = timed.groupBy(F.window("at", "15 seconds").alias("w")).agg(
        F.count("*").alias("windows"), F.sum("rows").alias("rows")
    )
    return second.select("w.start", "w.end", "windows", "rows")


CASES: dict[str, tuple[str, Callable[[DataFrame], DataFrame], Callable[[Stream], Stream], bool]] = {
    "sessions": (
        "append",
        lambda frame: windowed(frame, F.session_window("ts", "6 seconds")),
        lambda rows: rows.group_by("k", session("6 s")).agg(rows=f.count(), total=f.sum("n")),
        True,
    ),
    "early_windows": (
        "update",
        lambda frame: windowed(frame, F.window("ts", "10 seconds", "4 seconds")),
        lambda rows: rows.group_by("k", sliding("10 s", "4 s")).agg(rows=f.count(), total=f.sum("n"), emit="early"),
        True,
    ),
    "windows_of_windows": (
        "append",
        chained,
        lambda rows: (
            rows.group_by("k", tumbling("5 s"))
            .agg(rows=f.count())
            .group_by(tumbling("15 s"))
            .agg(windows=f.count(), rows=f.sum("rows"))
        ),
        True,
    ),
    "running": (
        "update",
        lambda frame: frame.groupBy("k").agg(F.count("*").alias("rows"), F.sum("n").alias("total")),
        lambda rows: rows.key_by("k").agg(rows=f.count(), total=f.sum("n")),
        False,
    ),
}


# Those that are marked have twins among the queries of tests/spark/queries/cases.py.
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.long if case in {"running", "windows_of_windows"} else ()) for case in CASES],
)
def test_p6_every_batch_puts_out_what_sparks_own_operator_puts_out(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    mode, native, made, has_late = CASES[case]
    ours, late = of_ours(made)
    theirs = of_spark(spark, tmp_path, native, mode)
    different = {
        batch: ([row for row in ours[batch] if row not in there], [row for row in there if row not in ours[batch]])
        for batch in range(len(batches()) + 1)
        if (there := theirs.get(batch, [])) != ours[batch]
    }
    assert different == {}, "by batch: ours alone, Spark's alone"
    assert sum(map(len, ours.values())) > 5
    assert (late > 5) == has_late
