"""Expressions over a small table, one in a line: what they give is compared with Spark, and in parts."""

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

UTC_MICROS = pa.timestamp("us", "UTC")
TIMES = [
    dt.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=dt.UTC),
    dt.datetime(1969, 12, 31, 23, 59, 58, 500000, tzinfo=dt.UTC),
    None,
    dt.datetime(2024, 12, 30, 0, 0, tzinfo=dt.UTC),
    dt.datetime(1582, 10, 4, 1, 2, 3, tzinfo=dt.UTC),
    dt.datetime(2262, 4, 11, 12, 0, 0, 100, tzinfo=dt.UTC),
]
ROWS = pa.table(
    {
        "t": pa.array([1, -128, 127, None, 0, 7], pa.int8()),
        "h": pa.array([300, -5, None, 32767, 0, 1], pa.int16()),
        "i": pa.array([7, -7, None, 0, 2147483647, -2147483648], pa.int32()),
        "l": pa.array([123, -123, 9223372036854775807, None, 0, -9223372036854775808], pa.int64()),
        "small": pa.array([3, -4, 5, None, 0, 12], pa.int64()),
        "r": pa.array([1.5, -0.1, math.nan, None, math.inf, 3.0e7], pa.float32()),
        "d": pa.array([1.5, -2.675, math.nan, None, -0.0, 1e300], pa.float64()),
        "e": pa.array([0.5, math.nan, math.nan, 2.0, 0.0, -math.inf], pa.float64()),
        "f": pa.array([12345678.9, 0.00012345, 100.0, None, -3.5, 2.5], pa.float64()),
        "m": pa.array(
            [Decimal("12.34"), Decimal("-0.05"), Decimal("99999999.99"), None, Decimal(0), Decimal("7.5")],
            pa.decimal128(10, 2),
        ),
        "w": pa.array(
            [
                Decimal("1.123456789012345678"),
                Decimal("-12345678901234567890.5"),
                None,
                Decimal(3),
                Decimal("0.000000000000000001"),
                Decimal(-1),
            ],
            pa.decimal128(38, 18),
        ),
        "n": pa.array(
            [Decimal(3), Decimal("0.007"), Decimal(-2), None, Decimal(1), Decimal("11.5")], pa.decimal128(6, 3)
        ),
        "b": pa.array([True, False, None, True, False, None]),
        "c": pa.array([True, True, True, False, False, None]),
        "s": pa.array(["Hello", "", "  été à  ", None, "a%b_c\\d", "http://x.de/a/b?q=1"]),
        "u": pa.array(["h", "Z", "été", "x", None, "/"]),
        "number": pa.array(["12", " -7 ", "0", None, "+3", "2147483647"]),
        "real": pa.array(["1.5", "-1e3", "NaN", None, " 7 ", "0.1"]),
        "moment": pa.array(
            ["2024-05-06 07:08:09.5", "2024-05-06", "1969-12-31T23:00:00Z", None, "2024-02-29 1:2:3+02:00", "2024-05"]
        ),
        "ts": pa.array(TIMES, UTC_MICROS),
        "ts2": pa.array([TIMES[3], TIMES[3], TIMES[0], TIMES[0], None, TIMES[0]], UTC_MICROS),
        "day": pa.array(
            [
                dt.date(2024, 2, 29),
                dt.date(1969, 12, 31),
                None,
                dt.date(1900, 3, 1),
                dt.date(2024, 12, 31),
                dt.date(101, 1, 1),
            ]
        ),
        "p": pa.array(
            [
                {"x": 1, "Name": "a"},
                {"x": None, "Name": "b"},
                None,
                {"x": 3, "Name": None},
                {"x": 4, "Name": "e"},
                {"x": 5, "Name": "f"},
            ],
            pa.struct([("x", pa.int64()), ("Name", pa.string())]),
        ),
        "tags": pa.array(
            [["a", "b"], ["c", None], None, ["d", "e", "f"], ["x", "y"], ["q", "z"]], pa.list_(pa.string())
        ),
    }
)

HERE = Path(__file__).parent
EXPRESSIONS = (HERE / "expression_cases.txt").read_text(encoding="utf-8").splitlines()
REFUSED = (HERE / "expression_cases_refused.txt").read_text(encoding="utf-8").splitlines()
"""Expressions for which both raise: wrong types, overflows, divisions by zero."""
