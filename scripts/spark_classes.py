"""Make an archive of the classes that Spark loads, so that the Sparks of tests start in half the processor time.

python scripts/spark_classes.py ARCHIVE

Runs a little of what tests run, and lets Java write down which classes that took. Java reads the archive where it fits
and ignores it where it does not, such as after an update of Java.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SECONDS = 120


def work(folder: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    rows = session.range(2000).selectExpr("id % 7 AS k", "id AS v", "timestamp_millis(id) AS ts", "'a' AS s")
    rows.write.parquet(str(folder / "in"))
    read = session.read.parquet(str(folder / "in"))
    read.groupBy("k", F.window("ts", "1 second")).agg(F.sum("v"), F.max("s"), F.min("ts")).collect()
    read.join(rows.select("k"), "k").where("v > 3").repartitionById(2, F.col("k").cast("int")).count()

    def take(batch: DataFrame, _: int) -> None:
        pieces = batch.mapInArrow(lambda batches: batches, batch.schema)
        pieces.unionByName(batch).groupBy("k").count().write.mode("append").parquet(str(folder / "out"))

    stream = session.readStream.schema(read.schema).parquet(str(folder / "in")).withWatermark("ts", "1 second")
    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination(SECONDS)
    gateway = session.sparkContext._gateway  # noqa: SLF001 - the Java process itself, which PySpark offers nowhere else
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the archive is written when it ends
    gateway.proc.wait(SECONDS)


def main(archive: Path) -> None:
    unfinished = archive.with_suffix(".part")
    os.environ["JAVA_TOOL_OPTIONS"] = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} -XX:ArchiveClassesAtExit={unfinished}"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        work(Path(folder))
    unfinished.rename(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
