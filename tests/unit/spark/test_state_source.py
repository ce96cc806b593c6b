"""The data source without a Spark: how it is found, which options it takes, which filters it takes off Spark."""

import datetime as dt
import pickle
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from pkgutil import iter_modules
from typing import TypeVar

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.types import StructType
from unit.inspect.table_world import TableWorld

import pyspark_statebed
import statebed as sb
from statebed.spark.api.state_reader import StateReader, _known_type
from statebed.spark.api.state_source import StateSource
from statebed.storage import get_storage_provider

T = TypeVar("T")
MINUTE = 60_000_000
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TableWorld]:
    world = TableWorld(tmp_path)
    numbers = list(range(100))
    world.write("drivers", {"city": ["Ulm"] * 100, "driver": numbers, "trips": numbers, "note": [None] * 100})
    world.write("fares", {"driver": numbers, "_time": [n * MINUTE for n in numbers], "cents": numbers})
    world.epoch()
    yield world
    world.end()


def reader(world: TableWorld, **options: str) -> StateReader:
    source = StateSource({"path": world.url, **options})
    return source.reader(source.schema())


def travelled(sent: T) -> T:
    arrived: T = pickle.loads(pickle.dumps(sent))  # noqa: S301 - made in the same line
    return arrived


def read(one: StateReader) -> list[dict[str, object]]:
    """Read as executors do: the reader and its partitions are pickled."""
    sent, parts = travelled(one), [travelled(part) for part in one.partitions()]
    return [row for part in parts for batch in sent.read(part) for row in batch.to_pylist()]


def test_spark_finds_it_by_the_name_of_its_package_and_the_wheel_has_it() -> None:
    assert "pyspark_statebed" in {module.name for module in iter_modules()}
    assert issubclass(pyspark_statebed.DefaultSource, DataSource)
    assert pyspark_statebed.DefaultSource.name() == "statebed"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "src/pyspark_statebed" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def test_a_session_that_reads_no_state_loads_nothing_that_reads_it() -> None:
    program = "import sys, pyspark_statebed; print(pyspark_statebed.DefaultSource.name(), *sorted(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    name, *modules = printed.split()
    assert name == "statebed"
    assert "pyarrow" not in modules
    assert {module for module in modules if module.startswith("statebed.")} == {
        "statebed.errors",
        "statebed.spark",
        "statebed.spark.api",
        "statebed.spark.api.state_source",
    }


def test_without_push_down_spark_takes_the_reader_for_one_that_has_none(world: TableWorld) -> None:
    one = reader(world, table="drivers")
    assert getattr(one.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    assert len(read(one)) == 100


@pytest.mark.parametrize(
    ("filters", "left", "rows"),
    [
        ([EqualTo(("city",), "Ulm"), EqualTo(("driver",), 7)], [], 1),
        ([EqualTo(("city",), "Ulm"), In(("driver",), (7, 8, None, 777)), IsNotNull(("city",))], [], 2),
        ([EqualTo(("driver",), 7)], [0], 100),
        ([EqualTo(("city",), "Ulm"), EqualTo(("driver",), "seven")], [0, 1], 100),
        ([EqualTo(("city",), "Ulm"), Not(EqualTo(("driver",), 7))], [0, 1], 100),
        ([EqualTo(("city",), "Ulm"), In(("driver",), tuple(range(20_000)))], [0, 1], 100),
        ([EqualTo(("city",), "Ulm"), EqualTo(("driver",), 7), GreaterThan(("trips",), 3)], [2], 1),
    ],
)
def test_filters_of_whole_keys_are_taken_and_others_are_left(
    world: TableWorld, filters: list[Filter], left: list[int], rows: int
) -> None:
    one = reader(world, table="drivers")
    assert list(one.pushFilters(filters)) == [filters[index] for index in left]
    assert len(read(one)) == rows


def test_filters_of_times_are_taken(world: TableWorld) -> None:
    ten, twenty = (dt.datetime(1970, 1, 1, 0, minute, tzinfo=dt.UTC) for minute in (10, 20))
    one = reader(world, table="fares")
    filters: list[Filter] = [GreaterThan(("_time",), ten), LessThanOrEqual(("_time",), twenty)]
    assert not list(one.pushFilters([*filters, EqualTo(("driver",), 15)]))
    assert [row["cents"] for row in read(one)] == [15]
    other = reader(world, table="fares")
    assert not list(other.pushFilters(filters))
    assert sorted(row["cents"] for row in read(other)) == list(range(11, 21))  # type: ignore[type-var]  # integers


def test_the_option_results_gives_finished_results_by_window(tmp_path: Path) -> None:
    flow = sb.Flow("rides")
    source = flow.source("rides", "driver string, fare double, ts timestamp", watermark=("ts", "0s"))
    source.group_by("driver", sb.tumbling("1 minute"), name="op").agg(mean=sb.mean("fare"))
    with sb.testing.run(flow, store=get_storage_provider(tmp_path), parallelism=2) as run:
        at = [dt.datetime(1970, 1, 1, 0, minute, tzinfo=dt.UTC) for minute in (1, 1, 2)]
        run.feed(
            "rides", [{"driver": "a", "fare": fare, "ts": ts} for fare, ts in zip((1.0, 4.0, 9.0), at, strict=True)]
        )
    table_source = StateSource({"path": str(tmp_path), "operator": "op", "results": "true"})
    assert table_source.schema().names == ["driver", "window_start", "window_end", "mean"]
    found = table_source.reader(table_source.schema())
    assert sorted(row["mean"] for row in read(found)) == [2.5, 9.0]  # type: ignore[type-var]  # numbers
    narrower = table_source.reader(table_source.schema())
    assert not list(narrower.pushFilters([GreaterThan(("window_start",), at[0])]))
    assert [row["mean"] for row in read(narrower)] == [9.0]


def test_nothing_that_is_asked_for_is_one_empty_partition(world: TableWorld) -> None:
    one = reader(world, table="prices")
    assert (len(one.partitions()), read(one)) == (1, [])


def test_the_epoch_is_fixed_when_the_table_sourceis_made(world: TableWorld) -> None:
    source = StateSource({"path": world.url, "table": "drivers"})
    world.write("drivers", {"city": ["Ulm"], "driver": [7], "trips": [700], "note": [None]})
    world.epoch()
    sent = travelled(source)
    assert max(row["trips"] for row in read(sent.reader(sent.schema()))) == 99  # type: ignore[type-var]  # integers


def test_mistakes_in_options_are_said(world: TableWorld) -> None:
    with pytest.raises(sb.InputError, match="no state location"):
        StateSource({})
    with pytest.raises(sb.InputError, match=r"the options \['tabel'\] are unknown"):
        StateSource({"path": world.url, "tabel": "drivers"})
    with pytest.raises(sb.InputError, match="`epoch` must be a number, got 'last'"):
        StateSource({"path": world.url, "Epoch": "last"})
    unknown = StructType().add("nothing", "long")
    with pytest.raises(sb.InputError, match="must be distinct columns"):
        StateSource({"path": world.url, "table": "drivers"}).reader(unknown)


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.uint8(), pa.int16()),
        (pa.large_string(), pa.string()),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.list_(pa.struct([("a", pa.uint32())])), pa.list_(pa.struct([("a", pa.int64())]))),
        (pa.map_(pa.large_string(), pa.float16()), pa.map_(pa.string(), pa.float32())),
        (pa.binary(4), pa.binary()),
    ],
)
def test_types_that_spark_lacks_become_wider_ones(stored: pa.DataType, shown: pa.DataType) -> None:
    assert _known_type(stored) == shown
