"""Nested values as bytes: equal where the values are, and in their order, part by part."""

import functools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.arrays.nested_values import KINDS, PLAIN, arrays

from statebed.arrays.canonical_order import first_disorder, in_order, is_sortable, repeats, sort_indices, sortable
from statebed.arrays.nested_order import encoded, is_encodable

NESTED = KINDS.filter(lambda one: bool(pa.types.is_nested(one[0])))


def compared(one: pa.Scalar, other: pa.Scalar) -> int:
    """-1, 0 or 1, as the first value comes before the second, equals it, or comes after it."""
    if not one.is_valid or not other.is_valid:
        return sign(not one.is_valid, not other.is_valid)
    kind = one.type
    if pa.types.is_struct(kind):
        found = (compared(one[name], other[name]) for name in kind.names)
        return next((result for result in found if result), 0)
    if pa.types.is_nested(kind):
        ours, theirs = one.values, other.values
        found = (compared(mine, yours) for mine, yours in zip(ours, theirs, strict=False))
        return next((result for result in found if result), sign(len(ours), len(theirs)))
    return sign(*map(plain, (one, other)))


def plain(value: pa.Scalar) -> Any:
    """A value that compares as it should."""
    if pa.types.is_temporal(value.type):
        return value.value
    found = value.as_py()
    if isinstance(found, float):
        return (1, 0.0) if math.isnan(found) else (0, found)
    return found.encode() if isinstance(found, str) else found


def sign(one: Any, other: Any) -> int:
    return int(one > other) - int(one < other)


@given(arrays(kinds=NESTED))
@settings(max_examples=examples(400))
def test_bytes_are_equal_where_values_are_and_compare_as_they_do(array: pa.Array) -> None:
    found = encoded(array)
    found.validate(full=True)
    assert found.is_null().to_pylist() == array.is_null().to_pylist()
    for ours, first in zip(found.to_pylist(), array, strict=True):
        for theirs, second in zip(found.to_pylist(), array, strict=True):
            if ours is not None and theirs is not None:
                assert sign(ours, theirs) == compared(first, second), (first, second)


@given(arrays())
@settings(max_examples=examples(200))
def test_columns_of_any_type_are_sorted_as_their_values_compare(array: pa.Array) -> None:
    table = pa.table({"a": array})
    order = sort_indices(table, ["a"]).to_pylist()
    rows = list(array)
    by_value = functools.cmp_to_key(compared)
    assert order == sorted(range(len(rows)), key=lambda row: (by_value(rows[row]), row))
    ordered = table.take(order)
    assert first_disorder(ordered, ["a"]) is None
    same = [row for row in range(1, len(rows)) if compared(rows[order[row - 1]], rows[order[row]]) == 0]
    assert repeats(ordered, ["a"]).tolist() == same


@given(arrays(kinds=NESTED, least=3), st.integers(1, 2))
@settings(max_examples=examples(100))
def test_the_bytes_of_a_value_do_not_depend_on_the_rows_around_it(array: pa.Array, start: int) -> None:
    whole = encoded(array).to_pylist()
    assert encoded(array.slice(start)).to_pylist() == whole[start:]
    assert encoded(pa.chunked_array([array.slice(0, start), array.slice(start)])).to_pylist() == whole
    assert encoded(array.take(pa.array([0, 0], pa.int64()))).to_pylist() == [whole[0]] * 2


def test_parts_do_not_run_into_each_other() -> None:
    kind = pa.struct([("a", pa.binary()), ("b", pa.binary())])
    parts = [b"", b"\x00", b"\x00\x00", b"\x00\x01", b"\x00\xff", b"\x01", b"\x02", b"\xff"]
    values = [{"a": a, "b": b} for a in parts for b in parts]
    assert len(set(encoded(pa.array(values, kind)).to_pylist())) == len(values)
    lists = [[], [None], [[]], [[None]], [[], []], [[None], None], [None, []], [[None, None]]]
    assert len(set(encoded(pa.array(lists, pa.list_(pa.list_(pa.bool_())))).to_pylist())) == len(lists)


def test_what_a_null_hides_does_not_show() -> None:
    hidden = pa.StructArray.from_arrays([pa.array([1, 2]), pa.array(["a", "b"])], names=["a", "b"])
    nulls = pa.StructArray.from_buffers(hidden.type, 2, [pa.py_buffer(b"\x00")], children=hidden.flatten())
    outer = pa.StructArray.from_arrays([nulls], names=["inner"])
    assert encoded(outer).to_pylist() == [b"\x02", b"\x02"]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array([7, 8]), mask=pa.array([True, False]))
    assert encoded(pa.StructArray.from_arrays([lists], names=["a"])).to_pylist()[0] == b"\x02"


def test_maps_and_encodings_inside_of_values_are_compared_by_what_they_hold() -> None:
    maps = pa.array(
        [[("a", 1.0), ("b", None)], [("b", None), ("a", 1.0)], [("a", 1.0), ("b", None)], None, []],
        pa.map_(pa.string(), pa.float64()),
    )
    bytes_of_maps = encoded(maps).to_pylist()
    assert bytes_of_maps[0] == bytes_of_maps[2] != bytes_of_maps[1]
    assert encoded(maps.slice(1)).to_pylist() == bytes_of_maps[1:]
    texts = pa.array(["x", None, "y"])
    ways = [texts, texts.dictionary_encode(), texts.cast(pa.large_string())]
    found = [encoded(pa.StructArray.from_arrays([one], names=["a"])).to_pylist() for one in ways]
    assert found[0] == found[1] == found[2]
    values = [[1, 2], None, [], [None]]
    views = pa.array(values, pa.list_view(pa.int64()))
    assert encoded(views).to_pylist() == encoded(pa.array(values, pa.list_(pa.int64()))).to_pylist()
    ids = pa.array([bytes(range(16))], pa.binary(16))
    extended = pa.StructArray.from_arrays([pa.ExtensionArray.from_storage(pa.uuid(), ids)], names=["a"])
    assert encoded(extended).to_pylist() == encoded(pa.StructArray.from_arrays([ids], names=["a"])).to_pylist()


def test_half_floats_and_nulls_inside_of_values_have_an_order() -> None:
    halves = pa.array([np.float16(one) for one in (-1.5, -0.0, 0.0, 2.0, float("nan"))], pa.float16())
    found = encoded(pa.StructArray.from_arrays([halves, pa.nulls(5)], names=["a", "b"])).to_pylist()
    assert found == sorted(found)
    assert len(set(found)) == 4


@pytest.mark.parametrize("kind", [kind for kind, _ in PLAIN])
def test_no_rows_have_no_bytes(kind: pa.DataType) -> None:
    for nested in (pa.list_(kind), pa.list_(kind, 2), pa.struct([("a", kind)]), pa.map_(kind, pa.list_(kind))):
        assert encoded(pa.array([], nested)).to_pylist() == []
        assert encoded(pa.chunked_array([], nested)).to_pylist() == []
        assert sortable(pa.nulls(2, nested)).to_pylist() == [None, None]
        assert is_sortable(nested)


def test_what_has_no_order_is_known() -> None:
    union = pa.sparse_union([pa.field("a", pa.int64())])
    assert not is_encodable(pa.list_(union))
    assert not is_sortable(pa.struct([("a", union)]))
    assert not is_sortable(pa.list_(pa.month_day_nano_interval()))
    assert is_sortable(pa.int64())


@given(arrays(), st.data())
@settings(max_examples=examples(200))
def test_rows_are_told_apart_however_they_came(array: pa.Array, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, 2), min_size=len(array), max_size=len(array)))
    rows = pa.table({"place": pa.array(places, pa.int8()), "value": array})
    shuffled = rows.take(pa.array(data.draw(st.permutations(range(len(array)))), pa.int64()))
    found = [in_order(one, ["place"], ["value"]) for one in (rows, shuffled)]
    for one in found:
        assert one["place"].to_pylist() == sorted(places)
    # As bits, in which zeros and NaN differ.
    ours, theirs = (encoded(pa.StructArray.from_arrays(one["value"].chunks, ["value"]), exact=True) for one in found)
    assert ours.equals(theirs)
    came = encoded(pa.StructArray.from_arrays([array], ["value"]), exact=True)
    assert sorted(ours.to_pylist()) == sorted(came.to_pylist())
