"""Sketches of distinct values are those of Apache DataSketches: the library's own registers, however they came."""

import tracemalloc

import datasketches
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import statebed as sb
from statebed.aggregates.accumulators import CODES, DistinctSketch, registers_of
from statebed.aggregates.accumulators.datasketches import codes_of_numbers
from statebed.arrays.columns import from_numpy
from statebed.arrays.grouping import Grouping
from statebed.arrays.key_hash import hash_columns

SIZES = (0, 1, 5, 7, 8, 20, 100, 300, 1_000, 20_000)
"""Lists, sets and registers: the library changes over at 8 values and at an eighth of the registers."""
PRECISIONS = (4, 7, 8, 12, 18)
FEWEST_OF_A_REGISTER = 10_000


def of_library(numbers: npt.NDArray[np.int64], precision: int) -> "datasketches.hll_sketch":
    sketch = datasketches.hll_sketch(precision, datasketches.tgt_hll_type.HLL_8)
    for number in numbers.tolist():
        sketch.update(number)
    return sketch


def codes_of(numbers: npt.NDArray[np.int64], precision: int) -> list[int]:
    """Return the greatest value of each register."""
    registers = np.zeros(1 << precision, dtype=np.int64)
    codes = codes_of_numbers(numbers.view(np.uint64), precision)
    np.maximum.at(registers, codes // 64, codes % 64)
    return [int(place) * 64 + int(registers[place]) for place in np.flatnonzero(registers)]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_numbers_fill_the_registers_of_the_library(precision: int) -> None:
    chance = np.random.default_rng(precision)
    some = [chance.integers(-(2**63), 2**63, size, dtype=np.int64) for size in SIZES]
    libraries = [of_library(numbers, precision) for numbers in some]
    # Compact ones and those that could be updated, between nulls.
    both = [one.serialize_compact() if place % 2 else one.serialize_updatable() for place, one in enumerate(libraries)]
    given_ones = pa.array([each for one in both for each in (one, None)], pa.binary())
    accumulator = DistinctSketch("x", precision)
    partial = registers_of(given_ones)
    assert partial.to_pylist() == [each for numbers in some for each in (codes_of(numbers, precision), [])]
    assert registers_of(given_ones.slice(3, 9)).equals(partial.slice(3, 9))

    # Both estimate from the same registers; of few values the library knows more than those.
    estimates = accumulator.finish([partial]).to_pylist()[::2]
    error = 1.04 / np.sqrt(1 << precision)
    for numbers, found in zip(some, estimates, strict=True):
        assert abs(found - len(numbers)) <= 5 * error * len(numbers)


def test_the_estimate_is_near_that_of_the_library_from_the_same_registers() -> None:
    chance = np.random.default_rng(7)
    for size in (FEWEST_OF_A_REGISTER, 200_000):
        numbers = chance.integers(-(2**63), 2**63, size, dtype=np.int64)
        union = datasketches.hll_union(12)
        halves = np.array_split(numbers, 2)
        for half in halves:
            union.update(of_library(half, 12))
        library = union.get_result(datasketches.tgt_hll_type.HLL_8)
        accumulator = DistinctSketch("x", 12)
        partial = registers_of(pa.array([library.serialize_compact()], pa.binary()))
        assert partial.to_pylist() == [codes_of(numbers, 12)]
        (found,) = accumulator.finish([partial]).to_pylist()
        assert found == pytest.approx(library.get_estimate(), rel=0.01)


@pytest.mark.parametrize(("groups", "registers"), [(200_000, 2), (500, 4_000)])
def test_p4_estimates_of_many_groups_take_memory_for_a_slice_of_them(groups: int, registers: int) -> None:
    codes = np.arange(registers, dtype=np.int32) * 64
    values = np.random.default_rng(3).integers(1, 20, (groups, registers), dtype=np.int32)
    offsets = from_numpy(np.arange(groups + 1, dtype=np.int32) * registers, pa.int32())
    partial = pa.ListArray.from_arrays(offsets, from_numpy((codes + values).reshape(-1), pa.int32())).cast(CODES)
    accumulator = DistinctSketch("x", 12)
    tracemalloc.start()
    try:
        found = accumulator.finish([partial])
        beyond = tracemalloc.get_traced_memory()[1] - found.nbytes
    finally:
        tracemalloc.stop()
    # A table of all groups takes 1000 bytes of each, beside 24 of each register.
    assert beyond < (20 << 20)
    alone = [accumulator.finish([partial.slice(group, 1)])[0].as_py() for group in range(0, groups, groups // 50)]
    assert found.to_pylist()[:: groups // 50] == alone


@settings(deadline=None, max_examples=examples(50))
@given(values=st.lists(st.none() | st.text(max_size=3), max_size=30), precision=st.integers(4, 18))
def test_p6_a_sketch_of_the_key_hashes_leaves_the_partial_of_the_rows(values: list[str | None], precision: int) -> None:
    column = pa.array(values, pa.string())
    there = column.drop_null()
    hashes = hash_columns([there]).view(np.int64) if len(there) else np.zeros(0, dtype=np.int64)
    sketch = of_library(hashes, precision).serialize_updatable()
    bound = sb.approx_count_distinct("x", precision=precision).bind("a", input_types=(pa.string(),))
    accumulator = bound.accumulator
    assert isinstance(accumulator, DistinctSketch)
    grouping = Grouping(order=np.arange(len(values)), starts=np.zeros(1 if values else 0, dtype=np.int64))
    (folded,) = accumulator.fold([column], grouping)
    made = registers_of(pa.array([sketch] if values else [], pa.binary()))
    assert made.equals(folded)
    if values:
        assert abs(accumulator.finish([made])[0].as_py() - len(set(there.to_pylist()))) <= 5 * 1.04 / 4 * len(values)


def test_p6_what_an_order_of_rows_left_in_a_sketch_is_left_behind() -> None:
    numbers = np.random.default_rng(5).integers(-(2**63), 2**63, 3_000, dtype=np.int64)
    for some in (numbers[:5], numbers[:60], numbers):
        ways = [of_library(one, 9).serialize_updatable() for one in (some, some[::-1])]
        assert ways[0] != ways[1]
        one, other = registers_of(pa.array(ways, pa.binary())).to_pylist()
        assert one == other == codes_of(some, 9)


def test_many_sketches_are_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(3)
    some = [chance.integers(-(2**63), 2**63, size, dtype=np.int64) for size in (900, 3, 40, 2_000, 0, 1_500)]
    given_ones = pa.array([of_library(numbers, 8).serialize_compact() for numbers in some], pa.binary())
    whole = registers_of(given_ones)
    monkeypatch.setattr("statebed.aggregates.accumulators.datasketches._BYTES_AT_ONCE", 300)
    assert registers_of(given_ones).equals(whole)
    assert whole.to_pylist() == [codes_of(numbers, 8) for numbers in some]


def test_a_register_that_is_full_counts_as_one_that_is_nearly_full() -> None:
    accumulator = DistinctSketch("x", 4)
    some = pa.array([[63], [62], [8 * 64 + 63, 9 * 64 + 63]], accumulator.partial_fields[0].type)
    assert accumulator.finish([some]).to_pylist() == [1, 1, 2]


def test_empty_text_counts_and_null_does_not() -> None:
    bound = sb.approx_count_distinct("x").bind("a", input_types=(pa.string(),))
    grouping = Grouping(order=np.arange(3), starts=np.zeros(1, dtype=np.int64))
    folded = bound.accumulator.fold([pa.array(["", None, ""], pa.string())], grouping)
    assert bound.accumulator.finish(folded).equals(from_numpy(np.ones(1, dtype=np.int64), pa.int64()))
