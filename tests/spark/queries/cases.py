"""Queries that Spark and statebed must answer with the same rows in each batch.

Many restate ideas of Spark's own suites: StreamingAggregationSuite, StreamingJoinSuite, StreamingDeduplicationSuite,
StreamingSessionWindowSuite and MultiStatefulOperatorsSuite. Values that depend on the order of arrival in Spark, such
as which of two duplicates stays, are left out of the selected columns.
"""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from spark.queries.case import AROUND, LONG_RANGE, RANGE, Case, hop, join, minute, session, sides, sql, windowed
from spark.queries.column_cases import COLUMNS, CORE_COLUMNS
from spark.queries.harness import Tables
from spark.queries.join_cases import JOINS
from spark.queries.whole_table_cases import WHOLE_TABLES

LATEST = {"spark.sql.streaming.multipleWatermarkPolicy": "max"}


def _within_watermark(*keys: str) -> Callable[[Tables], DataFrame]:
    return lambda t: t.marked().where("ts is not null").dropDuplicatesWithinWatermark([*keys]).select(*keys, "ts")


def exploded(generator: str) -> Callable[[Tables], DataFrame]:
    return lambda t: (
        t.marked()
        .dropDuplicates(["k", "v", "ts", "tags"])
        .selectExpr("ts", "v", generator)
        .groupBy(F.window("ts", "1 minute"), "e")
        .agg(F.sum("v"), F.count("*"))
    )


CORE = [
    Case("tumbling", windowed(minute, "sum(v) as s", "count(*) + 1 as c")),
    Case("tumbling", windowed(minute, "max(v) as m", "avg(x) as a"), "update"),
    Case("plain", lambda t: t.read().where("v > 10").groupBy("k").agg(F.avg("x"), F.max("v").alias("m")), "update"),
    Case("filter_and_project", lambda t: t.read().where("v > 10").selectExpr("k", "v * 2 as d", "upper(k) as u")),
    Case("sliding_with_offset", windowed(hop, "sum(v) as s", "min(x) as m")),
    Case("sessions", windowed(session, "count(*) as c", "sum(v) as s")),
    join("range", "inner", RANGE),
    join("range", "leftOuter", RANGE),
    join("range", "fullOuter", AROUND),
    join("long_range", "leftSemi", LONG_RANGE),
    Case("deduplicate_with_null_times", lambda t: t.marked().dropDuplicates(["k", "ts"]).select("k", "ts")),
    sql(
        "having",
        "select window.start, k, sum(v) s from a where v between 3 and 400 "
        "group by window(ts, '1 minute'), k having sum(v) > 3",
    ),
    Case(
        "chained_windows",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "20 seconds"), "k")
            .agg(F.sum("v").alias("s"))
            .groupBy(F.window(F.window_time("window"), "1 minute"))
            .agg(F.max("s").alias("m"))
        ),
    ),
    Case(
        "filter_on_the_event_time",
        lambda t: (
            t.marked().where("ts > timestamp '2024-03-10T06:31:00Z'").groupBy(F.window("ts", "10 seconds")).count()
        ),
    ),
    Case(
        "window_over_a_join",
        lambda t: sides(t)[0].join(sides(t)[1], F.expr(RANGE)).groupBy(F.window("ts", "30 seconds")).count(),
    ),
    Case(
        "window_over_a_join_of_deduplicated_rows",
        lambda t: (
            sides(t)[0]
            .dropDuplicates(["k", "ts"])
            .join(sides(t)[1], F.expr(RANGE))
            .groupBy(F.window("ts2", "30 seconds"), "k")
            .count()
        ),
    ),
    Case(
        "static_join_explode_and_tail",
        lambda t: (
            t.marked()
            .join(t.dim(), "k")
            .withColumn("tag", F.explode("tags"))
            .groupBy(minute(), "label", "tag")
            .agg(F.count("*").alias("c"))
            .selectExpr("window", "label", "tag", "c", "to_csv(struct(label)) as h")
        ),
    ),
    Case("ordered", lambda t: t.read().groupBy("k").agg(F.sum("v").alias("s")).orderBy("s").limit(2), "complete"),
    Case("within_watermark_two_keys", _within_watermark("k", "g"), ordered=True),
    Case(
        "latest_watermark_union",
        lambda t: t.marked().union(t.marked("b", "2 minutes")).groupBy(minute()).count(),
        settings=LATEST,
    ),
    Case(
        "percentiles",
        windowed(
            minute,
            "percentile(v, array(0.1, 0.5, 0.9)) as p",
            "percentile(x, array(0.5)) as q",
            "percentile(v, 0.25) as r",
            "percentile_cont(0.75) within group (order by v) as s",
        ),
    ),
    Case(
        "repeated_whole_table",
        lambda t: t.marked().dropDuplicates(["k", "g"]).groupBy("k").agg(F.count("*"), F.max("g")),
        "complete",
    ),
    *CORE_COLUMNS,
    Case("exploded_between_operators", exploded("posexplode(array(k, upper(k))) as (n, e)")),
    Case("event_time_as_a_key", lambda t: t.marked().groupBy("ts", "k").agg(F.sum("v"), F.max("x"))),
    Case("window_in_cube", lambda t: t.marked().cube(F.window("ts", "20 seconds"), "k").count(), "update"),
    Case(
        "rollup_of_windows",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "20 seconds"), "k")
            .agg(F.sum("v").alias("s"))
            .rollup("window", "k")
            .agg(F.sum("s"))
        ),
    ),
]

WINDOWS = [
    Case(f"{name}_{mode}_{number}", windowed(window, *aggregates), mode)
    for name, window in (("tumbling", minute), ("sliding", hop), ("sessions", session))
    for mode in ("append", "update")
    for number, aggregates in enumerate(
        [
            ("count(v) as c", "count(x) as d", "sum(x) as s"),
            ("min(v) as a", "max(x) as b", "avg(v) as c"),
            ("bit_or(g) as b", "bit_and(v) as a", "regr_count(v, x) as r"),
            ("stddev(x) as s", "var_pop(v) as v", "corr(v, x) as r"),
            (
                "sum(v) filter (where g = 1) as s",
                "count_if(x > 3) as c",
                "count_if(v > 100) filter (where x > 3) as f",
                "bool_or(v > 400) as o",
            ),
        ]
    )
    if not (name == "sessions" and mode == "update")  # Spark does not support it
]

SHAPES = [
    Case("no_key", lambda t: t.marked().groupBy(minute()).agg(F.sum("v").alias("s"))),
    Case(
        "expression_key", lambda t: t.marked().groupBy(F.window("ts", "1 minute"), (F.col("v") % 3).alias("m")).count()
    ),
    Case(
        "window_named_early",
        lambda t: t.marked().select(F.window("ts", "1 minute").alias("w"), "k", "v").groupBy("w", "k").agg(F.sum("v")),
    ),
    Case(
        "group_by_the_end",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "1 minute").alias("w"), "k")
            .count()
            .selectExpr("w.end as e", "k", "`count` + 1 as c")
        ),
    ),
    Case(
        "window_of_window",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "20 seconds"), "k")
            .agg(F.sum("v").alias("s"))
            .groupBy(F.window("window", "1 minute"))
            .agg(F.max("s"))
        ),
    ),
    Case(
        "window_time_and_key",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "10 seconds"), "k")
            .agg(F.sum("v").alias("s"))
            .withColumn("t", F.window_time("window"))
            .groupBy(F.window("t", "30 seconds"), "k")
            .agg(F.sum("s"))
        ),
    ),
    Case(
        "session_then_window",
        lambda t: (
            t.marked()
            .groupBy(F.session_window("ts", "5 seconds"), "k")
            .agg(F.count("*").alias("c"))
            .groupBy(F.window(F.window_time("session_window"), "1 minute"))
            .agg(F.sum("c"))
        ),
    ),
    Case(
        "deduplicate_then_window",
        lambda t: t.marked().dropDuplicates(["k", "ts"]).groupBy(F.window("ts", "1 minute"), "k").count(),
    ),
    Case("distinct", lambda t: t.marked().select("k", "ts").distinct()),
    Case("distinct_without_time", lambda t: t.read().select("k", "v").distinct()),
    Case("deduplicate_without_watermark", lambda t: t.read().dropDuplicates(["k", "v"]).select("k", "v")),
    Case("deduplicate_all_columns", lambda t: t.marked().select("k", "g", "ts").dropDuplicates()),
    Case(
        "union_then_window",
        lambda t: t.marked().union(t.marked("b")).groupBy(F.window("ts", "1 minute"), "k").agg(F.sum("v")),
    ),
    Case(
        "union_then_sliding_window",
        lambda t: (
            t.marked().union(t.marked("b")).groupBy(F.window("ts", "1 minute", "20 seconds"), "k").agg(F.sum("v"))
        ),
    ),
    Case(
        "union_then_rollup",
        lambda t: t.marked().union(t.marked("b")).rollup("k", "g").agg(F.sum("v")),
        "update",
    ),
    Case(
        "union_by_name",
        lambda t: (
            t.marked()
            .select("k", "v", "ts")
            .unionByName(t.marked("b").select("ts", "k", "v"))
            .groupBy(F.window("ts", "1 minute"))
            .agg(F.max("v"))
        ),
    ),
    Case("where_k", lambda t: t.marked().where("k = 'a'").groupBy(F.window("ts", "1 minute")).count()),
    Case("filter_on_key_after", lambda t: t.marked().groupBy(F.window("ts", "1 minute"), "k").count().where("k = 'b'")),
    Case(
        "udf_in_head",
        lambda t: (
            t.marked()
            .withColumn("u", F.udf(lambda s: None if s is None else s * 2)("k"))
            .groupBy(F.window("ts", "1 minute"), "u")
            .count()
        ),
    ),
    Case(
        "case_over_aggregates",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "1 minute"), "k")
            .agg(
                F.when(F.sum("v") > 1000, "big").otherwise("small").alias("size"),
                (F.sum("v") / F.count("*")).alias("mean"),
            )
        ),
    ),
    Case(
        "cast_over_aggregates",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "1 minute"), "k")
            .agg(F.sum("v").cast("string").alias("s"), F.sum("v").cast("decimal(20,2)").alias("d"))
        ),
    ),
    Case(
        "date_tail",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "1 minute"), "k")
            .count()
            .selectExpr("date_format(window.start, 'yyyy-MM-dd HH:mm') as d", "k", "`count`")
        ),
    ),
    Case(
        "static_join_behind",
        lambda t: (
            t.marked().groupBy(F.window("ts", "1 minute"), "k").agg(F.count("*").alias("c")).join(t.dim(), "k", "left")
        ),
    ),
    Case(
        "plain_bits",
        lambda t: t.read().groupBy("k").agg(F.bit_xor("v").alias("d"), F.min("v")),
        "update",
    ),
    Case("plain_no_key", lambda t: t.read().groupBy().agg(F.count("*").alias("c"), F.sum("v").alias("s")), "update"),
    Case("plain_having", lambda t: t.read().groupBy("k", "g").agg(F.sum("v").alias("s")).where("s > 800"), "update"),
    Case(
        "plain_two_keys",
        lambda t: t.read().groupBy("k", "g").agg(F.sum("x").alias("s"), F.max("ts").alias("t")),
        "update",
    ),
    Case("window_without_watermark", lambda t: t.read().groupBy(F.window("ts", "1 minute"), "k").count(), "update"),
    Case(
        "functions_between_operators",
        lambda t: (
            t.marked()
            .dropDuplicates(["k", "v", "ts"])
            .selectExpr(
                "ts",
                "transform(split(concat_ws('-', k, v), '-'), x -> upper(x)) as parts",
                "map('k', k, 'g', cast(g as string)) as named",
                "date_format(ts, 'yyyy-MM-dd HH') as hour",
                "try_divide(v, v - 10) as share",
                "sha2(k, 256) as hashed",
            )
            .where("size(parts) = 2 or element_at(named, 'k') is null")
            .groupBy(F.window("ts", "1 minute"), "hour", "hashed")
            .agg(F.sum("share").alias("s"), F.max(F.array_join("parts", "+")).alias("m"))
        ),
        settings={"spark.sql.session.timeZone": "UTC"},
    ),
    Case("filter_in_update", lambda t: t.read().where("v > 100").select("k", "v"), "update"),
    Case("rollup", lambda t: t.read().rollup("k", "g").agg(F.sum("v").alias("s")), "update"),
    Case("cube", lambda t: t.read().cube("k", "g").agg(F.count("*").alias("c")), "update"),
    Case("complete_plain", lambda t: t.read().groupBy("k").agg(F.sum("v").alias("s"), F.avg("x")), "complete"),
    Case("complete_window", lambda t: t.marked().groupBy(F.window("ts", "1 minute"), "k").count(), "complete"),
    Case(
        "complete_sliding",
        lambda t: t.marked().groupBy(F.window("ts", "1 minute", "30 seconds")).agg(F.sum("v")),
        "complete",
    ),
    Case("complete_rollup", lambda t: t.read().rollup("k", "g").agg(F.sum("v").alias("s")), "complete"),
    Case(
        "complete_having_sorted",
        lambda t: t.read().groupBy("k", "g").agg(F.sum("v").alias("s")).where("s > 100").orderBy(F.desc("s")).limit(3),
        "complete",
    ),
]

WATERMARKS_AND_WINDOWS = [
    Case("within_watermark_one_key", _within_watermark("k"), ordered=True),
    Case(
        "within_watermark_then_window",
        lambda t: (
            t.marked()
            .where("ts is not null")
            .dropDuplicatesWithinWatermark(["k", "g"])
            .groupBy(F.window("ts", "20 seconds"))
            .agg(F.count("*"), F.sum("g"))
        ),
        ordered=True,
    ),
    Case(
        "latest_watermark_join",
        lambda t: sides(t)[0].join(sides(t)[1], F.expr(RANGE), "leftOuter"),
        settings=LATEST,
    ),
    Case(
        "latest_watermark_of_joined_windows",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "20 seconds"), "k")
            .agg(F.sum("v").alias("s"))
            .join(
                t.marked("b", "90 seconds").groupBy(F.window("ts", "20 seconds"), "k").agg(F.sum("v").alias("r")),
                ["window", "k"],
            )
        ),
        settings=LATEST,
    ),
    Case("session_as_a_value", lambda t: t.read().select(session().alias("w"), "k"), "append"),
    Case(
        "window_results_joined_with_rows",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "20 seconds").alias("w"), "k")
            .agg(F.sum("v").alias("s"))
            .join(
                t.marked("b").select(F.col("k").alias("k2"), "v", F.window("ts", "20 seconds").alias("w2")),
                F.expr("k = k2 and w = w2"),
            )
        ),
    ),
    Case(
        "windows_joined_by_their_ends",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "20 seconds"), "k")
            .agg(F.sum("v").alias("s"))
            .selectExpr("window.end as e", "k", "s")
            .join(
                t.marked("b")
                .groupBy(F.window("ts", "20 seconds"), "k")
                .agg(F.sum("v").alias("r"))
                .selectExpr("window.end as e", "k", "r"),
                ["e", "k"],
            )
        ),
    ),
    Case(
        "rows_joined_by_window_left",
        lambda t: (
            t.marked()
            .where("k is not null")
            .select("k", "v", F.window("ts", "20 seconds").alias("w"))
            .join(
                t.marked("b")
                .where("k is not null and v % 4 = 0")
                .select(F.col("k").alias("k2"), "x", F.window("ts", "20 seconds").alias("w2")),
                F.expr("k = k2 and w = w2"),
                "left",
            )
        ),
    ),
    Case(
        "window_as_a_key_of_deduplication",
        lambda t: t.marked().select("k", F.window("ts", "20 seconds").alias("w")).dropDuplicates(["k", "w"]),
    ),
    Case(
        "window_beside_the_key_of_deduplication",
        lambda t: t.marked().select("k", "v", F.window("ts", "20 seconds").alias("w")).dropDuplicates(["k", "v"]),
    ),
    Case(
        "deduplicate_without_the_time_in_the_result",
        lambda t: t.marked().dropDuplicates(["k", "v"]).select("k", "v"),
    ),
    Case(
        "expressions_of_spark_over_aggregates",
        lambda t: t.sql(
            "select date_format(window.start, 'HH:mm') as at, upper(k) as name, to_json(struct(window, count(*))), "
            "concat(upper(k), '!') as more, max(ts) - min(ts) as lasted "
            "from a group by window(ts, '1 minute'), upper(k)"
        ),
    ),
    Case(
        "aggregates_of_constants",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "1 minute"), "k")
            .agg(F.sum(F.lit(1)), F.max(F.lit("x")), F.avg(F.lit(2)), F.expr("sum(1) filter (where v > 3)"))
        ),
    ),
    Case("aggregates_of_constants_by_key", lambda t: t.read().groupBy("k").agg(F.sum(F.lit(1)), F.min("v")), "update"),
    Case(
        "window_as_a_value_and_key",
        lambda t: (
            t.marked()
            .select(F.window("ts", "20 seconds").alias("w"), "k", "v")
            .withColumn("e", F.col("w.end"))
            .groupBy("w", "e", "k")
            .agg(F.sum("v"))
        ),
    ),
]

EXPLODED = [
    Case(f"{name}_between_operators", exploded(generator))
    for name, generator in (
        ("explode", "explode(tags) as e"),
        ("explode_outer", "explode_outer(tags) as e"),
        ("posexplode", "posexplode(array(k, upper(k))) as (n, e)"),
        ("inline", "inline(array(named_struct('d', k, 'e', v % 3))) as (d, e)"),
    )
] + [
    Case(
        "exploded_results",
        lambda t: (
            t.marked()
            .where("k is not null")
            .groupBy(F.window("ts", "1 minute"), "k")
            .agg(F.sum("v").alias("s"))
            .selectExpr("window", "explode(map(k, s, 'z', -s)) as (name, total)")
        ),
    ),
]


def with_labels(*labels: str) -> Callable[[Tables], DataFrame]:
    """A table of the keys a to c, with a label for each; keys may have several rows."""
    rows = [("abc"[place % 3], label, place * 100) for place, label in enumerate(labels)]
    return lambda t: t.spark.createDataFrame(rows, "k string, label string, least bigint")


def joined_between(condition: str, how: str, keys: tuple[str, ...] = ("label",)) -> Callable[[Tables], DataFrame]:
    """Rows of a deduplication, joined with a table whose key `c` is missing, before an aggregation."""

    def build(t: Tables) -> DataFrame:
        table = with_labels("alpha", "beta")(t).union(with_labels("gamma", "delta")(t).where("k = 'a'")).alias("d")
        rows = t.marked().dropDuplicates(["k", "v", "ts"]).alias("r")
        joined = rows.join(table, F.expr(condition), how)
        return joined.groupBy(F.window("r.ts", "1 minute"), *keys).agg(F.sum("r.v"), F.count("*"))

    return build


JOINED_WITH_TABLES = [
    Case("table_between_inner", joined_between("r.k = d.k", "inner")),
    Case("table_between_left", joined_between("r.k = d.k and r.v > d.least", "left")),
    Case("table_between_semi", joined_between("upper(r.k) = upper(d.k)", "left_semi", ("k",))),
    Case("table_between_anti", joined_between("r.k = d.k and length(d.label) > 4", "left_anti", ("k",))),
    Case("table_between_null_safe", joined_between("r.k <=> d.k or r.v < d.least", "inner")),
    Case(
        "table_first_between",
        lambda t: (
            with_labels("alpha", "beta")(t)
            .join(t.marked().groupBy(F.window("ts", "30 seconds"), "k").agg(F.sum("v").alias("s")), "k", "right")
            .groupBy(F.window(F.window_time("window"), "1 minute"), "label")
            .agg(F.sum("s"), F.max("least"))
        ),
    ),
    sql(
        "table_of_with_in_the_head",
        "WITH d AS (SELECT k, upper(label) AS label FROM dim) "
        "SELECT label, count(*) AS c FROM a JOIN d USING (k) GROUP BY label",
        "update",
    ),
    sql(
        "table_of_with_in_the_tail",
        "WITH d AS (SELECT k, upper(label) AS label FROM dim) "
        "SELECT label, k, c FROM (SELECT k, count(*) AS c FROM a GROUP BY window(ts, '1 minute'), k) JOIN d USING (k)",
    ),
    sql(
        "table_between_in_sql",
        "WITH d AS (SELECT k, upper(label) AS label FROM dim), "
        "s AS (SELECT window, k, sum(v) AS s FROM a GROUP BY window(ts, '30 seconds'), k) "
        "SELECT window(window_time(window), '1 minute') AS w, label, sum(s) AS total FROM s JOIN d USING (k) "
        "GROUP BY window(window_time(window), '1 minute'), label",
    ),
]

AGGREGATES = [
    Case(
        "counts_of_several_columns",
        windowed(minute, "count(k, x) as a", "count(x, 1) as b", "count(k, x) filter (where v > 3) as c"),
    ),
    Case("modes", windowed(minute, "mode(g, true) as m", "mode() within group (order by v) as n")),
    Case("percentiles_by_key", lambda t: t.read().groupBy("k").agg(F.expr("percentile(v, array(0, 1))")), "update"),
    join("seconds", "inner", "k = k2 and unix_timestamp(ts2) between unix_timestamp(ts) and unix_timestamp(ts) + 20"),
]

GROUPED_BY_TIME = [
    Case(f"{name}_{mode}", build, mode)
    for name, build in (
        ("event_time", lambda t: t.marked().groupBy("ts", "k").agg(F.sum("v"), F.max("x"))),
        ("renamed_event_time", lambda t: t.marked().withColumnRenamed("ts", "at").groupBy("at").count()),
        ("window_in_cube", lambda t: t.marked().cube(F.window("ts", "20 seconds"), "k").count()),
        ("sliding_window_in_rollup", lambda t: t.marked().rollup(hop(), "k").agg(F.sum("v"), F.grouping_id())),
        (
            "window_in_grouping_sets",
            lambda t: t.sql(
                "select window, k, g, grouping(k) i, sum(v) s from a "
                "group by grouping sets ((window(ts, '20 seconds'), k), (window(ts, '20 seconds'), g), (k)) "
                "having sum(v) > 100"
            ),
        ),
        ("select_distinct", lambda t: t.sql("select distinct k, ts from a")),
    )
    for mode in ("append", "update", "complete")
] + [
    Case(
        "event_time_then_window",
        lambda t: (
            t.marked().groupBy("ts", "k").agg(F.sum("v").alias("s")).groupBy(F.window("ts", "1 minute")).agg(F.sum("s"))
        ),
    ),
    Case(
        "rollup_then_window_time",
        lambda t: (
            t.marked()
            .rollup(F.window("ts", "20 seconds"), "k")
            .agg(F.sum("v").alias("s"))
            .groupBy(F.window(F.window_time("window"), "1 minute"))
            .agg(F.sum("s"))
        ),
    ),
    Case(
        "grouped_by_window_time",
        lambda t: (
            t.marked()
            .groupBy(F.window("ts", "20 seconds"), "k")
            .agg(F.sum("v").alias("s"))
            .withColumn("t", F.window_time("window"))
            .groupBy("t")
            .agg(F.sum("s"))
        ),
    ),
    Case("cube_of_deduplicated_rows", lambda t: t.marked().dropDuplicates(["k", "ts"]).cube("ts", "k").count()),
    Case(
        "sliding_window_in_rollup_of_deduplicated_rows",
        lambda t: t.marked().dropDuplicates(["k", "ts"]).rollup(hop(), "k").count(),
    ),
    Case(
        "window_in_cube_of_joined_rows",
        lambda t: sides(t)[0].join(sides(t)[1], F.expr(RANGE)).cube(F.window("ts", "20 seconds"), "k").agg(F.sum("v2")),
    ),
]

ALL = [
    *CORE,
    *WINDOWS,
    *SHAPES,
    *COLUMNS,
    *JOINS,
    *WATERMARKS_AND_WINDOWS,
    *AGGREGATES,
    *EXPLODED,
    *JOINED_WITH_TABLES,
    *GROUPED_BY_TIME,
    *WHOLE_TABLES,
]
