"""The job: readings in, each of them once out."""

from pathlib import Path

from pyspark.sql import SparkSession

import statebed as sb

READINGS = "device BIGINT, sequence BIGINT, celsius DOUBLE, ts TIMESTAMP"
REMEMBERED = "1 hour"


def devices_job(
    readings: Path, state: Path, out: Path, *, memory: str = "256m", spark: SparkSession | None = None
) -> sb.Job:
    """Build the job; a device repeats a reading at most for an hour, so a reading is remembered for as long."""
    job = sb.Job("devices", state=state, memory=memory, spark=spark)
    files = job.spark.readStream.schema(READINGS).option("maxFilesPerTrigger", 1).parquet(str(readings))
    stream = job.source(files, name="readings", watermark=("ts", "5 minutes"))
    once = stream.key_by("device", "sequence", name="once").deduplicate(ttl=REMEMBERED)
    once.write("parquet", path=str(out), name="readings_once")
    return job
