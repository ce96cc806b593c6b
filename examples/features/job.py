"""Two programs: a job that computes features per customer, and a follower that serves them.

The offline store is a Parquet table of every change, and the job's state, which can be read as of any retained epoch.
The follower keeps the online store, a table with one row per customer, up to date with the changes between epochs.
"""

import contextlib
import sqlite3
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import statebed as sb

FEATURES = ("purchases", "spent_cents", "largest_cents", "categories", "last_purchase")
_UPSERT = "insert or replace into features values (?, ?, ?, ?, ?, ?)"


def features_job(purchases: Path, state: Path, history: Path, *, spark: SparkSession | None = None) -> sb.Job:
    """Build the job: features of each customer, forgotten after a year without a purchase."""
    job = sb.Job("features", state=state, spark=spark)
    schema = "customer STRING, category STRING, cents BIGINT, ts TIMESTAMP"
    files = job.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(purchases))
    stream = job.source(files, name="purchases", watermark=("ts", "1 hour"))
    features = stream.key_by("customer", name="features").agg(
        purchases=sb.count(),
        spent_cents=sb.sum("cents"),
        largest_cents=sb.max("cents"),
        categories=sb.count_distinct("category"),
        last_purchase=sb.max("ts"),
        ttl="365 days",
    )
    features.write("parquet", path=str(history), name="history")
    return job


def follow(state: Path, online: Path, checkpoint: Path, *, spark: SparkSession) -> None:
    """Apply the changes since the last call to the online store, a SQLite file.

    In production, leave out the trigger: the query then runs for ever, and applies an epoch when it is committed.
    """
    feed = spark.readStream.format("statebed").options(operator="features", results="true", changes="true")
    query = feed.load(str(state)).writeStream.foreachBatch(lambda changes, _: _apply(changes, online))
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def _apply(changes: DataFrame, online: Path) -> None:
    """Write a batch of changes in one transaction. A batch that is repeated writes the same rows again."""
    kept = changes.where("change in ('insert', 'update_after')").select("customer", *FEATURES).toArrow()
    gone = changes.where("change = 'delete'").select("customer").toArrow()
    with contextlib.closing(sqlite3.connect(online)) as database, database:
        database.execute(f"create table if not exists features (customer primary key, {', '.join(FEATURES)})")
        database.executemany("delete from features where customer = ?", gone.to_pandas().itertuples(index=False))
        rows = kept.set_column(kept.num_columns - 1, "last_purchase", kept["last_purchase"].cast("string"))
        database.executemany(_UPSERT, rows.to_pandas().itertuples(index=False))
