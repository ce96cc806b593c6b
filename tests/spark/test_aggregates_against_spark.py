"""Every aggregate against Spark's own, over the same rows: values, nulls and types."""

import datetime as dt
import math
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import statebed as sb
from statebed.aggregates import Aggregate
from statebed.sinks import MemorySink

SCHEMA = "k int, y double, x double, n int, price decimal(12,2), flag boolean, word string, ts timestamp"
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
OF_TWO = [
    "covar_pop",
    "covar_samp",
    "corr",
    *(f"regr_{name}" for name in ["count", "avgx", "avgy", "sxx", "syy", "sxy", "slope", "intercept", "r2"]),
]
PAIRS = "collect_list((ts, word)) filter (where n > 0)"
WORDS = f"transform(array_sort({PAIRS}), one -> one.word)"
AGGREGATES: dict[str, tuple[Aggregate, str]] = {
    "mean_y": (sb.mean("y"), "avg(y)"),
    "mean_n": (sb.mean("n"), "avg(n)"),
    "mean_price": (sb.mean("price", where="n > 0"), "avg(price) filter (where n > 0)"),
    "min_y": (sb.min("y"), "min(y)"),
    "max_y": (sb.max("y"), "max(y)"),
    "min_word": (sb.min("word"), "min(word)"),
    "max_price": (sb.max("price"), "max(price)"),
    "max_ts": (sb.max("ts"), "max(ts)"),
    "word_by_x": (sb.min_by("word", "x"), "min_by(word, x)"),
    "price_by_n": (sb.max_by("price", "x", where="flag"), "max_by(price, x) filter (where flag)"),
    "first_word": (sb.first("word"), "min_by(word, ts)"),
    "last_word": (sb.last("word", where="n > 0"), "max_by(word, ts) filter (where n > 0)"),
    "words": (sb.count_distinct("word"), "count(distinct word)"),
    "median_x": (sb.median("x"), "median(x)"),
    "tenth_n": (sb.percentile("n", 0.1), "percentile(n, 0.1)"),
    "word_set": (sb.collect_set("word"), "array_sort(collect_set(word))"),
    "all_words": (sb.collect_list("word", where="n > 0"), WORDS),
    "first_words": (sb.collect_list("word", where="n > 0", limit=2), f"slice({WORDS}, 1, 2)"),
    "all_flags": (sb.bool_and("flag"), "bool_and(flag)"),
    "any_flag": (sb.bool_or("flag"), "bool_or(flag)"),
    "sum_of_n": (sb.sum("n"), "sum(n)"),
    "sum_of_y": (sb.sum("y"), "sum(y)"),
    "distinct_prices": (sb.sum_distinct("price"), "sum(distinct price)"),
    "positive": (sb.count_if("n > 0"), "count_if(n > 0)"),
    "often": (sb.mode("word"), "mode(word, true)"),
    "often_n": (sb.mode("n", where="flag"), "mode(n, true) filter (where flag)"),
    "some_price": (sb.any_value("price"), "min(price)"),  # Spark's any_value may be any
    # Spark's own listagg cannot be planned beside distinct aggregates.
    "joined": (sb.string_agg("word", "|", where="n > 0"), f"if(size({WORDS}) = 0, null, array_join({WORDS}, '|'))"),
    "bits_and": (sb.bit_and("n"), "bit_and(n)"),
    "bits_or": (sb.bit_or("n"), "bit_or(n)"),
    "bits_xor": (sb.bit_xor("n"), "bit_xor(n)"),
    **{name: (getattr(sb, name)("x"), f"{name}(x)") for name in ("var_pop", "var_samp", "stddev_pop", "stddev_samp")},
    **{name: (getattr(sb, name)("n", "x"), f"{name}(n, x)") for name in OF_TWO},
}


def rows_of(count: int) -> pa.Table:
    """Groups of one row, of equal rows, of nulls alone, and of many rows; ties nowhere, where order would decide."""
    chance = random.Random(5)
    keys = [0, 1, 1, 2, 2] + [chance.randrange(3, 9) for _ in range(count - 5)]
    some: list[Any] = [math.nan, math.inf, -0.0, 2.5, None]
    return pa.table(
        {
            "k": pa.array(keys, pa.int32()),
            "y": [None if key == 2 else chance.choice(some) for key in keys],
            "x": [None if key == 2 else 4.25 if key == 1 else round(chance.uniform(-9, 9), 6) for key in keys],
            "n": pa.array(
                [None if key == 2 else 3 if key == 1 else chance.randrange(-50, 50) for key in keys], pa.int32()
            ),
            "price": pa.array(
                [None if key == 2 else Decimal(chance.randrange(-9999, 9999)) / 100 for key in keys],
                pa.decimal128(12, 2),
            ),
            "flag": [None if key == 2 else chance.choice([True, False, None]) for key in keys],
            "word": ["same" if key == 1 else chance.choice(["ä", "b", "Z", ""]) for key in keys],
            "ts": pa.array([START + dt.timedelta(milliseconds=row) for row in range(count)], pa.timestamp("us", "UTC")),
        }
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return type(one) is type(other) and bool(one == other)


def test_every_aggregate_equals_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = rows_of(400)
    pq.write_table(table.slice(0, 200), tmp_path / "in" / "a.parquet")
    pq.write_table(table.slice(200), tmp_path / "in" / "b.parquet")
    much_later = table.slice(0, 1).set_column(7, "ts", pa.array([START + dt.timedelta(hours=1)], table["ts"].type))
    pq.write_table(much_later, tmp_path / "in" / "c.parquet")
    for number, name in enumerate("abc"):
        os.utime(tmp_path / "in" / f"{name}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    sink = MemorySink("kept")
    job = sb.Job("ours", state=tmp_path / "state", parallelism=2, spark=spark)
    grouped = job.source(stream, watermark=("ts", "1 minute")).group_by("k", sb.tumbling("1 minute"))
    results = grouped.agg(**{name: aggregate for name, (aggregate, _) in AGGREGATES.items()}).write(sink)
    query = job.start(available_now=True)
    assert query.await_termination(120)

    closed = spark.read.schema(SCHEMA).parquet(str(tmp_path / "in")).where("ts < '2024-01-01T00:01:00Z'")
    native = closed.groupBy("k").agg(*(F.expr(sql).alias(name) for name, (_, sql) in AGGREGATES.items())).toArrow()
    expected = {row["k"]: row for row in native.to_pylist()}
    ours = {row["k"]: row for rows in sink.epochs.values() for row in rows}
    assert sorted(ours) == sorted(expected)
    for key, row in expected.items():
        for name in AGGREGATES:
            assert same(ours[key][name], row[name]), (key, name, ours[key][name], row[name])
    plain = [name for name in AGGREGATES if name not in {"word_set", "all_words"}]  # nullability inside differs
    kinds = {name: results.output.columns.field(name).type for name in plain}
    assert {name: kind for name, kind in kinds.items() if not pa.types.is_timestamp(kind)} == {
        name: native.schema.field(name).type for name in plain if not pa.types.is_timestamp(kinds[name])
    }


@pytest.mark.filterwarnings("ignore::statebed.UnboundedStateWarning")
def test_where_spark_may_choose_a_value_the_smallest_is_chosen_in_every_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    """`any_value` may be any value, and a tie of `max_by` any value of the rows that are tied. See `queries.md`."""
    rows: list[tuple[Any, ...]] = [(None, 1, "p"), (5, 1, None), (3, 2, "r"), (None, 2, "q"), (4, 2, "s")]
    rows += [(2, None, "a"), (7, 0, "z"), (8, 0, "y"), (9, 0, None)]
    orders: dict[str, list[tuple[Any, ...]]]
    orders = {"given": rows, "reversed": rows[::-1], "rotated": rows[4:] + rows[:4], "nulls": [(None, 1, None)] * 2}
    for number in range(2):  # every second row of each key
        columns = zip(*[(key, *row) for key, rows in orders.items() for row in rows[number::2]], strict=True)
        schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("o", pa.int64()), ("s", pa.string())])
        path = tmp_path / "in" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(list(map(list, columns)), schema), path)
    stream = spark.readStream.schema("k string, v bigint, o bigint, s string").option("maxFilesPerTrigger", 1)
    texts = ["any_value(v)", "max_by(s, o)", "min_by(s, o)", "any_value(v) ignore nulls"]
    grouped = stream.parquet(str(tmp_path / "in")).groupBy("k").agg(*map(F.expr, texts))
    found: dict[str, tuple[Any, ...]] = {}
    writer = sb.write_stream(grouped, parallelism=2).outputMode("update").trigger(availableNow=True)
    writer = writer.foreachBatch(lambda rows, _: found.update({row[0]: tuple(row)[1:] for row in rows.collect()}))
    assert writer.option("checkpointLocation", str(tmp_path / "state")).start().await_termination(120)
    of_both = (2, "q", "y", 2)
    assert found == {"given": of_both, "reversed": of_both, "rotated": of_both, "nulls": (None, None, None, None)}


def test_windows_without_a_key_are_of_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    seconds = [5, 15, 25, 35, 65, 75, 600]
    times = pa.array([START + dt.timedelta(seconds=one) for one in seconds], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"n": seconds, "ts": times}), tmp_path / "in" / "a.parquet")
    stream = spark.readStream.schema("n bigint, ts timestamp").parquet(str(tmp_path / "in"))
    sink = MemorySink("kept")
    job = sb.Job("all", state=tmp_path / "state", parallelism=2, spark=spark)
    grouped = job.source(stream, watermark=("ts", "0 seconds")).group_by(sb.cumulative("1 minute", "20 seconds"))
    grouped.agg(rows=sb.count(), total=sb.sum("n"), seconds=sb.collect_set("n")).write(sink)
    explained = job.explain()
    assert "each value of seconds contains all values of its group" in explained
    assert "cumulative window of 1 minute in steps of 20 seconds" in explained
    assert "by no key" in explained
    assert job.start(available_now=True).await_termination(120)
    found = [
        ((row["window_start"] - START).seconds, (row["window_end"] - START).seconds, row["rows"], row["total"])
        for rows in sink.epochs.values()
        for row in rows
    ]
    assert sorted(found) == [(0, 20, 2, 20), (0, 40, 4, 80), (0, 60, 4, 80)] + [
        (60, end, 2, 140) for end in (80, 100, 120)
    ]


def test_an_aggregate_of_the_users_own_runs_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    class Spread:
        """The largest less the smallest; a class that only this function knows travels, too."""

        state = "least double, most double"
        output = "double"

        def accumulate(self, groups: pa.Array, n_groups: int, values: pa.Array) -> list[pa.Array]:
            return self.merge(groups, n_groups, values, values)

        def merge(self, groups: pa.Array, n_groups: int, least: pa.Array, most: pa.Array) -> list[pa.Array]:
            starts = np.searchsorted(np.asarray(groups), np.arange(n_groups))
            return [
                pa.array(np.minimum.reduceat(np.asarray(least), starts)),
                pa.array(np.maximum.reduceat(np.asarray(most), starts)),
            ]

        def finish(self, least: pa.Array, most: pa.Array) -> pa.Array:
            return pa.array(np.asarray(most) - np.asarray(least))

    (tmp_path / "in").mkdir()
    pq.write_table(rows_of(200), tmp_path / "in" / "a.parquet")
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
    sink = MemorySink("kept")
    job = sb.Job("own", state=tmp_path / "state", parallelism=2, spark=spark)
    grouped = job.source(stream, watermark=("ts", "0 seconds")).group_by("k", sb.tumbling("100 milliseconds"))
    grouped.agg(spread=sb.aggregate(Spread(), "x", where="n > 0"), least=sb.min("x", where="n > 0")).write(sink)
    assert job.start(available_now=True).await_termination(120)
    rows = [row for rows in sink.epochs.values() for row in rows]
    closed = spark.read.schema(SCHEMA).parquet(str(tmp_path / "in")).where("ts < '2024-01-01T00:00:00.1Z' and n > 0")
    expected = {row["k"]: row["most"] for row in closed.groupBy("k").agg(F.expr("max(x) as most")).collect()}
    assert len(expected) > 3
    assert {row["k"]: row["spread"] + row["least"] for row in rows if row["spread"] is not None} == pytest.approx(
        expected
    )
