"""Timestamps in structs, arrays and maps, as every Debezium envelope has them, through whole jobs."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import statebed as sb

T = pa.timestamp("us", "UTC")
AT = dt.datetime(2024, 3, 10, 6, 30, 0, 123456, tzinfo=dt.UTC)
"""Half an hour before clocks change in New York, the zone of the session."""
SOURCE = pa.struct([("at", T), ("n", pa.int64()), ("deep", pa.struct([("times", pa.list_(T))]))])
ROWS = pa.table(
    {
        "k": ["a", "b"],
        "ts": pa.array([AT, AT], T),
        "s": pa.array([{"at": AT, "n": 1, "deep": {"times": [AT, None]}}, None], SOURCE),
        "times": pa.array([[AT, None], []], pa.list_(T)),
        "named": pa.array([[("x", AT)], None], pa.map_(pa.string(), T)),
        "wall": pa.array([{"w": dt.datetime(2024, 1, 1, 5)}, None], pa.struct([("w", pa.timestamp("us"))])),  # noqa: DTZ001
    }
)
SCHEMA = """k string, ts timestamp, s struct<at timestamp, n bigint, deep struct<times array<timestamp>>>,
    times array<timestamp>, named map<string, timestamp>, wall struct<w timestamp_ntz>"""
Build = Callable[[Any], Any]
KEYS = "keys and operands"
JOBS: dict[str, Build] = {
    "as they are": lambda s: s,
    "deduplicated": lambda s: s.deduplicate("k", ttl="1 day", name="first"),
    "the last of each key": lambda s: s.key_by("k", name="last").deduplicate(keep="last", ttl="1 day"),
    "the first n": lambda s: s.key_by("k", name="top").top(1, "ts desc", ttl="1 day"),
    "joined": lambda s: s.join(
        s.select("k as k2"), sb.eq("k", "k2"), within=sb.between("0s", "1 minute"), name="pairs"
    ),
}


def keys_and_operands(stream: Any) -> Any:
    counted = stream.key_by("s.deep.times as times", name="times").agg(
        n=sb.count(), last=sb.max("s.at"), named=sb.count("s"), ttl="1 day"
    )
    return counted.select("times", "n", "last as at", "get(times, 0) as first")


@pytest.fixture(scope="module")
def results(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Results of all of them, from one job."""
    folder = tmp_path_factory.mktemp("nested")
    (folder / "in").mkdir()
    pq.write_table(ROWS, folder / "in" / "0.parquet")
    job = sb.Job("times", state=folder / "state", spark=spark, parallelism=2)
    frame = spark.readStream.schema(SCHEMA).parquet(str(folder / "in"))
    rows = job.source(frame, name="rows", watermark=("ts", "0 seconds"))
    sinks = {}
    for number, (name, build) in enumerate({**JOBS, KEYS: keys_and_operands}.items()):
        sinks[name] = sb.MemorySink(f"out_{number}")
        build(rows).write(sinks[name])
    assert job.start(available_now=True).await_termination(120)
    return {name: list(sink.rows) for name, sink in sinks.items()}


@pytest.mark.parametrize("case", JOBS, ids=str)
def test_nested_times_come_out_as_they_went_in(results: dict[str, list[dict[str, Any]]], case: str) -> None:
    found = sorted(results[case], key=lambda row: repr(row["k"]))
    names = ROWS.column_names
    assert [{name: row[name] for name in names} for row in found] == ROWS.to_pylist()


def test_nested_times_are_keys_and_operands(results: dict[str, list[dict[str, Any]]]) -> None:
    found = sorted(results[KEYS], key=lambda row: repr(row["at"]))
    assert [(row["times"], row["n"], row["at"]) for row in found] == [(None, 1, None), ([AT, None], 1, AT)]
