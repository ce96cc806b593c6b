"""Refused shapes with functions of the user's, which Spark calls, and refused aggregates, orders and times.

Each case is a query, its output mode, and a part of what is wrong and of what to do.
"""

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StringType, StructField, StructType
from spark.queries.harness import Tables

Build = Callable[[Tables], DataFrame]
PAIR = StructType([StructField("k", StringType()), StructField("n", LongType())])


def _unique(t: Tables) -> DataFrame:
    return t.marked().dropDuplicates(["k", "ts"])


def _cogrouped(t: Tables) -> Any:
    return t.read().groupBy("k").cogroup(t.read("b").groupBy("k"))


def _of_scala(t: Tables, step: str) -> DataFrame:
    """Return a query with a step that only Scala and Java have; its function is never called."""
    jvm = t.spark._jvm
    assert jvm is not None
    streaming = jvm.org.apache.spark.sql.streaming
    text = jvm.org.apache.spark.sql.Encoders.STRING()
    groups = getattr(t.read().select("k")._jdf, "as")(text).groupByKey(None, text)
    if step == "mapGroups":
        return DataFrame(groups.mapGroups(None, text).toDF(), t.spark)
    mode, timeout = streaming.OutputMode.Append(), streaming.GroupStateTimeout.NoTimeout()
    return DataFrame(groups.flatMapGroupsWithState(None, mode, text, text, timeout).toDF(), t.spark)


class _Counts(StatefulProcessor):
    """A processor of Spark's, which is never called."""

    def init(self, handle: StatefulProcessorHandle) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's names
        return iter(())

    def close(self) -> None: ...


FUNCTIONS: dict[str, tuple[Build, str | None, str, str]] = {
    "apply_in_arrow": (
        lambda t: t.read().groupBy("k").applyInArrow(lambda rows: rows, t.read().schema),
        None,
        "groupBy().applyInArrow cannot run on statebed: the groups of a stream are never complete",
        "sb.Process",
    ),
    "cogroup_in_pandas": (
        lambda t: _cogrouped(t).applyInPandas(lambda left, _: left, t.read().schema),
        None,
        "cogroup().applyInPandas cannot run on statebed: the groups of a stream are never complete",
        "sb.Process",
    ),
    "cogroup_in_arrow": (
        lambda t: _cogrouped(t).applyInArrow(lambda left, _: left, t.read().schema),
        None,
        "cogroup().applyInArrow cannot run on statebed: the groups of a stream are never complete",
        "sb.Process",
    ),
    "transform_with_state": (
        lambda t: t.read().groupBy("k").transformWithState(_Counts(), PAIR, "Update", "None"),
        "update",
        "transformWithState cannot run on statebed: its state is opaque",
        "sb.Process",
    ),
    "transform_with_state_in_pandas": (
        lambda t: t.read().groupBy("k").transformWithStateInPandas(_Counts(), PAIR, "Update", "None"),
        "update",
        "transformWithStateInPandas cannot run on statebed: its state is opaque",
        "sb.Process",
    ),
    "flat_map_groups_with_state": (
        lambda t: _of_scala(t, "flatMapGroupsWithState"),
        "append",
        "flatMapGroupsWithState cannot run on statebed: its state is opaque",
        "sb.Process",
    ),
    "map_groups": (
        lambda t: _of_scala(t, "mapGroups"),
        "append",
        "mapGroups cannot run on statebed: the groups of a stream are never complete",
        "sb.Process",
    ),
    "map_in_pandas_between": (
        lambda t: _unique(t).mapInPandas(lambda rows: rows, t.read().schema).groupBy("k").count(),
        "update",
        "mapInPandas cannot run on statebed: it stands between two stateful steps",
        "before the first stateful step",
    ),
    "map_in_arrow_between": (
        lambda t: _unique(t).mapInArrow(lambda rows: rows, t.read().schema).groupBy("k").count(),
        "update",
        "mapInArrow cannot run on statebed: it stands between two stateful steps",
        "before the first stateful step",
    ),
    "repartition_between": (
        lambda t: _unique(t).repartition(3).groupBy("k").count(),
        "update",
        "repartition cannot run on statebed: it stands between two stateful steps",
        "before the first stateful step",
    ),
}  # fmt: skip
AGGREGATES: dict[str, tuple[Build, str | None, str, str]] = {
    "distinct_percentile": (
        lambda t: t.read().groupBy("k").agg(F.expr("percentile(distinct v, 0.5)")),
        "update",
        "percentile of distinct values",
        "df.dropDuplicates(['k', 'v']).groupBy('k').agg(...), with percentile(v)",
    ),
    "distinct_average": (
        lambda t: t.read().groupBy("k").agg(F.expr("avg(distinct v)")),
        "update",
        "avg of distinct values",
        "df.dropDuplicates(['k', 'v']).groupBy('k').agg(...), with avg(v)",
    ),
    "distinct_count_if": (
        lambda t: t.read().groupBy("k").agg(F.expr("count_if(distinct v > 3)")),
        "update",
        "count_if of distinct values is 1 or 0",
        "max(if(condition, 1, 0))",
    ),
    "greatest_by_a_collation": (
        lambda t: t.read().groupBy("g").agg(F.expr("max(collate(k, 'UTF8_LCASE'))")),
        "update",
        "compares texts by a collation",
        "lower(text) collate utf8_binary",
    ),
    "ordered_by_a_collation": (
        lambda t: t.read().groupBy("g").agg(F.expr("min_by(v, collate(k, 'UTF8_LCASE'))")),
        "update",
        "compares texts by a collation",
        "lower(text) collate utf8_binary",
    ),
    "distinct_by_a_collation": (
        lambda t: t.read().groupBy("g").agg(F.expr("count(distinct collate(k, 'UTF8_LCASE'))")),
        "update",
        "compares texts by a collation",
        "lower(text) collate utf8_binary",
    ),
    "row_numbers_by_a_collation": (
        lambda t: t.read()
        .withColumn("c", F.expr("collate(k, 'UTF8_LCASE')"))
        .withColumn("n", F.row_number().over(Window.partitionBy("g").orderBy("c")))
        .where("n <= 2"),
        None,
        "orders texts by a collation",
        "lower(text) collate utf8_binary",
    ),
    "range_of_a_month": (
        lambda t: t.marked().join(
            t.marked("b").selectExpr("k as k2", "ts as ts2"),
            F.expr("k = k2 and ts2 between ts and ts + interval 1 month"),
        ),
        "append",
        "ts + INTERVAL '1' MONTH: months and years have no fixed length",
        "b.ts BETWEEN a.ts AND a.ts + INTERVAL 31 DAYS",
    ),
    "window_of_a_dropped_time": (
        lambda t: t.marked().select(F.window("ts", "1 minute"), "k", "v").distinct().groupBy("window", "k").count(),
        "append",
        "it groups by a window whose time an earlier step has dropped",
        "make the window in this step",
    ),
}  # fmt: skip
