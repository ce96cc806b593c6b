"""Columns of any type: pieces of Arrow arrays, and for each row its position in them.

A write appends the new values and updates the positions. Values that no row refers to stay until they outweigh the
rest.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from statebed.arrays.hash_order import is_ascending
from statebed.arrays.mutable.column import AnyColumn, Mask, Places, Rows, equal_values, equal_where, taken

_SPARE_HEAP_ROWS = 4096
_SMALL_AGAINST = 5
_SPARSE = 1.25
"""Number of values per row above which a merge drops unused values."""


class HeapColumn:
    """Values of any type, as positions in Arrow arrays."""

    def __init__(self, pieces: Sequence[pa.Array], at: Rows) -> None:
        self.pieces = list(pieces)
        self.at = at

    @classmethod
    def over(cls, array: pa.Array) -> "HeapColumn":
        """Return a read-only column over the values, without a copy."""
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
        """Return the values in some rows."""
        return self._values(self.at[rows])

    def array(self) -> pa.Array:
        """Return all values."""
        return self._values(self.at)

    def put(self, rows: Rows, array: pa.Array) -> "HeapColumn":
        """Write values in place, and return the column to use from then on."""
        if not len(rows):
            return self
        self.at[rows] = self._add([pa.concat_arrays([array])]) + np.arange(len(array), dtype=np.int64)
        if self.heap_rows > 2 * len(self.at) + _SPARE_HEAP_ROWS:
            self.pieces = [self._values(self.at)]
            self.at = np.arange(len(self.at), dtype=np.int64)
        return self

    def equals(self, rows: Rows, array: pa.Array) -> Mask:
        """Return whether the value in each row equals the one in the array; null equals null."""
        return equal_values(self.take(rows), array)

    def matches(self, rows: Rows, other: AnyColumn, others: Rows, maybe: Mask) -> Mask:
        """Return, where `maybe` is set, whether the value in each row equals that of the other column."""
        return equal_where(maybe, rows, others, lambda ours, theirs: self.equals(ours, other.take(theirs)))

    def repeats(self, maybe: Mask) -> Mask:
        """Return, where `maybe` is set, whether each row from the second on equals the row before it."""
        equal = maybe.copy()
        before = np.flatnonzero(maybe)
        equal[before] = equal_values(self.take(before), self.take(before + 1))
        return equal

    def select(self, rows: Rows) -> "HeapColumn":
        return HeapColumn.over(self.take(rows))

    def copied(self) -> "HeapColumn":
        """Return a copy that may be written. Pieces never change, so only the positions are copied."""
        return HeapColumn(self.pieces, self.at.copy())

    def slice(self, start: int, end: int) -> "HeapColumn":
        """Return a read-only view of adjacent rows."""
        return HeapColumn(self.pieces, self.at[start:end])

    def merged(self, others: Sequence[AnyColumn], places: Places) -> "HeapColumn":
        """Merge this column and others."""
        columns = [self, *(_as_heap(other) for other in others)]
        starts = np.cumsum([0, *(column.heap_rows for column in columns[:-1])], dtype=np.int64)
        at = places.merge([column.at + start for column, start in zip(columns, starts, strict=True)])
        pieces = [piece for column in columns for piece in column.pieces]
        if sum(len(piece) for piece in pieces) > _SPARSE * len(at) + _SPARE_HEAP_ROWS:
            # Usually these are parts of columns, and have all of their values.
            return HeapColumn.over(HeapColumn(pieces, at).array())
        if len(self.at) > _SMALL_AGAINST * (len(at) - len(self.at)):
            # Little is added to a large run: copying all of it each time would dominate the cost.
            column = HeapColumn(self.pieces, at)
            column._add(pieces[len(self.pieces) :])
            return column
        # Large runs are rarely merged and often read, and a single piece is fastest to read.
        return HeapColumn([pa.concat_arrays(pieces)], at)

    def _values(self, at: Rows) -> pa.Array:
        if len(self.pieces) == 1:
            return taken(self.pieces[0], at)
        starts = np.cumsum([0, *(len(piece) for piece in self.pieces[:-1])], dtype=np.int64)
        if is_ascending(at):
            cuts = [0, *np.searchsorted(at, starts[1:]).tolist(), len(at)]
            return pa.concat_arrays(
                [
                    taken(piece, at[first:end] - start)
                    for piece, start, (first, end) in zip(self.pieces, starts, itertools.pairwise(cuts), strict=True)
                ]
            )
        piece_of = np.searchsorted(starts, at, side="right") - 1
        order = np.argsort(piece_of, kind="stable")
        parts = [taken(piece, at[piece_of == index] - starts[index]) for index, piece in enumerate(self.pieces)]
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order), dtype=np.int64)
        return taken(pa.concat_arrays(parts), back)

    def _add(self, pieces: Sequence[pa.Array]) -> int:
        """Append pieces, keeping each at least as large as all after it; return the position of the first new value."""
        first = self.heap_rows
        self.pieces = [piece for piece in (*self.pieces, *pieces) if len(piece)] or list(pieces[:1])
        while len(self.pieces) > 1 and len(self.pieces[-2]) < 2 * len(self.pieces[-1]):
            last = self.pieces.pop()
            self.pieces[-1] = pa.concat_arrays([self.pieces[-1], last])
        return first

    @property
    def heap_rows(self) -> int:
        """Number of values in all pieces, whether a row refers to them or not."""
        return sum(len(piece) for piece in self.pieces)


def _as_heap(column: AnyColumn) -> HeapColumn:
    if isinstance(column, HeapColumn):
        return column
    return HeapColumn.over(column.array())
