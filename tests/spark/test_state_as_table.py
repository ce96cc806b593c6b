"""`format("statebed")` and `USING statebed`: the state as a table of Spark's, found without registration."""

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import effort
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from s3.server import S3Server
from unit.inspect.table_world import TableWorld
from unit.state.key_types import KEYS

import statebed as sb
from statebed.state import DeleteKey, keyed_table_config

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
MINUTE = 60_000_000
NUMBERS = list(range(400))


@pytest.fixture(params=[False, True], ids=["all rows to Spark", "filters pushed down"])
def pushing(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run with and without Spark's push-down of filters, which is off by default."""
    spark.conf.set(PUSH_DOWN, str(request.param).lower())
    yield request.param
    spark.conf.unset(PUSH_DOWN)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableWorld]:
    """Two subtasks, tables of all kinds, files of several epochs."""
    world = TableWorld(tmp_path_factory.mktemp("state"))
    cities = ["Ulm" if n % 2 else "Bonn" for n in NUMBERS]
    world.write("drivers", {"city": cities, "driver": NUMBERS, "trips": NUMBERS, "note": [None] * 400})
    world.write("fares", {"driver": NUMBERS, "_time": [n * MINUTE for n in NUMBERS], "cents": NUMBERS})
    world.put("limit", {"most": 7})
    world.epoch()
    world.write("drivers", {"city": ["Ulm"], "driver": [1], "trips": [1000], "note": ["émile"]})
    world.write("drivers", {"city": ["Bonn"], "driver": [0]}, DeleteKey())
    world.epoch()
    yield world
    world.end()


def load(spark: SparkSession, world: TableWorld, **options: Any) -> DataFrame:
    return spark.read.format("statebed").options(**options).load(world.url)


def rows(df: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in df.collect())


def of_arrow(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def test_every_kind_of_table_has_the_rows_that_read_state_shows(spark: SparkSession, world: TableWorld) -> None:
    for table in ("drivers", "settings"):
        found = load(spark, world, job="rides", operator="count", table=table)
        assert rows(found) == of_arrow(sb.read_state(world.url, table=table).to_arrow())
    fares = load(spark, world, table="fares")
    assert dict(fares.dtypes) == {"driver": "bigint", "_time": "timestamp", "cents": "bigint"}
    assert fares.selectExpr("sum(cents)", "max(unix_micros(_time))").collect() == [(sum(NUMBERS), 399 * MINUTE)]
    assert fares.rdd.getNumPartitions() == 2  # one for each subtask


def test_an_epoch_is_asked_for_by_its_number_and_the_newest_is_fixed_when_the_frame_is_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = TableWorld(tmp_path)
    numbers = []
    for trips in (1, 2):
        world.write("drivers", {"city": ["Ulm"], "driver": [1], "trips": [trips], "note": [None]})
        numbers.append(world.epoch())
    newest = load(spark, world, table="drivers").select("trips")
    world.write("drivers", {"city": ["Ulm"], "driver": [1], "trips": [3], "note": [None]})
    world.epoch()
    assert newest.collect() == [(2,)]
    assert load(spark, world, table="drivers", epoch=numbers[0]).select("trips").collect() == [(1,)]
    assert load(spark, world, table="drivers").select("trips").collect() == [(3,)]
    world.end()


CONDITIONS = [
    ("drivers", "city = 'Ulm' and driver in (1, 3, 4) and trips > 2", 2),
    ("drivers", "city in ('Ulm', 'Bonn') and driver = 0", 0),
    ("drivers", "driver = 7", 1),
    ("fares", "_time >= timestamp'1970-01-01 00:10:00Z' and _time < timestamp'1970-01-01 00:20:00Z'", 10),
    ("fares", "_time > timestamp'1970-01-01 00:10:00Z' and _time <= timestamp'1970-01-01 00:20:00Z'", 10),
    ("fares", "_time = timestamp'1970-01-01 00:10:00Z' and driver = 10", 1),
    ("fares", "driver not in (1, 2)", 398),
]


def test_conditions_give_the_same_rows_whoever_applies_them(
    spark: SparkSession, world: TableWorld, pushing: bool
) -> None:
    assert pushing in {True, False}
    frames = {table: load(spark, world, table=table) for table in ("drivers", "fares")}
    found = [frames[table].where(condition).count() for table, condition, _ in CONDITIONS]
    assert found == [expected for _, _, expected in CONDITIONS]


def test_a_key_that_is_pushed_down_leaves_the_other_subtasks_alone(
    spark: SparkSession, world: TableWorld, pushing: bool
) -> None:
    asked = load(spark, world, table="drivers").where("city = 'Ulm' and driver = 7")
    assert asked.rdd.getNumPartitions() == (1 if pushing else 2)
    left = asked._jdf.queryExecution().optimizedPlan().toString().partition("RelationV2")[0]
    assert ("= 7)" in left) is not pushing


def test_sql_reads_it_as_a_view_and_joins_it(spark: SparkSession, world: TableWorld) -> None:
    spark.sql(f"""
        create or replace temporary view drivers using statebed
        options (path '{world.url}', job 'rides', operator 'count', table 'drivers')
    """)
    spark.sql(f"create or replace temporary view fares using statebed options (path '{world.url}', table 'fares')")
    found = spark.sql("select city, count(*), sum(cents) from drivers join fares using (driver) group by city")
    bonn, ulm = (sum(n for n in NUMBERS if n % 2 == odd) for odd in (0, 1))
    assert rows(found) == Counter({("Bonn", 199, bonn): 1, ("Ulm", 200, ulm): 1})


def test_only_the_columns_of_a_schema_that_is_given_are_read(spark: SparkSession, world: TableWorld) -> None:
    reader = spark.read.format("statebed").option("table", "drivers")
    found = reader.schema("trips long, driver long, city string, _key_hash long").load(world.url)
    assert found.columns == ["trips", "driver", "city", "_key_hash"]
    hashes = "sum(cast(_key_hash = xxhash64(city, driver) as int))"
    assert found.selectExpr("max(trips)", hashes).collect() == [(1000, 399)]


# Spark has no nanoseconds, and decimals of at most 38 digits.
@pytest.mark.parametrize("name", effort.every_third(sorted(KEYS.keys() - {"timestamp_ns", "decimal256"})))
def test_spark_hashes_keys_of_every_type_as_the_table_does(spark: SparkSession, tmp_path: Path, name: str) -> None:
    kind, values = KEYS[name]
    config = keyed_table_config("kept", "", ["key"], pa.schema([("key", kind), ("n", pa.int64())]))
    world = TableWorld(tmp_path, tables={"kept": config})
    world.write("kept", {"key": values, "n": list(range(len(values)))})
    world.epoch()
    found = load(spark, world, internal="true").selectExpr("_key_hash = xxhash64(key) as same")
    assert rows(found) == Counter({(True,): len(values)})
    world.end()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "there are 6 tables: drivers, fares"),
        ({"tabel": "drivers"}, r"the options \['tabel'\] are unknown"),
    ],
)
def test_mistakes_are_said_when_the_frame_is_made(
    spark: SparkSession, world: TableWorld, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=text):
        load(spark, world, **options)


def test_the_state_of_a_job_on_spark_is_its_open_windows(rides: Any) -> None:
    rides.add_files(3)
    rides.run()
    state = rides.spark.read.format("statebed").option("operator", "per_minute").load(str(rides.state))
    closed = sum(row[3] for row in rides.results())
    assert state.agg({"trips": "sum"}).collect() == [(3 * 120 - closed,)]
    first = state.agg({"_time": "min"}).collect()[0][0]
    assert first.astimezone(dt.UTC).second == 0


def test_p8_sparks_own_reader_reads_the_data_files_without_us(rides: Any) -> None:
    rides.add_files(3)
    rides.run()
    session = rides.spark.newSession()
    if session.version < "4.3":  # its vectorised reader stops with "Unsupported encoding: BYTE_STREAM_SPLIT"
        session.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    files = sorted(rides.state.glob("rides/checkpoints/*/data/*.parquet"))
    split = 0
    for file in files[-2:]:
        stored = pq.read_table(file)
        numbers = [field.name for field in stored.schema if field.type == pa.int64()]
        read = session.read.parquet(str(file)).selectExpr(*(f"sum(`{name}`)" for name in numbers), "count(*)").collect()
        assert list(read[0]) == [*(pc.sum(stored[name]).as_py() for name in numbers), stored.num_rows]
        chunks = pq.ParquetFile(file).metadata.row_group(0)
        split += sum("BYTE_STREAM_SPLIT" in chunks.column(n).encodings for n in range(chunks.num_columns))
    assert split > 0


@pytest.mark.s3
def test_executors_read_from_s3_by_the_options_of_the_reader(
    spark: SparkSession, s3_server: S3Server, s3_url: str, tmp_path: Path
) -> None:
    world = TableWorld(tmp_path, url=s3_url, storage_options=s3_server.options)
    world.write("fares", {"driver": NUMBERS, "_time": [n * MINUTE for n in NUMBERS], "cents": NUMBERS})
    world.epoch()
    storage = {f"storage.{name}": value for name, value in s3_server.options.items()}
    found = spark.read.format("statebed").options(table="fares", **storage).load(s3_url)
    assert found.agg({"cents": "sum"}).collect() == [(sum(NUMBERS),)]
    world.end()
