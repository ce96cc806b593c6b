"""Structured Streaming queries give the same rows in the same batches on statebed as on Spark."""

from itertools import chain
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark.queries.case import Case
from spark.queries.cases import ALL, CORE
from spark.queries.harness import AnyOrder, by_spark, by_statebed, configured, difference

import statebed as sb
from statebed.flow.graph import OperatorNode
from statebed.operators.joins import IntervalJoin, WindowJoin
from statebed.spark.analysed.plan_tree import analysed_plan
from statebed.spark.plan.job_plan import unbounded_tables

# Spark keeps such state as well.
pytestmark = pytest.mark.filterwarnings("ignore::statebed.UnboundedStateWarning")
COVERED = {
    "tumbling-append": "having, the own clock",
    "tumbling-update": "window_in_cube",
    "sliding_with_offset-append": "two_sources_two_delays",
    "range_inner-append": "window_over_a_join",
    "range_leftOuter-append": "range_fullOuter",
    "chained_windows-append": "rollup_of_windows",
}
"""Cases whose steps are also in another case, by their names; `make test` leaves them out."""
UNSEEN_SEED = 20_261_117
"""Seed of data that nothing was developed against."""


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> AnyOrder:
    return AnyOrder.written(spark, tmp_path_factory.mktemp("tables"), files=2)


@pytest.fixture(scope="module")
def unseen(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> AnyOrder:
    return AnyOrder.written(spark, tmp_path_factory.mktemp("unseen"), seed=UNSEEN_SEED, files=6)


def check(case: Case, tables: AnyOrder, state: Path) -> None:
    source = tables.of(ordered=case.ordered)
    with configured(source.spark, case.settings):
        df = case.build(source)
        theirs = by_spark(df, case.mode)
        assert len(theirs) > 1, "the case compares the rows of one batch at most"
        assert not difference(theirs, by_statebed(df, case.mode, state=state))


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.long if str(case) in COVERED else ()) for case in CORE], ids=str
)
def test_a_query_gives_the_rows_of_spark_in_each_batch(case: Case, tables: AnyOrder, tmp_path: Path) -> None:
    check(case, tables, tmp_path / "state")


def test_tasks_read_the_files_of_a_query_that_follows_the_clock_of_spark(tables: AnyOrder, tmp_path: Path) -> None:
    job = sb.Job("read", state=tmp_path, spark=tables.shuffled.spark)
    df = tables.shuffled.marked().where("v > 3").groupBy(F.window("ts", "1 minute"), "k").count()
    job.from_dataframe(df, mode="append").write("noop")
    assert "read by      tasks, with Arrow" in str(job.explain())


def test_expressions_are_equal_only_if_they_compute_the_same(tables: AnyOrder) -> None:
    rows, dim = tables.shuffled.read(), tables.shuffled.dim()
    dim.createOrReplaceTempView("labels")
    functions = [F.udf(lambda g: g + 1, "int"), F.udf(lambda g: g * 10, "int")]  # both are called `<lambda>`
    texts = [
        "(select max(label) from labels)",
        "(select min(label) from labels)",
        "from_csv(k, 'a int', map('sep', ';'))",
        "from_csv(k, 'a int', map('sep', ','))",
        "k like 'a!%' escape '!'",
        "k like 'a!%' escape '#'",
        "cast(k as int)",
        "try_cast(k as int)",
        "transform(tags, tag -> upper(tag))",
        "transform(tags, tag -> lower(tag))",
        "case when g > 1 then v end",
        "case when g > 2 then v end",
    ]
    keys: list[set[object]] = []
    for _ in range(2):
        df = rows.select(*(function("g") for function in functions), *map(F.expr, texts))
        keys.append({expression.value.key for expression in analysed_plan(df).expressions("projectList")})
    tables.shuffled.spark.catalog.dropTempView("labels")
    assert len(keys[0]) == len(functions) + len(texts)
    assert keys[0] == keys[1], "the same in another query"


def test_results_keep_the_names_of_the_query_unless_they_are_reserved(tables: AnyOrder, tmp_path: Path) -> None:
    job = sb.Job("names", state=tmp_path, spark=tables.shuffled.spark)
    df = tables.shuffled.read().groupBy(F.col("k").alias("_id")).agg(F.sum("v").alias("_c0"), F.max("v").alias("_time"))
    assert list(job.from_dataframe(df, mode="update").columns) == ["_id", "_c0", "time"]


@pytest.mark.parametrize(("clock", "operator"), [("spark", IntervalJoin), ("statebed", WindowJoin)])
@pytest.mark.parametrize("condition", ["s = s2", "e = e2", "s = s2 and e = e2", "w.start = w2.start", "w2.end = w.end"])
def test_rows_joined_by_parts_of_their_windows_are_not_kept_for_ever(
    tables: AnyOrder, tmp_path: Path, condition: str, clock: str, operator: type
) -> None:
    left, right = (
        tables.shuffled.marked(name)
        .withColumn("w", F.window("ts", "20 seconds"))
        .selectExpr("k", f"ts as ts{end}", f"w as w{end}", f"w.start as s{end}", f"w.end as e{end}")
        for name, end in (("a", ""), ("b", "2"))
    )
    job = sb.Job("windows", state=tmp_path, spark=tables.shuffled.spark)
    job.from_dataframe(left.alias("a").join(right.alias("b"), F.expr(f"a.k = b.k and {condition}")), clock=clock)
    (join,) = [node.operator for node in job.graph.nodes if isinstance(node, OperatorNode)]
    assert type(join) is operator
    assert unbounded_tables(join) == []
    if isinstance(join, IntervalJoin):
        assert (join.lower_us, join.upper_us) == (-19_999_999, 19_999_999)


def test_the_own_clock_gives_the_same_rows_in_the_end(tables: AnyOrder, tmp_path: Path) -> None:
    df = CORE[0].build(tables.of(ordered=False))
    ours = by_statebed(df, "append", state=tmp_path / "state", clock="statebed")
    theirs = by_spark(df, "append")
    assert sorted(map(repr, chain(*ours.values()))) == sorted(map(repr, chain(*theirs.values())))


@pytest.mark.long
@pytest.mark.parametrize("case", ALL, ids=str)
def test_a_query_over_unseen_data_gives_the_rows_of_spark_in_each_batch(
    case: Case, unseen: AnyOrder, tmp_path: Path
) -> None:
    check(case, unseen, tmp_path / "state")
