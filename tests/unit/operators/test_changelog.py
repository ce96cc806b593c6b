"""Changelogs: net weights of distinct rows, whatever their order and their types."""

import collections
import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.format.stream_schema import WEIGHT
from statebed.operators.changelog import consolidated, difference, folded, group_equal, replaced, weighted

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("name", pa.string()),
        ("ratio", pa.float64()),
        ("small", pa.uint8()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.float32()), ("y", pa.list_(pa.int64()))])),
        ("props", pa.map_(pa.string(), pa.int64())),
        ("nothing", pa.null()),
        (WEIGHT, pa.int64()),
    ]
)
row = st.fixed_dictionaries(
    {
        "k": st.sampled_from([1, 2, None]),
        "name": st.sampled_from(["a", "", None]),
        "ratio": st.sampled_from([0.0, -0.0, math.nan, 1.5, None]),
        "small": st.sampled_from([0, 255, None]),
        "tags": st.sampled_from([[], ["a"], ["a", None], None]),
        "place": st.sampled_from([None, {"x": None, "y": None}, {"x": math.nan, "y": []}, {"x": 1.0, "y": [1, None]}]),
        "props": st.sampled_from([None, [], [("a", 1)], [("a", None)]]),
        "nothing": st.none(),
        WEIGHT: st.sampled_from([1, 1, 2, -1, -1, -3]),
    }
)


def plain(value: Any) -> Any:
    """A value that equals itself, NaN too, and that can be a key of a dict."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, list | tuple):
        return ("list", *(plain(one) for one in value))
    if isinstance(value, dict):
        return ("struct", *((name, plain(one)) for name, one in sorted(value.items())))
    return value


def net(rows: list[dict[str, Any]]) -> dict[Any, int]:
    found: collections.Counter[Any] = collections.Counter()
    for one in rows:
        found[plain({name: value for name, value in one.items() if name != WEIGHT})] += one.get(WEIGHT, 1)
    return {key: weight for key, weight in found.items() if weight}


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@settings(max_examples=examples(100), deadline=None)
@given(rows=st.lists(row, max_size=25), seed=st.integers(0, 1000))
def test_each_distinct_row_is_there_once_with_its_net_weight(rows: list[dict[str, Any]], seed: int) -> None:
    found = consolidated(table(rows))
    assert net(found.to_pylist()) == net(rows)
    assert found.num_rows == len(net(rows))
    signs = [weight > 0 for weight in found[WEIGHT].to_pylist()]
    assert signs == sorted(signs)
    random.Random(seed).shuffle(rows)
    again = consolidated(table(rows))
    assert bytes_of(again) == bytes_of(found)


def bytes_of(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue())


@settings(max_examples=examples(40), deadline=None)
@given(old=st.lists(row, max_size=12), new=st.lists(row, max_size=12))
def test_the_difference_turns_old_rows_into_new_ones(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    change = difference(table(old), table(new))
    both = folded([consolidated(table(old)), change], pa.schema([field for field in SCHEMA if field.name != WEIGHT]))
    assert net(both.to_pylist()) == net(new)


def test_rows_without_a_weight_count_once() -> None:
    rows = pa.table({"k": [1, 2, 1]})
    assert sorted(map(repr, consolidated(rows).to_pylist())) == sorted(
        map(repr, [{"k": 1, WEIGHT: 2}, {"k": 2, WEIGHT: 1}])
    )
    assert difference(rows, rows).num_rows == 0


def test_a_changelog_without_columns_or_rows_is_one_too() -> None:
    assert consolidated(table([])).num_rows == 0
    assert folded([], pa.schema([("k", pa.int64())])).schema.names == ["k", WEIGHT]


def test_equal_rows_in_different_places_are_told_apart() -> None:
    rows = pa.table({"k": [1, 2, 1, 1]})
    assert group_equal(rows).groups == 2
    grouping = group_equal(rows, np.array([9, 0, 0, 9]))
    assert grouping.sizes.tolist() == [1, 1, 2]
    assert sorted(grouping.order[2:].tolist()) == [0, 3]


def test_weights_are_added_exactly() -> None:
    rows = weighted(pa.table({"k": [1, 1, 1]}), np.array([1 << 62, -(1 << 62), 5]))
    assert consolidated(rows)[WEIGHT].to_pylist() == [5]


@given(
    st.dictionaries(st.integers(0, 9), row, max_size=8),
    st.dictionaries(st.integers(0, 9), row, max_size=8),
)
@settings(max_examples=examples(60))
def test_rows_replaced_by_key_come_to_the_same_as_their_difference(
    before: dict[int, dict[str, Any]], after: dict[int, dict[str, Any]]
) -> None:
    schema = pa.schema([field for field in SCHEMA if field.name != WEIGHT]).insert(0, pa.field("id", pa.int64()))

    def rows_of(by_key: dict[int, dict[str, Any]]) -> pa.Table:
        return pa.Table.from_pylist([{**by_key[key], "id": key} for key in sorted(by_key)], schema=schema)

    old, new = rows_of(before), rows_of(after)
    keys = [np.array(sorted(one), dtype=np.int64) for one in (before, after)]
    found = pa.concat_tables(replaced(old, new, old_keys=keys[0], new_keys=keys[1]))
    expected = collections.Counter(plain(one) for one in difference(old, new).to_pylist())
    assert collections.Counter(plain(one) for one in found.to_pylist()) == expected
    signs = found[WEIGHT].to_pylist()
    assert signs == sorted(signs)
