"""Rows that a test feeds are taken as they are, or refused: no value is changed without a word."""

import datetime as dt
from decimal import Decimal
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import statebed as sb
from statebed.errors import InputError

pd: Any = import_module("pandas")  # it has no types
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
COLUMNS = {
    "n": "bigint",
    "small": "tinyint",
    "x": "double",
    "f": "float",
    "money": "decimal(10, 2)",
    "name": "string",
    "raw": "binary",
    "ok": "boolean",
    "day": "date",
    "ts": "timestamp",
    "nested": "struct<n: int, at: timestamp, list: array<int>>",
    "tags": "map<string, int>",
}


def fed(rows: Any) -> list[dict[str, Any]]:
    flow = sb.Flow("rides")
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    flow.source("rides", columns, watermark=("ts", "0s")).key_by("n", name="op").deduplicate()
    with sb.testing.run(flow) as run:
        run.feed("rides", rows)
        return run.output("rides")


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("n", 1.5, "'n' is int64, but 1.5 .row 0. would become 1"),
        ("n", Decimal("1.5"), "'n'"),
        ("n", 2**63, "'n'"),
        ("n", "5", "'n'"),
        ("n", True, "'n'"),
        ("n", float("nan"), "'n'"),
        ("small", 300, "'small'"),
        ("small", 127.5, "'small'"),
        ("x", 2**53 + 1, "'x'"),
        ("x", "1.5", "'x'"),
        ("f", 1 / 3, "'f' is float, but 0.333"),
        ("f", 1e300, "'f'"),
        ("f", 2**24 + 1, "'f'"),
        ("money", Decimal("1.234"), "'money'"),
        ("money", Decimal("1e12"), "'money'"),
        ("name", 5, "'name'"),
        ("ok", 2, "'ok'"),
        ("day", NOON, "'day' is date32"),
        ("ts", "2026-01-01T12:00:00.123456789Z", "more than six digits"),
        ("ts", pd.Timestamp("2026-01-01T12:00:00.000000001Z"), "nanoseconds"),
        ("ts", dt.date(2026, 1, 1), "is not a time"),
        ("ts", 1.5, "is not a time"),
        ("ts", True, "is not a time"),
        ("ts", "noon", "'noon' is not a time"),
        ("nested", {"n": 1.5}, "'nested'"),
        ("nested", {"list": [1, 2.5]}, "'nested'"),
        ("nested", {"at": pd.Timestamp("2026-01-01T12:00:00.000000001Z")}, "'nested'"),
        ("tags", {"a": 1.5}, "'tags'"),
    ],
)
def test_a_value_that_would_change_is_refused_by_name(column: str, value: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        fed([{column: value}])


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("n", pa.array([1.5]), "'n' has type int64, but not all values of type double"),
        ("n", pa.array(["x"]), "'n'"),
        ("small", pa.array([300]), "'small'"),
        ("f", pa.array([1 / 3]), "'f' has type float.*0.333"),
        ("money", pa.array([Decimal("1.234")]), "'money'"),
        ("ts", pa.array([1], pa.timestamp("ns", "UTC")), "'ts'"),
        ("day", pa.array([NOON], pa.timestamp("us")), "'day'"),
        ("nested", pa.array([{"n": 1.5}], pa.struct([("n", pa.float64())])), "'nested'"),
    ],
)
def test_so_is_one_of_an_arrow_table(column: str, values: pa.Array, text: str) -> None:
    with pytest.raises(InputError, match=text):
        fed(pa.table({column: values}))


@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        ("n", 2.0, 2),
        ("n", np.int64(5), 5),
        ("x", 5, 5.0),
        ("x", 0.1, 0.1),
        ("x", float("nan"), float("nan")),
        ("f", 320.1, float(np.float32(320.1))),
        ("f", 2.5, 2.5),
        ("money", Decimal("1.5"), Decimal("1.50")),
        ("raw", "abc", b"abc"),
        ("day", dt.date(2026, 1, 1), dt.date(2026, 1, 1)),
        ("ts", "2026-01-01T12:00:00.123456000Z", NOON.replace(microsecond=123456)),
        ("ts", "2026-01-01T14:00:00+02:00", NOON),
        ("ts", NOON.astimezone(dt.timezone(dt.timedelta(hours=9))), NOON),
        ("ts", 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1, dt.UTC)),
        ("nested", {"n": 1, "at": NOON, "list": [1, 2]}, {"n": 1, "at": NOON, "list": [1, 2]}),
        ("tags", {"a": 1}, [("a", 1)]),
        ("n", None, None),
    ],
)
def test_what_fits_is_taken(column: str, value: Any, kept: Any) -> None:
    [row] = fed([{column: value}])
    assert repr(row[column]) == repr(kept) or row[column] == kept


def test_an_arrow_table_of_narrower_types_is_taken() -> None:
    [row] = fed(
        pa.table({"n": pa.array([5], pa.int8()), "f": [320.1], "ts": pa.array([NOON], pa.timestamp("ms", "UTC"))})
    )
    assert (row["n"], row["ts"]) == (5, NOON)
