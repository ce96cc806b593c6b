"""The key hash: Spark SQL's `xxhash64` with seed 42, bit for bit, in numpy over Arrow arrays.

Columns are hashed one after the other, each with the hash so far as its seed; a null leaves it unchanged.
Types:

- boolean, byte, short, int, date: as a 32-bit integer; long, timestamp (microseconds), interval: as a 64-bit
  one;
- float and double: by their bits, after -0.0 became 0.0 and every NaN the same NaN;
- string, binary: by their bytes;
- decimal up to 18 digits: the unscaled value as a 64-bit integer; wider: the bytes of the unscaled value, big
  endian, two's complement, as few as hold it.

A hash never stands for a key: keys are compared.
"""

import datetime as dt
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.errors import InputError
from statebed.format.columns import boolean_values, fixed_width_values, validity
from statebed.format.packed_text import NULL_WORD, OFFSET_TYPES, PackedText, byte_offsets, text_of
from statebed.format.xxh64 import Text, hash_halves, hash_packed, hash_text, hash_words

HASH_NAME = "xxhash64"
HASH_VERSION = 1
HASH_SEED = 42

Hashes = npt.NDArray[np.uint64]

_LONG_DECIMAL_DIGITS = 18
_ROWS_AT_ONCE = 1 << 14
"""Few enough that all arrays of a step stay in the processor's cache."""
_BYTES_AT_ONCE = 4 << 20


def hash_columns(columns: Sequence[pa.Array | PackedText]) -> Hashes:
    """The hash of each row of a key whose columns are given as arrays of equal length; short text may come packed."""
    if not columns:
        raise InputError("a key has at least one column")
    hashes = np.full(len(columns[0]), HASH_SEED, dtype=np.uint64)
    for number, column in enumerate(columns):
        if not isinstance(column, PackedText):
            if pa.types.is_null(column.type):
                continue
            check_key_type(pa.field("key", column.type))
        for start in range(0, len(column), _ROWS_AT_ONCE):
            piece = column.slice(start, _ROWS_AT_ONCE)
            so_far = hashes[start : start + _ROWS_AT_ONCE]
            seeds = so_far if number else so_far[:1]
            with np.errstate(over="ignore"):
                hashed, valid = _hash_packed(piece, seeds) if isinstance(piece, PackedText) else _hash(piece, seeds)
            if valid is None:
                so_far[:] = hashed
            else:
                np.copyto(so_far, hashed, where=valid)
    return hashes


def hash_table(table: pa.Table, key_columns: Sequence[str]) -> Hashes:
    """The hash of each row of a table by some of its columns."""
    for name in key_columns:
        check_key_type(table.schema.field(name))
    batches = table.select(list(key_columns)).to_batches()
    parts = [hash_columns(batch.columns) for batch in batches]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)


def hash_key(key: Any) -> int:
    """The hash of one key: a Python value, or a tuple of them for a key of several columns.

    Integers hash as longs, floats as doubles, datetimes as timestamps.

    >>> hash_key((42, "abc"))
    2652500406119182346
    """
    parts = key if isinstance(key, tuple) else (key,)
    return int(hash_columns([_one_row(part) for part in parts])[0])


def normalise_key(array: pa.Array) -> pa.Array:
    """The array as keys are stored and compared: -0.0 becomes 0.0, and every NaN the same NaN."""
    if not pa.types.is_float32(array.type) and not pa.types.is_float64(array.type):
        return array
    zeroed = pc.if_else(pc.equal(array, pa.scalar(0.0, array.type)), pa.scalar(0.0, array.type), array)
    return pc.if_else(pc.is_nan(zeroed), pa.scalar(float("nan"), array.type), zeroed)


def check_key_type(field: pa.Field) -> None:
    """Refuse a column whose type has no key hash, or no values: nothing compares those."""
    kind = field.type
    if (
        kind in _INT_TYPES
        or kind in _LONG_TYPES
        or kind in OFFSET_TYPES
        or kind in (pa.bool_(), pa.float32(), pa.float64())
        or pa.types.is_decimal128(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    ):
        return
    raise InputError(
        f"the column {field.name!r} of the type {kind} cannot be part of a key",
        fix="cast it to a boolean, a signed integer, float, double, decimal, string, binary, date, or a "
        "timestamp in microseconds",
    )


_INT_TYPES = {pa.int8(): np.int8, pa.int16(): np.int16, pa.int32(): np.int32, pa.date32(): np.int32}
_LONG_TYPES = (pa.int64(), pa.duration("us"))


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


def _hash(column: pa.Array, seeds: Hashes) -> tuple[Hashes, npt.NDArray[np.bool_] | None]:
    """New hashes, from those so far (one for each row, or for all), and where values are; None: everywhere."""
    return _hash_column(column, seeds), validity(column) if column.null_count else None


def _hash_column(column: pa.Array, seeds: Hashes) -> Hashes:
    """New hashes, from those so far; what comes out at nulls is arbitrary."""
    if pa.types.is_decimal128(column.type):
        return _hash_decimal(column, seeds)
    if column.type in OFFSET_TYPES:
        return _hash_bytes(column, seeds)
    if column.type in _INT_TYPES or column.type in (pa.bool_(), pa.float32()):
        return hash_halves(_narrow_bits(column), seeds)
    return hash_words(_wide_bits(column), seeds)


def _narrow_bits(column: pa.Array) -> Hashes:
    """The 32 bits by which values are hashed."""
    if pa.types.is_boolean(column.type):
        return boolean_values(column).astype(np.uint64)
    if pa.types.is_float32(column.type):
        values = _float_bits(fixed_width_values(column, np.float32))
    else:
        values = fixed_width_values(column, _INT_TYPES[column.type]).astype(np.int32)
    return values.view(np.uint32).astype(np.uint64)


def _wide_bits(column: pa.Array) -> Hashes:
    """The 64 bits by which values are hashed."""
    if pa.types.is_float64(column.type):
        return _float_bits(fixed_width_values(column, np.float64)).view(np.uint64)
    return cast("Hashes", fixed_width_values(column, np.uint64))


def _float_bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Adding 0.0 turns -0.0 into 0.0 and nothing else.
    values = values + values.dtype.type(0.0)
    values[np.isnan(values)] = np.nan
    return values


def _hash_decimal(column: pa.Array, seeds: Hashes) -> Hashes:
    words = fixed_width_values(column, np.dtype(("<u8", (2,)))).astype(np.uint64, copy=False)
    if column.type.precision <= _LONG_DECIMAL_DIGITS:
        return hash_words(words[:, 0], seeds)
    flat = words.astype("<u8").view(np.uint8).reshape(len(column), 16)[:, ::-1]
    sign = np.where(flat[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
    # A leading byte can go while it repeats the sign and the byte after it still shows the sign.
    spare = (flat[:, :-1] == sign) & ((flat[:, 1:] & 0x80) == (sign & 0x80))
    leading = np.cumprod(spare, axis=1).sum(axis=1).astype(np.int64)
    starts = np.arange(len(column), dtype=np.int64) * 16 + leading
    return hash_text(Text.of(np.ascontiguousarray(flat).reshape(-1), starts, 16 - leading), seeds)


def _hash_bytes(column: pa.Array, seeds: Hashes) -> Hashes:
    offsets = byte_offsets(column)
    seeds = np.broadcast_to(seeds, len(column))
    if offsets[-1] - offsets[0] > _BYTES_AT_ONCE and len(column) > 1:
        half = len(column) // 2
        return np.concatenate([_hash_bytes(column[:half], seeds[:half]), _hash_bytes(column[half:], seeds[half:])])
    return hash_text(text_of(column, offsets), seeds)
