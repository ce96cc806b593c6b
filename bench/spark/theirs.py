"""Spark's side: the same questions to its own operators, on each of its stores, at their best.

Output is written as Parquet in foreachBatch: ours is in Parquet files when an epoch is committed, so both write their
rows once. Spark's checkpoint files and output are not synced to the disk (its local file system never does), ours are.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench.spark.cases import DELAY, Case, Kind, Side

_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
_TOTALS = "k bigint, n bigint, total bigint"
Frames = dict[str, DataFrame]

_WINDOW = "w"


def settings(side: Side) -> dict[str, str]:
    """Return the settings of the session for this store."""
    store = "HDFSBackedStateStoreProvider" if side is Side.HDFS else "RocksDBStateStoreProvider"
    return {
        "spark.sql.streaming.stateStore.providerClass": _PROVIDERS + store,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
        # Windows are closed by the next batch, not by one more of their own: that costs Spark less.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.parquet.compression.codec": "lz4_raw",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }


class RowTotals(StatefulProcessor):
    """The user's function over rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "n bigint, total bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803 - Spark's names
        n, total = self._total.get() or (0, 0)
        for row in rows:
            n += 1
            total += row.v
        self._total.update((n, total))
        yield Row(k=key[0], n=n, total=total)

    def close(self) -> None:
        """Nothing to close."""


class PandasTotals(RowTotals):
    """The user's function over pandas."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803 - Spark's names
        n, total = self._total.get() or (0, 0)
        for frame in rows:
            n += len(frame)
            total += int(frame["v"].sum())
        self._total.update((n, total))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


def run_theirs(
    case: Case, side: Side, frames: Frames, folder: Path, arrived: Callable[[], None]
) -> list[dict[str, float]]:
    """Run the query to its end; the phases of each batch, in seconds, as Spark says them."""
    if case.by_time:
        frames = {name: frame.withWatermark("ts", DELAY) for name, frame in frames.items()}
    return run_to_end(_result(case, side, frames), "append" if case.by_time else "update", folder, arrived)


def run_to_end(result: DataFrame, mode: str, folder: Path, arrived: Callable[[], None]) -> list[dict[str, float]]:
    """Run a query over all that is there and write its rows; the phases of each batch, in seconds."""

    def write(batch: DataFrame, number: int) -> None:
        batch.write.parquet(str(folder / "out" / f"{number:06d}"))
        arrived()

    writer = result.writeStream.foreachBatch(write).outputMode(mode)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    reports = [report for report in query.recentProgress if report["numInputRows"]]
    return [{name: ms / 1e3 for name, ms in report["durationMs"].items()} for report in reports]


def _result(case: Case, side: Side, frames: Frames) -> DataFrame:
    rows = frames["a"]
    if case.kind is Kind.PROCESS:
        grouped = rows.groupBy("k")
        if side is Side.PANDAS:
            return grouped.transformWithStateInPandas(PandasTotals(), _TOTALS, "Update", "None")
        return grouped.transformWithState(RowTotals(), _TOTALS, "Update", "None")
    if case.kind is Kind.DEDUPLICATION:
        return rows.dropDuplicates(["k"]).select("k")
    if case.kind is Kind.JOIN:
        apart = f"a.ts between b.ts and b.ts + interval {case.interval_us} microseconds"
        pairs = rows.alias("a").join(frames["b"].alias("b"), F.expr(f"a.k = b.k and {apart}"))
        return pairs.select("a.k", "a.v", F.col("b.v").alias("v_right"))
    windows = {
        Kind.TUMBLING: F.window("ts", _us(case.window_us)),
        Kind.SLIDING: F.window("ts", _us(case.window_us), _us(case.slide_us)),
        Kind.SESSION: F.session_window("ts", _us(case.gap_us)),
    }
    window = windows.get(case.kind)
    groups = rows.groupBy("k") if window is None else rows.groupBy("k", window.alias(_WINDOW))
    counted = groups.agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    return counted if window is None else _flat(counted)


def _flat(result: DataFrame) -> DataFrame:
    times = (F.col(f"{_WINDOW}.{edge}").alias(f"window_{edge}") for edge in ("start", "end"))
    return result.select("k", *times, "n", "total")


def _us(length: int) -> str:
    return f"{length} microseconds"
