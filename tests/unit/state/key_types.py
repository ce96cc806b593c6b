"""Types of keys beyond those of Spark, each with values that are all different keys, nulls among them and inside."""

from decimal import Decimal
from typing import Any

import pyarrow as pa

NAN = float("nan")
AT = pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string()))])
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "uint8": (pa.uint8(), [0, 1, 255, None]),
    "uint32": (pa.uint32(), [0, 1, (1 << 32) - 1, None]),
    "uint64": (pa.uint64(), [0, 1, 1 << 63, (1 << 64) - 1, None]),
    "time32": (pa.time32("s"), [0, 1, 86_399, None]),
    "time64": (pa.time64("ns"), [0, 1, 86_399_999_999_999, None]),
    "timestamp_s": (pa.timestamp("s"), [0, -1, 1 << 40, None]),
    "timestamp_ns": (pa.timestamp("ns", "UTC"), [0, -1, 1 << 62, None]),
    "duration_ms": (pa.duration("ms"), [0, -1, 1 << 50, None]),
    "date64": (pa.date64(), [0, -86_400_000, 86_400_000, None]),
    "decimal32": (pa.decimal32(5, 2), [Decimal("0.00"), Decimal("-1.25"), Decimal("999.99"), None]),
    "decimal64": (pa.decimal64(15, 2), [Decimal("0.00"), Decimal("-1.25"), Decimal("999.99"), None]),
    "decimal256": (pa.decimal256(60, 2), [Decimal("0.00"), Decimal("-1.25"), Decimal("9" * 58 + ".99"), None]),
    "fixed_binary": (pa.binary(4), [b"\0\0\0\0", b"abcd", b"abc\xff", None]),
    "list": (pa.list_(pa.int64()), [[], [1], [1, 2], [None], [1, None], None]),
    "large_list": (pa.large_list(pa.string()), [[], [""], ["", ""], ["\0"], [None], None]),
    "fixed_list": (pa.list_(pa.float64(), 2), [[0.0, NAN], [NAN, 0.0], [None, 0.0], [0.0, None], None]),
    "struct": (
        AT,
        [
            {"x": 0.0, "tags": []},
            {"x": 0.0, "tags": None},
            {"x": NAN, "tags": ["a", None]},
            {"x": None, "tags": None},
            {"x": None, "tags": ["a"]},
            None,
        ],
    ),
    "list_of_struct": (pa.list_(AT), [[], [None], [{"x": NAN, "tags": ["a"]}], [{"x": None, "tags": []}, None], None]),
    "struct_of_required": (
        pa.struct([pa.field("x", pa.float64(), nullable=False), pa.field("at", pa.list_(pa.int64()), nullable=False)]),
        [{"x": 0.0, "at": []}, {"x": NAN, "at": [1, None]}, None],
    ),
    "struct_of_uint64": (
        pa.struct([("a", pa.uint64()), ("b", pa.binary(2))]),
        [{"a": 1, "b": b"ab"}, {"a": (1 << 64) - 1, "b": None}, {"a": None, "b": None}, None],
    ),
}


def shown(column: pa.Array | pa.ChunkedArray) -> list[str]:
    """Values as texts, so that NaN equals itself."""
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
    return [str(value) for value in column.to_pylist()]
