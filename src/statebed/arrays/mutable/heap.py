"""Columns of any type: pieces of Arrow arrays, and for each row its place in them.

A write appends the new values and repoints the rows, and what no row points to any more is left behind until it
outweighs the rest.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from statebed.arrays.mutable.column import AnyColumn, Mask, Places, Rows, equal_values, equal_where, taken

_SPARE_HEAP_ROWS = 4096
_SMALL_AGAINST = 5
_SPARSE = 1.25
"""More values for each row than this, and runs that become one leave the others behind."""


class HeapColumn:
    """Values of any type, as places in Arrow arrays."""

    def __init__(self, pieces: Sequence[pa.Array], at: Rows) -> None:
        self.pieces = list(pieces)
        self.at = at

    @classmethod
    def over(cls, array: pa.Array) -> "HeapColumn":
        """The values where they lie: not to be written."""
        return cls([array], np.arange(len(array), dtype=np.int64))

    @classmethod
    def of(cls, array: pa.Array) -> "HeapColumn":
        # Concatenating copies: a slice would pin its parent.
        return cls.over(pa.concat_arrays([array]))

    def __len__(self) -> int:
        return len(self.at)

    @property
    def held_bytes(self) -> int:
        return self.at.nbytes + sum(int(piece.nbytes) for piece in self.pieces)

    def take(self, rows: Rows) -> pa.Array:
        """The values in some rows."""
        return self._values(self.at[rows])

    def array(self) -> pa.Array:
        """All values."""
        return self._values(self.at)

    def put(self, rows: Rows, array: pa.Array) -> "HeapColumn":
        """Write in place; the column to go on with."""
        if not len(rows):
            return self
        self.at[rows] = self._add([pa.concat_arrays([array])]) + np.arange(len(array), dtype=np.int64)
        if self.heap_rows > 2 * len(self.at) + _SPARE_HEAP_ROWS:
            self.pieces = [self._values(self.at)]
            self.at = np.arange(len(self.at), dtype=np.int64)
        return self

    def equals(self, rows: Rows, array: pa.Array) -> Mask:
        """Whether the value in each row is the one of the array; null equals null."""
        return equal_values(self.take(rows), array)

    def matches(self, rows: Rows, other: AnyColumn, others: Rows, maybe: Mask) -> Mask:
        """Whether the value in each row is that of another column, in these rows of it; asked where it may be."""
        return equal_where(maybe, rows, others, lambda ours, theirs: self.equals(ours, other.take(theirs)))

    def repeats(self, maybe: Mask) -> Mask:
        """Which rows from the second on have the value of the row before them; those are asked that may have."""
        equal = maybe.copy()
        before = np.flatnonzero(maybe)
        equal[before] = equal_values(self.take(before), self.take(before + 1))
        return equal

    def select(self, rows: Rows) -> "HeapColumn":
        return HeapColumn.over(self.take(rows))

    def copied(self) -> "HeapColumn":
        """The same values, which may be written: pieces never change, so only the places are copied."""
        return HeapColumn(self.pieces, self.at.copy())

    def slice(self, start: int, end: int) -> "HeapColumn":
        """Neighbouring rows where they lie: not to be written."""
        return HeapColumn(self.pieces, self.at[start:end])

    def merged(self, others: Sequence[AnyColumn], places: Places) -> "HeapColumn":
        """This column and others as one."""
        columns = [self, *(_as_heap(other) for other in others)]
        starts = np.cumsum([0, *(column.heap_rows for column in columns[:-1])], dtype=np.int64)
        at = places.merge([column.at + start for column, start in zip(columns, starts, strict=True)])
        pieces = [piece for column in columns for piece in column.pieces]
        if sum(len(piece) for piece in pieces) > _SPARSE * len(at) + _SPARE_HEAP_ROWS:
            # Most often these are parts of columns, and have all of their values.
            return HeapColumn.over(HeapColumn(pieces, at).array())
        if len(self.at) > _SMALL_AGAINST * (len(at) - len(self.at)):
            # Little is added to a large run: copying all of it each time would cost most.
            column = HeapColumn(self.pieces, at)
            column._add(pieces[len(self.pieces) :])
            return column
        # Large runs are merged seldom and read often: one piece is read fastest.
        return HeapColumn([pa.concat_arrays(pieces)], at)

    def _values(self, at: Rows) -> pa.Array:
        if len(self.pieces) == 1:
            return taken(self.pieces[0], at)
        starts = np.cumsum([0, *(len(piece) for piece in self.pieces[:-1])], dtype=np.int64)
        piece_of = np.searchsorted(starts, at, side="right") - 1
        order = np.argsort(piece_of, kind="stable")
        parts = [taken(piece, at[piece_of == index] - starts[index]) for index, piece in enumerate(self.pieces)]
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order), dtype=np.int64)
        return taken(pa.concat_arrays(parts), back)

    def _add(self, pieces: Sequence[pa.Array]) -> int:
        """Append pieces, keep each one at least as large as all after it, and give the place of the first new value."""
        first = self.heap_rows
        self.pieces = [piece for piece in (*self.pieces, *pieces) if len(piece)] or list(pieces[:1])
        while len(self.pieces) > 1 and len(self.pieces[-2]) < 2 * len(self.pieces[-1]):
            last = self.pieces.pop()
            self.pieces[-1] = pa.concat_arrays([self.pieces[-1], last])
        return first

    @property
    def heap_rows(self) -> int:
        """Values of all pieces, whether a row points to them or not."""
        return sum(len(piece) for piece in self.pieces)


def _as_heap(column: AnyColumn) -> HeapColumn:
    if isinstance(column, HeapColumn):
        return column
    return HeapColumn.over(column.array())
