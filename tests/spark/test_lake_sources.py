"""`job.delta` and `job.iceberg`: a table as a stream, by version, each appended row once."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake_tables import ICEBERG_TABLE, Lake
from published import publication
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import statebed as sb
from statebed.sinks.lake import lake_sink

COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("part", pa.int64())])


def rows(*values: tuple[Any, ...]) -> pa.Table:
    return pa.table([list(column) for column in zip(*values, strict=True)], schema=COLUMNS)


def totals(spark: SparkSession, tmp_path: Path, kind: str) -> dict[str, int]:
    """Run a job over the table up to now, and return its results."""
    job = sb.Job("follower", spark=spark, state=str(tmp_path / "state"), parallelism=1)
    place = str(tmp_path / "table")
    stream = job.delta(place, name="rides") if kind == "delta" else job.iceberg(ICEBERG_TABLE, path=place, name="rides")
    stream.key_by("k", name="totals").agg(n=sb.sum("n"), ttl="365 days", ttl_clock="epoch_time").write(
        "sqlite", path=str(tmp_path / "out.db"), table="t", key="k"
    )
    job.start(available_now=True).await_termination()
    found = sb.read_state(str(tmp_path / "state"), operator="totals", results=True).to_arrow().to_pylist()
    return {row["k"]: row["n"] for row in found}


# test_sql_lake_tables.py reads both over a restart; tests/unit/spark/test_lake_readers.py has merges and deletions.
@pytest.mark.long
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_job_reads_each_row_of_a_lakehouse_table_once_over_restarts_and_compactions(
    spark: SparkSession, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sink merges the files of a partition as soon as it has two.
    monkeypatch.setattr(lake_sink, "COMPACT_EVERY", 1)
    monkeypatch.setattr(lake_sink, "COMPACTED_FILES", 2)
    lake = Lake(kind, tmp_path / "table")
    sink = lake.sink(COLUMNS, partition_by="part")
    sink.open(1)
    sink.publish(publication(1, 2, rows(("a", 1, 1), ("b", 2, 2)), rows(("a", 3, None))))
    assert totals(spark, tmp_path, kind) == {"a": 4, "b": 2}
    before = lake.listed()
    sink.publish(publication(1, 3, rows(("a", 10, 1))))
    assert not before <= lake.listed(), "nothing was merged"
    sink.publish(publication(1, 4, rows(("c", 5, 3))))
    assert totals(spark, tmp_path, kind) == {"a": 14, "b": 2, "c": 5}
    lake.table.delete("k = 'a'")
    with pytest.raises((PySparkException, sb.StatebedError), match="updates or deletes rows"):
        totals(spark, tmp_path, kind)
