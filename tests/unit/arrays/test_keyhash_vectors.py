"""The key hash against the published test vectors and a plain reference; against Spark itself in tests/spark."""

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.arrays import xxh64
from statebed.arrays.key_hash import hash_columns, hash_key, hash_table, normalise_key
from statebed.errors import InputError

MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & MASK


def reference(data: bytes, seed: int) -> int:
    """XXH64 as its specification says it, byte by byte."""
    position, length = 0, len(data)

    def word(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little")

    def scramble(lane: int, value: int) -> int:
        return rotate((lane + value * P2) & MASK, 31) * P1 & MASK

    if length >= 32:
        lanes = [(seed + P1 + P2) & MASK, (seed + P2) & MASK, seed, (seed - P1) & MASK]
        while position + 32 <= length:
            lanes = [scramble(lane, word(position + 8 * i, 8)) for i, lane in enumerate(lanes)]
            position += 32
        result = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            result = ((result ^ scramble(0, lane)) * P1 + P4) & MASK
    else:
        result = (seed + P5) & MASK
    result = (result + length) & MASK
    while position + 8 <= length:
        result = (rotate(result ^ scramble(0, word(position, 8)), 27) * P1 + P4) & MASK
        position += 8
    if position + 4 <= length:
        result = (rotate(result ^ (word(position, 4) * P1 & MASK), 23) * P2 + P3) & MASK
        position += 4
    for byte in data[position:]:
        result = rotate(result ^ (byte * P5 & MASK), 11) * P1 & MASK
    result = (result ^ (result >> 33)) * P2 & MASK
    result = (result ^ (result >> 29)) * P3 & MASK
    return result ^ (result >> 32)


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (42, -6876166290308861218),
        ("abc", 1423657621850124518),
        ((42, "abc"), 2652500406119182346),
        (None, 42),
        ((None, None), 42),
    ],
)
def test_vectors_of_spark(key: Any, signed: int) -> None:
    assert hash_key(key) == signed % (1 << 64)


@given(st.lists(st.binary(max_size=100), max_size=20))
def test_bytes_hash_as_the_specification_of_xxh64_says(values: list[bytes]) -> None:
    assert hash_columns([pa.array(values, pa.binary())]).tolist() == [reference(value, 42) for value in values]


@given(st.lists(st.tuples(st.text(max_size=50), st.integers(-(1 << 63), (1 << 63) - 1)), min_size=1, max_size=20))
def test_a_second_column_is_seeded_with_the_hash_of_the_first(rows: list[tuple[str, int]]) -> None:
    table = pa.table({"a": [row[0] for row in rows], "b": pa.array([row[1] for row in rows], pa.int64())})
    expected = [
        reference(number.to_bytes(8, "little", signed=True), reference(text.encode(), 42)) for text, number in rows
    ]
    assert hash_table(table, ["a", "b"]).tolist() == expected


def test_many_rows_of_mixed_lengths_hash_as_each_alone() -> None:
    random = np.random.default_rng(5)
    texts = [random.bytes(int(length)) for length in random.integers(0, 70, 20_000)]
    hashes = hash_columns([pa.array(texts, pa.binary())])
    for row in (0, 1, 16_383, 16_384, 16_385, 19_999, *random.integers(0, 20_000, 300).tolist()):
        assert int(hashes[row]) == reference(texts[row], 42)


def test_megabytes_of_long_values_hash_as_the_specification_says() -> None:
    values = [bytes(range(number, 256)) * 300 for number in range(80)]
    hashes = hash_columns([pa.array([*values, b"a", b""], pa.binary())])
    for row in (0, 1, 40, 79):
        assert int(hashes[row]) == reference(values[row], 42)
    assert hashes[80:].tolist() == [reference(b"a", 42), reference(b"", 42)]


def test_slices_chunks_and_large_types_hash_as_the_whole() -> None:
    texts = [None if index % 7 == 0 else "x" * index for index in range(200)]
    whole = hash_columns([pa.array(texts)])
    assert hash_columns([pa.array(texts).slice(13, 100)]).tolist() == whole[13:113].tolist()
    assert hash_columns([pa.array(texts, pa.large_string())]).tolist() == whole.tolist()
    chunks = pa.chunked_array([texts[:3], texts[3:3], texts[3:150], texts[150:]], pa.string())
    assert hash_table(pa.table({"a": chunks}), ["a"]).tolist() == whole.tolist()
    numbers = pa.array([None, 1, 2, None, 3], pa.int32())
    assert hash_columns([numbers.slice(2)]).tolist() == hash_columns([numbers])[2:].tolist()
    flags = pa.array([None, True, False, True] * 5)
    assert hash_columns([flags.slice(3)]).tolist() == hash_columns([flags])[3:].tolist()
    decimals = pa.array([Decimal(number) for number in range(5)], pa.decimal128(38, 0))
    assert hash_columns([decimals.slice(2)]).tolist() == hash_columns([decimals])[2:].tolist()


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.bool_(), pa.decimal128(38, 0), pa.decimal128(5, 0)])
def test_no_rows_have_no_hashes(kind: pa.DataType) -> None:
    assert len(hash_columns([pa.array([], kind)])) == 0
    assert len(hash_table(pa.table({"a": pa.array([], kind)}), ["a"])) == 0


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_binary(), pa.int64(), pa.int8(), pa.bool_(), pa.float32(), pa.decimal128(38, 1), pa.null()],
)
def test_a_column_of_nulls_leaves_the_seed(kind: pa.DataType) -> None:
    assert hash_columns([pa.nulls(5, kind)]).tolist() == [42] * 5
    assert hash_columns([pa.nulls(5, kind).slice(2, 2), pa.array([7, 8])]).tolist() == [hash_key(7), hash_key(8)]


def test_zeros_are_one_key_and_so_are_nans() -> None:
    for kind in (pa.float32(), pa.float64()):
        array = pa.array([0.0, -0.0, float("nan"), -float("nan"), None, 1.5], kind)
        hashes = hash_columns([array]).tolist()
        assert hashes[0] == hashes[1]
        assert hashes[2] == hashes[3]
        assert len(set(hashes)) == 4
        normal = normalise_key(array)
        assert hash_columns([normal]).tolist() == hashes
        assert np.signbit(normal[1].as_py()) == np.False_
        assert normal[4].as_py() is None
        assert (
            bytes(normal.buffers()[1])[2 * kind.bit_width // 8 :][: kind.bit_width // 8]
            == (bytes(normal.buffers()[1])[3 * kind.bit_width // 8 :][: kind.bit_width // 8])
        )


def test_other_types_are_normal_as_they_are() -> None:
    array = pa.array(["a"])
    assert normalise_key(array) is array


@pytest.mark.parametrize(
    "kind",
    [
        pa.float16(),
        pa.map_(pa.string(), pa.int64()),
        pa.dictionary(pa.int32(), pa.string()),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.string_view(),
        pa.list_view(pa.int64()),
        pa.month_day_nano_interval(),
        pa.sparse_union([pa.field("a", pa.int64())]),
        pa.uuid(),
        pa.null(),
        pa.list_(pa.float16()),
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.map_(pa.string(), pa.int64())))]),
        pa.list_(pa.null()),
    ],
)
def test_a_type_that_no_key_has_is_refused_by_column(kind: pa.DataType) -> None:
    with pytest.raises(InputError, match=r"'driver' .* cannot be part of a key"):
        hash_table(pa.table({"driver": pa.chunked_array([], kind)}), ["driver"])


def test_python_values_hash_as_their_spark_types() -> None:
    assert hash_key(True) == hash_columns([pa.array([1], pa.int32())])[0]  # the value itself
    assert hash_key(dt.date(1970, 1, 3)) == hash_columns([pa.array([2], pa.int32())])[0]
    assert hash_key(dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)) == hash_key(1_000_000)
    assert hash_key(b"abc") == hash_key("abc")
    assert hash_key(0.0) == hash_key(-0.0) == hash_key(0)


@pytest.mark.parametrize("key", [Decimal(1), [1], {"a": 1}, object(), 1 << 64, ()])
def test_python_values_without_a_key_hash_are_refused(key: Any) -> None:
    with pytest.raises(InputError):
        hash_key(key)


def test_hashes_do_not_depend_on_the_process() -> None:
    script = "from statebed.arrays.key_hash import hash_key; print(hash_key(('driver 7', 42)))"
    answers = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={"PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert answers == {str(hash_key(("driver 7", 42)))}


def test_p1_the_hash_of_a_text_does_not_depend_on_the_lengths_and_the_order_of_others() -> None:
    texts = [chr(97 + length % 26) * length for length in range(131)]
    alone = [int(hash_columns([pa.array([text])])[0]) for text in texts]
    edges = [0, 1, 7, 8, 31, 32, 33, 40, 63, 64, 65, 70, 95, 96, 128, 130]
    for one in edges:
        for other in edges:
            assert hash_columns([pa.array([texts[one], texts[other]])]).tolist() == [alone[one], alone[other]]
    for start in (0, 32, 64, 70):
        assert hash_columns([pa.array(texts[start:])]).tolist() == alone[start:]
        assert hash_columns([pa.array(texts[start:][::-1])]).tolist() == alone[start:][::-1]


@pytest.mark.parametrize("compiled", [None, "loaded"])
def test_p4_a_very_long_value_takes_no_pass_of_numpy_per_stripe(
    monkeypatch: pytest.MonkeyPatch, compiled: str | None
) -> None:
    """A document of megabytes took seconds: 20 us for each 32 bytes, as a batch of rows would."""
    if compiled is None:
        monkeypatch.setattr(xxh64, "loops_for", lambda _: None)
    passes = []
    mix = xxh64._mix_lane

    def counted(lanes: xxh64.Hashes, words: xxh64.Hashes) -> None:
        passes.append(lanes.shape)
        mix(lanes, words)

    monkeypatch.setattr(xxh64, "_mix_lane", counted)
    long = [bytes(range(256)) * 800 + b"end" * number for number in range(3)]
    values = [*long, *(b"%d" % number * 20 for number in range(50))]
    assert hash_columns([pa.array(values)]).tolist() == [reference(value, 42) for value in values]
    assert hash_columns([pa.array(long[:1])]).tolist() == [reference(long[0], 42)]
    assert len(passes) < 10
