"""The job: clicks in, one row per visit out. Replace `clicks` by your own stream, such as `job.kafka(...)`."""

from pathlib import Path

from pyspark.sql import SparkSession

import statebed as sb

TABLE = "web.sessions"
GAP, DELAY = "30 minutes", "10 minutes"


def sessions_job(clicks: Path, state: Path, lake: Path, *, spark: SparkSession | None = None) -> sb.Job:
    """Build the job; a visit ends after half an hour without a click, and clicks may be ten minutes late."""
    job = sb.Job("clickstream", state=state, spark=spark)
    files = job.spark.readStream.schema("user_id STRING, page STRING, ts TIMESTAMP").option("maxFilesPerTrigger", 1)
    stream = job.source(files.parquet(str(clicks)), name="clicks", watermark=("ts", DELAY))
    sessions = stream.group_by("user_id", sb.session(GAP), name="sessions").agg(
        clicks=sb.count(),
        pages=sb.count_distinct("page"),
        landing_page=sb.first("page"),
        exit_page=sb.last("page"),
        bought=sb.count_if("page = '/checkout'"),
    )
    figures = ("clicks", "pages", "landing_page", "exit_page", "bought")
    rows = sessions.select("user_id", "window_start as started_at", "window_end as ended_at", *figures)
    rows.write("iceberg", path=str(lake), table=TABLE, partition_by="day(started_at)", name="sessions_table")
    return job
