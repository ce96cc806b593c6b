"""Short text packed into a few words of eight bytes, so that it is hashed, compared, moved and written like numbers.

Words hold the bytes of the value, padded with zeros; the highest byte of the last word is the length, 255 for null.
Values are equal if their words are, and all words but the last are those that the hash uses. Values of more than
MAX_BYTES cannot be packed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import validity
from statebed.arrays.compiled import loops_for
from statebed.arrays.xxh64 import TO_HIGHEST_BYTE, Text

Words = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]

_NULL = 255
_WORD = 8
NULL_WORD = np.uint64(_NULL << 56)
"""Last word of a null."""
_MAX_WORDS = 5
MAX_BYTES = _MAX_WORDS * _WORD - 1
"""Maximum length of a value in bytes: room for a UUID as text."""
_ROWS_AT_ONCE = 1 << 14
"""Number of rows whose arrays all fit into the processor's cache."""
_LOWEST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], dtype=np.uint64)
OFFSET_TYPES = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}


@dataclass(frozen=True)
class PackedText:
    """Short values of text or bytes; `words[0]` holds the first word of each."""

    words: tuple[Words, ...]

    @classmethod
    def of(cls, array: pa.Array) -> "PackedText | None":
        """Return a copy of the values, or None if one is too long."""
        offsets = _offsets(array)
        lengths = np.diff(offsets)
        longest = int(lengths.max(initial=0))
        if longest > MAX_BYTES:
            return None
        words = tuple(np.empty(len(array), dtype=np.uint64) for _ in range(longest // _WORD + 1))
        even = longest >= _WORD and not array.null_count and int(lengths.min()) == longest
        if not even and (loops := loops_for(len(array))) is not None:
            _pack_compiled(loops, array, words)
            return cls(words)
        for start in range(0, len(array), _ROWS_AT_ONCE):
            end = start + _ROWS_AT_ONCE
            pieces = [word[start:end] for word in words]
            if even:
                _pack_evenly(array, int(offsets[start]), longest, pieces)
            else:
                _pack(array.slice(start, _ROWS_AT_ONCE), pieces)
        return cls(words)

    def __len__(self) -> int:
        return len(self.words[0])

    def slice(self, start: int, length: int) -> "PackedText":
        """Return a view of adjacent values."""
        return PackedText(tuple(word[start : start + length] for word in self.words))

    def widened(self, count: int) -> "PackedText":
        """Return the values in at least `count` words."""
        if count <= len(self.words):
            return self
        *others, last = self.words
        lengths = last & NULL_WORD
        zeros = [np.zeros_like(last) for _ in range(count - len(self.words) - 1)]
        return PackedText((*others, last ^ lengths, *zeros, lengths))

    def array(self, kind: pa.DataType) -> pa.Array:
        """Return the values as an array."""
        rows = np.empty((len(self), len(self.words)), dtype="<u8")
        for number, word in enumerate(self.words):
            rows[:, number] = word
        text = rows.view(np.uint8)
        lengths = text[:, -1].astype(OFFSET_TYPES[kind])
        valid = lengths != _NULL
        nulls = len(lengths) - int(np.count_nonzero(valid))
        if nulls:
            lengths[~valid] = 0
        offsets = np.zeros(len(lengths) + 1, dtype=OFFSET_TYPES[kind])
        np.cumsum(lengths, out=offsets[1:])
        if len(lengths) and (lengths == lengths[0]).all():
            data = np.ascontiguousarray(text[:, : int(lengths[0])])
        else:
            data = text[np.arange(text.shape[1]) < lengths[:, np.newaxis]]
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        return pa.Array.from_buffers(
            kind, len(lengths), [bitmap, pa.py_buffer(offsets), pa.py_buffer(data.reshape(-1))], nulls
        )


def byte_offsets(column: pa.Array) -> Offsets:
    """Return the start of each value of a text or binary column, and the end of the last."""
    return _offsets(column).astype(np.int64)


def text_of(column: pa.Array, offsets: Offsets) -> Text:
    """Return the values of a text or binary column with these offsets, for reading in words."""
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(column.buffers()[2] or b"", dtype=np.uint8)[first:last]
    return Text.of(data, offsets[:-1] - first, np.diff(offsets))


def _offsets(column: pa.Array) -> npt.NDArray[np.signedinteger]:
    kind = np.dtype(OFFSET_TYPES[column.type])
    buffer = column.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(1, dtype=kind)
    return np.frombuffer(buffer, dtype=kind, count=len(column) + 1, offset=column.offset * kind.itemsize)


def _pack_compiled(loops: ModuleType, array: pa.Array, words: Sequence[Words]) -> None:
    """Write the words of each value in compiled loops."""
    data, offsets = np.frombuffer(array.buffers()[2] or b"", dtype=np.uint8), _offsets(array)
    whole = data[: len(data) // _WORD * _WORD].view(np.uint64)
    if not whole.flags.aligned:
        whole = whole[:0].copy()
    # Loops are compiled once if arrays are never writable.
    read_only = [values.view() for values in (data, whole, offsets)]
    for values in read_only:
        values.flags.writeable = False
    for number, word in enumerate(words):
        loops.pack_text(*read_only, number * _WORD, word)
    _mark_lengths(np.diff(offsets), array, words)


def _pack_evenly(array: pa.Array, first: int, length: int, words: Sequence[Words]) -> None:
    """Write the words of values of equal length, at least one word; the bytes of the first start at `first`."""
    data = array.buffers()[2]
    *others, last = words

    def bytes_from(place: int) -> Words:
        return np.ndarray(last.shape, dtype="<u8", buffer=data, offset=first + place, strides=(length,))

    for number, word in enumerate(others):
        word[:] = bytes_from(number * _WORD)
    # The last eight bytes, without those in other words: bytes after the end of a value are not read.
    left = length % _WORD
    if left:
        np.right_shift(bytes_from(length - _WORD), np.uint64(8 * (_WORD - left)), out=last)
    else:
        last[:] = 0
    last |= np.uint64(length) << TO_HIGHEST_BYTE


def _pack(array: pa.Array, words: Sequence[Words]) -> None:
    """Write the words of each value."""
    text = text_of(array, byte_offsets(array))
    for number, word in enumerate(words):
        # Bytes after the end of a value are not read: they belong to other values, or do not exist.
        word[:] = text.words(np.minimum(number * _WORD, text.lengths))
        left = np.clip(text.lengths - number * _WORD, 0, _WORD)
        if (left < _WORD).any():
            np.bitwise_and(word, _LOWEST_BYTES[left], out=word)
    _mark_lengths(text.lengths, array, words)


def _mark_lengths(lengths: npt.NDArray[np.signedinteger], array: pa.Array, words: Sequence[Words]) -> None:
    words[-1][:] |= lengths.astype(np.uint64) << TO_HIGHEST_BYTE
    if array.null_count:
        nulls = ~validity(array)
        for word in words:
            word[nulls] = 0
        words[-1][nulls] = NULL_WORD
