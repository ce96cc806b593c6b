"""P8: Spark reads data files without us, by its vectorised reader and by its row reader."""

import datetime as dt
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from statebed.arrays.key_hash import hash_table
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME, TIMESTAMP, assign_field_ids
from statebed.format.segment import SegmentSpec, encode_segment, segment_schema, sort_segment

pytestmark = pytest.mark.spark
ROWS = 3000


def write_segment(path: Path) -> pa.Table:
    generator = np.random.default_rng(3)
    numbers = generator.integers(-100, 100, ROWS)
    some = [None if number % 9 == 0 else int(number) for number in numbers]
    columns = pa.table(
        {
            "driver": pa.array([None if number == 0 else f"driver {number} ä" for number in numbers]),
            "byte": pa.array(some, pa.int8()),
            "short": pa.array(some, pa.int16()),
            "int": pa.array(some, pa.int32()),
            "long": pa.array(some, pa.int64()),
            "float": pa.array(some, pa.float32()),
            "double": pa.array(generator.random(ROWS)),
            "boolean": pa.array([None if n is None else n > 0 for n in some], pa.bool_()),
            "decimal": pa.array([None if n is None else Decimal(n) / 4 for n in some], pa.decimal128(30, 2)),
            "small": pa.array([None if n is None else Decimal(n) / 4 for n in some], pa.decimal128(9, 2)),
            "date": pa.array(some, pa.int32()).cast(pa.date32()),
            "binary": pa.array([generator.bytes(abs(int(n)) % 20) for n in numbers], pa.binary()),
            "list": pa.array([[n, None] for n in some], pa.list_(pa.int64())),
        }
    )
    schema = segment_schema(assign_field_ids(columns.schema), sort_order=pb.BIN_FIRST, key_columns=["driver"])
    spec = SegmentSpec("windows", 0, schema, pb.BIN_FIRST, ("driver",))
    bins = pa.array(numbers // 30 * 60_000_000, TIMESTAMP)
    rows = (
        columns.append_column(BIN, bins)
        .append_column(TIME, bins)
        .append_column(KEY_HASH, pa.array(hash_table(columns, ["driver"])))
        .append_column(SEQUENCE, pa.array(range(ROWS), pa.uint64()))
    )
    table = sort_segment(rows.select(schema.names), spec=spec)
    path.write_bytes(encode_segment(table, spec=spec).data)
    return table


@pytest.mark.parametrize("vectorised", ["true", "false"])
def test_p8_spark_reads_every_column_of_a_data_file(spark: SparkSession, tmp_path: Path, vectorised: str) -> None:
    path = tmp_path / "segment.parquet"
    table = write_segment(path)
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorised)
    try:
        found = spark.read.parquet(str(path)).toArrow()
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")
    assert found.column_names == table.column_names
    # Spark knows no unsigned numbers: it reads them as decimals of the same value.
    numbers = {name: [int(value) for value in found[name].to_pylist()] for name in (KEY_HASH, SEQUENCE)}
    expected = sorted(table.to_pylist(), key=lambda row: row[SEQUENCE])
    rows = [
        row | {KEY_HASH: key_hash, SEQUENCE: sequence}
        for row, key_hash, sequence in zip(found.to_pylist(), numbers[KEY_HASH], numbers[SEQUENCE], strict=True)
    ]
    rows.sort(key=lambda row: row[SEQUENCE])
    for row in rows:
        for name in (BIN, TIME):
            row[name] = row[name].astimezone(dt.UTC)
    assert rows == expected


def test_p8_spark_filters_by_the_statistics_of_a_data_file(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "segment.parquet"
    table = write_segment(path)
    middle = 1 << 63
    expected = sum(1 for value in table[KEY_HASH].to_pylist() if value >= middle)
    assert 0 < expected < ROWS
    assert spark.read.parquet(str(path)).where(f"{KEY_HASH} >= {middle}BD").count() == expected
