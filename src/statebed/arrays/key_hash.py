"""Key hash: Spark SQL's `xxhash64` with seed 42, bit for bit, in numpy over Arrow arrays.

Columns are hashed one after the other, each with the hash so far as its seed; a null leaves it unchanged. Types:

- boolean, byte, short, int, date: as a 32-bit integer; long, timestamp, interval (both in microseconds): as a 64-bit
  one;
- float and double: by their bits, after normalising -0.0 to 0.0 and all NaN to one;
- string, binary: by their bytes;
- decimal up to 18 digits: the unscaled value as a 64-bit integer; wider: the bytes of the unscaled value, big
  endian, two's complement, as few as hold it;
- struct: its fields, list: its items, like columns: one after the other.

Types that Spark lacks are hashed as what it reads from their Parquet columns, or like the nearest type:

- unsigned integers of 8, 16, 32, 64 bits: as short, int, long, decimal(20, 0);
- timestamps and durations in seconds or milliseconds: as in microseconds, modulo 2**64, which is harmless because keys
  are compared; in nanoseconds, which microseconds cannot hold: as a 64-bit integer;
- times of day: as Spark's TIME, a 64-bit number of nanoseconds, whatever their unit;
- date64: as the date, by whole days; fixed-size binary: as binary.

A hash is never taken for a key: keys are compared.
"""

import datetime as dt
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import boolean_values, fixed_width_values, from_numpy, validity
from statebed.arrays.nested import REMEMBERED_TYPES, fields_of, is_list, items_of, with_parts
from statebed.arrays.packed_text import NULL_WORD, OFFSET_TYPES, PackedText, byte_offsets, text_of
from statebed.arrays.storable_values import DAY_MS
from statebed.arrays.xxh64 import Text, hash_halves, hash_packed, hash_text, hash_words
from statebed.errors import InputError

HASH_NAME = "xxhash64"
HASH_VERSION = 1
HASH_SEED = 42

Hashes = npt.NDArray[np.uint64]
_Way: TypeAlias = Callable[[pa.Array, Hashes], Hashes]
"""Function from the hashes so far (one per row, or one for all) to new ones; arbitrary at nulls."""

_LONG_DECIMAL_DIGITS = 18
_WORD_BITS = 64
_HALF_BITS = np.uint64(32)
_UPPER_BITS = np.uint64(0xFFFF_FFFF_0000_0000)
_ROWS_AT_ONCE = 1 << 14
"""Number of rows whose arrays all fit into the processor's cache."""
_BYTES_AT_ONCE = 4 << 20


def hash_columns(columns: Sequence[pa.Array | PackedText]) -> Hashes:
    """Return the hash of each row of a key, given as columns of equal length; short text may be packed."""
    if not columns:
        raise InputError("a key must have at least one column")
    hashes = np.full(len(columns[0]), HASH_SEED, dtype=np.uint64)
    _hash_more(hashes, columns, one_seed=True)
    return hashes


def placement_hash(columns: Sequence[pa.Array | PackedText], prefix: int) -> Hashes:
    """Return the hashes that place rows of a multiset table; the first `prefix` columns identify the group.

    The upper 32 bits are those of the group's own key hash, which decide the subtask. The lower 32 bits are the upper
    ones of the hash of all columns, so that the rows of one group spread over a range of hashes.
    """
    hashes = hash_columns(columns[:prefix])
    upper = hashes & _UPPER_BITS
    _hash_more(hashes, columns[prefix:], one_seed=False)
    hashes >>= _HALF_BITS
    hashes |= upper
    return hashes


def group_ranges(hashes: Hashes) -> tuple[Hashes, Hashes]:
    """Return the first and last placement hash of the rows of groups, from the key hashes of the groups.

    >>> [hex(end[0]) for end in group_ranges(np.array([0x0123_4567_89AB_CDEF], dtype=np.uint64))]
    ['0x123456700000000', '0x1234567ffffffff']
    """
    return hashes & _UPPER_BITS, hashes | ~_UPPER_BITS


def _hash_more(hashes: Hashes, columns: Sequence[pa.Array | PackedText], *, one_seed: bool) -> None:
    """Hash columns into `hashes`, in place; `one_seed` tells that all hashes are equal so far."""
    for number, column in enumerate(columns):
        if not isinstance(column, PackedText):
            if pa.types.is_null(column.type):
                continue
            check_key_type(pa.field("key", column.type))
        for start in range(0, len(column), _ROWS_AT_ONCE):
            piece = column.slice(start, _ROWS_AT_ONCE)
            so_far = hashes[start : start + _ROWS_AT_ONCE]
            seeds = so_far[:1] if one_seed and not number else so_far
            with np.errstate(over="ignore"):
                if isinstance(piece, PackedText):
                    _put(so_far, *_hash_packed(piece, seeds))
                else:
                    _hash_on(so_far, piece, seeds)


def hash_table(table: pa.Table, key_columns: Sequence[str]) -> Hashes:
    """Return the hash of each row of a table by its key columns."""
    for name in key_columns:
        check_key_type(table.schema.field(name))
    batches = table.select(list(key_columns)).to_batches()
    parts = [hash_columns(batch.columns) for batch in batches]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)


def hash_key(key: Any) -> int:
    """Return the hash of a key: a Python value, or a tuple of them for a key of several columns.

    Integers hash as longs, floats as doubles, datetimes as timestamps.

    >>> hash_key((42, "abc"))
    2652500406119182346
    """
    parts = key if isinstance(key, tuple) else (key,)
    return int(hash_columns([_one_row(part) for part in parts])[0])


def normalise_key(array: pa.Array) -> pa.Array:
    """Return the array as keys are stored and compared: -0.0 as 0.0, and all NaN as one, at any depth."""
    kind = array.type
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        zeroed = pc.if_else(pc.equal(array, pa.scalar(0.0, kind)), pa.scalar(0.0, kind), array)
        return pc.if_else(pc.is_nan(zeroed), pa.scalar(float("nan"), kind), zeroed)
    return with_parts(array, normalise_key) if pa.types.is_nested(kind) and _varies(kind) else array


@lru_cache(maxsize=REMEMBERED_TYPES)
def _varies(kind: pa.DataType) -> bool:
    """Return whether a nested type has parts whose equal values may have different bits."""
    if not (pa.types.is_struct(kind) or pa.types.is_map(kind) or is_list(kind)):
        return kind in (pa.float32(), pa.float64())
    return any(_varies(kind.field(index).type) for index in range(kind.num_fields))


def check_key_type(field: pa.Field, *, where: str = "") -> None:
    """Raise InputError for a column whose type cannot be part of a key."""
    if (reason := _refusal(field.type)) is not None:
        raise InputError(
            f"the column {field.name!r} of the type {field.type} cannot be part of a key: {reason}",
            where=where,
            fix="cast it to a boolean, a number, a decimal, string, binary, a date or time, or to a struct or list of "
            "these; a map to a list of its entries in an order of their own",
        )


def is_key_type(kind: pa.DataType) -> bool:
    """Return whether a column of the type can be part of a key."""
    return _refusal(kind) is None


@lru_cache(maxsize=REMEMBERED_TYPES)
def _refusal(kind: pa.DataType) -> str | None:
    """Return why a type cannot be part of a key, or None if it can."""
    if pa.types.is_struct(kind) or is_list(kind):
        reasons = (_refusal(kind.field(index).type) for index in range(kind.num_fields))
        return next((reason for reason in reasons if reason is not None), None)
    if pa.types.is_map(kind):
        return "equal maps may have their entries in different orders"
    return f"{kind} has no key hash" if _way_of(kind) is None else None


def _one_row(value: Any) -> pa.Array:
    plain = (bool, int, float, str, bytes, dt.datetime, dt.date, dt.timedelta, type(None))
    if not isinstance(value, plain):
        raise InputError(
            f"a value of the type {type(value).__name__} cannot be part of a key",
            fix="use bool, int, float, str, bytes, date, datetime, timedelta or None, or hash an Arrow array",
        )
    try:
        return pa.array([value])
    except (OverflowError, pa.ArrowInvalid) as error:
        raise InputError(f"the key value {value!r} cannot be hashed: {error}") from error


def _hash_packed(text: PackedText, seeds: Hashes) -> tuple[Hashes, npt.NDArray[np.bool_] | None]:
    valid = text.words[-1] < NULL_WORD
    return hash_packed(text.words, seeds), None if valid.all() else valid


def _hash_on(hashes: Hashes, column: pa.Array, seeds: Hashes) -> None:
    """Add a column to the hashes; `seeds` are the hashes so far, one per row or one for all."""
    way = _way_of(column.type)
    assert way is not None, column.type
    _put(hashes, way(column, seeds), validity(column) if column.null_count else None)


def _put(hashes: Hashes, hashed: Hashes, valid: npt.NDArray[np.bool_] | None) -> None:
    """Store new hashes where `valid` is set, or everywhere if it is None."""
    if valid is None:
        hashes[:] = hashed
    else:
        np.copyto(hashes, hashed, where=valid)


@lru_cache(maxsize=REMEMBERED_TYPES)
def _way_of(kind: pa.DataType) -> _Way | None:
    """Return the function that hashes values of a type, or None if there is none."""
    return next((way for is_kind, way in _WAYS if is_kind(kind)), None)


NARROW = {
    pa.bool_(): np.bool_,
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.uint8(): np.uint8,
    pa.uint16(): np.uint16,
    pa.date32(): np.int32,
    pa.date64(): np.int64,
    pa.float32(): np.float32,
}
_WIDE = (pa.int64(), pa.uint32(), pa.float64())
_HAS_UNIT = (pa.types.is_timestamp, pa.types.is_duration, pa.types.is_time)
_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def narrow_bits(column: pa.Array) -> Hashes:
    """Return the 32 bits by which values are hashed."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return boolean_values(column).astype(np.uint64)
    values = fixed_width_values(column, NARROW[kind])
    if pa.types.is_float32(kind):
        values = _float_bits(values)
    elif pa.types.is_date64(kind):
        values = (values.astype(np.int64) // DAY_MS).astype(np.int32)
    else:
        values = values.astype(np.int32)
    return values.view(np.uint32).astype(np.uint64)


def wide_bits(column: pa.Array) -> Hashes:
    """Return the 64 bits by which values are hashed."""
    kind = column.type
    if pa.types.is_float64(kind):
        return _float_bits(fixed_width_values(column, np.float64)).view(np.uint64)
    if kind.bit_width < _WORD_BITS:
        values = fixed_width_values(column, np.uint32).astype(np.uint64)
    else:
        values = cast("Hashes", fixed_width_values(column, np.uint64))
    if pa.types.is_temporal(kind):
        factor = _NANOS[kind.unit] if pa.types.is_time(kind) else _MICROS[kind.unit]
        return values if factor == 1 else values * np.uint64(factor)
    return values


def _float_bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Adding 0.0 turns -0.0 into 0.0 and nothing else.
    values = values + values.dtype.type(0.0)
    values[np.isnan(values)] = np.nan
    return values


def _hash_structs(column: pa.Array, seeds: Hashes) -> Hashes:
    hashes = np.array(np.broadcast_to(seeds, len(column)))
    for field in fields_of(column):
        _hash_on(hashes, field, hashes)
    return hashes


def _hash_lists(column: pa.Array, seeds: Hashes) -> Hashes:
    """Hash lists position by position: the first items of all lists, then the second ones, and so on."""
    hashes = np.array(np.broadcast_to(seeds, len(column)))
    offsets, items = items_of(column)
    lengths = np.where(validity(column), np.diff(offsets), 0)
    # Longest first, so that the lists that still have items are always a prefix.
    rows = np.argsort(-lengths, kind="stable")
    positions = np.arange(int(lengths.max()), dtype=np.int64)
    counts = len(rows) - np.searchsorted(lengths[rows[::-1]], positions, side="right")
    firsts = np.cumsum(counts) - counts
    lists = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(firsts, counts)
    ordered = items.take(from_numpy(offsets[rows[lists]] + np.repeat(positions, counts), pa.int64()))
    of_rows = hashes[rows]
    for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        _hash_on(of_rows[:count], ordered.slice(first, count), of_rows[:count])
    hashes[rows] = of_rows
    return hashes


def _hash_long_decimals(column: pa.Array, seeds: Hashes) -> Hashes:
    words = column.type.bit_width // _WORD_BITS
    if not words:
        return hash_words(fixed_width_values(column, np.int32).astype(np.int64).view(np.uint64), seeds)
    values = fixed_width_values(column, np.dtype(("<u8", (words,)))).astype(np.uint64, copy=False)
    return hash_words(values.reshape(len(column), words)[:, 0], seeds)


def _hash_wide_decimals(column: pa.Array, seeds: Hashes) -> Hashes:
    width = column.type.bit_width // 8
    return _hash_shortened(fixed_width_values(column, np.dtype((np.uint8, (width,))))[:, ::-1], seeds)


def _hash_unsigned(column: pa.Array, seeds: Hashes) -> Hashes:
    digits = np.zeros((len(column), 9), dtype=np.uint8)  # one more byte, for the sign of unsigned values
    digits[:, 1:] = fixed_width_values(column, np.uint64).astype(">u8").view(np.uint8).reshape(len(column), 8)
    return _hash_shortened(digits, seeds)


def _hash_shortened(flat: npt.NDArray[Any], seeds: Hashes) -> Hashes:
    """Hash integers, given as rows of big-endian bytes, by the fewest bytes that hold them."""
    count, width = flat.shape
    sign = np.where(flat[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
    # A leading byte is redundant if it repeats the sign and the byte after it still shows the sign.
    spare = (flat[:, :-1] == sign) & ((flat[:, 1:] & 0x80) == (sign & 0x80))
    leading = np.cumprod(spare, axis=1).sum(axis=1).astype(np.int64)
    starts = np.arange(count, dtype=np.int64) * width + leading
    return hash_text(Text.of(np.ascontiguousarray(flat).reshape(-1), starts, width - leading), seeds)


def _hash_fixed_bytes(column: pa.Array, seeds: Hashes) -> Hashes:
    width, count = column.type.byte_width, len(column)
    data = np.zeros(0, dtype=np.uint8)
    if width:
        data = fixed_width_values(column, np.dtype((np.uint8, (width,)))).reshape(-1).view(np.uint8)
    starts = np.arange(count, dtype=np.int64) * width
    return hash_text(Text.of(data, starts, np.full(count, width, dtype=np.int64)), seeds)


def _hash_bytes(column: pa.Array, seeds: Hashes) -> Hashes:
    offsets = byte_offsets(column)
    if offsets[-1] - offsets[0] > _BYTES_AT_ONCE and len(column) > 1:
        half = len(column) // 2
        seeds = np.broadcast_to(seeds, len(column))
        return np.concatenate([_hash_bytes(column[:half], seeds[:half]), _hash_bytes(column[half:], seeds[half:])])
    return hash_text(text_of(column, offsets), seeds)


def _is_long_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind)) and kind.precision <= _LONG_DECIMAL_DIGITS


def _hash_narrow(column: pa.Array, seeds: Hashes) -> Hashes:
    return hash_halves(narrow_bits(column), seeds)


def _hash_wide(column: pa.Array, seeds: Hashes) -> Hashes:
    return hash_words(wide_bits(column), seeds)


_WAYS: tuple[tuple[Callable[[pa.DataType], bool], _Way], ...] = (
    (lambda kind: kind in OFFSET_TYPES, _hash_bytes),
    (lambda kind: kind in NARROW, _hash_narrow),
    (lambda kind: kind in _WIDE or any(has_unit(kind) for has_unit in _HAS_UNIT), _hash_wide),
    (lambda kind: bool(kind == pa.uint64()), _hash_unsigned),
    (_is_long_decimal, _hash_long_decimals),
    (pa.types.is_decimal, _hash_wide_decimals),
    (pa.types.is_fixed_size_binary, _hash_fixed_bytes),
    (pa.types.is_struct, _hash_structs),
    (is_list, _hash_lists),
)
