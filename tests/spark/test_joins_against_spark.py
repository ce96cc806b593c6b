"""P6 against Spark's own stream-stream joins: the same batches give the same rows, late rows too.

Within an interval they come in the same batch. In windows Spark, which joins on a column of windows, gives a pair at
once, and ours comes when the window closes: there the windows that are closed in the end are compared.
"""

import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from spark.native import batches_of_spark
from unit.operators.join_driver import Driver

from statebed.format.stream_schema import Input
from statebed.operators import Window
from statebed.operators.joins import IntervalJoin, JoinKind, WindowJoin
from statebed.operators.operator import Operator
from statebed.operators.window_definition import WindowShape

SECOND = 1_000_000
NOON = 1_710_054_000 * SECOND
DELAY = 10 * SECOND
LEFT = Input("bids", pa.schema([("k", pa.int64()), ("n", pa.int64())]), ("k",))
RIGHT = Input("auctions", pa.schema([("k", pa.int64()), ("m", pa.int64())]), ("k",))
Batch = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def batches(keys: Sequence[int | None], *, old: int) -> list[Batch]:
    """Return rows around the edges that the watermark of earlier batches makes, random others, and `old` old ones."""
    chance = random.Random(17)
    found: list[Batch] = []
    for number in range(8):
        around = number * 12
        sides: list[list[dict[str, Any]]] = []
        for name in ("n", "m"):
            seconds = [around - 10, around - 5, around, *(around + chance.randrange(-30, 6) for _ in range(25))]
            seconds += [around + chance.randrange(-90, -30) for _ in range(old)]
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


def of_spark(
    spark: SparkSession,
    folder: Path,
    *,
    kinds: Sequence[JoinKind],
    on: str,
    columns: Sequence[str],
    derive: Callable[[DataFrame], DataFrame] = lambda side: side,
) -> dict[JoinKind, dict[int, list[Any]]]:
    """Return the results of each kind in each batch, all in one query; `{}` in a column is the name of a side."""

    def side(name: str, value: str) -> DataFrame:
        reader = spark.readStream.schema(f"k bigint, {value} bigint, ts timestamp").option("maxFilesPerTrigger", 1)
        return derive(reader.parquet(str(folder / name)).withWatermark("ts", "10 seconds")).alias(name)

    lefts, rights = side("l", "n"), side("r", "m")

    def joined(kind: JoinKind) -> DataFrame:
        name = {"semi": "left_semi", "full": "full_outer"}.get(kind.value, kind.value)
        both = lefts.join(rights, F.expr(f"l.k = r.k and n % 7 <> m % 5 and {on}"), name)
        return both.select(F.lit(kind.value), *(_column(text, kind) for text in columns))

    all_kinds = joined(kinds[0])
    for kind in kinds[1:]:
        all_kinds = all_kinds.union(joined(kind))
    found: dict[JoinKind, dict[int, list[Any]]] = {kind: defaultdict(list) for kind in kinds}
    for batch_id, rows in batches_of_spark(all_kinds, folder / "checkpoint", DataFrame.collect).items():
        for kind, *row in rows:
            found[JoinKind(kind)][batch_id].append(tuple(row))
    return found


def _column(text: str, kind: JoinKind) -> Column:
    """A column of both sides, from whichever has it, or of one of them; semi joins have none of the right side's."""
    if text in {"n", "m"}:
        return F.expr(text if kind.gives_pairs or text == "n" else "cast(null as bigint)")
    left, right = text.format("l"), text.format("r")
    return F.expr(f"coalesce({left}, {right})" if kind.gives_pairs else left)


class Unlike:
    """n % 7 <> m % 5"""

    text = "n % 7 <> m % 5"
    type = pa.bool_()
    columns = frozenset({"n", "m"})

    def evaluate(self, batch: pa.Table) -> pa.Array:
        pairs = zip(batch["n"].to_pylist(), batch["m"].to_pylist(), strict=True)
        return pa.array([n % 7 != m % 5 for n, m in pairs], pa.bool_())


def ours(join: Operator, sides: Sequence[Batch], columns: Sequence[str]) -> tuple[list[list[Any]], int]:
    """Return the results of an epoch for each batch, and one more, and the watermark at the end."""
    driver, reached = Driver(join, parallelism=2), None
    found: list[list[Any]] = []
    for lefts, rights in [*sides, ([], [])]:
        # A batch works with the watermark that the batches before it have made.
        out = driver.epoch(lefts, rights, watermark=reached)
        found.append([tuple(row.get(name) for name in columns) for row in out])
        seen = [[row["_time"] for row in side] for side in (lefts, rights)]
        if all(seen):
            reached = min(max(times) for times in seen) - DELAY
    driver.close()
    assert sum(result.rows_late for step in driver.steps for result in step) > 20
    assert reached is not None
    return found, reached


def made(folder: Path, keys: Sequence[int | None], *, old: int = 0) -> list[Batch]:
    """Batches, written to files, too."""
    sides = batches(keys, old=old)
    write(folder / "l", sides, 0, "n")
    write(folder / "r", sides, 1, "m")
    return sides


# A full join of Spark's makes pairs of rows whose keys are null, which equal nothing in SQL.
MOST = pytest.param([JoinKind.INNER, JoinKind.LEFT, JoinKind.RIGHT], [1, 2, 3, 4, None], id="inner, left, right")
FULL = pytest.param([JoinKind.FULL], [1, 2, 3, 4], id="full")
# A semi join of Spark's goes wrong beside others in one query, and there is no anti join of two streams.
SEMI = pytest.param([JoinKind.SEMI], [1, 2, 3, 4, None], id="semi")


# tests/spark/queries/cases.py has a full join as well.
@pytest.mark.parametrize(("kinds", "keys"), [MOST, pytest.param(*FULL.values, id="full", marks=pytest.mark.long), SEMI])
def test_p6_every_batch_puts_out_what_sparks_own_join_puts_out(
    spark: SparkSession, tmp_path: Path, kinds: Sequence[JoinKind], keys: Sequence[int | None]
) -> None:
    sides = made(tmp_path, keys)
    # With inclusive bounds Spark waits a millisecond longer than it needs to before it gives unmatched rows.
    bounds = "r.ts > l.ts + interval -4 seconds and r.ts < l.ts + interval 9 seconds"
    native = of_spark(spark, tmp_path, kinds=kinds, on=bounds, columns=["{}.k", "n", "m"])
    lower, upper = -4 * SECOND + 1, 9 * SECOND - 1
    for kind in kinds:
        join = IntervalJoin("j", LEFT, RIGHT, lower_us=lower, upper_us=upper, how=kind, condition=Unlike())
        found, _ = ours(join, sides, ["k", "n", "m"])
        wanted = [native[kind][batch] for batch in range(len(sides) + 1)]
        assert [Counter(rows) for rows in found] == [Counter(rows) for rows in wanted], kind
        assert sum(map(len, found)) > 40


# A semi join of Spark's misses pairs of one batch whose window the watermark of that batch closes.
@pytest.mark.parametrize(
    ("kinds", "keys", "slide"),
    [
        pytest.param(*MOST.values, 20, id="most-tumbling", marks=pytest.mark.long),
        pytest.param(*FULL.values, 10, id="full-sliding"),
        pytest.param(*MOST.values, 10, id="most-sliding", marks=pytest.mark.long),
        pytest.param(*FULL.values, 20, id="full-tumbling", marks=pytest.mark.long),
    ],
)
def test_p6_windows_hold_in_the_end_what_sparks_own_join_on_a_column_of_windows_holds(
    spark: SparkSession, tmp_path: Path, kinds: Sequence[JoinKind], keys: Sequence[int | None], slide: int
) -> None:
    def in_windows(side: DataFrame) -> DataFrame:
        window = F.window("ts", "20 seconds", f"{slide} seconds")
        # The time itself goes: Spark would call a row late by it whose window is open.
        return side.select("*", window.alias("w")).drop("ts")

    sides = made(tmp_path, keys, old=6)
    columns = ["{}.k", "n", "m", "unix_micros({}.w.start)", "unix_micros({}.w.end)"]
    native = of_spark(spark, tmp_path, kinds=kinds, on="l.w = r.w", columns=columns, derive=in_windows)
    window = Window(WindowShape.TUMBLING if slide == 20 else WindowShape.SLIDING, 20 * SECOND, slide * SECOND)
    for kind in kinds:
        join = WindowJoin("j", LEFT, RIGHT, window, kind, Unlike())
        found, reached = ours(join, sides, ["k", "n", "m", "window_start", "window_end"])
        closed = [row for rows in native[kind].values() for row in rows if row[-1] <= reached]
        assert Counter(row for rows in found for row in rows) == Counter(closed), kind
        assert len(closed) > 40
