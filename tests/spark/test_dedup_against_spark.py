"""P6 against Spark's own dropDuplicates and dropDuplicatesWithinWatermark: the same keys in the same batch."""

import datetime as dt
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from spark.native import batches_of_spark
from unit.operators.operator_epochs import Epochs, plain, rows_of

from statebed.format.stream_schema import Input
from statebed.operators.operator import MAIN
from statebed.operators.time_to_live import time_to_live
from statebed.operators.updating.deduplicate import Deduplicate

NOON = dt.datetime(2024, 3, 10, 6, 58, tzinfo=dt.UTC)
SCHEMA = "k string, n bigint, ts timestamp"
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
DELAY_US = 60_000_000
# Seconds after NOON: each batch has rows at the very edges that the watermarks of the batches before make.
EDGES: list[list[float]] = [
    [0, 30, 120],  # the watermark of the next batch is 60
    [0, 60, 60.000001, 119.999999, 125],  # nothing is late yet by Spark's rule: late is judged by the batch before
    [60, 60.000001, 65, 180],
    [65, 65.000001, 120, 120.000001, 240],
    [180, 180.000001, 240, 300],
    [240, 240.000001, 600],
    [540, 540.000001, 601],
    [601, 700],
]


def batches() -> list[pa.Table]:
    chance = random.Random(3)
    found = []
    for edges in EDGES:
        seconds = edges + [max(edges) - chance.randrange(200) for _ in range(60)]
        times = [NOON + dt.timedelta(microseconds=round(one * 1_000_000)) for one in seconds]
        # A key has one row in a batch: of several, Spark takes any, and keeps the key by that one's time.
        keys = chance.sample([None, *map(str, range(2 * len(times)))], len(times))
        rows = list(zip(keys, times, strict=True))
        found.append(
            pa.table(
                {
                    "k": pa.array([key for key, _ in rows], pa.string()),
                    "n": pa.array(range(len(rows)), pa.int64()),
                    "ts": pa.array([time for _, time in rows], pa.timestamp("us", "UTC")),
                }
            )
        )
    return found


def of_spark(spark: SparkSession, folder: Path, how: Any) -> dict[int, pa.Table]:
    """Return the output of each batch."""
    (folder / "in").mkdir()
    for number, rows in enumerate(batches()):
        path = folder / "in" / f"{number}.parquet"
        pq.write_table(rows, path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    return batches_of_spark(how(frame.withWatermark("ts", "1 minute")), folder / "native", DataFrame.toArrow)


def keys_of(table: pa.Table, *columns: str) -> list[str]:
    if "ts" in columns:
        table = table.set_column(table.schema.get_field_index("ts"), "ts", table["ts"].cast(pa.timestamp("us", "UTC")))
    return sorted(repr(tuple(row[name] for name in columns)) for row in table.to_pylist())


@pytest.mark.parametrize("case", ["within the watermark", "time in the key", "unbounded"])
def test_p6_every_batch_puts_out_the_keys_that_sparks_own_operator_puts_out(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    keys, ttl, how = {
        "within the watermark": (("k",), "1 minute", lambda frame: frame.dropDuplicatesWithinWatermark(["k"])),
        "time in the key": (("k", "ts"), "1 us", lambda frame: frame.dropDuplicates(["k", "ts"])),
        "unbounded": (("k",), None, lambda frame: frame.dropDuplicates(["k"])),
    }[case]
    expected = of_spark(spark, tmp_path, how)
    operator = Deduplicate("first", Input("rows", COLUMNS, keys), ttl=time_to_live(ttl))
    latest: int | None = None
    compared = 0
    with Epochs(operator, parallelism=3) as stream:
        for number, rows in enumerate(batches()):
            times = rows["ts"].cast(pa.int64()).to_pylist()
            # A batch works with the watermark that the batches before it have made.
            watermark = None if latest is None else latest - DELAY_US
            out = stream.feed(rows_of(operator.input, rows.to_pylist(), times), watermark_us=watermark)
            latest = max([*times, *([] if latest is None else [latest])])
            found = keys_of(out[MAIN], *keys)
            assert found == keys_of(expected[number], *keys), f"batch {number}"
            compared += len(plain(out[MAIN]))
    assert 100 < compared < sum(rows.num_rows for rows in batches()) - 20, "too few were dropped to say anything"
