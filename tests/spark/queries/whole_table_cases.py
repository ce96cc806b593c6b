"""Queries that give all results in each batch: complete mode, and aggregations without keys."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from spark.queries.case import Case, minute, sql
from spark.queries.harness import Tables


def totals(condition: str) -> Callable[[Tables], DataFrame]:
    return lambda t: (
        t.read()
        .where(condition)
        .agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.max("k"))
        .selectExpr("n", "s + 1 as s", "to_csv(struct(n)) as t")
    )


WHOLE_TABLES = [
    Case(
        "repeated_whole_table_of_rows_with_a_time",
        lambda t: t.marked().dropDuplicates(["k", "g", "ts"]).groupBy("k").count().orderBy("k"),
        "complete",
    ),
    Case(
        "repeated_whole_table_without_watermark",
        lambda t: t.read().dropDuplicates(["k", "g"]).groupBy("k").count(),
        "complete",
    ),
    Case(
        "whole_table_after_batches_without_rows",
        lambda t: t.read().where("ts < timestamp '2024-03-10T06:30:30Z'").groupBy("k").count(),
        "complete",
    ),
    *(
        Case(f"totals_of_{when}_rows", totals(condition), mode)
        for when, condition in (
            ("later", "ts > timestamp '2024-03-10T06:32:00Z'"),
            ("earlier", "ts < timestamp '2024-03-10T06:30:30Z'"),
        )
        for mode in ("update", "complete")
    ),
    sql(
        "totals_with_having",
        "with t as (select sum(v) s, count(*) c from a where k = 'b') select * from t where c < 60",
        "update",
    ),
    Case("totals_of_deduplicated_rows", lambda t: t.marked().dropDuplicates(["k", "g"]).agg(F.count("*")), "update"),
    Case(
        "windows_of_deduplicated_rows",
        lambda t: (
            t.marked()
            .dropDuplicates(["k", "ts"])
            .select(minute().alias("w"), "k")
            .where("w.start >= timestamp '2024-03-10T06:30:00Z'")
            .groupBy("w", "k")
            .count()
        ),
        "complete",
    ),
    Case(
        "rollup_of_windows_of_deduplicated_rows",
        lambda t: t.marked().dropDuplicates(["k", "ts"]).rollup(minute(), "k").count(),
        "complete",
    ),
    Case(
        "repeated_whole_table_within_the_watermark",
        lambda t: t.marked().where("ts is not null").dropDuplicatesWithinWatermark(["k", "g"]).groupBy("k").count(),
        "complete",
        ordered=True,
    ),
]
