"""Codec of keys and values in global keyed tables: msgpack with tags, which is self-describing and runs no code.

A value decodes to an equal value of the same type: None, bool, int of any size, float (NaN and infinities too), str,
bytes, datetime, date, timedelta, Decimal, and tuples, lists and dicts of these. Dataclasses and msgspec Structs need
their type declared (`Codec(Rider)`); on disk they are maps of their fields. Encoding any other type is an error.
Subclasses (numpy's float64, an IntEnum) would not decode to the same type, so they are refused, too.

Layout: nil, booleans, floats (64 bits), text, binary, arrays, maps with text keys, and integers from -2^63 to 2^64 - 1
are stored as plain msgpack. Everything else is a msgpack extension:

    1  other integers     big endian, two's complement, the fewest bytes that hold it
    2  tuple              a msgpack array
    3  map, other keys    a msgpack array: key, value, key, value ...
    4  datetime, aware    msgpack integer: microseconds since 1970 in UTC; decodes to a datetime in UTC
    5  datetime, naive    msgpack integer: microseconds since 1970, zone unknown
    6  date               msgpack integer: days since 1970
    7  timedelta          integer as above: microseconds
    8  Decimal            its text

**Keys** have a canonical form, so that equal keys are equal bytes: -0.0 becomes 0.0, all NaNs become one NaN, a Decimal
loses its trailing zeros, an aware datetime is converted to UTC. Keys of different types are different keys even if they
compare equal in Python: 1, 1.0, True and Decimal(1) are four keys. A key must be hashable.
"""

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Generic, TypeVar, cast

import msgspec

from statebed.errors import CorruptObjectError, UnsupportedTypeError

T = TypeVar("T")

_BIG_INT, _TUPLE, _MAP, _INSTANT, _NAIVE, _DATE, _DURATION, _DECIMAL = range(1, 9)
_KEPT = (bytes, dt.datetime, dt.date, dt.timedelta, Decimal)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NAIVE_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - counts microseconds of datetimes that have no zone
_FIRST_DAY = dt.date(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_TYPES = "None, bool, int, float, str, bytes, datetime, date, timedelta, Decimal, tuple, list, dict"
_ENCODER = msgspec.msgpack.Encoder()


class Codec(Generic[T]):
    """Encodes and decodes values of one declared type; `Any` accepts every type that needs no declaration."""

    def __init__(self, declared: Any = Any) -> None:
        self._declared = declared

    def encode(self, value: T) -> bytes:
        """Return the encoded bytes of a value."""
        return _pack(self._checked(value))

    def encode_key(self, key: T) -> bytes:
        """Return the encoded bytes of a key, which are the same for equal keys of one type."""
        try:
            hash(key)
        except TypeError as error:
            raise UnsupportedTypeError(
                f"a key must be immutable, got a {_name(type(key))}", fix="use a tuple, or a frozen dataclass"
            ) from error
        return _pack(_canonical(self._checked(key)))

    def decode(self, data: bytes) -> T:
        """Decode bytes that `encode` or `encode_key` returned."""
        return cast("T", self._typed(_unpack(data)))

    def _typed(self, tree: Any) -> Any:
        if self._declared is Any:
            return tree
        try:
            return msgspec.convert(tree, self._declared, builtin_types=_KEPT)
        except (msgspec.ValidationError, TypeError) as error:
            raise UnsupportedTypeError(
                f"a stored {_name(type(tree))} cannot be read as {_name(self._declared)}: {error}",
                fix="declare the type used when it was stored; a changed type needs a new version and a migration",
            ) from error

    def _checked(self, value: Any) -> Any:
        """Convert a value to a tree of plain types, in the form in which it will be decoded."""
        if self._declared is Any:
            return value
        try:
            tree = msgspec.to_builtins(value, builtin_types=_KEPT, order="deterministic")
            typed = msgspec.convert(tree, self._declared, builtin_types=_KEPT)
            return msgspec.to_builtins(typed, builtin_types=_KEPT, order="deterministic")
        except (msgspec.ValidationError, TypeError, OverflowError, RecursionError) as error:
            raise UnsupportedTypeError(
                f"a value of type {_name(type(value))} does not fit the declared type {_name(self._declared)}: {error}",
                fix="pass a value of the declared type, or declare another type",
            ) from error


# ---- plain types to what msgpack knows ----------------------------------------------------------------------


def _to_wire(value: Any) -> Any:
    encode = _WIRE.get(type(value))
    if encode is None:
        raise UnsupportedTypeError(
            f"a value of type {_name(type(value))} cannot be stored",
            fix=f"use {_TYPES}, or declare a dataclass or msgspec.Struct as the table's type",
        )
    return encode(value)


def _as_is(value: Any) -> Any:
    return value


def _int_to_wire(value: int) -> Any:
    if -(1 << 63) <= value < 1 << 64:
        return value
    # One more bit than the magnitude, for the sign.
    return _tagged(_BIG_INT, value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, signed=True))


def _dict_to_wire(value: dict[Any, Any]) -> Any:
    if all(type(key) is str for key in value):
        return {key: _to_wire(item) for key, item in value.items()}
    return _tagged(_MAP, _ENCODER.encode([_to_wire(part) for pair in value.items() for part in pair]))


def _datetime_to_wire(value: dt.datetime) -> Any:
    if value.utcoffset() is None:
        micros = (value.replace(tzinfo=None, fold=0) - _NAIVE_EPOCH) // _MICROSECOND
        return _tagged(_NAIVE, _ENCODER.encode(micros))
    micros = (value - _EPOCH) // _MICROSECOND
    try:
        _EPOCH + micros * _MICROSECOND
    except OverflowError as error:
        raise UnsupportedTypeError(
            f"{value.isoformat()} cannot be represented in UTC", fix="use a year from 1 to 9999 in UTC"
        ) from error
    return _tagged(_INSTANT, _ENCODER.encode(micros))


def _tagged(code: int, data: bytes) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, data)


_WIRE: dict[type, Callable[[Any], Any]] = {
    type(None): _as_is,
    bool: _as_is,
    float: _as_is,
    str: _as_is,
    bytes: _as_is,
    int: _int_to_wire,
    list: lambda value: [_to_wire(item) for item in value],
    tuple: lambda value: _tagged(_TUPLE, _ENCODER.encode([_to_wire(item) for item in value])),
    dict: _dict_to_wire,
    dt.datetime: _datetime_to_wire,
    dt.date: lambda value: _tagged(_DATE, _ENCODER.encode((value - _FIRST_DAY).days)),
    dt.timedelta: lambda value: _tagged(_DURATION, _ENCODER.encode(_int_to_wire(value // _MICROSECOND))),
    Decimal: lambda value: _tagged(_DECIMAL, str(value).encode()),
}


def _canonical(key: Any) -> Any:
    """Return the canonical form of a key."""
    if type(key) is float:
        return math.nan if math.isnan(key) else key + 0.0
    if type(key) is Decimal:
        return _canonical_decimal(key)
    if type(key) in {tuple, list}:
        return type(key)(_canonical(part) for part in key)
    if type(key) is dict:
        return {_canonical(name): _canonical(part) for name, part in key.items()}
    return key


def _canonical_decimal(key: Decimal) -> Decimal:
    # Not `normalize`, which rounds to the precision of the thread's context.
    sign, digits, exponent = key.as_tuple()
    if not isinstance(exponent, int):
        return Decimal("NaN") if key.is_nan() else key
    if not any(digits):
        return Decimal(0)
    kept = list(digits)
    while kept[-1] == 0:
        kept.pop()
        exponent += 1
    return Decimal((sign, tuple(kept), exponent))


def _pack(value: Any) -> bytes:
    try:
        return _ENCODER.encode(_to_wire(value))
    except (UnicodeEncodeError, OverflowError, RecursionError) as error:
        raise UnsupportedTypeError(f"a {_name(type(value))} cannot be stored: {error}") from error


# ---- and back -----------------------------------------------------------------------------------------------


def _unpack(data: bytes) -> Any:
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, ArithmeticError, ValueError, TypeError, RecursionError) as error:
        raise CorruptObjectError(
            f"{len(data)} bytes are not an encoded key or value: {error}",
            fix="encode keys and values with statebed.state.Codec",
        ) from error


def _from_extension(code: int, data: memoryview) -> Any:
    content = bytes(data)
    if code == _BIG_INT:
        return int.from_bytes(content, signed=True)
    if code == _DECIMAL:
        return Decimal(content.decode())
    if code not in _TAGGED:
        raise ValueError(f"unknown tag {code}")
    return _TAGGED[code](_DECODER.decode(content))


_DECODER = msgspec.msgpack.Decoder(ext_hook=_from_extension)
_TAGGED: dict[int, Callable[[Any], Any]] = {
    _TUPLE: tuple,
    _MAP: lambda flat: dict(zip(flat[::2], flat[1::2], strict=True)),
    _INSTANT: lambda micros: _EPOCH + dt.timedelta(microseconds=micros),
    _NAIVE: lambda micros: _NAIVE_EPOCH + dt.timedelta(microseconds=micros),
    _DATE: lambda days: _FIRST_DAY + dt.timedelta(days=days),
    _DURATION: lambda micros: dt.timedelta(microseconds=micros),
}


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
