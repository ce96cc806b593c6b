"""The demo job: count and sum of bids per auction and 10 seconds of event time, on local Spark."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statebed.checkpoint.log import CheckpointLog
from statebed.demo.events import EventFiles
from statebed.demo.nexmark import Nexmark
from statebed.errors import InputError
from statebed.format import names
from statebed.storage import ScopedStore, get_storage_provider

JOB = "nexmark"
OPERATOR = "bids_per_auction"
SINK = "results"
WINDOW = "10 seconds"
WINDOW_US = 10_000_000
WATERMARK = "4 seconds"
PARALLELISM = 2
BID_COLUMNS = "auction BIGINT, bidder BIGINT, price BIGINT, dateTime TIMESTAMP"


@dataclass(frozen=True)
class DemoFolder:
    """Folder of a demo with its events, state and results side by side: a table must not be inside the state."""

    root: Path

    @classmethod
    def at(cls, root: str) -> "DemoFolder":
        scheme, separator, _ = root.partition("://")
        if separator:  # the rest of a URL may contain a secret and is not shown
            raise InputError(f"the demo needs a local folder, got a URL: {scheme}://...", fix="pass a local folder")
        if Path(root).exists() and not Path(root).is_dir():
            raise InputError("the demo needs a folder, but this is a file", where=root, fix="pass another with --state")
        return cls(Path(root))

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def results(self) -> Path:
        return self.root / "results"

    def events(self, *, events_per_file: int) -> EventFiles:
        # Out of order by less than the watermark delay: no bid is late, so a batch recomputation must agree.
        generator = Nexmark(seed=42, events_per_second=10_000, out_of_order_us=2_000_000)
        return EventFiles(self.root / "events", generator, events_per_file)

    def log(self) -> CheckpointLog:
        store = get_storage_provider(str(self.state))
        return CheckpointLog(ScopedStore(store, names.job_folder(JOB)), JOB)


def local_spark() -> Any:
    """Start a local Spark with two cores and no web server."""
    import os  # noqa: PLC0415 - with pyspark below
    import sys  # noqa: PLC0415

    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra, and slow to import

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["TZ"] = "UTC"
    spark = (
        SparkSession.builder.master(f"local[{PARALLELISM}]")
        .appName("statebed demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(spark: Any, folder: DemoFolder) -> Any:
    """Start the job over all existing files; one file is one epoch."""
    import statebed as sb  # noqa: PLC0415 - Spark's part of the API is an extra

    bids = (
        spark.readStream.schema(BID_COLUMNS)
        .option("maxFilesPerTrigger", 1)
        .parquet(str((folder.root / "events").absolute()))
    )
    job = sb.Job(JOB, state=str(folder.state), parallelism=PARALLELISM, spark=spark)
    per_auction = (
        job.source(bids, name="bids", watermark=("dateTime", WATERMARK))
        .group_by("auction", sb.tumbling(WINDOW), name=OPERATOR)
        .agg(bids=sb.count(), volume=sb.sum("price"))
    )
    per_auction.write("parquet", path=str(folder.results.absolute()), name=SINK)
    return job.start(available_now=True)


def run_to_end(folder: DemoFolder) -> None:
    """Run the job until every file is processed, in a process that may be killed at any time."""
    spark = local_spark()
    try:
        start(spark, folder).await_termination()
    finally:
        spark.stop()
