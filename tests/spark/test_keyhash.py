"""The key hash equals Spark's own xxhash64, type by type, over thousands of random rows."""

from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from statebed.arrays.key_hash import hash_table

pytestmark = pytest.mark.spark
ROWS = 3000
DAY_NS = 86_400_000_000_000


def integers(width: int) -> list[int]:
    generator = np.random.default_rng(width)
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    values = generator.integers(low, high, ROWS, dtype=np.int64, endpoint=True).tolist()
    return [low, high, 0, -1, 1, *values]


def floats(dtype: type[np.floating]) -> list[float]:
    generator = np.random.default_rng(7)
    special = [
        0.0,
        -0.0,
        float("nan"),
        -float("nan"),
        float("inf"),
        -float("inf"),
        float(np.finfo(dtype).tiny),
    ]
    scaled = generator.standard_normal(ROWS) * 10.0 ** generator.integers(-30, 30, ROWS)
    return [*special, *map(float, scaled.astype(dtype))]


def texts() -> list[str]:
    generator = np.random.default_rng(11)
    alphabet = list("abcdefgh 0123456789äß€漢字😀")
    lengths = [*range(140), *generator.integers(0, 300, ROWS - 140).tolist()]
    return ["".join(generator.choice(alphabet, length)) for length in lengths]


def blobs() -> list[bytes]:
    generator = np.random.default_rng(13)
    return [generator.bytes(int(length)) for length in generator.integers(0, 120, ROWS)]


def decimals(precision: int, scale: int) -> list[Decimal]:
    generator = np.random.default_rng(precision)
    edge = 10**precision - 1
    digits = [0, 1, -1, 127, 128, -128, -129, 255, 256, -256, -257, edge, -edge]
    digits = [number for number in digits if abs(number) <= edge]
    for _ in range(ROWS):
        size = int(generator.integers(1, precision + 1))
        number = int("".join(map(str, generator.integers(0, 10, size))))
        digits.append(number if generator.random() < 0.5 else -number)
    exact = Context(prec=40)
    return [exact.scaleb(Decimal(number), -scale) for number in digits]


def with_nulls(values: list[object], kind: pa.DataType) -> pa.Array:
    generator = np.random.default_rng(5)
    return pa.array([None if generator.random() < 0.1 else value for value in values], kind)


def lists(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Lists of nought to five of the values, some of them null."""
    generator = np.random.default_rng(17)
    some = with_nulls(list(values), kind)
    lengths = generator.integers(0, 6, ROWS)
    items = some.take(pa.array(generator.integers(0, len(some), int(lengths.sum()))))
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items, mask=pa.array(generator.random(ROWS) < 0.1))


def structs(**fields: pa.Array) -> pa.Array:
    """Structs with these fields, some of them null."""
    generator = np.random.default_rng(19)
    parts = [one.slice(0, ROWS) for one in fields.values()]
    return pa.StructArray.from_arrays(parts, names=list(fields), mask=pa.array(generator.random(ROWS) < 0.1))


def rides() -> pa.Array:
    return structs(
        driver=with_nulls(list(texts()), pa.string()),
        number=with_nulls(list(integers(32)), pa.int32()),
        fare=with_nulls(list(floats(np.float64)), pa.float64()),
        paid=with_nulls(list(decimals(38, 10)), pa.decimal128(38, 10)),
    )


def lists_of(items: pa.Array) -> pa.Array:
    """Lists of some items, as they follow one another."""
    lengths = np.random.default_rng(23).integers(0, 4, len(items))
    ends = np.minimum(np.cumsum(lengths), len(items))
    return pa.ListArray.from_arrays(pa.array(np.concatenate(([0], ends)).astype(np.int32)), items)


COLUMNS: dict[str, Callable[[], pa.Array]] = {
    "boolean": lambda: with_nulls([value % 2 == 0 for value in integers(8)], pa.bool_()),
    "byte": lambda: with_nulls(list(integers(8)), pa.int8()),
    "short": lambda: with_nulls(list(integers(16)), pa.int16()),
    "int": lambda: with_nulls(list(integers(32)), pa.int32()),
    "long": lambda: with_nulls(list(integers(64)), pa.int64()),
    "float": lambda: with_nulls(list(floats(np.float32)), pa.float32()),
    "double": lambda: with_nulls(list(floats(np.float64)), pa.float64()),
    "string": lambda: with_nulls(list(texts()), pa.string()),
    "binary": lambda: with_nulls(list(blobs()), pa.binary()),
    "date": lambda: with_nulls([value % 40000 - 20000 for value in integers(32)], pa.date32()),
    "timestamp": lambda: with_nulls([value >> 11 for value in integers(64)], pa.timestamp("us", "UTC")),
    "timestamp_ntz": lambda: with_nulls([value >> 11 for value in integers(64)], pa.timestamp("us")),
    "interval": lambda: with_nulls([value >> 11 for value in integers(64)], pa.duration("us")),
    "decimal_9_2": lambda: with_nulls(list(decimals(9, 2)), pa.decimal128(9, 2)),
    "decimal_18_0": lambda: with_nulls(list(decimals(18, 0)), pa.decimal128(18, 0)),
    "decimal_19_4": lambda: with_nulls(list(decimals(19, 4)), pa.decimal128(19, 4)),
    "decimal_38_10": lambda: with_nulls(list(decimals(38, 10)), pa.decimal128(38, 10)),
    "time": lambda: with_nulls([value % DAY_NS for value in integers(64)], pa.time64("ns")),
    "array_of_int": lambda: lists(integers(32), pa.int32()),
    "array_of_double": lambda: lists(floats(np.float64), pa.float64()),
    "array_of_string": lambda: lists(texts(), pa.string()),
    "array_of_decimal": lambda: lists(decimals(19, 4), pa.decimal128(19, 4)),
    "struct": rides,
    "array_of_struct": lambda: lists_of(rides()),
    "array_of_array": lambda: lists_of(lists(floats(np.float32), pa.float32())),
    "struct_of_all": lambda: structs(
        name=with_nulls(list(texts()), pa.string()),
        ride=rides(),
        rides=lists_of(rides()),
        days=lists([1, -2], pa.date32()),
    ),
}


def spark_hashes(spark: SparkSession, table: pa.Table, names: list[str]) -> list[int]:
    # Without this a timestamp without a zone would be taken for one of the session's zone.
    schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    frame = spark.createDataFrame(table, schema=schema).select(F.xxhash64(*names).alias("hash"))
    signed = frame.toArrow()["hash"].to_pylist()
    return [value % (1 << 64) for value in signed]


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_hashes_as_in_spark(spark: SparkSession, name: str) -> None:
    table = pa.table({name: COLUMNS[name]()})
    assert table.num_rows >= ROWS
    assert hash_table(table, [name]).tolist() == spark_hashes(spark, table, [name])


def test_a_key_of_all_types_hashes_as_in_spark(spark: SparkSession) -> None:
    table = pa.table({name: make().slice(0, ROWS) for name, make in COLUMNS.items()})
    names = table.column_names
    assert hash_table(table, names).tolist() == spark_hashes(spark, table, names)
    assert hash_table(table, names[::-1]).tolist() == spark_hashes(spark, table, names[::-1])


STORED: dict[str, Callable[[], pa.Array]] = {
    "uint8": lambda: with_nulls([value % 2**8 for value in integers(64)], pa.uint8()),
    "uint16": lambda: with_nulls([value % 2**16 for value in integers(64)], pa.uint16()),
    "uint32": lambda: with_nulls([value % 2**32 for value in integers(64)], pa.uint32()),
    "uint64": lambda: with_nulls([value % 2**64 >> value % 60 for value in integers(64)], pa.uint64()),
    "fixed_size_binary": lambda: with_nulls(
        [(blob * 40 or bytes(37))[:37].ljust(37) for blob in blobs()], pa.binary(37)
    ),
    "date64": lambda: with_nulls([(value >> 50) * 86_400_000 for value in integers(64)], pa.date64()),
    "timestamp_s": lambda: with_nulls([value >> 31 for value in integers(64)], pa.timestamp("s", "UTC")),
    "timestamp_ms": lambda: with_nulls([value >> 21 for value in integers(64)], pa.timestamp("ms")),
    "decimal32": lambda: with_nulls(list(decimals(9, 2)), pa.decimal32(9, 2)),
    "decimal64": lambda: with_nulls(list(decimals(18, 2)), pa.decimal64(18, 2)),
    "decimal256": lambda: with_nulls(list(decimals(38, 2)), pa.decimal256(38, 2)),
    "large_list": lambda: lists(integers(64), pa.int64()).cast(pa.large_list(pa.int64())),
    "fixed_size_list": lambda: pa.FixedSizeListArray.from_arrays(
        with_nulls(list(floats(np.float64)[:3000]), pa.float64()), 3
    ),
    "list_of_uint64": lambda: lists([value % 2**64 for value in integers(64)], pa.uint64()),
}


@pytest.mark.parametrize("name", STORED)
def test_a_column_of_a_type_that_spark_lacks_hashes_as_what_spark_reads_from_its_file(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    table = pa.table({"key": STORED[name]()})
    pq.write_table(table, tmp_path / "keys.parquet")
    frame = spark.read.parquet(str(tmp_path / "keys.parquet")).select(F.xxhash64("key").alias("hash"))
    assert hash_table(table, ["key"]).tolist() == [value % (1 << 64) for value in frame.toArrow()["hash"].to_pylist()]
