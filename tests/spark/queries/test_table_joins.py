"""A static table that is joined between two operators is read again before each epoch, as Spark reads it."""

import json
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark.queries.harness import FIRST_EPOCH, Batches, Tables, comparable, difference

import statebed as sb


def write_labels(file: Path, version: int) -> None:
    """Write the same number of bytes for each version: Spark remembers the length of a file."""
    rows = [{"k": k, "label": f"{k}{version}"} for k in "abc"]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def labelled(tables: Tables, folder: Path) -> DataFrame:
    labels = tables.spark.read.schema("k string, label string").json(str(folder))
    rows = tables.marked().dropDuplicates(["k", "v", "ts"]).join(labels, "k", "left")
    return rows.groupBy(F.window("ts", "1 minute"), "label").agg(F.sum("v"), F.count("*"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "labels").mkdir()
    return tmp_path / "labels"


def test_a_table_that_changes_gives_the_rows_of_spark_in_each_batch(
    spark: SparkSession, tmp_path: Path, folder: Path
) -> None:
    tables = Tables(spark, tmp_path / "in", files=3).write()
    results: dict[str, Batches] = {"spark": {}, "statebed": {}}
    for name, batches in results.items():
        write_labels(folder / "labels.json", 0)
        df = labelled(tables, folder)
        first = FIRST_EPOCH if name == "statebed" else 0

        def take(rows: DataFrame, number: int, batches: Batches = batches, first: int = first) -> None:
            batches[number - first] = comparable(rows)
            write_labels(folder / "labels.json", number - first + 1)

        writer = (df.writeStream if name == "spark" else sb.write_stream(df, parallelism=2)).outputMode("update")
        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                writer.foreachBatch(take).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            )
            assert query.awaitTermination(120)
    theirs, ours = ({batch: rows for batch, rows in found.items() if rows} for found in results.values())
    assert {row[1][1:] for rows in theirs.values() for row in rows if row[1]} > {"0"}, "the table never changed"
    assert not difference(theirs, ours)


def test_a_table_that_cannot_be_read_is_named(spark: SparkSession, tmp_path: Path, folder: Path) -> None:
    tables = Tables(spark, tmp_path / "in", files=1).write()
    write_labels(folder / "labels.json", 0)
    df = labelled(tables, folder).alias("totals")
    (folder / "labels.json").unlink()
    writer = sb.write_stream(df, parallelism=1).option("checkpointLocation", str(tmp_path / "state"))
    query = writer.format("noop").trigger(availableNow=True).start()
    with pytest.raises(sb.InputError, match=r"the table cannot be read: .*labels\.json") as refused:
        query.awaitTermination(120)
    assert "next start" in refused.value.fix
