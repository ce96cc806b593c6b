"""Queries that Spark refuses for streams; their answer is that of the same query over tables of all rows."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from spark.queries.harness import Tables

LONG_DELAY = "10 minutes"
"""Delay of watermarks with which no row is late."""


@dataclass(frozen=True)
class BatchCase:
    """A query over streams, or over tables of the same rows."""

    name: str
    build: Callable[[Tables], DataFrame]
    is_empty: bool = False
    """Whether no row is in the answer."""

    def __str__(self) -> str:
        return self.name


def _marked(t: Tables, name: str = "a") -> DataFrame:
    return t.marked(name, LONG_DELAY).where("ts is not null")


def _right(t: Tables) -> DataFrame:
    return t.read("b").selectExpr("k as k2", "g as g2", "v as v2").where("v2 % 40 = 0")


def _timed_right(t: Tables) -> DataFrame:
    return _marked(t, "b").selectExpr("k as k2", "v as v2", "ts as ts2").where("v2 % 3 = 0")


def _totals(t: Tables, name: str = "a") -> DataFrame:
    return t.read(name).where("k <> 'closing'").groupBy("k", "g").agg(F.sum("v").alias("s"), F.count("*").alias("c"))


def _windows(t: Tables, size: str = "20 seconds") -> DataFrame:
    return _marked(t).groupBy(F.window("ts", size), "k").agg(F.sum("v").alias("s"), F.max("x").alias("x"))


def _top(numbering: str, *partition: str, order: str, limit: int = 2) -> Callable[[DataFrame], DataFrame]:
    descending = Window.partitionBy(*partition).orderBy(F.desc(order))

    def build(rows: DataFrame) -> DataFrame:
        numbered = rows.withColumn("n", F.expr(f"{numbering}()").over(descending))
        return numbered.where(f"n <= {limit}")

    return build


def _windows_topped(t: Tables, numbering: str) -> DataFrame:
    ranked = Window.partitionBy("window").orderBy(F.desc("s"), F.asc_nulls_last("k"))
    return _windows(t).withColumn("n", F.expr(f"{numbering}()").over(ranked)).where("n <= 2")


def _joined(how: str, condition: str = "k = k2 and g = g2") -> BatchCase:
    def build(t: Tables) -> DataFrame:
        left = t.read().where("v % 7 = 0 and k is not null").select("k", "g", "v")
        right = _right(t).where("k2 is not null")
        return left.join(right, F.expr(condition), how)

    return BatchCase(f"updating_{how}_join", build)


TOP = [
    BatchCase("top_rows_of_a_key", lambda t: _top("row_number", "k", order="v")(_keyed(t))),
    BatchCase("ranks_of_rows", lambda t: _top("rank", "k", order="v")(_keyed(t))),
    BatchCase("dense_ranks_of_rows", lambda t: _top("dense_rank", "k", order="v", limit=3)(_keyed(t))),
    BatchCase("top_of_window_results", lambda t: _windows_topped(t, "row_number")),
    BatchCase("ranks_of_window_results", lambda t: _windows_topped(t, "rank")),
    BatchCase(
        "second_row_alone",
        lambda t: _keyed(t).withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy("v"))).where("n = 2"),
    ),
    BatchCase(
        "row_numbers_with_several_bounds",
        lambda t: _numbered(t).where("n <= 2 and 3.5 > n and n <= 5 and n in (1, 2, 9) and n between 1 and 7"),
    ),
    BatchCase("second_and_third_row", lambda t: _numbered(t).where("n between 2 and 3 and n < 9")),
    BatchCase("no_row_number", lambda t: _numbered(t).where("n < 1"), is_empty=True),
    BatchCase("distinct_of_updating_totals", lambda t: _totals(t).selectExpr("k", "c % 4 as c").distinct()),
    BatchCase(
        "top_of_updating_totals",
        lambda t: (
            _totals(t)
            .withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy(F.desc("s"), "g")))
            .where("n <= 2")
        ),
    ),
    BatchCase(
        "top_rows_of_a_window",
        lambda t: (
            _marked(t)
            .select(F.window("ts", "30 seconds").alias("w"), "k", "g", "v")
            .withColumn("n", F.row_number().over(Window.partitionBy("w", "g").orderBy(F.desc("v"), "k")))
            .where("n <= 2")
            .select("w", "k", "g", "v", "n")
        ),
    ),
    BatchCase(
        "top_rows_of_the_start_of_a_window",
        lambda t: (
            _marked(t)
            .selectExpr("window(ts, '30 seconds').start as s", "k", "g", "v")
            .withColumn("n", F.row_number().over(Window.partitionBy("s").orderBy(F.desc("v"), "k")))
            .where("n = 1")
            .select("s", "k", "v")
        ),
    ),
    BatchCase(
        "aggregate_over_top_rows",
        lambda t: _top("row_number", "k", order="v")(_keyed(t)).groupBy("n").agg(F.sum("v"), F.count("*")),
    ),
]


def _numbered(t: Tables) -> DataFrame:
    """Rows of each key, numbered by a column whose name has a comma."""
    rows = _keyed(t).withColumnRenamed("v", "v, then nothing")
    return rows.withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy(F.desc("`v, then nothing`"))))


def _keyed(t: Tables) -> DataFrame:
    return t.read().where("k <> 'closing'").select("k", "v").distinct()


UPDATING = [
    BatchCase("aggregate_over_updating_aggregate", lambda t: _totals(t).groupBy("k").agg(F.max("s"), F.sum("c"))),
    BatchCase("histogram_of_counts", lambda t: _totals(t).groupBy("c").agg(F.count("*").alias("n"))),
    BatchCase(
        "three_aggregates",
        lambda t: _totals(t).groupBy("k").agg(F.max("s").alias("m")).groupBy().agg(F.avg("m"), F.min("m")),
    ),
    BatchCase(
        "aggregate_over_window_results_by_key",
        lambda t: _windows(t).groupBy("k").agg(F.max("s").alias("m"), F.count("*").alias("n")),
    ),
    BatchCase("filtered_totals_counted", lambda t: _totals(t).where("s > 1000").groupBy("g").count()),
    BatchCase(
        "updating_totals_joined",
        lambda t: _totals(t).join(
            _totals(t, "b").selectExpr("k as k2", "g as g2", "s as s2"), F.expr("k = k2 and g = g2"), "left"
        ),
    ),
    BatchCase("union_of_updating_totals", lambda t: _totals(t).union(_totals(t, "b")).groupBy("k").agg(F.sum("s"))),
    *(_joined(how) for how in ("inner", "left", "right", "full", "left_semi", "left_anti")),
    BatchCase(
        "updating_left_join_with_condition",
        lambda t: (
            t.read()
            .where("v % 7 = 0 and k is not null")
            .select("k", "g", "v")
            .join(_right(t).where("k2 is not null"), F.expr("k = k2 and v < v2"), "left")
        ),
    ),
    BatchCase(
        "updating_full_join_with_null_keys",
        lambda t: (
            t.read().where("v % 7 = 0").select("k", "v").join(_right(t).select("k2", "v2"), F.expr("k = k2"), "full")
        ),
    ),
]


def _anti(name: str, condition: str) -> BatchCase:
    def build(t: Tables) -> DataFrame:
        return _marked(t).select("k", "v", "ts").join(_timed_right(t), F.expr(condition), "left_anti")

    return BatchCase(f"anti_join_by_{name}", build)


ANTI = [
    _anti("range", "k = k2 and ts2 between ts and ts + interval 8 seconds"),
    _anti("range_and_value", "k = k2 and ts2 > ts - interval 3 seconds and ts2 < ts + interval 5 seconds and v < v2"),
    _anti("time", "k = k2 and ts2 = ts"),
]

WINDOW_VALUES = [
    BatchCase(
        "windows_of_rows_joined_left",
        lambda t: (
            _marked(t)
            .select("k", "v", F.window("ts", "20 seconds").alias("w"))
            .join(
                _marked(t, "b")
                .where("v % 4 = 0")
                .select(F.col("k").alias("k2"), "g", F.window("ts", "20 seconds").alias("w2")),
                F.expr("k = k2 and w = w2"),
                "left",
            )
        ),
    ),
    BatchCase(
        "window_results_joined_with_rows",
        lambda t: (
            _windows(t)
            .selectExpr("window as w", "k", "s")
            .join(
                _marked(t, "b").select(F.col("k").alias("k2"), "v", F.window("ts", "20 seconds").alias("w2")),
                F.expr("k = k2 and w = w2"),
            )
        ),
    ),
    BatchCase(
        "windows_as_a_value",
        lambda t: (
            _marked(t).select(F.window("ts", "20 seconds").alias("w"), "k", "v").selectExpr("w", "w.start", "k", "v")
        ),
    ),
    BatchCase(
        "max_of_a_window",
        lambda t: _windows(t).groupBy("k").agg(F.max("window.end").alias("last"), F.count("*").alias("n")),
    ),
    BatchCase(
        "json_between_operators",
        lambda t: (
            _windows(t)
            .selectExpr("""get_json_object(format_string('{"k": "%s", "n": [%d]}', k, s), '$.k') as j""", "s")
            .groupBy("j")
            .agg(F.sum("s"))
        ),
    ),
    BatchCase(
        "window_in_all_grouping_sets",
        lambda t: (
            _marked(t)
            .select(F.window("ts", "20 seconds").alias("w"), "ts", "k", "g", "v")
            .groupingSets([["w", "k", "g"], ["w", "k"], ["w"]], "w", "k", "g")
            .agg(F.sum("v"), F.grouping_id())
        ),
    ),
    BatchCase(
        "sliding_window_in_all_grouping_sets",
        lambda t: (
            _marked(t)
            .select(F.window("ts", "45 seconds", "20 seconds", "5 seconds").alias("w"), "ts", "k", "g", "v")
            .groupingSets([["w", "k", "g"], ["w", "k"], ["w"]], "w", "k", "g")
            .agg(F.sum("v"), F.grouping_id())
        ),
    ),
    BatchCase(
        "sliding_window_in_rollup_of_deduplicated_rows",
        lambda t: (
            _marked(t)
            .dropDuplicates(["k", "ts"])
            .select(F.window("ts", "45 seconds", "20 seconds").alias("w"), "ts", "k")
            .groupingSets([["w", "k"], ["w"]], "w", "k")
            .agg(F.count("*"), F.grouping_id())
        ),
    ),
    BatchCase(
        "window_without_its_time_in_grouping_sets",
        lambda t: (
            _marked(t)
            .select(F.window("ts", "20 seconds").alias("w"), "k", "g", "v")
            .groupingSets([["w", "k", "g"], ["w", "k"]], "w", "k", "g")
            .agg(F.sum("v"), F.grouping_id())
        ),
    ),
    BatchCase("updating_by_window_and_key", lambda t: _windows(t).groupBy("window").agg(F.max("s"), F.count("*"))),
]

BATCH = [*TOP, *UPDATING, *ANTI, *WINDOW_VALUES]
IN_SHORT = [
    case
    for case in BATCH
    if case.name
    in {
        "top_of_window_results",
        "sliding_window_in_all_grouping_sets",
        "window_without_its_time_in_grouping_sets",
        "top_rows_of_a_window",
        "row_numbers_with_several_bounds",
        "aggregate_over_top_rows",
        "three_aggregates",
        "updating_full_join",
        "updating_left_anti_join",
        "anti_join_by_range_and_value",
        "window_results_joined_with_rows",
    }
]
"""One case of each kind."""
