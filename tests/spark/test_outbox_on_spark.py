"""Spark, with its vectorised reader and without, and others read the packed integers and times of output files."""

from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from statebed.subtasks.outbox import encode_outbox

ROWS = 50_000
SPANS = {
    pa.int8(): 1 << 7,
    pa.int16(): 1 << 15,
    pa.int32(): 1 << 31,
    pa.int64(): 1 << 62,
    pa.date32(): 700_000,
    pa.timestamp("us", tz="UTC"): 60_000_000_000_000_000,
    pa.timestamp("us"): 60_000_000_000_000_000,
}
"""Types, and how far from 0 their values may be: dates and times begin long before the Gregorian calendar."""
VECTORISED = "spark.sql.parquet.enableVectorizedReader"


def numbers(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return dates as days and times as microseconds."""
    return array.cast(pa.int32() if pa.types.is_date(array.type) else pa.int64()).cast(pa.int64())


def packed_rows() -> pa.Table:
    draw = np.random.default_rng(5)
    columns = {}
    for place, (kind, span) in enumerate(SPANS.items()):
        whole = pa.int32() if pa.types.is_date(kind) else pa.int64()
        values = pa.array(draw.integers(-span, span, ROWS), mask=draw.random(ROWS) < 0.1)
        columns[f"c{place}"] = values.cast(whole).cast(kind)
    return pa.table(columns)


def check_equal(read: pa.Table, rows: pa.Table) -> None:
    assert read.column_names == rows.column_names
    for name in rows.column_names:
        expected, found = numbers(rows[name]), numbers(read[name])
        assert expected.null_count == found.null_count > 0
        assert pc.all(pc.equal(expected, found)).as_py(), rows.schema.field(name)


@pytest.mark.parametrize("vectorised", ["true", "false"])
def test_spark_reads_every_packed_value(spark: SparkSession, tmp_path: Path, vectorised: str) -> None:
    rows = packed_rows()
    (tmp_path / "rows.parquet").write_bytes(encode_outbox(rows))
    before = str(spark.conf.get(VECTORISED))
    spark.conf.set(VECTORISED, vectorised)
    try:
        read = spark.read.parquet(str(tmp_path)).toArrow()
    finally:
        spark.conf.set(VECTORISED, before)
    check_equal(read, rows)


@pytest.mark.parametrize(
    "read",
    [
        lambda file: pl.read_parquet(file).to_arrow(),
        lambda file: duckdb.read_parquet(str(file)).to_arrow_table(),
    ],
    ids=["polars", "duckdb"],
)
def test_other_readers_read_every_packed_value(tmp_path: Path, read: Callable[[Path], pa.Table]) -> None:
    rows = packed_rows()
    (tmp_path / "rows.parquet").write_bytes(encode_outbox(rows))
    check_equal(read(tmp_path / "rows.parquet"), rows)
