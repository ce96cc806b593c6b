"""The key hash of every type of key, nested ones too, against a plain reference that goes value by value."""

import datetime as dt
import math
import struct
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from unit.arrays.nested_values import arrays
from unit.arrays.test_keyhash_vectors import reference

from statebed.arrays.columns import fixed_width_values
from statebed.arrays.key_hash import hash_columns, normalise_key
from statebed.arrays.nested_order import encoded

EXACT = Context(prec=80)
MICROS = {"s": 10**6, "ms": 10**3, "us": 1, "ns": 1}
NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def hashed(value: pa.Scalar, seed: int) -> int:
    """The hash of one value, from the hash so far."""
    kind = value.type
    if not value.is_valid:
        return seed
    if pa.types.is_struct(kind):
        for name in kind.names:
            seed = hashed(value[name], seed)
        return seed
    if pa.types.is_nested(kind):
        for item in value.values:
            seed = hashed(item, seed)
        return seed
    return reference(bytes_of(value), seed)


def bytes_of(value: pa.Scalar) -> bytes:
    kind = value.type
    found: Any = None if pa.types.is_temporal(kind) else value.as_py()
    if isinstance(found, str | bytes):
        return found.encode() if isinstance(found, str) else found
    if isinstance(found, float):
        number = float("nan") if math.isnan(found) else found + 0.0
        return struct.pack("<d" if kind == pa.float64() else "<f", number)
    if isinstance(found, Decimal) or kind == pa.uint64():
        digits = int(EXACT.scaleb(found, kind.scale)) if isinstance(found, Decimal) else int(found)
        if isinstance(found, Decimal) and kind.precision <= 18:
            return digits.to_bytes(8, "little", signed=True)
        return digits.to_bytes((digits if digits >= 0 else ~digits).bit_length() // 8 + 1, "big", signed=True)
    if found is None:
        found, width = number_of(value)
    else:
        width = 4 if kind == pa.bool_() or kind.bit_width < 32 or kind == pa.int32() else 8
    return int(found % (1 << 8 * width)).to_bytes(width, "little")


def number_of(value: pa.Scalar) -> tuple[int, int]:
    """A date or time as a number, and how many bytes that has."""
    kind = value.type
    if pa.types.is_date(kind):
        return value.value if kind == pa.date32() else value.value // 86_400_000, 4
    return value.value * (NANOS[kind.unit] if pa.types.is_time(kind) else MICROS[kind.unit]), 8


@given(arrays())
@settings(max_examples=examples(300))
def test_values_of_any_type_hash_as_one_by_one(array: pa.Array) -> None:
    assert hash_columns([array]).tolist() == [hashed(value, 42) for value in array]


@given(arrays())
@settings(max_examples=examples(100))
def test_the_hash_of_a_value_does_not_depend_on_the_rows_around_it(array: pa.Array) -> None:
    whole = hash_columns([array]).tolist()
    assert hash_columns([array.slice(1)]).tolist() == whole[1:]
    assert hash_columns([array.take(pa.array(range(len(array))[::-1], pa.int64()))]).tolist() == whole[::-1]
    seeded = hash_columns([pa.array(range(len(array)), pa.int64()), array]).tolist()
    seeds = hash_columns([pa.array(range(len(array)), pa.int64())]).tolist()
    assert seeded == [hashed(value, seed) for value, seed in zip(array, seeds, strict=True)]


@given(arrays())
@settings(max_examples=examples(100))
def test_normal_keys_equal_the_keys_and_have_their_hashes(array: pa.Array) -> None:
    normal = normalise_key(array)
    normal.validate(full=True)
    assert normal.type == array.type
    assert hash_columns([normal]).tolist() == hash_columns([array]).tolist()
    alone, normal_alone = (pa.StructArray.from_arrays([one], names=["key"]) for one in (array, normal))
    assert encoded(normal_alone).equals(encoded(alone))
    some = pa.StructArray.from_arrays([normalise_key(array.slice(1))], names=["key"])
    assert encoded(some).equals(encoded(alone).slice(1))


def test_zeros_and_nans_inside_of_keys_become_the_same_bits() -> None:
    other = np.array([0x7FF8000000000001], dtype=np.uint64).view(np.float64)[0]
    kind = pa.struct([("a", pa.list_(pa.float64())), ("b", pa.map_(pa.string(), pa.float32()))])
    array = pa.array([{"a": [-0.0, other, None, 1.5], "b": [("x", -0.0)]}, None], kind)
    normal = normalise_key(array)
    floats = fixed_width_values(normal.field(0).values, np.uint64)[[0, 1, 3]].tolist()
    assert floats == [0, 0x7FF8000000000000, 0x3FF8000000000000]
    assert fixed_width_values(normal.field(1).items, np.uint32).tolist() == [0]
    assert normal.to_pylist()[1] is None


def test_nested_keys_without_floats_are_normal_as_they_are() -> None:
    array = pa.array([{"a": [1]}], pa.struct([("a", pa.list_(pa.int64()))]))
    assert normalise_key(array) is array


def test_nulls_and_empty_lists_leave_the_hash_as_it_was() -> None:
    kind = pa.list_(pa.struct([("a", pa.int64())]))
    array = pa.array([None, [], [None], [{"a": None}], [{"a": 7}]], kind)
    assert hash_columns([array]).tolist() == [42] * 4 + hash_columns([pa.array([7])]).tolist()


def test_units_too_coarse_for_microseconds_wrap_around() -> None:
    far = (1 << 63) - 1
    for kind, factor in ((pa.timestamp("s"), 10**6), (pa.duration("ms"), 10**3)):
        wrapped = far * factor % (1 << 64)
        array = pa.array([far], pa.int64()).view(kind)
        assert hash_columns([array]).tolist() == [reference(wrapped.to_bytes(8, "little"), 42)]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_timestamps_up_to_microseconds_and_times_of_day_of_any_unit_hash_alike(unit: str) -> None:
    moment = dt.datetime(2024, 5, 31, 12, 0, 7, tzinfo=dt.UTC)
    expected = hash_columns([pa.array([moment], pa.timestamp("us"))]).tolist()
    assert hash_columns([pa.array([moment], pa.timestamp(unit, "UTC"))]).tolist() == expected
    of_day = pa.array([moment.time()], pa.time32(unit) if unit != "us" else pa.time64(unit))
    nanos = (12 * 3600 + 7) * 10**9
    assert hash_columns([of_day]).tolist() == hash_columns([pa.array([nanos])]).tolist()


def test_lists_of_very_different_lengths_hash_position_by_position() -> None:
    values: list[Any] = [list(range(number % 50 * (number % 7))) for number in range(40_000)]
    hashes = hash_columns([pa.array(values, pa.list_(pa.int32()))])
    for row in (0, 1, 16_383, 16_384, 16_385, 39_999, 13, 48, 97):
        assert int(hashes[row]) == hashed(pa.scalar(values[row], pa.list_(pa.int32())), 42)


def test_decimals_hash_by_their_digits_whatever_their_width() -> None:
    values = [Decimal("1.50"), Decimal("-2.25"), None, Decimal("0.00")]
    narrow = [hash_columns([pa.array(values, kind(9, 2))]).tolist() for kind in (pa.decimal32, pa.decimal64)]
    assert narrow[0] == narrow[1] == hash_columns([pa.array(values, pa.decimal128(9, 2))]).tolist()
    wide = [hash_columns([pa.array(values, kind)]).tolist() for kind in (pa.decimal128(38, 2), pa.decimal256(70, 2))]
    assert wide[0] == wide[1] != narrow[0]
