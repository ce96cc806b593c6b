"""The graph of a job on Spark runs in `sb.testing`, too: no batch is read, rows are what the test feeds."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import statebed as sb
from statebed.spark import JobStream

SVG = "{http://www.w3.org/2000/svg}"
RIDES = "driver string, fare double, ts timestamp"
RATINGS = "who string, stars bigint, ts timestamp"


def frame(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    folder.mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema(schema).parquet(str(folder))


def rated(spark: SparkSession, folder: Path) -> sb.Job:
    """Two sources, a join, a window of its pairs, and sinks of both."""
    job = sb.Job("rated", state=folder / "state", spark=spark, parallelism=2)
    rides = job.source(frame(spark, folder / "rides", RIDES), name="rides", watermark=("ts", "1 minute"))
    ratings = job.source(frame(spark, folder / "ratings", RATINGS), name="ratings", watermark=("ts", "1 minute"))
    pairs = ratings.join(
        rides.where("fare > 1"), on=sb.eq("who", "driver"), within=sb.between("-10 minutes", "0s"), name="pairs"
    )
    windows = pairs.group_by("who", sb.tumbling("1 hour"), name="per_hour").agg(n=sb.count(), stars=sb.sum("stars"))
    windows.write("parquet", path=str(folder / "out"))
    windows.late.write(lambda df, epoch: None, name="late")
    return job


def ride(driver: str, fare: float, minute: int) -> dict[str, Any]:
    return {"driver": driver, "fare": fare, "ts": f"2026-01-01T12:{minute:02}:00Z"}


def rating(who: str, stars: int, minute: int) -> dict[str, Any]:
    return {"who": who, "stars": stars, "ts": f"2026-01-01T12:{minute:02}:00Z"}


def test_a_job_is_tested_without_a_batch_through_crashes_and_other_numbers_of_subtasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    with sb.testing.run(rated(spark, tmp_path), parallelism=2) as t:
        t.feed("rides", [ride("ann", 7.5, 1), ride("bob", 0.5, 1), ride("cid", 3.0, 2)])
        t.crash()
        t.feed("ratings", [rating("ann", 5, 3), rating("bob", 1, 3), rating("cid", 4, 30)])
        t.rescale(3)
        t.crash_in("ratings", [rating("ann", 3, 4)])
        t.watermark("2026-01-01T14:00:00Z")
        t.tick(epochs=2)
        found = [(row["who"], row["n"], row["stars"]) for row in t.output("per_hour")]
        assert found == [("ann", 2, 8)]  # bob's fare is too small, cid's rating came too late for the ride
        assert t.state_rows("pairs") == 0
    assert not (tmp_path / "state").exists()


def test_the_test_and_spark_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    rides = [ride(name, 2.0 + minute, minute) for minute in range(50) for name in ("ann", "bob")]
    ratings = [rating(name, minute % 5, minute + 5) for minute in range(0, 50, 3) for name in ("ann", "bob")]
    job = rated(spark, tmp_path)
    with sb.testing.run(job) as t:
        t.feed_all({"rides": rides, "ratings": ratings})
        for name in ("rides", "ratings"):
            rows = pa.table(t.table(name))
            pq.write_table(rows, tmp_path / name / "rows.parquet")
        t.watermark("2026-01-01T14:00:00Z")
        expected = t.table("per_hour")
    query = job.start(processing_time="0 seconds")
    query.spark_query.processAllAvailable()
    query.stop(drain=True, timeout=120)
    order = [("who", "ascending")]
    assert expected.num_rows == 2
    found = sb.read_table(str(tmp_path / "out")).sort_by(order)
    assert found.select(expected.column_names).to_pylist() == expected.sort_by(order).to_pylist()


def test_a_step_that_only_spark_can_compute_says_so(spark: SparkSession, tmp_path: Path) -> None:
    job = sb.Job("doubled", state=tmp_path / "state", spark=spark)
    rides = job.source(frame(spark, tmp_path / "rides", RIDES), name="rides", watermark=("ts", "1 minute"))

    def double(df: DataFrame) -> DataFrame:
        return df.union(df)

    doubled = rides.transform(double)
    assert isinstance(doubled, JobStream)
    doubled.key_by("driver", name="counts").agg(n=sb.count(), ttl="1 day")
    with (
        sb.testing.run(job) as t,
        pytest.raises(
            sb.InputError, match=r"only Spark can run transform\(double\)\s+what to do: test the job on Spark"
        ),
    ):
        t.feed("rides", [ride("ann", 7.5, 1)])


def test_the_explanation_shows_the_graph_in_words_and_as_a_picture(spark: SparkSession, tmp_path: Path) -> None:
    explanation = rated(spark, tmp_path).explain()
    assert "reads ratings, where fare > 1 (rides)\n" in explanation
    assert "reads pairs\n" in explanation
    root = ET.fromstring(explanation.picture())  # noqa: S314 - made by the code under test
    texts = ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]
    for shown in ("rides", "ratings", "pairs", "per_hour", "late", "by who", "exactly once", "at least once"):
        assert shown in texts
    lines = [one for one in root.iter(f"{SVG}path") if "sb-line" in one.attrib["class"]]
    assert len(lines) == 5
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert titles == ["ratings", "where fare > 1 (rides)", "pairs", "per_hour", "per_hour.late"]
    assert "<svg" in explanation._repr_html_()
