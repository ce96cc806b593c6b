"""The same queries as jobs on Spark: each source is a folder of Parquet files, each file one batch.

The functions of the queries are those of the flows, word by word: a job has the same streams, operators and steps.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import statebed as sb
from examples.nexmark.queries import QUERIES
from examples.nexmark.sources import SOURCE_NAMES, Sources
from statebed.flow import Stream
from statebed.format.stream_schema import WEIGHT, Changes
from statebed.spark import JobStream

_FIRST_SECOND = 1_700_000_000


@dataclass(frozen=True)
class Events:
    """Folders of events, one for each source."""

    folder: Path

    def add(self, number: int, rows: Mapping[str, pa.Table]) -> None:
        """The rows of one batch; files are read in the order of their numbers."""
        for name, table in rows.items():
            path = self.folder / name / f"{number:06d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path)
            os.utime(path, (_FIRST_SECOND + number, _FIRST_SECOND + number))

    def frame(self, spark: SparkSession, name: str, columns: pa.Schema) -> DataFrame:
        """The events of a source as a stream."""
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        schema = from_arrow_schema(columns)
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.folder / name))


class JobSources(Sources):
    """The sources of a job: each is read when a query first asks for it."""

    def __init__(self, job: sb.Job, events: Events) -> None:
        self._job = job
        self._events = events

    def source(self, name: str, columns: pa.Schema, watermark: tuple[str, str] | None) -> Stream:
        frame = self._events.frame(self._job.spark, name, columns)
        return self._job.source(frame, name=name, watermark=watermark)

    def open_all(self) -> None:
        """Make every source a table that SQL text can read."""
        for name in SOURCE_NAMES:
            getattr(self, name)


SQL = Path(__file__).parent / "sql"
"""The same queries as SQL text, one file each."""


def sql_of(name: str) -> str:
    """The SQL text of a query."""
    return (SQL / f"{name}.sql").read_text()


@dataclass
class NexmarkJob:
    """Some queries, run together as one job, and what they gave."""

    names: tuple[str, ...]
    state: Path
    events: Events
    parallelism: int = 2
    spark: SparkSession | None = None
    as_text: bool = False
    """Whether the queries are those of the SQL files."""
    epochs: dict[str, list[pa.Table]] = field(default_factory=dict)
    """Rows of each epoch that had any, by query."""

    @cached_property
    def job(self) -> sb.Job:
        job = sb.Job("nexmark", state=self.state, parallelism=self.parallelism, spark=self.spark)
        sources = JobSources(job, self.events)
        if self.as_text:
            sources.open_all()
        for name in self.names:
            results = job.sql(sql_of(name), name=name) if self.as_text else QUERIES[name].build(sources)
            assert isinstance(results, JobStream)
            results.write(self._keep(name), name=name)
        return job

    def run(self, *, timeout: float = 600.0) -> sb.Query:
        """Read all events, close every window, and end."""
        query = self.job.start(processing_time="0 seconds")
        query.spark_query.processAllAvailable()
        query.stop(drain=True, timeout=timeout)
        return query

    def results(self, name: str) -> pa.Table:
        """Return the net rows of a query."""
        output = self.job.graph.output(self.job.sink_edge(name))
        rows = pa.concat_tables(self.epochs.get(name, []) or [output.columns.empty_table()])
        if output.changes is not Changes.CHANGELOG:
            return rows
        counts: Counter[tuple[Any, ...]] = Counter()
        for *values, weight in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            counts[tuple(values)] += weight
        assert all(count >= 0 for count in counts.values()), "more was taken away than was there"
        kept = list(counts.elements())
        names = [column for column in rows.column_names if column != WEIGHT]
        return pa.table(
            {column: [row[number] for row in kept] for number, column in enumerate(names)},
            schema=pa.schema([rows.schema.field(column) for column in names]),
        )

    def _keep(self, name: str) -> Any:
        def keep(df: DataFrame, epoch: int) -> None:  # noqa: ARG001 - the shape of a sink
            self.epochs.setdefault(name, []).append(df.toArrow())

        return keep
