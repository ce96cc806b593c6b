"""Columns of short text: each value a few words (see `PackedText`), so that it is compared, moved and written like
numbers. Longer values are for a `HeapColumn`.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from statebed.arrays.mutable.column import AnyColumn, Mask, Places, Rows, equal_where, equal_words
from statebed.arrays.mutable.heap import HeapColumn
from statebed.arrays.packed_text import OFFSET_TYPES, PackedText, Words


class TextColumn:
    """Values of text or bytes, all of them short."""

    def __init__(self, kind: pa.DataType, words: Sequence[Words]) -> None:
        self.kind = kind
        self.words = tuple(words)

    @classmethod
    def of(cls, array: pa.Array) -> "TextColumn | None":
        """A copy of the values; None when one is too long."""
        packed = PackedText.of(array)
        return None if packed is None else cls(array.type, packed.words)

    @property
    def packed(self) -> PackedText:
        """The values where they lie."""
        return PackedText(self.words)

    def __len__(self) -> int:
        return len(self.words[0])

    @property
    def held_bytes(self) -> int:
        return sum(word.nbytes for word in self.words)

    def take(self, rows: Rows) -> pa.Array:
        """The values in some rows."""
        return self.select(rows).array()

    def array(self) -> pa.Array:
        """All values."""
        return self.packed.array(self.kind)

    def put(self, rows: Rows, array: pa.Array) -> "TextColumn | HeapColumn":
        """Write in place; the column to go on with."""
        other = PackedText.of(array)
        if other is None:
            return self._heap().put(rows, array)
        self.words = self.packed.widened(len(other.words)).words
        for ours, theirs in zip(self.words, other.widened(len(self.words)).words, strict=True):
            ours[rows] = theirs
        return self

    def equals(self, rows: Rows, array: pa.Array) -> Mask:
        """Whether the value in each row is the one of the array; null equals null."""
        other, every = TextColumn.of(array) or HeapColumn.over(array), np.arange(len(rows), dtype=np.int64)
        return self.matches(rows, other, every, np.ones(len(rows), dtype=np.bool_))

    def matches(self, rows: Rows, other: AnyColumn, others: Rows, maybe: Mask) -> Mask:
        """Whether the value in each row is that of another column, in these rows of it; asked where it may be."""
        if isinstance(other, TextColumn) and len(self.words) == len(other.words):
            return equal_words(self.words, rows, other.words, others, maybe)
        return equal_where(maybe, rows, others, partial(self._equal, other))

    def _equal(self, other: AnyColumn, rows: Rows, others: Rows) -> Mask:
        if not isinstance(other, TextColumn):
            return other.equals(others, self.take(rows))
        count, every = max(len(self.words), len(other.words)), np.arange(len(rows), dtype=np.int64)
        ours, theirs = (one.select(at).packed.widened(count).words for one, at in ((self, rows), (other, others)))
        return equal_words(ours, every, theirs, every, np.ones(len(rows), dtype=np.bool_))

    def repeats(self, maybe: Mask) -> Mask:
        """Which rows from the second on have the value of the row before them; those are asked that may have."""
        equal = maybe.copy()
        for word in self.words:
            equal &= word[1:] == word[:-1]
        return equal

    def select(self, rows: Rows) -> "TextColumn":
        return TextColumn(self.kind, [word.take(rows) for word in self.words])

    def copied(self) -> "TextColumn":
        """The same values in arrays of their own, which may be written."""
        return TextColumn(self.kind, [word.copy() for word in self.words])

    def slice(self, start: int, end: int) -> "TextColumn":
        """Neighbouring rows where they lie: not to be written."""
        return TextColumn(self.kind, [word[start:end] for word in self.words])

    def merged(self, others: Sequence[AnyColumn], places: Places) -> "TextColumn | HeapColumn":
        """This column and others as one."""
        columns = [self, *(other for other in others if isinstance(other, TextColumn))]
        if len(columns) <= len(others):
            return self._heap().merged(others, places)
        count = max(len(column.words) for column in columns)
        parts = zip(*(column.packed.widened(count).words for column in columns), strict=True)
        return TextColumn(self.kind, [places.merge(words) for words in parts])

    def _heap(self) -> HeapColumn:
        return HeapColumn.over(self.array())


def is_text(kind: pa.DataType) -> bool:
    """Whether values of the type are text or bytes of any length."""
    return kind in OFFSET_TYPES
