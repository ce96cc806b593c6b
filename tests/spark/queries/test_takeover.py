"""statebed takes over the checkpoint of Spark's own query, and gives what Spark would have given had it gone on."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark.queries.case import Case
from spark.queries.harness import FIRST_EPOCH, Batches, Tables, comparable, configured

import statebed as sb

pytestmark = pytest.mark.filterwarnings("ignore::statebed.UnboundedStateWarning")
FILES = 4
BY_SPARK = 2
"""Number of files that Spark's query has read when statebed takes over."""
AGGREGATES = (
    "count(*) as c",
    "sum(v) as s",
    "avg(v) as a",
    "avg(x) as b",
    "sum(x) as d",
    "max(v) as m",
    "min(ts) as t",
)

CASES = [
    Case("by_key", lambda t: t.read().groupBy("k", "g").agg(*map(F.expr, AGGREGATES)), "update"),
    Case("by_window", lambda t: t.marked().groupBy("k", F.window("ts", "1 minute")).agg(*map(F.expr, AGGREGATES))),
    Case("stateless", lambda t: t.marked().where("v > 10").selectExpr("k", "v")),
    Case("keys_and_times", lambda t: t.marked().dropDuplicates(["k", "ts"]).select("k", "ts")),
]
MORE = [
    Case("by_nothing", lambda t: t.read().groupBy().agg(F.count("*").alias("c"), F.max("k")), "update"),
    Case(
        "expressions",
        lambda t: (
            t.read()
            .where("v > 0")
            .groupBy((F.col("v") % 5).alias("m"))
            .agg(F.expr("sum(v) / nullif(count(x), 0) as r"), F.expr("sum(v) filter (where g = 1) as f"))
            .where("m <> 3")
        ),
        "update",
    ),
    Case("decimals", lambda t: t.read().groupBy("k").agg(F.expr("sum(cast(v as decimal(10,2))) as s")), "update"),
    Case("complete", lambda t: t.read().groupBy("k").agg(F.expr("sum(v) as s")).orderBy("s"), "complete"),
    Case("update_by_window", lambda t: t.marked().groupBy(F.window("ts", "30 seconds")).agg(F.sum("v")), "update"),
    Case("keys_for_ever", lambda t: t.read().dropDuplicates(["k", "v"]).select("k", "v")),
    Case(
        "keys_within_watermark",
        lambda t: t.marked().where("ts is not null").dropDuplicatesWithinWatermark(["k", "g"]).select("k", "g", "ts"),
        ordered=True,
    ),
]
REFUSED: dict[str, tuple[Callable[[Tables], DataFrame], str]] = {
    "sliding": (lambda t: t.marked().groupBy(F.window("ts", "1 minute", "20 seconds")).count(), "sliding windows"),
    "event_time": (lambda t: t.marked().groupBy("ts").count(), "groups by the event time itself"),
    "sessions": (
        lambda t: t.marked().groupBy(F.session_window("ts", "9 seconds"), "k").count(),
        "cannot be taken over",
    ),
    "deviation": (lambda t: t.marked().groupBy(F.window("ts", "1 minute")).agg(F.stddev("v")), "of this aggregate"),
    "two_streams": (
        lambda t: t.marked().union(t.marked("b")).groupBy(F.window("ts", "1 minute")).count(),
        "offsets of 2 streams",
    ),
    "two_steps": (
        lambda t: t.marked().dropDuplicates(["k", "ts"]).groupBy(F.window("ts", "1 minute")).count(),
        "2 stateful steps",
    ),
}


class Input:
    """Streams whose later files appear when `grow` is called."""

    def __init__(self, spark: SparkSession, folder: Path, *, ordered: bool = False) -> None:
        self.tables = Tables(spark, folder / "in", files=FILES, ordered=ordered).write()
        self.later = folder / "later"
        self._move(self.tables.folder, self.later)

    def grow(self) -> None:
        self._move(self.later, self.tables.folder)

    @staticmethod
    def _move(source: Path, target: Path) -> None:
        for name in ("a", "b"):
            (target / name).mkdir(parents=True, exist_ok=True)
            for number in range(BY_SPARK, FILES):
                shutil.move(source / name / f"{number:04d}.parquet", target / name)


def spark_runs(df: DataFrame, mode: str, checkpoint: Path, found: Batches) -> None:
    def take(rows: DataFrame, batch: int) -> None:
        found[batch] = comparable(rows)

    writer = df.writeStream.outputMode(mode).foreachBatch(take).option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)


def taken_over(df: DataFrame, mode: str, folder: Path, found: list[Any]) -> None:
    def take(rows: DataFrame, epoch: int) -> None:
        assert epoch >= FIRST_EPOCH
        found.append(comparable(rows))

    writer = sb.write_stream(df, parallelism=3).outputMode(mode).foreachBatch(take)
    writer = writer.option("checkpointLocation", str(folder / "state")).takeOver(folder / "taken")
    assert writer.trigger(availableNow=True).start().await_termination(120)


def check(case: Case, spark: SparkSession, folder: Path) -> None:
    given = Input(spark, folder, ordered=case.ordered)
    df = case.build(given.tables)
    by_spark: Batches = {}
    spark_runs(df, case.mode, folder / "checkpoint", by_spark)
    before = set(by_spark)
    shutil.copytree(folder / "checkpoint", folder / "taken")
    given.grow()
    spark_runs(df, case.mode, folder / "checkpoint", by_spark)
    ours: list[Any] = []
    taken_over(df, case.mode, folder, ours)
    theirs = [rows for batch, rows in sorted(by_spark.items()) if batch not in before]
    assert any(theirs), "Spark has given nothing after the take-over"
    assert [rows for rows in ours if rows] == [rows for rows in theirs if rows]
    count = len(ours)
    taken_over(df, case.mode, folder, ours)
    assert not any(ours[count:]), "the second start has read the checkpoint again"


@pytest.mark.parametrize("case", CASES[1:], ids=str)
def test_a_query_is_taken_over(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    check(case, spark, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("case", [CASES[0], *MORE], ids=str)
def test_more_queries_are_taken_over(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    check(case, spark, tmp_path)


@pytest.mark.long
def test_the_state_store_on_rocksdb_is_taken_over(spark: SparkSession, tmp_path: Path) -> None:
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        check(CASES[0], spark, tmp_path)
    finally:
        spark.conf.unset(name)


def test_a_take_over_gives_no_batch_until_there_are_rows(spark: SparkSession, tmp_path: Path) -> None:
    df = Tables(spark, tmp_path / "in", files=1).write().read().groupBy("k").count()
    spark_runs(df, "complete", tmp_path / "taken", {})
    found: list[Any] = []
    taken_over(df, "complete", tmp_path, found)
    assert not found, "the table that Spark has already given is given again"


def test_what_cannot_be_taken_over_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, tmp_path / "in", files=1).write()
    for name, (build, message) in REFUSED.items():
        df = build(tables)
        checkpoint = tmp_path / f"checkpoint-{name}"
        spark_runs(df, "append", checkpoint, {})
        job = sb.Job(name, state=tmp_path / "state", spark=spark)
        job.from_dataframe(df, mode="append").write("console")
        with pytest.raises(sb.InputError, match=message) as caught:
            job.take_over(checkpoint)
        assert caught.value.fix, name
        assert caught.value.where, name
        assert not job.checkpoints(), name


def test_a_checkpoint_that_does_not_suit_the_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, tmp_path / "in", files=1).write()
    windows = tables.marked().groupBy(F.window("ts", "20 seconds"), "k").count()
    spark_runs(windows, "append", tmp_path / "windows", {})
    own = sb.Job("own", state=tmp_path / "state", spark=spark)
    own.from_dataframe(windows, mode="append", clock="statebed").write("console")
    with pytest.raises(sb.InputError, match=r"has its own clock(.|\n)*leave out clock='statebed'"):
        own.take_over(tmp_path / "windows")
    medians = tables.read().groupBy("k").agg(F.median("v"))
    spark_runs(medians, "update", tmp_path / "medians", {})
    values = sb.Job("values", state=tmp_path / "state", spark=spark)
    values.from_dataframe(medians, mode="update").write("console")
    with pytest.raises(sb.InputError, match="aggregates over all values"):
        values.take_over(tmp_path / "medians")
    for log in (tmp_path / "medians" / "offsets").glob("[0-9]*"):
        log.write_text("v7" + log.read_text().removeprefix("v1"))
    with pytest.raises(sb.InputError, match=r"offset log has the version 'v7'(.|\n)*only version v1"):
        values.take_over(tmp_path / "medians")
    assert not own.checkpoints()
    assert not values.checkpoints()


def test_the_checkpoint_of_another_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Each query reads what the first one read, so that only its state can tell that it is another one."""
    tables = Tables(spark, tmp_path / "in", files=1).write()
    by_key, minutes = tables.marked().groupBy("k"), F.window("ts", "1 minute")
    spark_runs(by_key.agg(F.sum("v")), "update", tmp_path / "sums", {})
    spark_runs(tables.marked().groupBy("k", minutes).count(), "append", tmp_path / "windows", {})
    spark_runs(tables.marked().dropDuplicates(["k", "ts"]), "append", tmp_path / "seen", {})
    spark_runs(tables.marked().select("k", "v"), "append", tmp_path / "rows", {})
    others: list[tuple[DataFrame, str, str]] = [
        (tables.marked().select("k", "v"), "sums", "the checkpoint has state, but the query has no stateful step"),
        (by_key.agg(F.sum("v")), "rows", "has the state of no step, but the query needs that of stateStoreSave"),
        (by_key.agg(F.count("*")), "sums", r"has a sum where count\(1\) of the query has its count"),
        (by_key.agg(F.sum("v"), F.max("v")), "sums", "has no more buffers where"),
        (by_key.agg(F.sum("v"), F.stddev("x")), "sums", "of this aggregate cannot be taken over"),
        (tables.marked().groupBy("k", "g").agg(F.sum("v")), "sums", r"of keys \(1\) than the query \(2\)"),
        (tables.marked().groupBy("g").agg(F.sum("v")), "sums", "has the type int32 in the query, but"),
        (tables.marked().groupBy("k", minutes).agg(F.sum("v")), "sums", "the key of the state has no window"),
        (tables.marked().groupBy(minutes).count(), "windows", r"of keys \(1\) than the query \(0\)"),
        (tables.marked().groupBy().agg(F.sum("v")), "sums", r"of keys \(1\) than the query \(0\)"),
        (tables.marked().dropDuplicates(["k"]), "sums", "has the state of stateStoreSave, but the query needs"),
        (by_key.agg(F.sum("v")), "seen", "has the state of dedupe, but the query needs that of stateStoreSave"),
    ]
    for number, (df, checkpoint, message) in enumerate(others):
        job = sb.Job(f"other{number}", state=tmp_path / "state", spark=spark)
        job.from_dataframe(df, mode="update").write("console")
        with pytest.raises(sb.InputError, match=message) as caught:
            job.take_over(tmp_path / checkpoint)
        assert caught.value.fix, message
        assert not job.checkpoints(), message


def test_a_checkpoint_with_another_policy_of_watermarks_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    df = Tables(spark, tmp_path / "in", files=1).write().marked().groupBy(F.window("ts", "1 minute")).count()
    spark_runs(df, "append", tmp_path / "taken", {})
    name = "spark.sql.streaming.multipleWatermarkPolicy"
    job = sb.Job("policy", state=tmp_path / "state", spark=spark)
    with configured(spark, {name: "max"}):
        job.from_dataframe(df, mode="append").write("console")
        with pytest.raises(sb.InputError, match=f"was written with {name}=min") as caught:
            job.take_over(tmp_path / "taken")
    assert "spark.conf.set" in caught.value.fix


def test_a_folder_without_a_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    df = Tables(spark, tmp_path / "in", files=1).write().read().groupBy("k").count()
    job = sb.Job("taken", state=tmp_path / "state", spark=spark)
    job.from_dataframe(df).write("console")
    with pytest.raises(sb.InputError, match="must be in a local folder"):
        job.take_over("s3://bucket/checkpoint")
    (tmp_path / "empty" / "offsets").mkdir(parents=True)
    with pytest.raises(sb.InputError, match="committed no batch"):
        job.take_over(tmp_path / "empty")
