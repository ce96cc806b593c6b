"""Rows of many files, each sorted by hash, as one stream in which rows of one hash come together.

A step puts out the rows below the least of the last hashes of all open pieces: nothing that comes later can have a
lower one. A file is opened when the stream comes to its first hash, so files that follow one another are open one at
a time. About one row group of each open file is held.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import uint64_values
from statebed.format.schema import KEY_HASH


@dataclass(frozen=True)
class HashSource:
    """Rows in the order of their hashes, in pieces; none has a lower hash than `first`."""

    first: int
    pieces: Iterator[pa.Table]
    tag: int = 0
    """What it is known by in what comes out."""


def merge_by_hash(sources: list[HashSource]) -> Iterator[list[tuple[int, pa.Table]]]:
    """Pieces of the sources with their tags, again and again: all rows of some hashes, each piece in its own order."""
    waiting = sorted(sources, key=lambda source: source.first, reverse=True)
    heads: list[_Head] = []
    while waiting or heads:
        until = min((head.last for head in heads if not head.ended), default=None)
        reached = max((head.last for head in heads), default=None) if until is None else until
        if waiting and (reached is None or waiting[-1].first <= reached):
            head = _Head(waiting.pop())
            if head.go_on():
                heads.append(head)
            continue
        found = [(head.tag, part) for head in heads if (part := head.take_below(until)).num_rows]
        # Rows with the hash at which a piece ends may go on in the next one.
        heads = [head for head in heads if (head.go_on() if head.last == until else head.has_rows)]
        if found:
            yield found


class _Head:
    """What is open of one source."""

    def __init__(self, source: HashSource) -> None:
        self._pieces = source.pieces
        self.tag = source.tag
        self._rows: pa.Table | None = None
        self.ended = False
        """Nothing comes after what is open."""
        self.last = 0
        """The greatest hash of what is open."""

    @property
    def has_rows(self) -> bool:
        return self._rows is not None and self._rows.num_rows > 0

    def take_below(self, until: int | None) -> pa.Table:
        """Take the rows with lower hashes; None: all."""
        assert self._rows is not None
        rows = self._rows
        hashes = uint64_values(rows[KEY_HASH])
        count = rows.num_rows if until is None else int(np.searchsorted(hashes, np.uint64(until)))
        self._rows = rows.slice(count)
        return rows.slice(0, count)

    def go_on(self) -> bool:
        """Have the next piece, too; False when there are no rows left."""
        while not self.ended:
            piece = next(self._pieces, None)
            if piece is None:
                self.ended = True
            elif piece.num_rows:
                rows = pa.concat_tables([self._rows, piece]) if self._rows is not None and self.has_rows else piece
                self._rows = rows.combine_chunks()
                self.last = int(uint64_values(self._rows[KEY_HASH])[-1])
                return True
        return self.has_rows
