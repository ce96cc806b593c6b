"""Every shape that cannot run exactly is refused before the start, with the step in the user's words and what to do."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from spark.queries.harness import Tables
from spark.queries.refused_cases import AGGREGATES, FUNCTIONS, PAIR, Build

import statebed as sb
from statebed.queries import stream_joins
from statebed.queries.aggregates import percentile_shares
from statebed.queries.refusals import NEVER, STEPS
from statebed.spark.analysed.expression_text import UntranslatableError
from statebed.spark.analysed.plan_tree import Expr, PlanNode


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(spark, tmp_path_factory.mktemp("tables"), files=1).write()


def _other(t: Tables) -> DataFrame:
    return t.marked("b").selectExpr("k as k2", "v as v2", "ts as ts2")


def _windows(t: Tables) -> DataFrame:
    return t.marked().groupBy(F.window("ts", "1 minute"), "k").agg(F.sum("v").alias("s"))


def _doubled(value: int) -> int:
    return value * 2


REFUSED: dict[str, tuple[Build, str | None, str, str]] = {
    **FUNCTIONS,
    **AGGREGATES,
    "order_by": (lambda t: t.read().orderBy("v"), None, "orderBy cannot run", "complete mode"),
    "limit": (lambda t: t.read().limit(3), None, "limit cannot run", "row_number"),
    "offset": (lambda t: t.read().offset(3), None, "offset cannot run", "row_number"),
    "sample": (lambda t: t.read().sample(fraction=0.5, seed=1), None, "sample cannot run", "xxhash64"),
    "intersect": (
        lambda t: t.read().select("k").intersectAll(t.read("b").select("k")),
        None,
        "intersect cannot run",
        "left_semi",
    ),
    "except": (lambda t: t.read().select("k").exceptAll(t.read("b").select("k")), None, "EXCEPT", "left_anti"),
    "apply_in_pandas": (
        lambda t: t.read().groupBy("k").applyInPandas(lambda rows: rows, t.read().schema),
        None,
        "applyInPandas cannot run",
        "sb.Process",
    ),
    "apply_in_pandas_with_state": (
        lambda t: t.read()
        .groupBy("k")
        .applyInPandasWithState(lambda key, rows, state: iter(()), PAIR, PAIR, "append", "NoTimeout"),
        None,
        "applyInPandasWithState cannot run",
        "sb.Process",
    ),
    "plain_append": (
        lambda t: t.read().groupBy("k").count(),
        "append",
        "groupBy().agg() cannot run on statebed: it groups by no window",
        "outputMode('update')",
    ),
    "first": (
        lambda t: t.marked().groupBy(F.window("ts", "1 minute")).agg(F.first("v")),
        None,
        "first() depends on the order",
        "approximate=True",
    ),
    "approximate": (
        lambda t: t.marked().groupBy(F.window("ts", "1 minute")).agg(F.approx_count_distinct("v")),
        None,
        "approx_count_distinct() approximates in another way",
        "approximate=True",
    ),
    "unknown_aggregate": (
        lambda t: t.marked().groupBy(F.window("ts", "1 minute")).agg(F.kurtosis("v")),
        None,
        "statebed has no aggregate kurtosis()",
        "aggregates.md",
    ),
    "max_of_struct": (
        lambda t: t.marked().groupBy(F.window("ts", "1 minute")).agg(F.max(F.struct("v", "k"))),
        None,
        "structs, arrays and maps are not ordered",
        "max(a), and max_by(b, a)",
    ),
    "distinct_pairs": (
        lambda t: t.marked().groupBy(F.window("ts", "1 minute")).agg(F.countDistinct("k", "g")),
        None,
        "distinct values of several columns",
        "to_json(struct(a, b))",
    ),
    "frequencies": (
        lambda t: t.marked().groupBy(F.window("ts", "1 minute")).agg(F.expr("percentile(v, 0.5, g)")),
        None,
        "a column of frequencies",
        "array_repeat",
    ),
    "descending_percentile": (
        lambda t: t.marked()
        .groupBy(F.window("ts", "1 minute"))
        .agg(F.expr("percentile_cont(0.2) within group (order by v desc)")),
        None,
        "in descending order",
        "one minus the share",
    ),
    "average_of_wide_decimals": (
        lambda t: t.marked().groupBy(F.window("ts", "1 minute")).agg(F.expr("avg(cast(v as decimal(38,10)))")),
        None,
        "but decimal128(38, 14) in Spark",
        "at most 34 digits",
    ),
    "union_with_a_table": (
        lambda t: t.marked().select("k").union(t.dim().select("k")),
        None,
        "union cannot run on statebed: one of its inputs is a table",
        "spark.readStream",
    ),
    "difference_of_times_in_a_join": (
        lambda t: t.marked().join(_other(t), F.expr("k = k2 and ts2 - ts < interval 20 seconds")),
        None,
        "depends on the session's time zone",
        "b.ts BETWEEN a.ts AND",
    ),
    "try_sum": (
        lambda t: t.marked().groupBy(F.window("ts", "1 minute")).agg(F.try_sum("v")),
        None,
        "Sum in TRY mode",
        "without try_",
    ),
    "join_without_equality": (
        lambda t: t.marked().join(_other(t), F.expr("v < v2")),
        None,
        "the two streams have no equal columns",
        "add an equality",
    ),
    "outer_join_with_table_on_the_kept_side": (
        lambda t: t.dim().join(t.marked(), "k", "left"),
        None,
        "a left join keeps rows of the table",
        "put the stream on the side",
    ),
    "outer_join_with_a_condition_on_one_side": (
        lambda t: t.marked().join(_other(t), F.expr("k = k2 and ts = ts2 and v > 3"), "left"),
        None,
        "is about rows of one side alone",
        "clock='statebed'",
    ),
    "dynamic_session_gap": (
        lambda t: t.marked().groupBy(F.session_window("ts", F.expr("if(v > 3, '5 seconds', '1 minute')"))).count(),
        None,
        "differs from row to row",
        "constant gap",
    ),
    "session_without_watermark": (
        lambda t: t.read().groupBy(F.session_window("ts", "5 seconds"), "k").count(),
        None,
        "it groups by session_window, a session window, over a column that is not the event time of the rows",
        "withWatermark",
    ),
    "session_in_complete_mode": (
        lambda t: t.marked().groupBy(F.session_window("ts", "5 seconds"), "k").count(),
        "complete",
        "it groups by session_window, a session window, in complete mode",
        "outputMode('append')",
    ),
    "session_grouped_again": (
        lambda t: t.marked()
        .groupBy(F.session_window("ts", "5 seconds"), "k")
        .count()
        .groupBy("session_window")
        .count(),
        None,
        "whose sessions Spark merges once more",
        "session_window(ts, '5 minutes') directly",
    ),
    "deduplication_of_updating_totals": (
        lambda t: t.read()
        .groupBy("k", "g")
        .count()
        .dropDuplicates(["k"]),
        None,
        "the input is a changelog",
        "deduplicate before the step",
    ),
    "row_numbers_without_bound": (
        lambda t: t.read().withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy("v"))),
        None,
        "row numbers have no upper bound",
        "rn <= 3",
    ),
    "two_row_numbers": (
        lambda t: t.read()
        .selectExpr(
            "k", "row_number() over (partition by k order by v) n", "rank() over (partition by k order by v) m"
        )
        .where("n <= 2 and m <= 3"),
        None,
        "rows have several numbers, n and m, but an operator computes one",
        "in one query for each",
    ),
    "row_numbers_as_text": (
        lambda t: t.read()
        .withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy("v")))
        .where("cast(n as string) <= '3'"),
        None,
        "row numbers have no upper bound",
        "rn <= 3",
    ),
    "other_window_functions": (
        lambda t: t.read().withColumn("n", F.lag("v").over(Window.partitionBy("k").orderBy("ts"))),
        None,
        "lag() is not computed over a partition; row_number, rank and dense_rank are",
        "operator `over`",
    ),
    "udf_between": (
        lambda t: _windows(t)
        .withColumn("u", F.udf(_doubled, "bigint", useArrow=False)("s"))
        .groupBy(F.window(F.window_time("window"), "5 minutes"), "u")
        .count(),
        None,
        "it stands between two stateful steps",
        "before the first stateful step",
    ),
    "table_between_a_changelog_and_a_step": (
        lambda t: t.read().groupBy("k").agg(F.sum("v").alias("s")).join(t.dim(), "k").groupBy("label").agg(F.max("s")),
        None,
        "join cannot run on statebed: the rows before it are a changelog",
        "before the first stateful step",
    ),
    "watermark_behind": (
        lambda t: _windows(t).withColumn("t", F.window_time("window")).select("t", "s").withWatermark("t", "1 second"),
        None,
        "withWatermark cannot run on statebed: a watermark is declared after a stateful step",
        "window_time",
    ),
    "session_in_rollup_behind": (
        lambda t: t.marked().dropDuplicates(["k", "ts"]).rollup(F.session_window("ts", "5 seconds"), "k").count(),
        None,
        "SESSION or CUMULATE is a key of rollup",
        "use a tumbling or sliding window",
    ),
    "watermark_twice": (
        lambda t: t.marked().withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 minute")).count(),
        "append",
        "its rows have a watermark already",
        "withWatermark once",
    ),
    "watermark_of_a_window": (
        lambda t: t.read().select(F.window("ts", "1 minute").alias("w"), "k").withWatermark("w", "30 seconds"),
        "append",
        "withWatermark cannot run on statebed: the event time w is a window",
        "before window(",
    ),
    "session_in_rollup": (
        lambda t: t.marked().rollup(F.session_window("ts", "5 seconds"), "k").count(),
        "append",
        "it groups by session_window, a session window, in grouping sets",
        "and plain columns",
    ),
    "session_of_deduplicated_rows_in_complete_mode": (
        lambda t: t.marked().dropDuplicates(["k", "ts"]).groupBy(F.session_window("ts", "5 seconds")).count(),
        "complete",
        "it groups by session_window, a session window, in complete mode",
        "outputMode('append')",
    ),
    "hour_of_a_sliding_window_as_key": (
        lambda t: t.marked()
        .select(F.window("ts", "1 minute", "20 seconds").alias("w"), "k")
        .groupBy(F.date_trunc("hour", "w.start").alias("hour"))
        .count(),
        None,
        "which reads a window before its aggregation",
        "in another step",
    ),
    "pivot": (
        lambda t: t.read().groupBy("k").pivot("g", [0, 1]).agg(F.sum("v")),
        "update",
        "pivot() groups twice",
        "count_if(word = 'a')",
    ),
    "udf_before_a_union": (
        lambda t: _windows(t)
        .select(F.udf(_doubled, "bigint", useArrow=False)("s").alias("s"))
        .union(t.marked("b").select(F.col("v").alias("s"))),
        None,
        "it would run in Spark after an operator, before a union",
        "select after the union",
    ),
    "row_numbers_in_a_union": (
        lambda t: t.read()
        .select("k", F.row_number().over(Window.partitionBy("k").orderBy("v")).alias("n"))
        .union(t.read("b").select("k", F.lit(1))),
        None,
        "row numbers without an upper bound are used in a union",
        "where('rn <= 3')",
    ),
    "random_values_before_an_operator": (
        lambda t: t.marked().withColumn("r", F.rand()).groupBy("k").agg(F.max("r")),
        "update",
        "select cannot run on statebed: it returns different rows when computed again",
        "xxhash64",
    ),
    "random_values_without_an_operator": (
        lambda t: t.read().where(F.rand() > 0.5),
        "append",
        "where cannot run on statebed: it returns different rows when computed again",
        "store it with the rows",
    ),
    "join_of_untimed_rows": (
        lambda t: t.read().select("k").distinct().join(t.read("b").selectExpr("k as k2"), F.expr("k = k2")),
        "append",
        "the streams have no event times on both sides",
        "withWatermark on both streams",
    ),
    "outer_join_without_a_range": (
        lambda t: t.marked().join(_other(t), F.expr("k = k2"), "left"),
        "append",
        "its results are never final",
        "b.ts BETWEEN a.ts AND",
    ),
    "join_by_collated_keys": (
        lambda t: t.marked()
        .selectExpr("collate(k, 'UTF8_LCASE') as k", "ts")
        .join(
            t.marked("b").selectExpr("collate(k, 'UTF8_LCASE') as k2", "ts as t2"),
            F.expr("k = k2 and t2 between ts and ts + interval 5 seconds"),
        ),
        "append",
        "is compared by a collation",
        "lower(key) collate utf8_binary",
    ),
    "filter_on_a_sliding_window_before_its_aggregation": (
        lambda t: t.marked()
        .select(F.window("ts", "1 minute", "20 seconds").alias("w"), "k")
        .where("w.start > timestamp '2024-03-10T06:31:00Z'")
        .groupBy("w", "k")
        .count(),
        "append",
        "a window is used before its aggregation",
        "HAVING, or where() after agg()",
    ),
    "filter_on_a_window_of_windows_before_its_aggregation": (
        lambda t: _windows(t)
        .select(F.window(F.window_time("window"), "5 minutes").alias("w"), "s")
        .where("w.start > timestamp '2024-03-10T06:31:00Z'")
        .groupBy("w")
        .count(),
        "append",
        "a window is used before its aggregation",
        "HAVING, or where() after agg()",
    ),
    "map_as_key": (
        lambda t: t.marked().groupBy(F.window("ts", "1 minute"), F.create_map(F.lit("k"), "k").alias("m")).count(),
        None,
        "groupBy().agg() cannot run on statebed: the column 'key' of the type map<string, string> cannot be part",
        "a map to a list of its entries",
    ),
    "other_rows_when_written_again": (
        lambda t: _windows(t).select("k", F.rand()),
        "append",
        "select cannot run on statebed: it returns different rows when computed again",
        "xxhash64",
    ),
    "sliding_window_without_aggregation": (
        lambda t: t.marked().select(F.window("ts", "1 minute", "20 seconds").alias("w"), "k"),
        None,
        "a window is used in the result before its aggregation",
        "groupBy(window, ...)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_shape_names_the_step_and_what_to_do(name: str, tables: Tables, tmp_path: Path) -> None:
    build, mode, what, fix = REFUSED[name]
    job = sb.Job("refused", state=tmp_path, spark=tables.spark)
    with pytest.raises(sb.InputError) as caught:
        job.from_dataframe(build(tables), mode=mode)
    assert what in caught.value.what, caught.value
    assert fix in caught.value.fix, caught.value
    assert caught.value.where
    assert not list(tmp_path.iterdir()), "nothing is written"


@pytest.mark.parametrize(
    ("aggregate", "what", "fix"),
    [
        ("listagg(k, ',') within group (order by v)", "in the order of their event times", "array_sort(collect_list"),
        ("mode() within group (order by v desc)", "the smallest is the mode", "mode(value, true)"),
        ("array_agg(v) respect nulls", "nulls are not collected", "coalesce"),
        ("collect_list(distinct v)", "collect_list of distinct values", "write collect_set(v)"),
        ("approx_percentile(v, array(0.1, 0.2))", "one constant share", "once for each share"),
    ],
)
def test_an_approximation_that_is_refused_says_what_to_write(
    aggregate: str, what: str, fix: str, tables: Tables, tmp_path: Path
) -> None:
    job = sb.Job("refused", state=tmp_path, spark=tables.spark)
    with pytest.raises(sb.InputError) as caught:
        job.from_dataframe(tables.read().groupBy("g").agg(F.expr(aggregate)), approximate=True)
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_arguments_are_checked(tables: Tables, tmp_path: Path) -> None:
    job = sb.Job("refused", state=tmp_path, spark=tables.spark)
    with pytest.raises(sb.InputError, match="`mode` must be one of"):
        job.from_dataframe(tables.read(), mode="all")
    with pytest.raises(sb.InputError, match="`clock` must be one of"):
        job.from_dataframe(tables.read(), clock="wall")
    with pytest.raises(sb.InputError, match="not a stream"):
        job.from_dataframe(tables.dim())
    with pytest.raises(sb.InputError, match="`outputMode` must be one of"):
        sb.write_stream(tables.read()).outputMode("most")
    with pytest.raises(sb.InputError, match="continuous processing"):
        sb.write_stream(tables.read()).trigger(continuous="1 second")
    with pytest.raises(sb.InputError, match="foreachBatch"):
        sb.write_stream(tables.read()).foreach(print)
    writer = sb.write_stream(tables.read().groupBy("k").count()).option("checkpointLocation", str(tmp_path))
    with pytest.raises(sb.InputError, match="it groups by no window"):
        writer.foreachBatch(lambda rows, epoch: None).start()
    writer = sb.write_stream(tables.read().select("k")).option("checkpointLocation", str(tmp_path))
    with pytest.raises(sb.InputError, match="complete mode gives all groups of an aggregation"):
        writer.outputMode("complete").foreachBatch(lambda rows, epoch: None).start()


def test_refused_aggregates_of_sql_text_say_what_to_write_in_sql(tables: Tables, tmp_path: Path) -> None:
    job = sb.Job("refused", state=tmp_path, spark=tables.spark)
    job.source(tables.read(), name="a")
    with pytest.raises(sb.InputError) as caught:
        job.sql("SELECT k, percentile(DISTINCT v, 0.5) FROM a GROUP BY k")
    assert "FROM (SELECT DISTINCT k, v FROM t) GROUP BY k" in caught.value.fix
    with pytest.raises(sb.InputError) as caught:
        job.sql("SELECT k, percentile(v, x / 10) FROM a GROUP BY k")
    assert "write a constant there" in caught.value.fix


def test_every_refused_step_is_one_of_sparks_and_has_a_name_of_the_users(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    for kind in NEVER:
        assert jvm.java.lang.Class.forName(f"org.apache.spark.sql.catalyst.plans.logical.{kind}")
        assert STEPS[kind]


def test_a_join_of_an_unknown_kind_is_refused_with_those_that_are_known() -> None:
    node = SimpleNamespace(fields={"joinType": {"object": "org.apache.spark.sql.catalyst.plans.LeftSingle$"}})
    with pytest.raises(UntranslatableError) as caught:
        stream_joins._kind(cast(PlanNode, node))
    assert caught.value.why == "a join of the kind LeftSingle"
    assert "LeftSemi" in caught.value.fix


def test_a_share_of_a_percentile_that_is_no_constant_is_refused() -> None:
    """Spark refuses it itself while it analyses the query; a later version may not."""
    share = SimpleNamespace(handle=SimpleNamespace(foldable=lambda: False))
    function = SimpleNamespace(kind="Percentile", fields={}, children=[None, share])
    with pytest.raises(UntranslatableError, match="the share is not a constant") as caught:
        percentile_shares(cast(Expr, SimpleNamespace(child=function, sql="percentile(v, x)")))
    assert caught.value.fix == "write a number, such as 0.5"


def test_explain_shows_the_zones(tables: Tables) -> None:
    df = (
        tables.marked()
        .where("v > 3")
        .groupBy(F.window("ts", "1 minute"), "k")
        .agg(F.sum("v").alias("s"))
        .where("s > 10")
        .selectExpr("window.start", "k", "sentences(k) as h")
    )
    text = str(sb.explain(df))
    head, between, tail = text.index("head (Spark"), text.index("between (statebed"), text.index("tail (Spark")
    assert head < text.index("source: ") < between < text.index("window: ") < text.index("where") < tail
    assert text.index("sentences") > tail
    assert "only Spark" in text or "not available between operators" in text


def test_planning_needs_few_calls_of_the_jvm(tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    df = tables.sql(
        "select l.k, l.s, r.s t from (select window, k, sum(v) s from a group by window(ts, '1 minute'), k) l "
        "join (select window, k, sum(v) s from b group by window(ts, '1 minute'), k) r "
        "on l.window = r.window and l.k = r.k"
    )
    gateway = tables.spark.sparkContext._gateway
    assert gateway is not None
    client = gateway._gateway_client
    calls = 0
    send = client.send_command

    def counted(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += not str(arguments[0]).startswith(MEMORY_COMMAND_NAME)  # of objects that other tests have left
        return send(*arguments, **options)

    monkeypatch.setattr(client, "send_command", counted)
    job = sb.Job("planned", state=tmp_path, spark=tables.spark)
    job.from_dataframe(df)
    monkeypatch.undo()
    assert calls < 3_000, calls
