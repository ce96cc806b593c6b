<<<<<<< HEAD
"""Rows sorted by whole numbers, and decimals as such."""

from decimal import Decimal
=======
"""The order of rows, against Python's own sorting; and what it tells apart."""

import math
from decimal import Decimal
from typing import Any
>>>>>>> origin/main

import numpy as np
import pyarrow as pa
import pytest
<<<<<<< HEAD
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.operators.ordering import codes, sorted_by, unscaled

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
KEY = st.sampled_from([INT64, st.integers(-2, 2), st.just(7), st.sampled_from([-(1 << 63), 0, (1 << 63) - 1])])


@settings(deadline=None)
@given(count=st.integers(0, 40), kinds=st.lists(KEY, min_size=1, max_size=4), data=st.data())
def test_rows_are_sorted_by_key_after_key_and_ties_stay_in_their_order(
    count: int, kinds: list[st.SearchStrategy[int]], data: st.DataObject
) -> None:
    columns = [data.draw(st.lists(kind, min_size=count, max_size=count)) for kind in kinds]
    found = sorted_by([np.array(column, dtype=np.int64) for column in columns])
    assert found.tolist() == sorted(range(count), key=lambda row: [column[row] for column in columns])


def test_many_rows_with_wide_keys_are_sorted_as_numpy_sorts_them() -> None:
    random = np.random.default_rng(2)
    keys = [random.integers(0, 70_000, 100_000), random.standard_normal(100_000).view(np.int64)]
    assert (sorted_by(keys) == np.lexsort((keys[1], keys[0]))).all()


@pytest.mark.parametrize("digits", [18, 19, 30])
def test_decimals_compare_as_their_codes_do(digits: int) -> None:
    values = [Decimal(10**digits - 1), Decimal(-(10**digits) + 1), Decimal(0), None, Decimal(5), Decimal(-5)]
    array = pa.array(values, pa.decimal128(38, 0))
    some = [place for place, value in enumerate(values) if value is not None]
    found = codes(array)
    assert sorted(some, key=lambda place: values[place] or 0) == sorted(some, key=lambda place: int(found[place]))
    small = unscaled(array)
    assert (small is None) == (digits > 18)
    assert small is None or [int(small[place]) for place in some] == [int(values[place] or 0) for place in some]
=======
from hypothesis import given
from hypothesis import strategies as st

from statebed.operators.ordering import changes, codes, order_by, sorted_by, total_keys, user_keys


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
>>>>>>> origin/main
