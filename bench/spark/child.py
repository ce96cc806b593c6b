"""The process of one side: starts Spark, warms up, then processes one batch at each signal.

Arguments: the name of the side, the kind of operator, the number of keys, a folder with input (beside it, in `small`,
lies some to warm up with), and a folder of its own.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.spark.cases import STORES, Case, Kind, Side
from bench.spark.checkpoint_bytes import checkpoint_bytes
from bench.spark.gate import Gate
from bench.spark.ours import run_ours
from bench.spark.theirs import run_theirs, settings
from statebed.java import use_java
from statebed.spark.session import WORKER_DAEMON

HEAP = "4g"
WITHOUT_ROWS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms64m -Xmn32m",
    "spark.python.daemon.module": WORKER_DAEMON,
}
"""Settings for a JVM that sees no rows, as docs/howto/sizing.md recommends them."""


def main() -> None:
    gate = Gate()
    side, case = Side[sys.argv[1]], Case(Kind[sys.argv[2]], int(sys.argv[3]))
    inputs, own = Path(sys.argv[4]), Path(sys.argv[5])
    session = session_of(side, own)
    _run(session, side, case, inputs=inputs.parent / "small", own=own / "small", gate=gate)
    if side not in STORES:
        # Spark ends Python workers that were idle for a minute; the turns of others are no idleness of ours.
        gate.when_idle = lambda: use_workers(session, side)
    batches = len(list((inputs / "a").iterdir()))
    gate.close(batches)
    phases = _run(session, side, case, inputs=inputs, own=own / "run", gate=gate)
    gate.say(phases=phases, waited=gate.waited, checkpoint_bytes=checkpoint_bytes(side, own / "run", batches))
    session.stop()


def _run(
    session: SparkSession, side: Side, case: Case, *, inputs: Path, own: Path, gate: Gate
) -> list[dict[str, float]]:
    own.mkdir(parents=True)
    frames = {source: _stream(session, case, inputs / source) for source in case.sources}
    if side is Side.OURS:
        return run_ours(session, case, frames, own, gate.stop_here)
    return run_theirs(case, side, frames, own, gate.stop_here)


def use_workers(session: SparkSession, side: Side) -> None:
    """Run a task on each worker of a side. Ours are workers of RDDs, which run the epochs of a native scan; those of
    DataFrames are others, which only Spark's functions need.
    """
    if side is Side.OURS:
        session.sparkContext.parallelize(range(2), 2).map(int).collect()
    else:
        session.range(0, 2, 1, 2).mapInArrow(_pass_on, "id bigint").collect()


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _stream(session: SparkSession, case: Case, folder: Path) -> DataFrame:
    return session.readStream.schema(case.columns).option("maxFilesPerTrigger", 1).parquet(str(folder))


def session_of(side: Side, own: Path) -> SparkSession:
    """Start Spark with the settings of a side."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    use_java()
    builder = SparkSession.builder.master("local[2]").appName(f"bench {side.value}")
    common = {
        "spark.driver.memory": HEAP,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(own / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(own / "warehouse"),
        "spark.python.unix.domain.socket.enabled": "true",
        # Two halves of each file, however small: both cores read.
        "spark.sql.files.openCostInBytes": "1",
    }
    for name, value in (common | (WITHOUT_ROWS if side is Side.OURS else settings(side))).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


if __name__ == "__main__":
    main()
