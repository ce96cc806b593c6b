"""A stateful query of Spark's own, to compare with: what each of its batches puts out."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame

T = TypeVar("T")
_PARTITIONS = "spark.sql.shuffle.partitions"


def batches_of_spark(
    results: DataFrame, checkpoint: Path, read: Callable[[DataFrame], T], *, mode: str = "append"
) -> dict[int, T]:
    """Return the result of `read` for each batch of a streaming query; all input exists from the start."""
    found: dict[int, T] = {}

    def keep(batch: DataFrame, batch_id: int) -> None:
        found[batch_id] = read(batch)

    conf = results.sparkSession.conf
    usual = str(conf.get(_PARTITIONS))
    # Each partition of each stateful step commits files of its own in every batch, which is most of the time.
    conf.set(_PARTITIONS, "1")
    try:
        writer = results.writeStream.outputMode(mode).foreachBatch(keep).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
    finally:
        conf.set(_PARTITIONS, usual)
    assert query.awaitTermination(200)
    return found
