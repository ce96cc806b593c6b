"""Columns of short text, packed into a few words per value (see `PackedText`) and handled like numbers.

Longer values are kept in a `HeapColumn`.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from statebed.arrays.mutable.column import AnyColumn, Mask, Places, Rows, equal_where, equal_words
from statebed.arrays.mutable.heap import HeapColumn
from statebed.arrays.packed_text import OFFSET_TYPES, PackedText, Words


class TextColumn:
    """Short values of text or bytes."""

    def __init__(self, kind: pa.DataType, words: Sequence[Words]) -> None:
        self.kind = kind
        self.words = tuple(words)

    @classmethod
    def of(cls, array: pa.Array) -> "TextColumn | None":
        """Return a copy of the values, or None if one is too long."""
        packed = PackedText.of(array)
        return None if packed is None else cls(array.type, packed.words)

    @property
    def packed(self) -> PackedText:
        """Values without a copy."""
        return PackedText(self.words)

    def __len__(self) -> int:
        return len(self.words[0])

    @property
    def held_bytes(self) -> int:
        return sum(word.nbytes for word in self.words)

    def take(self, rows: Rows) -> pa.Array:
        """Return the values in some rows."""
        return self.select(rows).array()

    def array(self) -> pa.Array:
        """Return all values."""
        return self.packed.array(self.kind)

    def put(self, rows: Rows, array: pa.Array) -> "TextColumn | HeapColumn":
        """Write values in place, and return the column to use from then on."""
        other = PackedText.of(array)
        if other is None:
            return self._heap().put(rows, array)
        self.words = self.packed.widened(len(other.words)).words
        for ours, theirs in zip(self.words, other.widened(len(self.words)).words, strict=True):
            ours[rows] = theirs
        return self

    def equals(self, rows: Rows, array: pa.Array) -> Mask:
        """Return whether the value in each row equals the one in the array; null equals null."""
        other, every = TextColumn.of(array) or HeapColumn.over(array), np.arange(len(rows), dtype=np.int64)
        return self.matches(rows, other, every, np.ones(len(rows), dtype=np.bool_))

    def matches(self, rows: Rows, other: AnyColumn, others: Rows, maybe: Mask) -> Mask:
        """Return, where `maybe` is set, whether the value in each row equals that of the other column."""
        if isinstance(other, TextColumn) and len(self.words) == len(other.words):
            return equal_words(self.words, rows, other.words, others, maybe)
        return equal_where(maybe, rows, others, partial(self._equal, other))

    def _equal(self, other: AnyColumn, rows: Rows, others: Rows) -> Mask:
        if not isinstance(other, TextColumn):
            return other.equals(others, self.take(rows))
        count, every = max(len(self.words), len(other.words)), np.arange(len(rows), dtype=np.int64)
        ours, theirs = (column.select(at).packed.widened(count).words for column, at in ((self, rows), (other, others)))
        return equal_words(ours, every, theirs, every, np.ones(len(rows), dtype=np.bool_))

    def repeats(self, maybe: Mask) -> Mask:
        """Return, where `maybe` is set, whether each row from the second on equals the row before it."""
        equal = maybe.copy()
        for word in self.words:
            equal &= word[1:] == word[:-1]
        return equal

    def select(self, rows: Rows) -> "TextColumn":
        return TextColumn(self.kind, [word.take(rows) for word in self.words])

    def copied(self) -> "TextColumn":
        """Return a copy that may be written."""
        return TextColumn(self.kind, [word.copy() for word in self.words])

    def slice(self, start: int, end: int) -> "TextColumn":
        """Return a read-only view of adjacent rows."""
        return TextColumn(self.kind, [word[start:end] for word in self.words])

    def merged(self, others: Sequence[AnyColumn], places: Places) -> "TextColumn | HeapColumn":
        """Merge this column and others."""
        columns = [self, *(other for other in others if isinstance(other, TextColumn))]
        if len(columns) <= len(others):
            return self._heap().merged(others, places)
        count = max(len(column.words) for column in columns)
        parts = zip(*(column.packed.widened(count).words for column in columns), strict=True)
        return TextColumn(self.kind, [places.merge(words) for words in parts])

    def _heap(self) -> HeapColumn:
        return HeapColumn.over(self.array())


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of the type are text or bytes of any length."""
    return kind in OFFSET_TYPES
