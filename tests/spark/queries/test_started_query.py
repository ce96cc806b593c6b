"""A program that was written for Spark's writer and its queries runs with `sb.write_stream(df)` in their place."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import statebed as sb
from statebed.errors import SinkError

pytestmark = pytest.mark.filterwarnings("ignore::statebed.UnboundedStateWarning")


@pytest.fixture(scope="module")
def lines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    folder = tmp_path_factory.mktemp("lines")
    (folder / "0.txt").write_text("a b a\nc b a\n", encoding="utf-8")
    (folder / "1.txt").write_text("a b\n", encoding="utf-8")
    return spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder))


@pytest.fixture(scope="module")
def counts(lines: DataFrame) -> DataFrame:
    return lines.select(F.explode(F.split("value", " ")).alias("word")).groupBy("word").count()


def test_a_memory_sink_is_a_table_and_its_state_is_temporary(
    spark: SparkSession, counts: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ordered = counts.orderBy(F.desc("count"))
    query = sb.write_stream(ordered).format("memory").queryName("words").outputMode("complete").start()
    assert spark.table("words").columns == ["word", "count"]
    query.processAllAvailable()
    assert [tuple(row) for row in spark.table("words").collect()] == [("a", 4), ("b", 3), ("c", 1)]
    assert query.isActive
    assert query.name == "words"
    assert query.awaitTermination(0.01) is False
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 3
    # Spark also reports every ten seconds without input.
    assert [report["batchId"] for report in query.recentProgress if report["numInputRows"]] == [0, 1]
    assert query.lastProgress["batchId"] == query.recentProgress[-1]["batchId"]
    assert len(query.recent_progress) == 2
    assert set(query.status) == {"message", "isDataAvailable", "isTriggerActive"}
    assert [folder.name.startswith("statebed-query-") for folder in tmp_path.iterdir() if "state" in folder.name]
    query.stop()
    assert not query.isActive
    assert query.exception() is None
    assert not [folder for folder in tmp_path.iterdir() if folder.name.startswith("statebed")]


def test_a_console_sink_prints_batches(counts: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    writer = sb.write_stream(counts).format("console").option("numRows", 5).option("truncate", value=False)
    query = writer.outputMode("update").trigger(availableNow=True).start()
    assert query.awaitTermination() is None
    printed = capsys.readouterr().out
    assert printed.count("Batch: ") == 2
    assert "|word|count|" in printed
    query.explain()
    assert "between (statebed's operators" in capsys.readouterr().out


def test_a_query_is_a_stream_of_a_new_job(lines: DataFrame, tmp_path: Path) -> None:
    stream = sb.stream(lines.select(F.upper("value").alias("value")), name="shouts", state=tmp_path / "state")
    assert stream.columns == ["value"]
    shouted: list[str] = []
    stream.write(lambda rows, _: shouted.extend(row["value"] for row in rows.collect()))
    assert stream.job.start(available_now=True).await_termination(120)
    assert sorted(shouted) == ["A B", "A B A", "C B A"]
    assert any(folder.name.startswith("shouts") for folder in (tmp_path / "state").iterdir())


def test_the_error_of_a_function_is_the_exception_of_the_query(counts: DataFrame) -> None:
    def fail(rows: DataFrame, epoch: int) -> None:
        raise ValueError("no such table")

    query = sb.write_stream(counts).outputMode("update").foreachBatch(fail).start()
    with pytest.raises(SinkError, match="no such table"):
        query.processAllAvailable()
    with pytest.raises(SinkError, match="no such table"):
        query.awaitTermination()
    assert isinstance(query.exception(), SinkError)


def test_what_is_missing_is_named(lines: DataFrame, counts: DataFrame) -> None:
    with pytest.raises(sb.InputError, match=r"needs a name(.|\n)*queryName"):
        sb.write_stream(lines).format("memory").start()
    with pytest.raises(sb.InputError, match=r"needs a checkpoint location(.|\n)*checkpointLocation"):
        sb.write_stream(lines).format("parquet").start("out")
    with pytest.raises(sb.InputError, match="exactly one of"):
        sb.write_stream(lines).trigger()
    for choice in ({"once": False}, {"availableNow": False}, {"processingTime": ""}):
        with pytest.raises(sb.InputError, match=r"does not choose a trigger(.|\n)*leave trigger\(\) out"):
            sb.write_stream(lines).trigger(**choice)
    pivoted = lines.groupBy().pivot("value", ["a", "b"]).count()
    with pytest.raises(sb.InputError, match=r"pivot\(\) groups twice(.|\n)*count_if"):
        sb.write_stream(pivoted).outputMode("complete").format("console").start()


def test_rows_that_tasks_read_themselves_are_in_sparks_reports(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(30).selectExpr("id % 3 AS k").write.parquet(str(tmp_path / "in"))
    counts = spark.readStream.schema("k bigint").parquet(str(tmp_path / "in")).groupBy("k").count()
    query = sb.write_stream(counts).format("noop").outputMode("update").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(sum(epoch.scanned_rows) for epoch in query.recent_progress) == 30
    assert sum(report["numInputRows"] for report in query.recentProgress) == 30
    assert [source["numInputRows"] for source in query.recentProgress[0]["sources"]] == [30]


def test_a_query_that_is_refused_leaves_no_temporary_folder(
    counts: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(sb.InputError):
        sb.write_stream(counts).format("console").outputMode("append").start()
    assert list(tmp_path.iterdir()) == []


def test_options_are_those_of_spark(spark: SparkSession, lines: DataFrame, tmp_path: Path) -> None:
    parted = lines.selectExpr("value", "length(value) AS n", "substr(value, 1, 1) AS letter")
    writer = sb.write_stream(parted).trigger(availableNow=True).options(CHECKPOINTLOCATION=str(tmp_path / "state"))
    query = writer.start(
        str(tmp_path / "out"), format="json", outputMode="append", partitionBy=["letter", "n"], queryName="ln 1: ü"
    )
    assert query.awaitTermination() is None
    assert query.name == "ln 1: ü"
    assert sorted(row["value"] for row in spark.read.json(str(tmp_path / "out")).collect()) == ["a b", "a b a", "c b a"]
    assert sorted(path.name for path in (tmp_path / "out").glob("letter=*")) == ["letter=a", "letter=c"]
    assert any(folder.name.startswith("ln_1_u_") for folder in (tmp_path / "state").iterdir())
    with pytest.raises(sb.InputError, match=r"clusterBy\('value'\) is not supported(.|\n)*partitionBy"):
        sb.write_stream(lines).clusterBy("value")
    with pytest.raises(sb.InputError, match=r"real-time mode(.|\n)*processingTime"):
        sb.write_stream(lines).trigger(realTime="5 minutes")
    with pytest.raises(sb.InputError, match="`outputMode` must be one of"):
        sb.write_stream(lines).start(outputMode="most")
    with pytest.raises(sb.InputError, match=r"toTable appends rows, but the mode is 'update'(.|\n)*use foreachBatch"):
        sb.write_stream(lines).outputMode("update").toTable("words")


def test_rows_are_appended_to_a_table_of_the_catalog(spark: SparkSession, lines: DataFrame, tmp_path: Path) -> None:
    upper = lines.select(F.upper("value").alias("value"))
    spark.sql(f"CREATE TABLE shouted (value string) USING parquet LOCATION '{tmp_path / 'table'}'")
    try:
        writer = sb.write_stream(upper).option("checkpointLocation", str(tmp_path / "state"))
        writer.trigger(availableNow=True).toTable("shouted").awaitTermination()
        assert sorted(row["value"] for row in spark.table("shouted").collect()) == ["A B", "A B A", "C B A"]
        writer = sb.write_stream(upper.withColumn("n", F.length("value"))).trigger(availableNow=True)
        table = writer.toTable(
            "counted", format="json", partitionBy="n", path=str(tmp_path / "n"), checkpointLocation=str(tmp_path / "s")
        )
        table.awaitTermination()
        assert sorted(row["value"] for row in spark.table("counted").collect()) == ["A B", "A B A", "C B A"]
        assert sorted(path.name for path in (tmp_path / "n").glob("n=*")) == ["n=3", "n=5"]
    finally:
        spark.sql("DROP TABLE IF EXISTS shouted")
        spark.sql("DROP TABLE IF EXISTS counted")
