"""Short text in words: it comes back as it was, and is hashed as its bytes are."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.arrays.key_hash import hash_columns
from statebed.arrays.packed_text import MAX_BYTES, PackedText

KINDS = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]


def packed(array: pa.Array) -> PackedText:
    found = PackedText.of(array)
    assert found is not None
    return found


@given(values=st.lists(st.one_of(st.none(), st.binary(max_size=MAX_BYTES)), max_size=60))
def test_packed_values_come_back_and_are_hashed_as_their_bytes_are(values: list[bytes | None]) -> None:
    array = pa.array(values, pa.binary())
    numbers = pa.array(range(len(values)), pa.int64())
    text = packed(array)
    assert text.array(pa.binary()).equals(array)
    assert hash_columns([text]).tolist() == hash_columns([array]).tolist()
    assert hash_columns([numbers, text, text]).tolist() == hash_columns([numbers, array, array]).tolist()


@pytest.mark.parametrize("length", range(MAX_BYTES + 1))
def test_values_of_one_length_are_hashed_as_their_bytes_are(length: int) -> None:
    array = pa.array([bytes([first] * length) for first in range(20)], pa.binary())
    assert hash_columns([packed(array)]).tolist() == hash_columns([array]).tolist()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_slices_and_more_rows_than_are_packed_at_once_are_packed_too(kind: pa.DataType) -> None:
    # One that is shorter and null between pieces of equal lengths, as well as at the ends of what is packed at once.
    texts: list[str | None] = [f"user-{number:015}" for number in range(40_000)]
    texts[16_383] = texts[20_000] = None
    texts[16_384] = "short"
    array = pa.array(texts, pa.string()).cast(kind)
    for part in (array, array.slice(7), array.slice(30_000, 9), array.slice(0, 0)):
        assert packed(part).array(kind).equals(part)
        assert hash_columns([packed(part)]).tolist() == hash_columns([part]).tolist()


def test_a_value_that_is_too_long_has_no_packed_form() -> None:
    assert PackedText.of(pa.array(["a" * MAX_BYTES])) is not None
    assert PackedText.of(pa.array(["a" * (MAX_BYTES + 1)])) is None
    assert PackedText.of(pa.array(["ä" * 20])) is None
