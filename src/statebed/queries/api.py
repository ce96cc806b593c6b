"""Functions for users: `sb.stream(df)` and `sb.write_stream(df)`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from statebed.queries.job import QueryJob
from statebed.queries.writer import StreamWriter
from statebed.spark.session import check_session


def stream(
    df: DataFrame,
    *,
    name: str = "query",
    state: str | Path | None = None,
    mode: str | None = None,
    clock: str = "spark",
    approximate: bool = False,
) -> Any:
    """Return a stream of a new job with the rows of a streaming DataFrame; its `job` starts it.

    `mode`, `clock` and `approximate` are those of `job.from_dataframe`.

    >>> spark = sb.Job("rows", state="state").spark
    >>> rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load()
    >>> sb.stream(rows.where("value > 2").select("value"), state="state").columns
    ['value']
    """
    job = QueryJob(name, state=state, spark=df.sparkSession)
    return job.from_dataframe(df, mode=mode, clock=clock, approximate=approximate)


def write_stream(
    df: DataFrame,
    *,
    clock: str = "spark",
    approximate: bool = False,
    memory: str | int | None = None,
    parallelism: int | None = None,
    settings: Mapping[str, object] | None = None,
) -> StreamWriter:
    """Return a writer with the methods of `df.writeStream`, whose query runs on statebed's operators.

    `clock` and `approximate` are those of `job.from_dataframe`; other arguments are those of `sb.Job`.

    >>> spark = sb.Job("rows", state="state").spark
    >>> rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load()
    >>> writer = sb.write_stream(rows.select("value")).option("checkpointLocation", "written-state")
    >>> query = writer.format("parquet").trigger(availableNow=True).start("written")
    >>> query.await_termination()
    True
    """
    job = {"spark": check_session(df.sparkSession), "memory": memory, "parallelism": parallelism, "settings": settings}
    return StreamWriter(df, clock=clock, approximate=approximate, job=job)
