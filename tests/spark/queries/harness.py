"""Runs one query by Spark itself and by statebed, over the same files in the same batches, and compares each batch."""

import datetime as dt
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import statebed as sb

START = dt.datetime(2024, 3, 10, 6, 30, tzinfo=dt.UTC)
SCHEMA = "k string, g int, v bigint, x double, tags array<string>, ts timestamp"
CLOSING = dt.timedelta(days=1)
FIRST_EPOCH = 2
"""Epoch of batch 0: the first one opens the run."""
Batches = dict[int, list[tuple[Any, ...]]]


@dataclass
class Tables:
    """Streams `a` and `b` of files, one per batch, and the table `dim`."""

    spark: SparkSession
    folder: Path
    seed: int = 1
    files: int = 4
    rows: int = 40
    ordered: bool = False
    """Whether the rows of a file are in the order of their times."""
    static: bool = False
    """Whether `read` gives tables instead of streams."""
    views: bool = field(default=False, init=False)

    def write(self) -> "Tables":
        for number, name in enumerate(("a", "b")):
            chance = random.Random(self.seed * 100 + number)
            (self.folder / name).mkdir(parents=True)
            for file in range(self.files):
                path = self.folder / name / f"{file:04d}.parquet"
                pq.write_table(self._rows(chance, file), path)
                os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))  # read in this order
        return self

    def _rows(self, chance: random.Random, file: int) -> pa.Table:
        start = START + dt.timedelta(minutes=file)
        seconds = [chance.randrange(-60, 119) for _ in range(self.rows)]
        if self.ordered:
            seconds.sort()
        times = [None if chance.random() < 0.03 else start + dt.timedelta(seconds=second) for second in seconds]
        return pa.table(
            {
                "k": [chance.choice(["a", "b", "c", None]) for _ in range(self.rows)],
                "g": pa.array([chance.randrange(3) for _ in range(self.rows)], pa.int32()),
                "v": [chance.randrange(-50, 500) for _ in range(self.rows)],
                "x": [chance.choice([None, round(chance.uniform(0, 9), 3)]) for _ in range(self.rows)],
                "tags": [chance.choice([["p"], ["p", "q"], [], None]) for _ in range(self.rows)],
                "ts": pa.array(times, pa.timestamp("us", "UTC")),
            }
        )

    def close(self) -> "Tables":
        """Add a file to each stream whose only row is a day later, so that every window before it closes."""
        row = {"k": "closing", "g": 0, "v": 0, "x": None, "tags": None, "ts": START + CLOSING}
        for name in ("a", "b"):
            path = self.folder / name / f"{self.files:04d}.parquet"
            schema = pq.read_schema(self.folder / name / "0000.parquet")
            pq.write_table(pa.Table.from_pylist([row], schema), path)
            os.utime(path, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
        return self

    def as_tables(self) -> "Tables":
        """Return the same rows as tables, without the closing ones."""
        return replace(self, static=True)

    def read(self, name: str = "a") -> DataFrame:
        if self.static:
            rows = self.spark.read.schema(SCHEMA).parquet(str(self.folder / name))
            return rows.where("k is null or k <> 'closing'")
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / name))

    def marked(self, name: str = "a", delay: str = "30 seconds") -> DataFrame:
        """A stream with a watermark."""
        return self.read(name).withWatermark("ts", delay)

    def dim(self) -> DataFrame:
        return self.spark.createDataFrame([("a", "alpha"), ("b", "beta")], "k string, label string")

    def sql(self, text: str) -> DataFrame:
        """A query over the views `a` and `b`, which have watermarks, and `dim`."""
        if not self.views:
            self.marked("a").createOrReplaceTempView("a")
            self.marked("b", "1 minute").createOrReplaceTempView("b")
            self.dim().createOrReplaceTempView("dim")
            self.views = True
        return self.spark.sql(text)


@dataclass(frozen=True)
class AnyOrder:
    """Tables whose files have rows in any order, and tables whose files have them in the order of their times."""

    shuffled: Tables
    sorted: Tables

    @classmethod
    def written(cls, spark: SparkSession, folder: Path, **options: Any) -> "AnyOrder":
        return cls(
            Tables(spark, folder / "shuffled", **options).write(),
            Tables(spark, folder / "sorted", ordered=True, **options).write(),
        )

    def of(self, *, ordered: bool) -> Tables:
        return self.sorted if ordered else self.shuffled


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of the session for a while."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier)


def by_spark(df: DataFrame, mode: str) -> Batches:
    """Return the rows of each batch that Spark's own query gives."""
    found: Batches = {}

    def take(rows: DataFrame, batch: int) -> None:
        found[batch] = comparable(rows)

    # Each partition of each stateful step commits files of its own in every batch, which is most of the time.
    with tempfile.TemporaryDirectory() as folder, configured(df.sparkSession, {"spark.sql.shuffle.partitions": "1"}):
        writer = df.writeStream.outputMode(mode).foreachBatch(take).option("checkpointLocation", folder)
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
    return {batch: rows for batch, rows in found.items() if rows}


def comparable(rows: DataFrame) -> list[tuple[Any, ...]]:
    """Return rows in an order of their own."""
    return sorted((_plain(tuple(row)) for row in rows.collect()), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(one) for one in value)
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return round(value, 9) if isinstance(value, float) else value


def by_statebed(
    df: DataFrame, mode: str, *, state: Path, parallelism: int = 2, into: Batches | None = None, **options: Any
) -> Batches:
    """Return the rows of each batch that statebed gives, through `sb.write_stream`."""
    found: Batches = {} if into is None else into

    def take(rows: DataFrame, epoch: int) -> None:
        found[epoch - FIRST_EPOCH] = comparable(rows)

    writer = sb.write_stream(df, parallelism=parallelism, **options).outputMode(mode).foreachBatch(take)
    query = writer.option("checkpointLocation", str(state)).trigger(availableNow=True).start()
    assert query.await_termination(120)
    return {batch: rows for batch, rows in found.items() if rows}


def changes_by_statebed(
    queries: Mapping[str, DataFrame], *, state: Path, parallelism: int = 2
) -> dict[str, Counter[tuple[Any, ...]]]:
    """Return the rows that remain of the results without an output mode: insertions minus retractions of all epochs.

    All queries are one job. Rows with the key of closing rows are left out.
    """
    found: dict[str, Counter[tuple[Any, ...]]] = {name: Counter() for name in queries}

    def take(remaining: Counter[tuple[Any, ...]], rows: DataFrame, _: int) -> None:
        is_changelog = "_weight" in rows.columns
        for row in rows.collect():
            values = row.asDict()
            weight = values.pop("_weight") if is_changelog else 1
            if "closing" not in values.values():
                remaining[_plain(tuple(values.values()))] += weight

    session = next(iter(queries.values())).sparkSession
    job = sb.Job("changes", state=state, spark=session, parallelism=parallelism)
    for name, df in queries.items():
        job.from_dataframe(df).write(partial(take, found[name]), name=name)
    assert job.start(available_now=True).await_termination(250)
    for name, remaining in found.items():
        assert min(remaining.values(), default=0) >= 0, f"{name}: a row was retracted that was not there"
    return {name: +remaining for name, remaining in found.items()}


def difference(theirs: Mapping[int, list[Any]], ours: Mapping[int, list[Any]]) -> str:
    """Describe the first batch that differs; empty if all are equal."""
    for batch in sorted({*theirs, *ours}):
        a, b = theirs.get(batch, []), ours.get(batch, [])
        if a != b:
            missing, surplus = [row for row in a if row not in b], [row for row in b if row not in a]
            counts = f"{ {n: len(r) for n, r in theirs.items()} } and { {n: len(r) for n, r in ours.items()} }"
            return f"batch {batch}: Spark alone has {missing[:3]}, statebed alone {surplus[:3]}; rows {counts}"
    return ""
