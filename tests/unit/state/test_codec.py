"""Keys and values of global keyed tables as bytes."""

import datetime as dt
import math
import pickle
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statebed.errors import CorruptObjectError, UnsupportedTypeError
from statebed.state import Codec

EAST = dt.timezone(dt.timedelta(hours=5, minutes=30))
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=dt.UTC)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 200), 1 << 200),
    st.floats(),
    st.text(),
    st.binary(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.dates(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.tuples(st.text(), st.dates())), inner, max_size=4),
    ),
    max_leaves=8,
)


def alike(one: Any, other: Any) -> bool:
    """Equal, of the same types at every depth, NaN equal to NaN, and -0.0 no 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (one == other and math.copysign(1, one * other) == 1)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, Decimal):
        return bool(one.as_tuple() == other.as_tuple())
    return bool(one == other)


@settings(max_examples=examples(100))
@given(values)
@example([dt.timedelta.min, dt.timedelta.max, dt.date.min, dt.date.max])
def test_what_goes_in_comes_out_equal_and_of_the_same_type(value: Any) -> None:
    codec = Codec[Any]()
    assert alike(codec.decode(codec.encode(value)), value)


@settings(max_examples=examples(40))
@given(scalars)
def test_a_key_decodes_to_an_equal_key_and_encodes_to_the_same_bytes_again(key: Any) -> None:
    codec = Codec[Any]()
    data = codec.encode_key(key)
    decoded = codec.decode(data)
    assert type(decoded) is type(key)
    assert decoded == key or math.isnan(key)
    assert codec.encode_key(decoded) == data


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (math.nan, -math.nan),
        (Decimal("1.5"), Decimal("1.500")),
        (Decimal(0), Decimal("-0.00")),
        (Decimal("1" + "0" * 60), Decimal("1E+60")),
        (NOON, NOON.astimezone(EAST)),
        (("a", -0.0, (Decimal(100),)), ("a", 0.0, (Decimal("1E2"),))),
    ],
)
def test_equal_keys_are_equal_bytes(one: Any, other: Any) -> None:
    codec = Codec[Any]()
    assert codec.encode_key(one) == codec.encode_key(other)


def test_keys_of_different_types_are_different_also_where_python_calls_them_equal() -> None:
    keys = [1, 1.0, True, Decimal(1), "1", b"1", (1,), dt.timedelta(microseconds=1), dt.date(1970, 1, 2), None]
    naive = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a key without a zone is another key
    keys += [naive, naive.replace(tzinfo=dt.UTC)]
    codec = Codec[Any]()
    assert len({codec.encode_key(key) for key in keys}) == len(keys)


class Colour(IntEnum):
    RED = 1


@dataclass(frozen=True)
class Rider:
    name: str
    trips: int = 0
    homes: tuple[str, ...] = ()
    fare: Decimal | None = None


class Seat(msgspec.Struct, frozen=True):
    row: int
    riders: list[Rider] = []


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        1j,
        np.float64(1.5),
        Colour.RED,
        Rider("a"),
        [Rider("a")],
        {"a": print},
        ({1},),
        "\ud800",
        (["\ud800"],),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_value_of_another_type_is_refused_when_it_is_encoded(value: Any) -> None:
    with pytest.raises(UnsupportedTypeError):
        Codec[Any]().encode(value)


@pytest.mark.parametrize("key", [[1], {"a": 1}, ([1],), bytearray(b"a")], ids=lambda given: type(given).__name__)
def test_what_can_be_changed_is_no_key(key: Any) -> None:
    with pytest.raises(UnsupportedTypeError):
        Codec[Any]().encode_key(key)


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UnsupportedTypeError):
        Codec[Any]().encode(endless)


def test_an_aware_datetime_that_utc_cannot_hold_is_refused() -> None:
    with pytest.raises(UnsupportedTypeError, match="UTC"):
        Codec[Any]().encode(dt.datetime(1, 1, 1, tzinfo=EAST))


@pytest.mark.parametrize(
    "value",
    [Rider("ann", 1 << 80, ("x", "y"), Decimal("1.50")), Seat(3, [Rider("bob")]), Seat(4)],
    ids=lambda given: type(given).__name__,
)
def test_declared_dataclasses_and_structs_come_back_as_themselves(value: Any) -> None:
    codec = Codec[Any](type(value))
    assert codec.decode(codec.encode(value)) == value
    # Without the type they are maps, so that other programs can read them.
    assert Codec[Any]().decode(codec.encode(value)).keys() >= {next(iter(type(value).__annotations__))}


def test_a_declared_type_normalises_keys_and_refuses_other_types() -> None:
    assert Codec[float](float).encode_key(1) == Codec[float](float).encode_key(1.0)
    assert Codec[Rider](Rider).encode_key(Rider("a", fare=Decimal("1.0"))) == Codec[Rider](Rider).encode_key(
        Rider("a", fare=Decimal(1))
    )
    for declared, wrong in [(int, True), (int, "1"), (str, 1), (Rider, Seat(1)), (int, None)]:
        with pytest.raises(UnsupportedTypeError):
            Codec[Any](declared).encode(wrong)


def test_bytes_that_do_not_fit_the_declared_type_are_named() -> None:
    data = Codec[Any]().encode("text")
    with pytest.raises(UnsupportedTypeError, match="cannot be read as int"):
        Codec[int](int).decode(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", pickle.dumps(Rider("a")), b"\xd4\x7f\x00", b"\xd4\x04\xa1", b"\xd4\x08x", b"\xd4\x02\x01"],
    ids=lambda given: type(given).__name__,
)
def test_bytes_that_nobody_encoded_are_refused_and_run_nothing(data: bytes) -> None:
    with pytest.raises(CorruptObjectError):
        Codec[Any]().decode(data)


@settings(max_examples=examples(100))
@given(st.binary(max_size=40))
def test_any_bytes_decode_to_plain_values_or_are_refused(data: bytes) -> None:
    try:
        value = Codec[Any]().decode(data)
    except CorruptObjectError:
        return
    Codec[Any]().encode(value)


def test_the_layout_is_the_one_that_is_written_down() -> None:
    encode = Codec[Any]().encode
    assert encode(1 << 64).hex() == "c709" + "01" + "01" + "00" * 8
    assert encode((1, "a")).hex() == "d602" + "9201a161"
    assert encode({1: 2}).hex() == "c703" + "03" + "920102"
    assert encode({"a": 2}).hex() == "81a16102"
    assert encode(dt.datetime(1970, 1, 1, tzinfo=dt.UTC)).hex() == "d404" + "00"
    assert encode(dt.date(1970, 1, 2)).hex() == "d406" + "01"
    assert encode(dt.timedelta(microseconds=-1)).hex() == "d407" + "ff"
    assert encode(Decimal("1.50")).hex() == "d608" + b"1.50".hex()
