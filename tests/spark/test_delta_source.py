"""`job.delta(path)`: a Delta table as a stream, by version, each appended row once."""

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from lake_tables import Lake
from published import publication
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import statebed as sb

COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("part", pa.int64())])


def rows(*values: tuple[Any, ...]) -> pa.Table:
    return pa.table([list(column) for column in zip(*values, strict=True)], schema=COLUMNS)


def totals(spark: SparkSession, tmp_path: Path) -> dict[str, int]:
    """Run a job over the table up to now, and return its results."""
    job = sb.Job("follower", spark=spark, state=str(tmp_path / "state"), parallelism=1)
    stream = job.delta(str(tmp_path / "table"), name="rides")
    stream.key_by("k", name="totals").agg(n=sb.sum("n"), ttl="365 days", ttl_clock="epoch_time").write(
        "sqlite", path=str(tmp_path / "out.db"), table="t", key="k"
    )
    job.start(available_now=True).await_termination()
    found = sb.read_state(str(tmp_path / "state"), operator="totals", results=True).to_arrow().to_pylist()
    return {row["k"]: row["n"] for row in found}


def test_a_job_reads_each_row_of_a_delta_table_once_over_restarts_and_compactions(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake("delta", tmp_path / "table")
    sink = lake.sink(COLUMNS, partition_by="part")
    sink.open(1)
    sink.publish(publication(1, 2, rows(("a", 1, 1), ("b", 2, 2)), rows(("a", 3, None))))
    assert totals(spark, tmp_path) == {"a": 4, "b": 2}
    sink.publish(publication(1, 3, rows(("a", 10, 1))))
    deltalake.DeltaTable(str(lake.path)).optimize.compact()
    sink.publish(publication(1, 4, rows(("c", 5, 3))))
    assert totals(spark, tmp_path) == {"a": 14, "b": 2, "c": 5}
    deltalake.DeltaTable(str(lake.path)).delete("k = 'a'")
    with pytest.raises((PySparkException, sb.StatebedError), match="updates or deletes rows"):
        totals(spark, tmp_path)
