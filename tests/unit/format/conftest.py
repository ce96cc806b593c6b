"""Segments to test with: a time-keyed table of all common types, with nulls and special floats."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from statebed.arrays.key_hash import hash_columns, normalise_key
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME, TIMESTAMP, assign_field_ids
from statebed.format.segment import SegmentSpec, segment_schema, sort_segment

USER_COLUMNS = pa.schema(
    [
        ("driver", pa.string()),
        ("weight", pa.float64()),
        ("trips", pa.int64()),
        ("total", pa.decimal128(20, 2)),
        ("ok", pa.bool_()),
        ("day", pa.date32()),
        ("blob", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("short", pa.int16()),
    ]
)
KEYS = ("driver", "weight")


class Segments:
    """Makes specs and sorted tables."""

    def spec(self, sort_order: "pb.SortOrder.ValueType" = pb.BIN_FIRST) -> SegmentSpec:
        columns = assign_field_ids(USER_COLUMNS)
        schema = segment_schema(columns, sort_order=sort_order, key_columns=KEYS)
        return SegmentSpec("windows", 0, schema, sort_order, KEYS)

    def table(
        self, rows: int = 500, *, sort_order: "pb.SortOrder.ValueType" = pb.BIN_FIRST, seed: int = 0, bins: int = 7
    ) -> pa.Table:
        spec = self.spec(sort_order)
        generator = np.random.default_rng(seed)
        numbers = generator.integers(0, 60, rows)
        driver = pa.array([None if number == 0 else f"driver {number}" for number in numbers], pa.string())
        weights = generator.choice([0.0, -0.0, 1.5, float("nan"), -2.0], rows)
        weight = normalise_key(pa.array(weights, mask=numbers == 1))
        columns = {
            BIN: pa.array(generator.integers(-2, bins - 2, rows) * 60_000_000, TIMESTAMP),
            KEY_HASH: pa.array(hash_columns([driver, weight])),
            TIME: pa.array(generator.integers(-(10**9), 10**9, rows), TIMESTAMP),
            SEQUENCE: pa.array(generator.permutation(rows).astype(np.uint64) + np.uint64(5)),
            "driver": driver,
            "weight": weight,
            "trips": pa.array(generator.integers(0, 100, rows)),
            "total": pa.array([Decimal(int(n)) / 4 for n in numbers], pa.decimal128(20, 2)),
            "ok": pa.array([None if n % 5 == 0 else bool(n % 2) for n in numbers], pa.bool_()),
            "day": pa.array(numbers.astype(np.int32), pa.date32()),
            "blob": pa.array([generator.bytes(int(n) % 9) for n in numbers], pa.binary()),
            "tags": pa.array([[f"t{i}" for i in range(int(n) % 3)] for n in numbers], pa.list_(pa.string())),
            "short": pa.array(numbers.astype(np.int16)),
        }
        table = pa.Table.from_arrays([columns[name] for name in spec.schema.names], schema=spec.schema)
        return sort_segment(table, spec=spec)


@pytest.fixture(scope="session")
def segments() -> Segments:
    return Segments()
