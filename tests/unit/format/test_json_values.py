"""Arrow values as JSON has them: the same text at any depth, and nothing that a reader could take for another value."""

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.errors import UnsupportedTypeError
from statebed.format.json_values import json_objects, json_texts, json_values

MOMENT = 1_767_225_600_123_456_789


def nested(values: list[Any], kind: pa.DataType) -> pa.Table:
    """The values in a struct, in lists of three kinds and in a map, each behind a null."""
    lists = [None, *([value] for value in values)]
    return pa.table(
        {
            "struct": pa.array([None, *({"f": value} for value in values)], pa.struct([("f", kind)])),
            "list": pa.array(lists, pa.list_(kind)),
            "large": pa.array(lists, pa.large_list(kind)),
            "fixed": pa.array(lists, pa.list_(kind, 1)),
            "map": pa.array([None, *([("k", value)] for value in values)], pa.map_(pa.string(), kind)),
        }
    )


CASES: list[tuple[pa.DataType, Any, Any]] = [
    (pa.float32(), 320.1, 320.1),
    (pa.float32(), 1e-45, 1e-45),
    (pa.float32(), math.nan, "NaN"),
    (pa.float32(), -math.inf, "-Infinity"),
    (pa.float64(), 320.1000061035156, 320.1000061035156),
    (pa.float64(), math.inf, "Infinity"),
    (pa.float16(), np.float16(0.1), 0.1),
    (pa.int64(), 2**63 - 1, 2**63 - 1),
    (pa.uint64(), 2**64 - 1, 2**64 - 1),
    (pa.decimal128(38, 3), Decimal("12345678901234567890123456789.125"), "12345678901234567890123456789.125"),
    (pa.binary(), b"\xff\x00", "/wA="),
    (pa.large_binary(), b"\xff\x00", "/wA="),
    (pa.binary(2), b"\xff\x00", "/wA="),
    (pa.timestamp("ns", "UTC"), MOMENT, "2026-01-01T00:00:00.123456789Z"),
    (pa.timestamp("us", "Europe/Berlin"), MOMENT // 1000, "2026-01-01T00:00:00.123456Z"),
    (pa.timestamp("ms"), MOMENT // 10**6, "2026-01-01T00:00:00.123"),
    (pa.timestamp("us"), 10**18, "33658-09-27T01:46:40.000000"),
    (pa.date32(), dt.date(2026, 1, 31), "2026-01-31"),
    (pa.time64("ns"), 1, "00:00:00.000000001"),
    (pa.duration("us"), 1_500_000, 1_500_000),
    (pa.duration("ns"), 1_500, 1.5),
    (pa.duration("ns"), 2_000, 2),
    (pa.string(), "é", "é"),
    (pa.bool_(), True, True),
]


@pytest.mark.parametrize(("kind", "value", "expected"), CASES, ids=lambda case: str(case)[:30])
def test_a_value_has_one_text_alone_and_at_any_depth(kind: pa.DataType, value: Any, expected: Any) -> None:
    assert json_values(pa.array([None, value, value], kind)[1:2]) == [expected]
    assert json_values(pa.array([None], kind)) == [None]
    table = nested([value, value], kind)
    for rows in (table, table.slice(1), table.slice(2)):
        found = json_objects(rows)[-1]
        lists = {name: [expected] for name in ("list", "large", "fixed")}
        assert found == {"struct": {"f": expected}, **lists, "map": {"k": expected}}
    assert json_objects(table)[0] == dict.fromkeys(table.schema.names)
    json.dumps(json_objects(table), allow_nan=False)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_are_the_shortest_text_that_gives_them_again(values: list[float]) -> None:
    found = json_values(pa.array(values, pa.float32()))
    assert np.array(found).astype(np.float32).tolist() == values
    assert [float(str(np.float32(value))) for value in values] == found
    assert all(len(msgspec.json.encode(value)) <= len(msgspec.json.encode(float(value))) for value in found)


def test_keys_of_maps_become_text() -> None:
    maps = pa.array([[(0.1, 1), (320.1, 2)]], pa.map_(pa.float32(), pa.int8()))
    assert json_values(maps) == [{"0.1": 1, "320.1": 2}]
    assert json_values(pa.array([[({"a": 1}, 2)]], pa.map_(pa.struct([("a", pa.int8())]), pa.int8()))) == [
        {'{"a": 1}': 2}
    ]
    assert json_texts(pa.array([[], None], pa.map_(pa.string(), pa.int8()))).to_pylist() == ["{}", None]


def test_a_key_that_a_map_holds_twice_is_refused() -> None:
    with pytest.raises(UnsupportedTypeError, match="the key 'a' twice"):
        json_values(pa.array([[("a", 1), ("b", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8())))


def test_dictionaries_and_structs_without_fields_are_plain_values() -> None:
    assert json_values(pa.array(["a", None, "a"]).dictionary_encode()) == ["a", None, "a"]
    assert json_values(pa.array([{}, None], pa.struct([]))) == [{}, None]
