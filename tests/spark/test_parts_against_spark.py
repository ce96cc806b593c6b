"""Parts that Spark computes of groups become, bit by bit, the partials of their rows: for every type of value."""

import datetime as dt
import decimal
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import statebed as sb
from statebed.aggregates.aggregate import Aggregate, BoundAggregate
from statebed.aggregates.partials import Partials, input_column
from statebed.aggregates.parts import Factor
from statebed.aggregates.preaggregation import aggregate_parts, partial_columns, parts_of
from statebed.arrays.columns import one_chunk
from statebed.arrays.grouping import Grouping
from statebed.flow.steps import key_hashes
from statebed.format.ranges import subtask_of
from statebed.spark.epoch.part_expressions import Columns, owner_expression, part_expression
from statebed.spark.plan.routing import column_as

ROWS = 240
GROUPS = 4
MOMENT = dt.datetime(2024, 3, 10, 6, 59, 59, 999999)  # noqa: DTZ001 - with and without a zone
NAN = float("nan")
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False]),
    "tiny": (pa.int8(), [-128, 127, 0, 3]),
    "short": (pa.int16(), [-(2**15), 2**15 - 1, 0, 3]),
    "whole": (pa.int32(), [-(2**31), 2**31 - 1, 0, 7, -7]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1, 2**53 + 1, 0, 2**31, -(2**31), 7, 2**62 + 2**31]),
    "real": (pa.float32(), [0.0, -0.0, NAN, float("inf"), float("-inf"), 1.5]),
    "double": (pa.float64(), [0.0, -0.0, NAN, float("inf"), float("-inf"), 1e-300, 0.1]),
    "price": (pa.decimal128(12, 2), ["0.00", "-9999999999.99", "9999999999.99", "1.10"]),
    "wide": (pa.decimal128(28, 3), ["0.000", "-" + "9" * 25 + ".999", "9" * 25 + ".999", "1.100"]),
    "widest": (pa.decimal128(38, 5), ["0.00000", "-" + "9" * 33 + ".99999", "1.10000"]),
    "text": (pa.string(), ["", "a", "A", "é", "zz", "\U0001f600", "\uffff", "a\x00"]),
    "bytes": (pa.binary(), [b"", b"\x7f", b"\x80", b"\xff", b"a"]),
    "day": (pa.date32(), [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29)]),
    "moment": (pa.timestamp("us", "UTC"), [MOMENT, dt.datetime(1969, 7, 1), MOMENT + dt.timedelta(microseconds=1)]),  # noqa: DTZ001 - in UTC
    "local": (pa.timestamp("us"), [MOMENT, dt.datetime(1969, 7, 1), MOMENT + dt.timedelta(microseconds=1)]),  # noqa: DTZ001 - no zone
}
WHOLE_NUMBERS = ("tiny", "short", "whole", "long")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, Path]:
    chance = random.Random(11)
    columns = {"k": pa.array([number % GROUPS for number in range(ROWS)], pa.int64())}
    for name, (kind, values) in VALUES.items():
        given = [decimal.Decimal(one) for one in values] if pa.types.is_decimal(kind) else values
        # In the last group all are null.
        rows = [None if number % GROUPS == 3 else chance.choice([None, *given]) for number in range(ROWS)]
        columns[name] = pa.array(rows, kind)
    path = tmp_path_factory.mktemp("values") / "values.parquet"
    pq.write_table(pa.table(columns), path)
    return pa.table(columns), path


def aggregates_of(name: str) -> dict[str, tuple[Aggregate, tuple[str, ...]]]:
    """All aggregates of a column that its type allows, each with the columns that it reads."""
    made: dict[str, tuple[Aggregate, tuple[str, ...]]] = {
        "count": (sb.count(name), (name,)),
        "min": (sb.min(name), (name,)),
        "max": (sb.max(name), (name,)),
        "any": (sb.any_value(name), (name,)),
        "distinct": (sb.approx_count_distinct(name), (name,)),
        "coarse": (sb.approx_count_distinct(name, precision=4), (name,)),
    }
    if name == "flag":
        made |= {"and": (sb.bool_and(name), (name,)), "or": (sb.bool_or(name), (name,))}
    if name in (*WHOLE_NUMBERS, "price", "wide"):
        made |= {"sum": (sb.sum(name), (name,)), "mean": (sb.mean(name), (name,))}
    if name in WHOLE_NUMBERS:
        made |= {f"bits{one.__name__}": (one(name), (name,)) for one in (sb.bit_and, sb.bit_or, sb.bit_xor)}
        made |= {"var": (sb.var_pop(name), (name,))}
        made |= {f"corr_{other}": (sb.corr(name, other), (name, other)) for other in WHOLE_NUMBERS}
    for by in VALUES:
        made |= {f"min_by_{by}": (sb.min_by(name, by), (name, by)), f"max_by_{by}": (sb.max_by(name, by), (name, by))}
    return made


@pytest.mark.parametrize(
    "name",
    # Integers of all widths take one path: `tiny` and `long` are its ends.
    [pytest.param(name, marks=pytest.mark.long if name in {"short", "whole"} else ()) for name in VALUES],
)
def test_p6_parts_that_spark_computes_become_the_partials_of_the_rows(
    spark: SparkSession, table: tuple[pa.Table, Path], name: str
) -> None:
    rows, path = table
    bound: list[BoundAggregate] = []
    names: dict[str, str] = {}
    kinds: dict[str, pa.DataType] = {}
    for word, (aggregate, columns) in aggregates_of(name).items():
        one = aggregate.bind(word, input_types=tuple(VALUES[column][0] for column in columns))
        position = len(bound)
        if aggregate_parts(position, one) is None:
            # Text and its like have no opposites, so the largest of one with the smallest of the other is no order.
            assert word.startswith("max_by_")
            assert {name, word.removeprefix("max_by_")} <= {"text", "bytes", "local", "widest"}
            continue
        bound.append(one)
        names |= {input_column(position, part): column for part, column in enumerate(columns)}
        kinds |= {input_column(position, part): VALUES[column][0] for part, column in enumerate(columns)}
    partials = Partials((pa.field("k", pa.int64()),), tuple(bound))
    parts = parts_of(partials)
    assert parts is not None

    order = np.argsort(np.arange(ROWS) % GROUPS, kind="stable")
    grouping = Grouping(order=order, starts=np.arange(GROUPS) * (ROWS // GROUPS))
    folded = [
        column
        for place, one in enumerate(bound)
        for column in one.accumulator.fold(
            [one_chunk(rows[names[input_column(place, part)]]) for part in range(len(one.input_types))], grouping
        )
    ]

    frame = spark.read.parquet(str(path))
    computed = frame.groupBy("k").agg(
        *(part_expression(part, Columns(names, kinds)).alias(part.name) for part in parts)
    )
    schema = pa.schema([("k", pa.int64()), *((part.name, part.type) for part in parts)])
    groups = computed.toArrow().sort_by("k")
    given = pa.table([column_as(one_chunk(groups[field.name]), field.type) for field in schema], schema=schema)
    made = partial_columns(partials, given)
    for field, one, other in zip(partials.fields, folded, made, strict=True):
        assert repr(one.to_pylist()) == repr(other.to_pylist()), field.name  # as text: NaN, and the sign of zero


@pytest.mark.parametrize(
    "parallelism", [pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long), 7, 300]
)
def test_spark_places_keys_of_every_type_as_we_do(
    spark: SparkSession, table: tuple[pa.Table, Path], parallelism: int
) -> None:
    rows, path = table
    keys = [[], *([name] for name in VALUES), list(VALUES), ["text", "double", "k"]]
    kinds = {"k": pa.int64(), **{name: kind for name, (kind, _) in VALUES.items()}}
    places = Columns({name: name for name in kinds}, kinds)
    owners = [owner_expression([places.column(Factor(name)) for name in key], parallelism) for key in keys]
    given = spark.read.parquet(str(path)).select(*(one.alias(f"o{place}") for place, one in enumerate(owners)))
    found = given.toArrow()
    for place, key in enumerate(keys):
        hashes = key_hashes([one_chunk(rows[name]) for name in key], ROWS).view(np.uint64)
        assert found[f"o{place}"].to_pylist() == subtask_of(hashes, parallelism).tolist(), key
