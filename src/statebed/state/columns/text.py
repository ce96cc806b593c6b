"""Columns of short text: each value a few words of eight bytes, so that it is compared, moved and written like numbers.

The lowest byte of the first word is the length, 255 for null; the bytes of the value follow, and zeros. So values are
equal when their words are, and a column gets room for longer values by another word of zeros. Values of more than
MOST_BYTES are for a `HeapColumn`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.format.columns import validity
from statebed.format.keyhash import byte_offsets, text_of
from statebed.format.xxh64 import Text
from statebed.state.columns.arrays import AnyColumn, Mask, Places, Rows
from statebed.state.columns.heap import HeapColumn

Words = npt.NDArray[np.uint64]

_WORD = 8
_NULL = np.uint64(255)
_MOST_WORDS = 5
MOST_BYTES = _MOST_WORDS * _WORD - 1
"""Room for a UUID as text."""
_ROWS_AT_ONCE = 1 << 17
"""So that what is needed beside the column takes little memory."""
_LOWEST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], dtype=np.uint64)
_OFFSETS = {pa.string(): np.int32, pa.binary(): np.int32, pa.large_string(): np.int64, pa.large_binary(): np.int64}


class TextColumn:
    """Values of text or bytes, all of them short."""

    def __init__(self, kind: pa.DataType, words: Sequence[Words]) -> None:
        self.kind = kind
        self.words = tuple(words)

    @classmethod
    def of(cls, array: pa.Array) -> "TextColumn | None":
        """A copy of the values; None when one is too long."""
        pieces = [_packed(array.slice(start, _ROWS_AT_ONCE)) for start in range(0, len(array), _ROWS_AT_ONCE)]
        if any(piece is None for piece in pieces):
            return None
        known = [piece for piece in pieces if piece is not None]
        if len(known) == 1:
            return cls(array.type, known[0])
        count = max((len(piece) for piece in known), default=1)
        words = []
        for number in range(count):
            word = np.zeros(len(array), dtype=np.uint64)
            for index, piece in enumerate(known):
                if number < len(piece):
                    word[index * _ROWS_AT_ONCE : (index + 1) * _ROWS_AT_ONCE] = piece[number]
            words.append(word)
        return cls(array.type, words)

    def __len__(self) -> int:
        return len(self.words[0])

    @property
    def held_bytes(self) -> int:
        return sum(word.nbytes for word in self.words)

    def take(self, rows: Rows) -> pa.Array:
        return _unpacked([word.take(rows) for word in self.words], self.kind)

    def put(self, rows: Rows, array: pa.Array) -> "TextColumn | HeapColumn":
        """Write in place; the column to go on with."""
        other = TextColumn.of(array)
        if other is None:
            return self._heap().put(rows, array)
        self.words = (*self.words, *(np.zeros(len(self), dtype=np.uint64) for _ in other.words[len(self.words) :]))
        for number, word in enumerate(self.words):
            word[rows] = other.words[number] if number < len(other.words) else 0
        return self

    def equals(self, rows: Rows, array: pa.Array) -> Mask:
        """Whether the value in each row is the one of the array; null equals null."""
        return self.matches(rows, TextColumn.of(array) or HeapColumn.over(array))

    def matches(self, rows: Rows, other: AnyColumn) -> Mask:
        """As `equals`, with a column."""
        if not isinstance(other, TextColumn):
            return other.equals(np.arange(len(rows), dtype=np.int64), self.take(rows))
        # Values of one length have no words beyond those that both columns have.
        equal = np.ones(len(rows), dtype=np.bool_)
        for ours, theirs in zip(self.words, other.words, strict=False):
            equal &= ours.take(rows) == theirs
        return equal

    def repeats(self, maybe: Mask) -> Mask:
        """Which rows from the second on have the value of the row before them; those are asked that may have."""
        equal = maybe.copy()
        for word in self.words:
            equal &= word[1:] == word[:-1]
        return equal

    def select(self, rows: Rows) -> "TextColumn":
        return TextColumn(self.kind, [word.take(rows) for word in self.words])

    def slice(self, start: int, end: int) -> "TextColumn":
        """Neighbouring rows where they lie: not to be written."""
        return TextColumn(self.kind, [word[start:end] for word in self.words])

    def merged(self, other: AnyColumn, places: Places) -> "TextColumn | HeapColumn":
        if not isinstance(other, TextColumn):
            return self._heap().merged(other, places)
        count = max(len(self.words), len(other.words))
        pairs = zip(_filled(self, count), _filled(other, count), strict=True)
        return TextColumn(self.kind, [places.merge(ours, theirs) for ours, theirs in pairs])

    def _heap(self) -> HeapColumn:
        return HeapColumn.over(self.take(np.arange(len(self), dtype=np.int64)))


def _filled(column: TextColumn, count: int) -> list[Words]:
    return [*column.words, *(np.zeros(len(column), dtype=np.uint64) for _ in range(count - len(column.words)))]


def is_text(kind: pa.DataType) -> bool:
    """Whether values of the type are text or bytes of any length."""
    return kind in _OFFSETS


def _packed(array: pa.Array) -> list[Words] | None:
    """The words of each value, those of the shortest form that holds all; None when one is too long."""
    offsets = byte_offsets(array)
    longest = int(np.diff(offsets).max())
    if longest > MOST_BYTES:
        return None
    text = text_of(array, offsets)
    # Behind its end a value is not read: there are other values, or nothing.
    places = [np.minimum(number * _WORD - 1, text.lengths) for number in range(1, longest // _WORD + 1)]
    words = [text.words(np.zeros(1, dtype=np.int64)) << np.uint64(8), *(text.words(place) for place in places)]
    _cut(words, text)
    if array.null_count:
        nulls = ~validity(array)
        for word in words:
            word[nulls] = 0
        words[0][nulls] = _NULL
    return words


def _cut(words: list[Words], text: Text) -> None:
    """Nothing behind the end of each value, and its length before it."""
    for number in range(len(words)):
        left = np.clip(text.lengths + 1 - number * _WORD, 0, _WORD)
        if (left < _WORD).any():
            words[number] &= _LOWEST_BYTES[left]
    words[0] |= text.lengths.astype(np.uint64)


def _unpacked(words: Sequence[Words], kind: pa.DataType) -> pa.Array:
    rows = np.empty((len(words[0]), len(words)), dtype="<u8")
    for number, word in enumerate(words):
        rows[:, number] = word
    text = rows.view(np.uint8)
    lengths = text[:, 0].astype(_OFFSETS[kind]) if len(text) else np.zeros(0, dtype=_OFFSETS[kind])
    valid = lengths != _NULL
    nulls = len(lengths) - int(np.count_nonzero(valid))
    if nulls:
        lengths[~valid] = 0
    offsets = np.zeros(len(lengths) + 1, dtype=_OFFSETS[kind])
    np.cumsum(lengths, out=offsets[1:])
    if len(lengths) and (lengths == lengths[0]).all():
        data = np.ascontiguousarray(text[:, 1 : 1 + int(lengths[0])])
    else:
        data = text[:, 1:][np.arange(1, text.shape[1]) <= lengths[:, np.newaxis]]
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(
        kind, len(lengths), [bitmap, pa.py_buffer(offsets), pa.py_buffer(data.reshape(-1))], nulls
    )
