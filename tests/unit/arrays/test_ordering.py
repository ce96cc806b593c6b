"""The order of rows, against Python's own sorting; and what it tells apart."""

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.arrays.sort_order import changes, codes, order_by, sorted_by, total_keys, user_keys
from statebed.format.schema import TIME
from statebed.operators.input_rows import in_total_order


@given(st.lists(st.tuples(*(st.integers(0, 2) for _ in range(5))), max_size=40))
def test_rows_are_sorted_by_all_keys_and_equal_ones_keep_their_order(rows: list[tuple[int, ...]]) -> None:
    keys = [np.array([row[place] for row in rows], dtype=np.int64) for place in range(5)]
    for count in range(1, 6):
        order = sorted_by(keys[:count])
        assert order.tolist() == sorted(range(len(rows)), key=lambda at: rows[at][:count])
        begins = changes(keys[:count], order).tolist()
        ordered = [rows[at][:count] for at in order]
        assert begins == [at == 0 or ordered[at] != ordered[at - 1] for at in range(len(rows))]


@pytest.mark.parametrize(
    ("kind", "ascending"),
    [
        (pa.float64(), [-math.inf, -1.5, -0.0, 0.0, 5e-324, 1.0, math.inf, math.nan]),
        (pa.float32(), [-math.inf, -0.0, 0.0, 1.0, math.nan]),
        (pa.int8(), [-128, 0, 127]),
        (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
        (pa.bool_(), [False, True]),
        (pa.string(), ["", "a", "aa", "b", "é"]),
        (pa.binary(), [b"", b"\x00", b"\xff"]),
        (pa.decimal128(20, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("99999999999999.99")]),
        (pa.timestamp("us", "UTC"), [-(10**17), 0, 10**17]),
        (pa.list_(pa.int64()), [[], [1], [1, 2], [1, None], [2]]),
        (pa.list_(pa.int64(), 2), [[1, 1], [1, 2], [2, 0]]),
        (pa.list_(pa.int8()), [[], [-128], [-1], [-1, -1], [0], [0, 127], [1, -2]]),
        (
            pa.list_(pa.list_(pa.string())),
            [[], [[]], [["a"]], [["a"], []], [["a", "b"]], [["a", None]], [["b"]], [None]],
        ),
        (pa.list_(pa.float64()), [[-math.inf], [-0.0], [0.0], [0.0, -1.0], [math.nan]]),
        (pa.decimal32(5, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("2.00")]),
        (
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
            [{"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": 2, "b": ""}],
        ),
        (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("a", 1), ("b", 0)], [("a", 2)]]),
    ],
    ids=str,
)
def test_numbers_compare_as_the_values_do(kind: pa.DataType, ascending: list[Any]) -> None:
    found = codes(pa.array([*ascending, None, *ascending], kind)).tolist()
    first, again = found[: len(ascending)], found[len(ascending) + 1 :]
    assert first == sorted(set(first))
    assert first == again
    sliced = codes(pa.array([None, *ascending], kind)[1:]).tolist()
    assert sorted(range(len(sliced)), key=sliced.__getitem__) == list(range(len(ascending)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", [None, -1.0, 0.0, -0.0, math.nan]),
        ("x desc", [math.nan, 0.0, -0.0, -1.0, None]),
        ("x asc nulls last", [-1.0, 0.0, -0.0, math.nan, None]),
        ("x DESC NULLS FIRST", [None, math.nan, 0.0, -0.0, -1.0]),
    ],
)
def test_nulls_go_where_spark_puts_them_or_where_the_text_says(text: str, expected: list[Any]) -> None:
    rows = pa.table({"x": [0.0, -0.0, None, math.nan, -1.0]})
    keys = user_keys(rows, order_by(text))
    found = rows["x"].take(pa.array(sorted_by(keys))).to_pylist()
    assert repr(found) == repr(expected), "0.0 and -0.0 are equal, and stay as they stand"
    assert changes(keys, sorted_by(keys)).sum() == 4


def test_the_total_order_tells_zeros_apart_and_puts_nulls_last() -> None:
    rows = pa.table({"x": [None, 0.0, -0.0]})
    assert sorted_by(total_keys(rows, ["x"])).tolist() == [2, 1, 0]


some_rows = st.lists(
    st.fixed_dictionaries(
        {
            TIME: st.integers(0, 1),
            "x": st.sampled_from([0.0, -0.0, math.nan, 1.5, None]),
            "tags": st.sampled_from([[], [1], [1, 2], [1, None], None]),
            "place": st.sampled_from([None, {"y": None}, {"y": -0.0}, {"y": 0.0}]),
            "name": st.sampled_from(["a", "b", None]),
            "nothing": st.none(),
        }
    ),
    max_size=12,
)
ROWS = pa.schema(
    [
        (TIME, pa.int64()),
        ("x", pa.float64()),
        ("tags", pa.list_(pa.int32())),
        ("place", pa.struct([("y", pa.float64())])),
        ("name", pa.string()),
        ("nothing", pa.null()),
    ]
)


@settings(deadline=None, max_examples=examples(100))
@given(rows=some_rows, chance=st.randoms(use_true_random=False))
def test_p6_of_rows_in_total_order_nothing_shows_how_they_came(rows: list[dict[str, Any]], chance: Any) -> None:
    came = pa.Table.from_pylist(rows, ROWS)
    found = in_total_order(came).to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, came.to_pylist()))
    assert [row[TIME] for row in found] == sorted(row[TIME] for row in rows)
    other = pa.Table.from_pylist(chance.sample(rows, len(rows)), ROWS)
    assert repr(in_total_order(other).to_pylist()) == repr(found)
