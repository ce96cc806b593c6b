"""P6 against Spark's own stream-stream join: the same batches give the same rows in the same batch, late rows too."""

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses
from unit.operators.join_driver import Driver

from statebed.operators.joins import IntervalJoin, JoinKind
from statebed.operators.operator import Input

SECOND = 1_000_000
NOON = 1_710_054_000 * SECOND
DELAY = 10 * SECOND
LEFT = Input("bids", pa.schema([("k", pa.int64()), ("n", pa.int64())]), ("k",))
RIGHT = Input("auctions", pa.schema([("k", pa.int64()), ("m", pa.int64())]), ("k",))
Batch = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def batches(keys: Sequence[int | None]) -> list[Batch]:
    """Rows around the edges that the watermark of earlier batches makes, and others by chance; unlike times for all."""
    chance = random.Random(17)
    found: list[Batch] = []
    for number in range(8):
        around = number * 12
        sides: list[list[dict[str, Any]]] = []
        for name in ("n", "m"):
            seconds = [around - 10, around - 5, around, *(around + chance.randrange(-30, 6) for _ in range(25))]
            rows = [
                {"_time": NOON + second * SECOND, "k": chance.choice(keys), name: number * 100 + place}
                for place, second in enumerate(seconds)
            ]
            sides.append(rows)
        # Both sides have come equally far, so that their watermarks are one.
        for side, name in zip(sides, ("n", "m"), strict=True):
            side.append({"_time": NOON + (around + 6) * SECOND, "k": 9 + number, name: number * 100 + 99})
        found.append((sides[0], sides[1]))
    return found


def write(folder: Path, sides: Sequence[Batch], side: int, name: str) -> None:
    folder.mkdir()
    for number, batch in enumerate(sides):
        rows = batch[side]
        table = pa.table(
            {
                "k": pa.array([row["k"] for row in rows], pa.int64()),
                name: pa.array([row[name] for row in rows], pa.int64()),
                "ts": pa.array([row["_time"] for row in rows], pa.int64()).cast(pa.timestamp("us", "UTC")),
            }
        )
        path = folder / f"{number}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def of_spark(spark: SparkSession, folder: Path, how: JoinKind, *, lower: int, upper: int) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}

    def keep(batch: DataFrame, batch_id: int) -> None:
        found[batch_id] = sorted((tuple(row) for row in batch.collect()), key=repr)

    def side(name: str, value: str) -> DataFrame:
        reader = spark.readStream.schema(f"k bigint, {value} bigint, ts timestamp").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(folder / name)).withWatermark("ts", "10 seconds").alias(name)

    # With bounds that are inclusive Spark waits a millisecond longer than it needs to before it gives unmatched rows.
    bounds = f"r.ts > l.ts + interval {lower} seconds and r.ts < l.ts + interval {upper} seconds"
    within = F.expr(f"l.k = r.k and {bounds} and n % 7 <> m % 5")
    kind = {"semi": "left_semi", "anti": "left_anti", "full": "full_outer"}.get(how.value, how.value)
    joined = side("l", "n").join(side("r", "m"), within, kind)
    columns = (
        [F.expr("coalesce(l.k, r.k)"), F.expr("n"), F.expr("m")] if how.gives_pairs else [F.expr("k"), F.expr("n")]
    )
    writer = joined.select(*columns).writeStream.outputMode("append").foreachBatch(keep)
    checkpoint = folder / f"checkpoint-{how.value}"
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(200)
    return found


class Unlike:
    """n % 7 <> m % 5"""

    text = "n % 7 <> m % 5"
    type = pa.bool_()
    columns = frozenset({"n", "m"})

    def evaluate(self, batch: pa.Table) -> pa.Array:
        pairs = zip(batch["n"].to_pylist(), batch["m"].to_pylist(), strict=True)
        return pa.array([n % 7 != m % 5 for n, m in pairs], pa.bool_())


@pytest.mark.parametrize("how", [JoinKind.LEFT, JoinKind.RIGHT, JoinKind.FULL, JoinKind.SEMI])
def test_p6_every_batch_puts_out_what_sparks_own_join_puts_out(
    spark: SparkSession, tmp_path: Path, how: JoinKind
) -> None:
    # A full join of Spark's makes pairs of rows whose keys are null, which equal nothing in SQL.
    sides = batches([1, 2, 3, 4] if how is JoinKind.FULL else [1, 2, 3, 4, None])
    write(tmp_path / "l", sides, 0, "n")
    write(tmp_path / "r", sides, 1, "m")
    native = of_spark(spark, tmp_path, how, lower=-4, upper=9)
    lower, upper = -4 * SECOND + 1, 9 * SECOND - 1
    join = IntervalJoin("j", LEFT, RIGHT, lower_us=lower, upper_us=upper, how=how, condition=Unlike())
    driver, reached = Driver(join, parallelism=2), None
    ours: list[list[Any]] = []
    names = join.columns.results.names
    for lefts, rights in [*sides, ([], [])]:
        # A batch works with the watermark that the batches before it have made.
        out = driver.epoch(lefts, rights, watermark=reached)
        ours.append(sorted((tuple(row[name] for name in names) for row in out), key=repr))
        seen = [[row["_time"] for row in side] for side in (lefts, rights)]
        if all(seen):
            reached = min(max(times) for times in seen) - DELAY
    driver.close()
    assert ours == [native[batch] for batch in range(len(sides) + 1)]
    assert sum(map(len, ours)) > 40
    assert sum(result.rows_late for step in driver.steps for result in step) > 20
