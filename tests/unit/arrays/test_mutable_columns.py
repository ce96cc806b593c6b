"""Columns of keyed state: merged, written and compared as plain lists would be."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.arrays.mutable import FixedColumn, HeapColumn, Places, TextColumn, column_of, column_over, with_values

KINDS: dict[str, tuple[pa.DataType, Callable[[int], object]]] = {
    "text": (pa.string(), lambda number: None if number % 11 == 0 else f"key {number}"),
    "long text": (pa.string(), lambda number: None if number % 11 == 0 else f"key {number}" * (number % 17)),
    "bytes": (pa.large_binary(), lambda number: bytes([number % 251] * (number % 23))),
    "int": (pa.int64(), lambda number: None if number % 11 == 0 else number),
    "double": (pa.float64(), float),
    "flag": (pa.bool_(), lambda number: number % 3 == 0),
    "list": (pa.list_(pa.int64()), lambda number: [number] * (number % 4)),
}


def values_of(name: str, numbers: list[int]) -> pa.Array:
    kind, value = KINDS[name]
    return pa.array([value(number) for number in numbers], kind)


@pytest.mark.parametrize("name", KINDS)
def test_many_small_runs_merged_into_one_are_all_their_rows_in_order(name: str) -> None:
    random = np.random.default_rng(4)
    numbers = np.sort(random.choice(100_000, 2000, replace=False)).astype(np.uint64)
    column = column_of(values_of(name, numbers.tolist()))
    for _ in range(40):
        more = [
            np.sort(random.integers(0, 100_000, int(random.integers(0, 300)), dtype=np.uint64))
            for _ in range(int(random.integers(1, 4)))
        ]
        places = Places([numbers, *more])
        column = column.merged([column_of(values_of(name, one.tolist())) for one in more], places)
        numbers = places.merge([numbers, *more])
        rows = random.integers(0, len(numbers), 50)
        taken = values_of(name, numbers[rows].tolist())
        assert column.take(rows).equals(taken)
        if not pa.types.is_nested(taken.type):  # nested types are no keys: they are not compared
            assert column.equals(rows, taken).all()
    assert numbers.tolist() == sorted(numbers.tolist())
    assert column.take(np.arange(len(numbers))).equals(values_of(name, numbers.tolist()))
    if isinstance(column, HeapColumn):
        assert len(column.pieces) <= 12


@pytest.mark.parametrize("rows", [[0, 0, 2, 3, 3, 7, 9, 9], [9, 3, 0, 7, 7, 2], [4, 5], [9], []], ids=str)
def test_rows_of_several_pieces_are_taken_in_the_order_they_are_asked_for(rows: list[int]) -> None:
    pieces = [pa.array(["a", None, "c"]), pa.array([], pa.string()), pa.array(["d"]), pa.array([*"efghij"])]
    column = HeapColumn(pieces, np.arange(10, dtype=np.int64))
    expected = ["a", None, *"cdefghij"]
    assert column.take(np.array(rows, dtype=np.int64)).to_pylist() == [expected[row] for row in rows]


def test_merging_with_no_rows_changes_nothing() -> None:
    full, empty = FixedColumn.of(pa.array([1, 2, 3])), FixedColumn.of(pa.array([], pa.int64()))
    three, none = np.arange(3, dtype=np.uint64), np.zeros(0, dtype=np.uint64)
    assert full.merged([empty], Places([three, none])).take(np.arange(3)).to_pylist() == [1, 2, 3]
    assert empty.merged([full], Places([none, three])).take(np.arange(3)).to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("name", KINDS)
def test_other_values_stand_in_the_rows_that_are_named(name: str) -> None:
    array, others = values_of(name, list(range(20))), values_of(name, [100, 110, 120])
    replaced = with_values(array, np.array([3, 11, 19]), others)
    expected = array.to_pylist()
    expected[3], expected[11], expected[19] = others.to_pylist()
    assert replaced.type == array.type
    assert replaced.to_pylist() == expected
    assert array.equals(values_of(name, list(range(20))))


@pytest.mark.parametrize("name", [name for name in KINDS if name != "list"])
def test_rows_are_equal_when_their_values_are_and_null_equals_null(name: str) -> None:
    array = values_of(name, [11, 22, 5, 5, 6, 11, 0, 11])
    listed = array.to_pylist()
    expected = [one == other for one, other in zip(listed[1:], listed[:-1], strict=True)]
    sliced = pa.concat_arrays([values_of(name, [1, 2, 3]), array])[3:]
    every = np.ones(7, dtype=np.bool_)
    for one in (array, sliced):
        for column in (column_of(one), column_over(one)):
            assert column.repeats(np.ones(7, dtype=np.bool_)).tolist() == expected
            assert column.repeats(np.arange(7) == 2).tolist() == [False, False, expected[2], *[False] * 4]
            assert column.equals(np.arange(8), array).all()
            assert column.matches(np.arange(1, 8), column, np.arange(7), every).tolist() == expected
            assert column.matches(np.arange(1, 8), column, np.arange(7), ~every).tolist() == [False] * 7


def test_text_is_packed_while_it_is_short_and_becomes_a_heap_when_it_is_not() -> None:
    short = pa.array(["", None, "a", "a\0", "\0", "x" * 39])
    column = column_of(short)
    assert isinstance(column, TextColumn)
    assert column.take(np.arange(6)).equals(short)
    longer = column.put(np.array([2, 0]), pa.array(["y" * 40, "z"]))
    assert isinstance(longer, HeapColumn)
    assert longer.take(np.arange(6)).to_pylist() == ["z", None, "y" * 40, "a\0", "\0", "x" * 39]
    assert isinstance(column_of(pa.array(["y" * 40])), HeapColumn)


def test_a_heap_takes_text_that_is_packed_and_the_other_way_round() -> None:
    packed, heap = column_of(pa.array(["b", None, "d"])), column_of(pa.array(["a" * 50, "c" * 50]))
    seconds, firsts = np.array([1, 2, 4], dtype=np.uint64), np.array([0, 3], dtype=np.uint64)
    merged = packed.merged([heap], Places([seconds, firsts]))
    assert merged.take(np.arange(5)).to_pylist() == ["a" * 50, "b", None, "c" * 50, "d"]
    back = heap.merged([packed], Places([firsts, seconds]))
    assert back.take(np.arange(5)).to_pylist() == ["a" * 50, "b", None, "c" * 50, "d"]
    assert packed.matches(np.array([0, 1]), heap, np.array([1, 0]), np.ones(2, dtype=np.bool_)).tolist() == [
        False,
        False,
    ]
    assert heap.matches(np.array([0, 1]), packed, np.array([2, 1]), np.ones(2, dtype=np.bool_)).tolist() == [
        False,
        False,
    ]
    others = HeapColumn.of(pa.array([None, "b", "e"]))
    matching = packed.matches(np.arange(3), others, np.array([1, 0, 2]), np.ones(3, dtype=np.bool_))
    assert matching.tolist() == [True, True, False]


short_or_long = st.one_of(st.none(), st.binary(max_size=12), st.binary(max_size=45))


@given(st.lists(short_or_long, max_size=40), st.lists(short_or_long, max_size=40), st.integers(0, 5))
def test_packed_text_does_what_a_list_does(ours: list[bytes | None], theirs: list[bytes | None], offset: int) -> None:
    array, others = pa.array(ours, pa.binary())[offset:], pa.array(theirs, pa.binary())
    column, expected = column_of(array), ours[offset:]
    rows = np.arange(len(expected))
    assert column.take(rows).to_pylist() == expected
    assert column.take(rows).validate(full=True) is None
    count = min(len(expected), len(theirs))
    equal = [one == other for one, other in zip(expected, theirs, strict=False)]
    every = np.ones(count, dtype=np.bool_)
    assert column.matches(rows[:count], column_over(others[:count]), rows[:count], every).tolist() == equal
    column = column.put(rows[::-1][:count].copy(), others[:count])
    expected[len(expected) - count :] = theirs[:count][::-1]
    assert column.take(rows).to_pylist() == expected
    assert column.select(rows[::2]).take(np.arange(len(rows[::2]))).to_pylist() == expected[::2]


NOTHING: dict[str, pa.DataType] = {"int": pa.int64(), "time": pa.timestamp("us", "UTC"), "flag": pa.bool_()}


@pytest.mark.parametrize("name", NOTHING)
def test_a_column_without_values_takes_no_memory_until_it_is_written(name: str) -> None:
    kind, rows = NOTHING[name], np.array([2, 0, 1])
    column = column_of(pa.nulls(4, kind))
    assert isinstance(column, FixedColumn)
    for same in (column, column.copied(), column.select(np.array([3, 1, 0, 2])), column_over(pa.nulls(4, kind))):
        assert (len(same), same.held_bytes) == (4, 0)
        assert same.array().equals(pa.nulls(4, kind))
        assert same.slice(1, 3).array().equals(pa.nulls(2, kind))
    assert column.put(rows, pa.nulls(3, kind)).held_bytes == 0
    written = column.copied().put(np.array([1]), pa.array([1], pa.int64()).cast(kind))
    assert written.held_bytes > 0
    assert written.array().is_valid().to_pylist() == [False, True, False, False]
    assert column.array().null_count == 4, "a copy was written"
    emptied = written.put(np.array([1]), pa.nulls(1, kind))
    assert emptied.array().equals(pa.nulls(4, kind))


@pytest.mark.parametrize("name", NOTHING)
def test_a_column_without_values_is_merged_and_compared_like_any_other(name: str) -> None:
    kind = NOTHING[name]
    nothing, some = column_of(pa.nulls(2, kind)), column_of(pa.array([1, None, 0], pa.int64()).cast(kind))
    first, second = np.array([0, 3], np.uint64), np.array([1, 2, 4], np.uint64)
    expected = pa.array([None, 1, None, None, 0], pa.int64()).cast(kind)
    assert nothing.merged([some], Places([first, second])).array().equals(expected)
    assert some.merged([nothing], Places([second, first])).array().equals(expected)
    both = nothing.merged([column_of(pa.nulls(3, kind))], Places([first, second]))
    assert both.array().equals(pa.nulls(5, kind))
    assert both.held_bytes == 0
    rows, maybe = np.array([0, 1, 2]), np.ones(3, dtype=np.bool_)
    assert both.matches(rows, some, rows, maybe).tolist() == [False, True, False]
    assert some.matches(rows, both, rows, maybe).tolist() == [False, True, False]
    assert both.matches(rows, both, rows, np.array([True, False, True])).tolist() == [True, False, True]


def test_wanted_rows_are_the_only_ones_with_values() -> None:
    column = column_of(pa.array([1, 2, None, 4]))
    assert isinstance(column, FixedColumn)
    assert column.where(np.array([True, False, True, True])).array().to_pylist() == [1, None, None, 4]
    assert column.array().to_pylist() == [1, 2, None, 4]
