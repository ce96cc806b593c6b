"""Columns of keyed state: merged, written and compared as plain lists would be."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from statebed.format.columns import from_numpy
from statebed.state.columns import FixedColumn, HeapColumn, Places, column_of, equal_rows, with_values

KINDS: dict[str, tuple[pa.DataType, Callable[[int], object]]] = {
    "text": (pa.string(), lambda number: None if number % 11 == 0 else f"key {number}"),
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
    numbers = np.sort(random.choice(100_000, 2000, replace=False))
    column = column_of(values_of(name, numbers.tolist()))
    for _ in range(40):
        more = np.sort(random.integers(0, 100_000, int(random.integers(0, 300))))
        before = np.searchsorted(numbers, more)
        other = column_of(values_of(name, more.tolist()))
        places = Places(before, len(numbers))
        column = column.merged(other, places)  # type: ignore[arg-type]  # columns of one table have one kind
        numbers = places.merge(numbers, more)
        rows = random.integers(0, len(numbers), 50)
        taken = values_of(name, numbers[rows].tolist())
        assert column.take(rows).equals(taken)
        if not pa.types.is_nested(taken.type):  # nested types are no keys: they are not compared
            assert column.equals(rows, taken).all()
    assert numbers.tolist() == sorted(numbers.tolist())
    assert column.take(np.arange(len(numbers))).equals(values_of(name, numbers.tolist()))
    if isinstance(column, HeapColumn):
        assert len(column.pieces) <= 12


def test_merging_with_no_rows_changes_nothing() -> None:
    full, empty = FixedColumn.of(pa.array([1, 2, 3])), FixedColumn.of(pa.array([], pa.int64()))
    nowhere = np.zeros(0, dtype=np.int64)
    assert full.merged(empty, Places(nowhere, 3)).take(np.arange(3)).to_pylist() == [1, 2, 3]
    assert empty.merged(full, Places(np.zeros(3, dtype=np.int64), 0)).take(np.arange(3)).to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("name", KINDS)
def test_other_values_stand_in_the_rows_that_are_named(name: str) -> None:
    array, others = values_of(name, list(range(20))), values_of(name, [100, 110, 120])
    replaced = with_values(array, np.array([3, 11, 19]), others)
    expected = array.to_pylist()
    expected[3], expected[11], expected[19] = others.to_pylist()
    assert replaced.type == array.type
    assert replaced.to_pylist() == expected
    assert array.equals(values_of(name, list(range(20))))


@pytest.mark.parametrize("name", ["text", "int", "double", "flag"])
def test_rows_are_equal_when_their_values_are_and_null_equals_null(name: str) -> None:
    array = values_of(name, [11, 22, 5, 5, 6, 11])
    some, others = np.array([0, 0, 2, 3, 2]), np.array([1, 2, 3, 4, 5])
    listed = array.to_pylist()
    expected = [listed[one] == listed[other] for one, other in zip(some, others, strict=True)]
    assert equal_rows(array, some, others).tolist() == expected
    sliced = pa.concat_arrays([values_of(name, [1, 2, 3]), array])[3:]
    assert equal_rows(sliced, some, others).tolist() == expected
    indices = from_numpy(np.arange(6), pa.int64())
    assert column_of(array).equals(np.arange(6), array.take(indices)).all()
