"""Spark's checkpoint of a run is written as plain files, and the user's session keeps its settings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import statebed as sb
from statebed.spark.session import configuration

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"


def run(spark: SparkSession, folder: Path) -> sb.Query:
    (folder / "in").mkdir()
    pq.write_table(pa.table({"k": [1, 2]}), folder / "in" / "rows.parquet")
    job = sb.Job("plain", state=folder / "state", parallelism=1, spark=spark)
    rows = job.source(spark.readStream.schema("k bigint").parquet(str(folder / "in")), name="rows")
    rows.key_by("k", name="counts").agg(n=sb.count(), ttl="1 day", ttl_clock="epoch_time").write(
        "parquet", path=str(folder / "out")
    )
    query = job.start(available_now=True)
    assert query.await_termination(120)
    return query


def managers(query: sb.Query) -> set[str]:
    """Return the classes that write the logs of Spark's query and of its source."""
    stream: Any = query.spark_query._jsq.streamingQuery()
    source_log = stream.sources().apply(0).metadataLog()
    return {
        str(log.fileManager().getClass().getSimpleName())
        for log in (stream.offsetLog(), stream.commitLog(), source_log)
    }


@pytest.fixture
def unset(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a session in which the user has set neither."""
    before = {name: value for name, value in configuration(spark).items() if name in {MANAGER, CHECKSUMS}}
    for name in before:
        spark.conf.unset(name)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def test_all_logs_of_a_query_are_plain_files_and_the_session_is_as_before(unset: SparkSession, tmp_path: Path) -> None:
    before = configuration(unset)
    query = run(unset, tmp_path)
    assert configuration(unset) == before
    assert managers(query) == {"FileSystemBasedCheckpointFileManager"}


def test_what_the_user_has_set_remains(unset: SparkSession, tmp_path: Path) -> None:
    chosen = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    unset.conf.set(MANAGER, chosen)
    try:
        query = run(unset, tmp_path)
        assert unset.conf.get(MANAGER) == chosen
    finally:
        unset.conf.unset(MANAGER)
    assert managers(query) == {"FileContextBasedCheckpointFileManager"}
