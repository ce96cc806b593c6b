"""Queries whose columns are easily taken for one another: repeated ones, functions of one name, unions of streams."""

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F
from spark.queries.case import Case, hop, minute, sql


def _named(function: Callable[[int], int]) -> Callable[..., Column]:
    """Return a user's function; all of them are called `<lambda>`."""
    return F.udf(function, "int", useArrow=False)


CORE_COLUMNS = [
    Case(
        "a_column_twice",
        lambda t: (
            t.marked().select("k", "k", "g", "v", "ts").groupBy(minute(), "g").agg(F.sum("v")).selectExpr("*", "g")
        ),
    ),
    Case(
        "two_sources_two_delays",
        lambda t: t.marked().union(t.marked("b", "2 minutes")).groupBy(hop()).count(),
    ),
    Case(
        "union_of_a_timed_and_an_untimed_stream_by_window",
        lambda t: t.marked().select("ts").union(t.read("b").select("ts")).groupBy(minute()).count(),
    ),
]
COLUMNS = [
    Case(
        "two_functions_of_one_name",
        lambda t: (
            t.marked()
            .groupBy(minute(), _named(lambda g: g % 2)("g").alias("odd"), _named(lambda g: g // 2)("g").alias("half"))
            .agg(F.sum(_named(lambda g: g + 1)("g")), F.sum(_named(lambda g: g * 10)("g")))
        ),
    ),
    sql(
        "two_subqueries",
        "select k, sum(v * (select count(*) from dim)) a, sum(v * (select count(*) from dim where k = 'a')) b "
        "from a where v > (select min(length(label)) from dim) group by window(ts, '1 minute'), k",
    ),
    sql(
        "a_column_twice_in_with",
        "with r as (select *, ts, k from a), w as (select g, g as h, g, v, ts from r) "
        "select window.start, h, sum(v), count(*) from w group by window(ts, '1 minute'), h",
    ),
    sql(
        "a_result_twice_in_with",
        "with w as (select window, k, count(*) c from a group by window(ts, '1 minute'), k) "
        "select *, k from (select *, c from w)",
    ),
    Case("a_key_twice", lambda t: t.sql("select k, k, count(*) from a group by k, k"), "update"),
    Case(
        "union_of_a_timed_and_an_untimed_stream",
        lambda t: t.marked().select("k", "ts").union(t.read("b").select("k", "ts")).dropDuplicates(["k", "ts"]),
    ),
]
