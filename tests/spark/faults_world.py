"""The world of the fault tests: orders and payments come bit by bit; DuckDB says what all of them together give."""

import datetime as dt
import json
import os
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from spark import faults_source
from spark.faults_job import DELAY, ORDERS, PAYMENTS, build, build_of_groups
from spark.faults_source import CUSTOMERS, LIMIT, START, Numbered

import statebed as sb

JOB = "orders"
TIME = pa.timestamp("us", "UTC")
SCHEMAS = {
    "orders": pa.schema(
        [("order_id", pa.int64()), ("customer", pa.string()), ("amount", pa.int64()), ("ordered_at", TIME)]
    ),
    "payments": pa.schema([("order_id", pa.int64()), ("paid", pa.int64()), ("paid_at", TIME)]),
}
TEXTS = {"orders": ORDERS, "payments": PAYMENTS}
EVENT_TIMES = {"orders": "ordered_at", "payments": "paid_at"}
_PAIRS = """
    select customer, order_id % 3 as branch, time_bucket(interval '1 minute', paid_at) as minute, paid
    from payments join orders using (order_id)
    where paid_at - ordered_at between interval '0s' and interval '2 minutes'
    """
_ORDERS = """
    select customer, order_id % 3 as branch, time_bucket(interval '1 minute', ordered_at) as minute, amount as paid
    from orders where customer <> 'nobody'
    """
_EXPECTED = """
    with pairs as ({pairs}),
    minutes as (
        select customer, branch, minute, count(*) as payments, sum(paid)::bigint as paid from pairs group by all)
    select *, (sum(paid) over (partition by customer order by minute, branch))::bigint as running from minutes
    """


@dataclass
class World(ABC):
    """A folder with the input of the job, and the tables of its results."""

    kind: ClassVar[str] = "joined"
    pairs: ClassVar[str] = _PAIRS
    """Sum of the windows, as SQL."""
    folder: Path
    results_in: Path | None = None
    """Location of the tables of results, if it is not beside the input."""

    @abstractmethod
    def add(self, batches: int = 1) -> None:
        """More input; rows are out of order, none is late."""

    @abstractmethod
    def finish(self) -> None:
        """The last input, an hour later and of no customer's, so that every window closes."""

    @abstractmethod
    def frame(self, spark: SparkSession, kind: str) -> DataFrame:
        """The stream of one kind: orders or payments."""

    @abstractmethod
    def table(self, kind: str) -> pa.Table:
        """All rows of one kind that there are."""

    @property
    @abstractmethod
    def end(self) -> dict[str, int]:
        """The offset of each source when all its input is read."""

    @property
    def state(self) -> Path:
        """Default location of the state."""
        return self.folder / "state"

    def results_of(self, sink: str) -> str:
        """The path of a sink's table."""
        return str((self.results_in or self.folder) / sink)

    def job(self, spark: SparkSession, *, name: str = JOB, state: str | Path = "", parallelism: int = 2) -> sb.Job:
        """The job over this world's input; its results go to two tables."""
        made = sb.Job(name, state=state or self.state, parallelism=parallelism, spark=spark)
        orders, payments = (
            made.source(self.frame(spark, kind), name=kind, watermark=(EVENT_TIMES[kind], DELAY)) for kind in SCHEMAS
        )
        minutes, running = build(orders, payments)
        minutes.write("parquet", path=self.results_of("minutes"), name="minutes")
        running.write("parquet", path=self.results_of("running"), name="running")
        return made

    def expected(self) -> list[tuple[Any, ...]]:
        """DuckDB's answer."""
        return _select(_EXPECTED.format(pairs=self.pairs), **{kind: self.table(kind) for kind in SCHEMAS})

    def results(self) -> list[tuple[Any, ...]]:
        """Return the rows that the last operator has published."""
        return _rows(sb.read_table(self.results_of("running")), "customer, branch, minute, payments, paid, running")

    def minutes(self) -> list[tuple[Any, ...]]:
        """Return the rows that the operator before it has published."""
        return _rows(sb.read_table(self.results_of("minutes")), "customer, branch, window_start, payments, paid")

    def check(self) -> None:
        """Nothing is lost and nothing is there twice, behind each operator that has a sink."""
        expected = self.expected()
        assert self.minutes() == sorted((row[:5] for row in expected), key=repr)
        assert self.results() == expected != []


@dataclass
class FileWorld(World):
    """Parquet files in two folders, one of each kind for every batch."""

    files: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(11))
    _recent: list[int] = field(default_factory=list)
    _orders: int = 0

    @property
    def end(self) -> dict[str, int]:
        return {"logOffset": self.files - 1}

    def add(self, batches: int = 1, rows: int = 60) -> None:
        """Each file covers two minutes and begins one minute after the one before."""
        for _ in range(batches):
            start = START + dt.timedelta(minutes=self.files)
            orders = [self._order(start) for _ in range(rows)]
            self._recent = [*self._recent, *(one["order_id"] for one in orders)][-3 * rows :]
            self._write(orders, [self._payment(start) for _ in range(rows)])

    def finish(self) -> None:
        end = START + dt.timedelta(minutes=self.files, hours=1)
        order = {"order_id": -1, "customer": "nobody", "amount": 0, "ordered_at": end}
        self._write([order], [{"order_id": -2, "paid": 0, "paid_at": end}])

    def frame(self, spark: SparkSession, kind: str) -> DataFrame:
        (self.folder / kind).mkdir(parents=True, exist_ok=True)
        reader = spark.readStream.schema(TEXTS[kind]).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / kind))

    def table(self, kind: str) -> pa.Table:
        return pq.read_table(self.folder / kind)

    def _order(self, start: dt.datetime) -> dict[str, Any]:
        self._orders += 1
        return {
            "order_id": self._orders,
            "customer": self.chance.choice(CUSTOMERS),
            "amount": self.chance.randrange(5000),
            "ordered_at": start + dt.timedelta(seconds=self.chance.randrange(119)),
        }

    def _payment(self, start: dt.datetime) -> dict[str, Any]:
        return {
            "order_id": self.chance.choice(self._recent),
            "paid": self.chance.randrange(-100, 5000),
            "paid_at": start + dt.timedelta(seconds=self.chance.randrange(119)),
        }

    def _write(self, orders: list[dict[str, Any]], payments: list[dict[str, Any]]) -> None:
        time = 1_700_000_000 + self.files  # Spark reads files in this order
        for kind, rows in (("orders", orders), ("payments", payments)):
            folder = self.folder / kind
            folder.mkdir(parents=True, exist_ok=True)
            hidden = folder / f".{self.files:05d}"
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMAS[kind]), hidden)
            os.utime(hidden, (time, time))
            hidden.rename(folder / f"{self.files:05d}.parquet")  # who looks now sees the whole file or none
        self.files += 1


class GroupsWorld(FileWorld):
    """Orders alone, which the JVM adds up in every batch."""

    kind = "groups"
    pairs = _ORDERS
    sketches: ClassVar[bool] = False

    def job(self, spark: SparkSession, *, name: str = JOB, state: str | Path = "", parallelism: int = 2) -> sb.Job:
        settings = {"preaggregate_below": 1}
        made = sb.Job(name, state=state or self.state, parallelism=parallelism, spark=spark, settings=settings)
        orders = made.source(self.frame(spark, "orders"), name="orders", watermark=(EVENT_TIMES["orders"], DELAY))
        minutes, running = build_of_groups(orders, sketches=self.sketches)
        minutes.write("parquet", path=self.results_of("minutes"), name="minutes")
        running.write("parquet", path=self.results_of("running"), name="running")
        return made


class SketchesWorld(GroupsWorld):
    """The same, with sketches among what is added up."""

    kind = "sketches"
    sketches = True


@dataclass
class NumberedWorld(World):
    """The tests' own data source, which gives rows by their number."""

    rows: int = 0
    last: int | None = None

    @property
    def end(self) -> dict[str, int]:
        return {"number": self.rows}

    def add(self, batches: int = 1) -> None:
        self.rows += 60 * batches
        self._write()

    def finish(self) -> None:
        self.last = self.rows
        self.rows += 1
        self._write()

    def frame(self, spark: SparkSession, kind: str) -> DataFrame:
        self._write()
        spark.dataSource.register(Numbered)
        reader = spark.readStream.format("numbered").schema(TEXTS[kind])
        return reader.option("kind", kind).option("folder", str(self.folder)).load()

    def table(self, kind: str) -> pa.Table:
        made = list(faults_source.rows(kind, 0, self.rows, last_number=self.last))
        schema = SCHEMAS[kind]
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in made], schema=schema)

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        hidden = self.folder / f".{LIMIT}"
        hidden.write_text(json.dumps({"rows": self.rows, "last": self.last}))
        hidden.rename(self.folder / LIMIT)


def _rows(table: pa.Table, columns: str) -> list[tuple[Any, ...]]:
    return _select(f"select {columns} from results", results=table)


def _select(query: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        for name, table in tables.items():
            connection.register(name, table)
        return sorted(connection.execute(query).fetchall(), key=repr)
