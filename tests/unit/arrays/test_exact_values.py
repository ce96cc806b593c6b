"""Values of Python that pyarrow would change are refused; all others are converted as pyarrow does."""

import datetime as dt
import importlib
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statebed.arrays.exact_values import exact_array

pd: Any = importlib.import_module("pandas")  # which has no types

TIME, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
NOON = dt.datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=dt.UTC)
DAY = dt.date(2026, 1, 31)

CHANGED = [
    (1.5, pa.int64()),
    (Decimal("1.5"), pa.int32()),
    (np.float64(1.5), pa.int64()),
    (np.float32(1.5), pa.int8()),
    (1.5, TIME),
    (1.5, pa.date32()),
    (1.5, pa.duration("us")),
    (NOON.replace(tzinfo=None), pa.date32()),
    (pd.Timestamp("2026-01-31T12:00:00.000000001Z"), TIME),
    ([1, 2.5], pa.list_(pa.int64())),
    ({"a": 1.5}, pa.struct([("a", pa.int64())])),
    ({"a": 1, "unknown": 2}, pa.struct([("a", pa.int64())])),
    ([(1, 2.5)], pa.map_(pa.int64(), pa.int64())),
    ({1: {"a": [2.5]}}, pa.map_(pa.int64(), pa.struct([("a", pa.list_(pa.int64()))]))),
]
KEPT = [
    (1, pa.int64()),
    (2.0, pa.int64()),
    (np.int8(3), pa.int64()),
    (np.uint64(3), pa.int8()),
    (Decimal(4), pa.int64()),
    (0.1, pa.float32()),
    (7, pa.float64()),
    (Decimal("1.25"), pa.decimal128(5, 3)),
    ("text", pa.string()),
    ("text", pa.binary()),
    (True, pa.bool_()),
    (NOON, TIME),
    (NOON.replace(tzinfo=None), TIME),
    (NOON.astimezone(dt.timezone(dt.timedelta(hours=2))), TIME),
    (pd.Timestamp(NOON), TIME),
    (np.datetime64("2026-01-31T12:00:00.123456"), LOCAL),
    (253_402_300_800_000_000, TIME),  # the year 10000, which Python does not have
    (DAY, pa.date32()),
    (dt.datetime(2026, 1, 31, tzinfo=dt.UTC), pa.date32()),
    (dt.timedelta(microseconds=5), pa.duration("us")),
    (dt.time(1, 2, 3, 4), pa.time64("us")),
    ([1, None, 2.0], pa.list_(pa.int64())),
    ((1, 2), pa.list_(pa.int64())),
    (np.array([1, 2]), pa.list_(pa.int64())),
    ({"a": 1}, pa.struct([("a", pa.int64()), ("b", TIME)])),
    ({"a": 1}, pa.map_(pa.string(), pa.int64())),
]


@pytest.mark.parametrize(("value", "kind"), CHANGED, ids=str)
def test_a_value_that_pyarrow_would_change_is_refused(value: Any, kind: pa.DataType) -> None:
    pa.array([value], kind)
    with pytest.raises(ValueError, match="would become"):
        exact_array([None, value], kind)


@pytest.mark.parametrize(("value", "kind"), KEPT, ids=str)
def test_any_other_value_is_converted_as_pyarrow_does(value: Any, kind: pa.DataType) -> None:
    assert exact_array([value, None], kind).equals(pa.array([value, None], kind))
