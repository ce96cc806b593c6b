"""One local Spark for all tests of this folder, and a small world of rides: files in, a job, the answer of DuckDB."""

import datetime as dt
import os
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import statebed as sb
from statebed.checkpoint import CheckpointLog
from statebed.format import checkpoint_pb2 as pb
from statebed.spark.hadoop_settings import forget_sources
from statebed.storage import ScopedStore, get_storage_provider

START = dt.datetime(2024, 3, 10, 6, 30, tzinfo=dt.UTC)  # clocks change in New York half an hour later
DELAY = "1 minute"
SCHEMA = "driver string, fare double, cents bigint, status string, ts timestamp"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The host cache of workers, and of the drivers that tests start: not the user's own.
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("statebed tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        # Not UTC, on purpose: windows are UTC whatever the session's zone.
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    forget_sources(session)
    yield session
    session.stop()


@pytest.fixture
def by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Send classes of the test's module to workers, which cannot import it, by value."""
    cloudpickle.register_pickle_by_value(request.module)  # type: ignore[no-untyped-call]  # pyspark ships it without types
    yield
    cloudpickle.unregister_pickle_by_value(request.module)  # type: ignore[no-untyped-call]  # as above


@dataclass
class Rides:
    """Files of rides in a folder, one per batch, a job over them, and what it must give."""

    spark: SparkSession
    folder: Path
    files: int = 0
    state_url: str | None = None
    """Location of the state, if it is not in the folder."""
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    @property
    def input(self) -> Path:
        return self.folder / "in"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def checkpoint(self) -> Path:
        """Spark's folder of the newest lineage."""
        return max((self.state / "rides" / "spark").iterdir())

    def add_files(self, count: int, rows: int = 120) -> None:
        """Each covers two minutes and begins one minute after the one before; rows are out of order."""
        self.input.mkdir(parents=True, exist_ok=True)
        for number in range(self.files, self.files + count):
            path = self.input / f"{number:04d}.parquet"
            pq.write_table(self._rows(number, rows), path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # read in this order
        self.files += count

    def _rows(self, number: int, rows: int) -> pa.Table:
        start = START + dt.timedelta(minutes=number)
        times = [start + dt.timedelta(seconds=self.chance.randrange(119)) for _ in range(rows)]
        return pa.table(
            {
                "driver": [self.chance.choice(["ann", "bob", "cid", None, "émile"]) for _ in range(rows)],
                "fare": [self.chance.choice([None, self.chance.uniform(0, 50)]) for _ in range(rows)],
                "cents": [self.chance.randrange(-500, 5000) for _ in range(rows)],
                "status": [self.chance.choice(["ok", "void", None]) for _ in range(rows)],
                "ts": pa.array(times, pa.timestamp("us", "UTC")),
            }
        )

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.input))

    def job(self, *, parallelism: int | None = 2, where: str | None = None, sink: Any = None) -> sb.Job:
        job = sb.Job("rides", state=self.state_url or self.state, parallelism=parallelism, spark=self.spark)
        stream = job.source(self.frame(), name="rides", watermark=("ts", DELAY))
        if where is not None:
            stream = stream.where(where)
        results = stream.group_by("driver", sb.tumbling("1 minute"), name="per_minute").agg(
            trips=sb.count(), total=sb.sum("cents"), fares=sb.count("fare"), ok=sb.count(where="status = 'ok'")
        )
        results.write("parquet", path=str(self.out), name="minutes")
        if sink is not None:
            results.write(sink, name="extra")
        return job

    def run(self, **arguments: Any) -> sb.Query:
        """Read all that is there and end."""
        query = self.job(**arguments).start(available_now=True)
        assert query.await_termination(120)
        return query

    def results(self) -> list[tuple[Any, ...]]:
        query = "select driver, window_start, window_end, trips, total, fares, ok from results"
        return self._select(query, results=sb.read_table(str(self.out)))

    def expected(self) -> list[tuple[Any, ...]]:
        """DuckDB's batch answer for every window that the final watermark has closed."""
        query = """
            with windows as (
                select driver, time_bucket(interval '1 minute', ts) as opened, opened + interval '1 minute' as closed,
                       count(*), sum(cents)::bigint, count(fare), count(*) filter (status = 'ok')
                from rides group by driver, opened)
            select * from windows where closed <= (select max(ts) from rides) - interval '1 minute'
            """
        return self._select(query, rides=pq.read_table(self.input))

    def record(self) -> pb.CheckpointMetadata:
        """The head of the log."""
        log = CheckpointLog(ScopedStore(get_storage_provider(self.state), "rides"), "rides")
        head = log.recover().head
        assert head is not None
        return head

    def forget_spark(self) -> None:
        shutil.rmtree(self.state / "rides" / "spark")

    def _select(self, query: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
        with duckdb.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            for name, table in tables.items():
                connection.register(name, table)
            return sorted(connection.execute(query).fetchall(), key=repr)


@pytest.fixture
def rides(spark: SparkSession, tmp_path: Path) -> Iterator[Rides]:
    yield Rides(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()
