"""The key hash: Spark SQL's `xxhash64` with seed 42, bit for bit, in numpy over Arrow arrays.

Columns are hashed one after the other, each with the hash so far as its seed; a null leaves it unchanged.
Types:

- boolean, byte, short, int, date: as a 32-bit integer; long, timestamp (microseconds), interval: as a 64-bit
  one;
- float and double: by their bits, after -0.0 became 0.0 and every NaN the same NaN;
- string, binary: by their bytes;
- decimal up to 18 digits: the unscaled value as a 64-bit integer; wider: the bytes of the unscaled value, big
  endian, two's complement, as few as hold it.

Loops run over positions inside values, never over rows. A hash never stands for a key: keys are compared.
"""

import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.errors import InputError
from statebed.format.columns import boolean_values, fixed_width_values, validity

HASH_NAME = "xxhash64"
HASH_VERSION = 1
HASH_SEED = 42

Hashes = npt.NDArray[np.uint64]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_STRIPE = 32
_LONG_DECIMAL_DIGITS = 18


def hash_columns(columns: Sequence[pa.Array]) -> Hashes:
    """The hash of each row of a key whose columns are given as arrays of equal length."""
    if not columns:
        raise InputError("a key has at least one column")
    hashes = np.full(len(columns[0]), HASH_SEED, dtype=np.uint64)
    for column in columns:
        valid = validity(column)
        with np.errstate(over="ignore"):
            hashed = _hash_column(column, hashes)
        hashes = np.where(valid, hashed, hashes)
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
    """Refuse a column whose type has no key hash."""
    kind = field.type
    if (
        kind in _INT_TYPES
        or kind in _LONG_TYPES
        or kind in _BYTES_TYPES
        or kind in (pa.bool_(), pa.float32(), pa.float64(), pa.null())
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
_BYTES_TYPES = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}


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


def _hash_column(column: pa.Array, seeds: Hashes) -> Hashes:
    check_key_type(pa.field("key", column.type))
    if pa.types.is_null(column.type):
        return seeds
    if pa.types.is_decimal128(column.type):
        return _hash_decimal(column, seeds)
    if column.type in _BYTES_TYPES:
        return _hash_text(column, seeds)
    if column.type in _INT_TYPES or column.type in (pa.bool_(), pa.float32()):
        return _hash_int(_narrow_bits(column), seeds)
    return _hash_long(_wide_bits(column), seeds)


def _narrow_bits(column: pa.Array) -> Hashes:
    """The 32 bits by which a value is hashed."""
    if pa.types.is_boolean(column.type):
        return boolean_values(column).astype(np.uint64)
    if pa.types.is_float32(column.type):
        values = _float_bits(fixed_width_values(column, np.float32))
    else:
        values = fixed_width_values(column, _INT_TYPES[column.type]).astype(np.int32)
    return values.view(np.uint32).astype(np.uint64)


def _wide_bits(column: pa.Array) -> Hashes:
    """The 64 bits by which a value is hashed."""
    if pa.types.is_float64(column.type):
        return _float_bits(fixed_width_values(column, np.float64)).view(np.uint64)
    return fixed_width_values(column, np.uint64).astype(np.uint64, copy=False)


def _float_bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Adding 0.0 turns -0.0 into 0.0 and nothing else.
    values = values + values.dtype.type(0.0)
    values[np.isnan(values)] = np.nan
    return values


def _hash_decimal(column: pa.Array, seeds: Hashes) -> Hashes:
    words = fixed_width_values(column, np.dtype(("<u8", (2,)))).astype(np.uint64, copy=False)
    if column.type.precision <= _LONG_DECIMAL_DIGITS:
        return _hash_long(np.ascontiguousarray(words[:, 0]), seeds)
    flat = words.astype("<u8").view(np.uint8).reshape(len(column), 16)[:, ::-1]
    sign = np.where(flat[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
    # A leading byte can go while it repeats the sign and the byte after it still shows the sign.
    spare = (flat[:, :-1] == sign) & ((flat[:, 1:] & 0x80) == (sign & 0x80))
    leading = np.cumprod(spare, axis=1).sum(axis=1).astype(np.int64)
    starts = np.arange(len(column), dtype=np.int64) * 16 + leading
    return _hash_bytes(np.ascontiguousarray(flat).reshape(-1), starts, 16 - leading, seeds)


def _hash_text(column: pa.Array, seeds: Hashes) -> Hashes:
    if not len(column):
        return seeds
    _, offset_buffer, data_buffer = column.buffers()
    offset_type = np.dtype(_BYTES_TYPES[column.type])
    offsets = np.frombuffer(
        offset_buffer,
        dtype=offset_type,
        count=len(column) + 1,
        offset=column.offset * offset_type.itemsize,
    ).astype(np.int64)
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    return _hash_bytes(data, offsets[:-1], np.diff(offsets), seeds)


# ---- the hash itself, over arrays of seeds ---------------------------------------------------------------


def _hash_int(values: Hashes, seeds: Hashes) -> Hashes:
    hashes = seeds + _P5 + np.uint64(4)
    hashes ^= values * _P1
    return _finish(_rotate(hashes, 23) * _P2 + _P3)


def _hash_long(values: Hashes, seeds: Hashes) -> Hashes:
    hashes = seeds + _P5 + np.uint64(8)
    return _finish(_mix_word(hashes, values))


def _hash_bytes(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], seeds: Hashes
) -> Hashes:
    """Hash data[start : start + length] for each row."""
    # Unaligned windows onto the same bytes: words[i] is the eight bytes from i on.
    words = np.ndarray((max(len(data) - 7, 0),), dtype="<u8", buffer=data, strides=(1,))
    halves = np.ndarray((max(len(data) - 3, 0),), dtype="<u4", buffer=data, strides=(1,))
    hashes = seeds + _P5
    long_rows = np.flatnonzero(lengths >= _STRIPE)
    if len(long_rows):
        hashes[long_rows] = _hash_stripes(words, starts[long_rows], lengths[long_rows], seeds[long_rows])
    hashes += lengths.astype(np.uint64)
    position = starts + (lengths // _STRIPE) * _STRIPE
    ends = starts + lengths
    for _ in range(3):
        rows = _where(position + 8 <= ends)
        hashes[rows] = _mix_word(hashes[rows], words[position[rows]])
        position[rows] += 8
    rows = _where(position + 4 <= ends)
    hashes[rows] ^= halves[position[rows]].astype(np.uint64) * _P1
    hashes[rows] = _rotate(hashes[rows], 23) * _P2 + _P3
    position[rows] += 4
    for _ in range(3):
        rows = _where(position < ends)
        hashes[rows] ^= data[position[rows]].astype(np.uint64) * _P5
        hashes[rows] = _rotate(hashes[rows], 11) * _P1
        position[rows] += 1
    return _finish(hashes)


def _where(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64] | slice:
    """The rows of the mask; all or none as a slice, which copies nothing."""
    if mask.all():
        return slice(None)
    return np.flatnonzero(mask) if mask.any() else slice(0, 0)


def _hash_stripes(
    words: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seeds: Hashes,
) -> Hashes:
    """The 32-byte stripes of values that have at least one."""
    # Longest first, so that the rows that still have a stripe are always the first ones.
    order = np.argsort(-lengths, kind="stable")
    starts, stripes, seeds = starts[order], lengths[order] // _STRIPE, seeds[order]
    lanes = [seeds + _P1 + _P2, seeds + _P2, seeds.copy(), seeds - _P1]
    for stripe in range(int(stripes[0])):
        count = int(np.searchsorted(-stripes, -stripe, side="left"))
        at = starts[:count] + stripe * _STRIPE
        for index, lane in enumerate(lanes):
            lane[:count] = _rotate(lane[:count] + words[at + 8 * index] * _P2, 31) * _P1
    merged = _rotate(lanes[0], 1) + _rotate(lanes[1], 7) + _rotate(lanes[2], 12) + _rotate(lanes[3], 18)
    for lane in lanes:
        merged ^= _rotate(lane * _P2, 31) * _P1
        merged = merged * _P1 + _P4
    hashes = np.empty_like(merged)
    hashes[order] = merged
    return hashes


def _mix_word(hashes: Hashes, words: Hashes) -> Hashes:
    mixed = hashes ^ (_rotate(words * _P2, 31) * _P1)
    return _rotate(mixed, 27) * _P1 + _P4


def _rotate(values: Hashes, bits: int) -> Hashes:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _finish(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))
