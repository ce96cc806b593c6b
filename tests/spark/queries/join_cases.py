"""Joins of streams, of windowed results, and of both."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from spark.queries.case import AROUND, LONG_RANGE, RANGE, Case, join, sides, sql
from spark.queries.harness import Tables

Rows = Callable[[Tables], DataFrame]


def _joined_by_equality(name: str, left: Rows, right: Rows) -> Case:
    def build(t: Tables) -> DataFrame:
        rows = left(t).select("k", "v", "ts").where("v % 7 = 0")
        return rows.join(
            right(t).selectExpr("k as k2", "v as v2").where("v2 % 5 = 0"), F.expr("k = k2 and v < v2 + 300")
        )

    return Case(f"inner_join_of_{name}", build)


def _joined_by_parts(name: str, condition: str) -> Case:
    def build(t: Tables) -> DataFrame:
        windows = t.marked().withColumn("w", F.window("ts", "20 seconds"))
        left = windows.selectExpr("k", "v", "ts", "w.start as s", "w.end as e")
        windows = t.marked("b").withColumn("w", F.window("ts", "20 seconds"))
        right = windows.selectExpr("k as k2", "x", "ts as ts2", "w.start as s2", "w.end as e2")
        return left.join(right, F.expr(condition))

    return Case(f"rows_joined_by_{name}", build)


def _of_struct_keys() -> Case:
    def build(t: Tables) -> DataFrame:
        left = t.marked().selectExpr("struct(k, x) as s", "v", "ts")
        right = t.marked("b").selectExpr("struct(k, x) as s2", "v as v2", "ts as ts2")
        return left.join(right, F.expr("s = s2 and ts2 between ts - interval 5 minutes and ts + interval 5 minutes"))

    return Case("inner_join_of_struct_keys", build)


def _deduplicated(how: str) -> Case:
    def build(t: Tables) -> DataFrame:
        return sides(t)[0].dropDuplicates().join(sides(t)[1], F.expr(RANGE), how)

    return Case(f"deduplicated_rows_joined_{how}", build)


def _three_streams(how: str) -> Case:
    def build(t: Tables) -> DataFrame:
        pairs = sides(t)[0].join(sides(t)[1], F.expr(RANGE)).select("k", "v", "v2", "ts2")
        third = t.marked().where("v % 3 = 0").selectExpr("k as k3", "ts as ts3", "v as v3")
        return pairs.join(third, F.expr("k = k3 and ts3 between ts2 and ts2 + interval 10 seconds"), how)

    return Case(f"three_streams_{how}", build)


def _by_time(t: Tables) -> DataFrame:
    return t.marked().where("k is not null").groupBy("ts", "k").agg(F.sum("v").alias("s"))


JOINS = [
    *(join("range", how, RANGE) for how in ("rightOuter",)),
    *(join("around", how, AROUND) for how in ("inner", "leftOuter", "rightOuter")),
    *(join("strict", how, "k = k2 and ts2 > ts and ts2 < ts + interval 20 seconds") for how in ("inner", "leftOuter")),
    *(join("with_condition", how, f"{RANGE} and v < v2") for how in ("inner", "leftOuter", "rightOuter", "fullOuter")),
    *(join("null_keys", how, RANGE, "true") for how in ("inner", "leftOuter", "rightOuter")),
    join("null_keys", "leftSemi", LONG_RANGE, "true"),
    join("equal_times", "inner", "k = k2 and ts = ts2"),
    join("equal_times", "leftOuter", "k = k2 and ts = ts2"),
    _of_struct_keys(),
    join("one_bound", "inner", "k = k2 and ts2 >= ts"),
    *(
        _joined_by_equality(name, left, right)
        for name, left, right in (
            ("untimed_rows", lambda t: t.read(), lambda t: t.read("b")),
            ("timed_and_untimed_rows", lambda t: t.marked(), lambda t: t.read("b")),
            ("rows_whose_time_is_dropped", lambda t: t.marked(), lambda t: t.marked("b")),
            ("equal_rows", lambda t: t.read().union(t.read()), lambda t: t.read("b")),
        )
    ),
    *(_three_streams(how) for how in ("inner", "leftOuter")),
    Case("groups_by_time_joined_left", lambda t: _by_time(t).join(sides(t)[1], F.expr(RANGE), "left")),
    Case(
        "window_over_a_join_of_groups_by_time",
        lambda t: _by_time(t).join(sides(t)[1], F.expr(RANGE)).groupBy(F.window("ts2", "30 seconds")).count(),
    ),
    *(_deduplicated(how) for how in ("inner", "leftOuter", "rightOuter", "fullOuter")),
    Case(
        "joined_with_deduplicated_rows",
        lambda t: sides(t)[0].join(
            sides(t)[1].dropDuplicates(["k2", "ts2"]).select("k2", "ts2"), F.expr(RANGE), "left"
        ),
    ),
    Case(
        "deduplicated_twice",
        lambda t: (
            t.marked().dropDuplicates(["k", "g", "ts"]).select("k", "ts").dropDuplicates(["k", "ts"]).select("k", "ts")
        ),
    ),
    sql(
        "join_by_where",
        "select a.k, a.v, b.v v2 from a, b where a.k = b.k and b.ts between a.ts - interval 5 seconds and a.ts "
        "and a.v > 20 and b.g <> a.g",
    ),
    sql(
        "sql_interval",
        "select a.k, a.v, b.v v2 from a join b on a.k = b.k and b.ts between a.ts - interval 5 seconds and a.ts",
    ),
    sql(
        "sql_subqueries",
        "select l.k, l.v, r.v w from (select * from a where v > 50) l join (select * from b where v < 300) r "
        "on l.k = r.k and r.ts between l.ts and l.ts + interval 10 seconds",
    ),
    sql(
        "sql_cte",
        "with w as (select window, k, sum(v) s from a group by window(ts, '1 minute'), k) "
        "select window.start, k, s * 2 d from w where s > 0",
    ),
    Case(
        "windows_joined",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "20 seconds"), "k")
            .agg(F.sum("v").alias("s"))
            .join(t.marked("b").groupBy(F.window("ts", "20 seconds"), "k").agg(F.sum("v").alias("r")), ["window", "k"])
        ),
    ),
    Case(
        "windows_joined_left",
        lambda t: (
            t.marked()
            .where("k is not null")
            .groupBy(F.window("ts", "20 seconds"), "k")
            .agg(F.sum("v").alias("s"))
            .join(
                t.marked("b").where("k = 'a'").groupBy(F.window("ts", "20 seconds"), "k").agg(F.sum("v").alias("r")),
                ["window", "k"],
                "left",
            )
        ),
    ),
    Case(
        "rows_joined_by_window",
        lambda t: (
            t.marked()
            .select("k", "v", F.window("ts", "20 seconds").alias("w"))
            .join(
                t.marked("b").select(F.col("k").alias("k2"), "x", F.window("ts", "20 seconds").alias("w2")),
                F.expr("k = k2 and w = w2"),
            )
        ),
    ),
    *(
        _joined_by_parts(name, condition)
        for name, condition in (
            ("start_of_their_window", "k = k2 and s = s2"),
            ("parts_of_their_window", "k = k2 and s = s2 and e2 = e and v < x * 100"),
        )
    ),
    Case(
        "join_then_window_of_left",
        lambda t: (
            sides(t)[0].join(sides(t)[1], F.expr(AROUND)).groupBy(F.window("ts", "30 seconds"), "k").agg(F.sum("v2"))
        ),
    ),
    Case(
        "join_then_window_of_right",
        lambda t: (
            sides(t)[0].join(sides(t)[1], F.expr(RANGE)).groupBy(F.window("ts2", "30 seconds"), "k").agg(F.sum("v"))
        ),
    ),
    Case(
        "left_join_then_window",
        lambda t: (
            sides(t)[0]
            .join(sides(t)[1], F.expr(RANGE), "left")
            .groupBy(F.window("ts", "30 seconds"))
            .agg(F.count("v2"), F.count("*"))
        ),
    ),
    Case(
        "self_join",
        lambda t: (
            t.marked()
            .select("k", "v", "ts")
            .join(t.marked().selectExpr("k as k2", "v as v2", "ts as ts2"), F.expr(RANGE + " and v <> v2"))
        ),
    ),
]
