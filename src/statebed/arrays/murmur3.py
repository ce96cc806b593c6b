"""Spark SQL's `hash`: Murmur3 with 32 bits and seed 42, bit for bit, in numpy over Arrow arrays.

Values are hashed in the same forms as by `key_hash`. The bytes after the last whole word of a text are hashed one by
one, sign-extended, which is Spark's variant of Murmur3.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import fixed_width_values, from_numpy, validity
from statebed.arrays.key_hash import HASH_SEED, NARROW, narrow_bits, wide_bits
from statebed.arrays.nested import fields_of, is_list, items_of
from statebed.arrays.packed_text import OFFSET_TYPES, byte_offsets

Hashes = npt.NDArray[np.uint32]

_LONG_DECIMAL_DIGITS = 18
_WORD = 4


def murmur3_columns(columns: Sequence[pa.Array]) -> npt.NDArray[np.int32]:
    """Return the hash of each row of columns of equal length."""
    hashes = np.full(len(columns[0]), HASH_SEED, dtype=np.uint32)
    with np.errstate(over="ignore"):
        for column in columns:
            hashes = _hash_on(hashes, column)
    return hashes.view(np.int32)


def _hash_on(hashes: Hashes, column: pa.Array) -> Hashes:
    """Add a column to the hashes; a null leaves them unchanged."""
    kind = column.type
    if pa.types.is_null(kind):
        return hashes
    if pa.types.is_struct(kind):
        added = hashes
        for field in fields_of(column):
            added = _hash_on(added, field)
    elif is_list(kind):
        added = _hash_lists(hashes, column)
    elif kind in OFFSET_TYPES:
        added = _hash_text(hashes, column)
    elif pa.types.is_decimal(kind) and kind.precision > _LONG_DECIMAL_DIGITS:
        added = _hash_text(hashes, _shortest_bytes(column))
    elif kind in NARROW:
        added = _finished(_mixed(hashes, narrow_bits(column).astype(np.uint32)), np.uint32(_WORD))
    else:
        added = _hash_wide(hashes, column)
    return np.where(validity(column), added, hashes) if column.null_count else added


def _hash_wide(hashes: Hashes, column: pa.Array) -> Hashes:
    if pa.types.is_decimal(column.type):
        words = fixed_width_values(column, np.dtype(("<u8", (2,)))).astype(np.uint64)[:, 0]
    else:
        words = wide_bits(column)
    low, high = (words & np.uint64(0xFFFFFFFF)).astype(np.uint32), (words >> np.uint64(32)).astype(np.uint32)
    return _finished(_mixed(_mixed(hashes, low), high), np.uint32(2 * _WORD))


def _hash_text(hashes: Hashes, column: pa.Array) -> Hashes:
    """Hash texts word by word: the first words of all texts, then the second ones, and so on."""
    offsets = byte_offsets(column).astype(np.int64)
    lengths, starts = np.diff(offsets), offsets[:-1]
    data = column.buffers()[2]
    content = np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.zeros(1, dtype=np.uint8)
    rows = np.argsort(-lengths, kind="stable")
    of_rows, lengths, starts = hashes[rows], lengths[rows], starts[rows]
    whole = lengths // _WORD
    for word in range(int(whole.max(initial=0))):
        count = int(np.searchsorted(-whole, -word, side="left"))
        first = starts[:count] + word * _WORD
        parts = [content[first + byte].astype(np.uint32) << np.uint32(8 * byte) for byte in range(_WORD)]
        of_rows[:count] = _mixed(of_rows[:count], parts[0] | parts[1] | parts[2] | parts[3])
    for byte in range(_WORD - 1):
        there = np.flatnonzero(lengths % _WORD > byte)
        last = content[starts[there] + whole[there] * _WORD + byte].view(np.int8).astype(np.int32).view(np.uint32)
        of_rows[there] = _mixed(of_rows[there], last)
    hashed = np.empty_like(hashes)
    hashed[rows] = _finished(of_rows, lengths.astype(np.uint32))
    return hashed


def _hash_lists(hashes: Hashes, column: pa.Array) -> Hashes:
    """Hash lists position by position: the first items of all lists, then the second ones, and so on."""
    offsets, items = items_of(column)
    lengths = np.where(validity(column), np.diff(offsets), 0)
    list_hashes = hashes.copy()
    for position in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > position)
        list_hashes[rows] = _hash_on(list_hashes[rows], items.take(from_numpy(offsets[rows] + position, pa.int64())))
    return list_hashes


def _shortest_bytes(column: pa.Array) -> pa.Array:
    """Return decimals as the fewest big-endian bytes that hold their unscaled values."""
    width = column.type.bit_width // 8
    flat = fixed_width_values(column, np.dtype((np.uint8, (width,))))[:, ::-1].astype(np.uint8)
    count = len(flat)
    sign = np.where(flat[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
    spare = (flat[:, :-1] == sign) & ((flat[:, 1:] & 0x80) == (sign & 0x80))
    leading = np.cumprod(spare, axis=1).sum(axis=1).astype(np.int64)
    content = np.ascontiguousarray(flat)[np.arange(width) >= leading[:, None]]
    offsets = np.concatenate([[0], np.cumsum(width - leading)]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(content)])


def _mixed(hashes: Hashes, words: Hashes) -> Hashes:
    words = _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotated(hashes ^ words, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finished(hashes: Hashes, lengths: Hashes | np.uint32) -> Hashes:
    hashes = hashes ^ lengths
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def _rotated(words: Hashes, bits: int) -> Hashes:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))
