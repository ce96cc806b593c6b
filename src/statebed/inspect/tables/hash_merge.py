"""K-way merge of files that are sorted by hash, which brings rows with the same hash together.

A step emits the rows below the minimum of the last hashes of all open pieces: no later row can have a lower hash. A
file is opened when the merge reaches its first hash, so files with disjoint ranges are open one at a time. About one
row group per open file is held in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import uint64_values
from statebed.format.schema import KEY_HASH


@dataclass(frozen=True)
class HashSource:
    """Rows sorted by hash, in pieces; no row has a lower hash than `first`."""

    first: int
    pieces: Iterator[pa.Table]
    tag: int = 0
    """Identifier of the source in the output."""


def merge_by_hash(sources: list[HashSource]) -> Iterator[list[tuple[int, pa.Table]]]:
    """Yield lists of pieces with the tags of their sources. Each list contains all rows of a range of hashes, each
    piece in its own order.
    """
    waiting = sorted(sources, key=lambda source: source.first, reverse=True)
    heads: list[_Head] = []
    while waiting or heads:
        until = min((head.last for head in heads if not head.ended), default=None)
        reached = max((head.last for head in heads), default=None) if until is None else until
        if waiting and (reached is None or waiting[-1].first <= reached):
            head = _Head(waiting.pop())
            if head.read_more():
                heads.append(head)
            continue
        pieces = [(head.tag, part) for head in heads if (part := head.take_below(until)).num_rows]
        # Rows with the last hash of a piece may continue in the next one.
        heads = [head for head in heads if (head.read_more() if head.last == until else head.has_rows)]
        if pieces:
            yield pieces


class _Head:
    """Open piece of one source."""

    def __init__(self, source: HashSource) -> None:
        self._pieces = source.pieces
        self.tag = source.tag
        self._rows: pa.Table | None = None
        self.ended = False
        """Whether the open piece is the last one."""
        self.last = 0
        """Largest hash of the open piece."""

    @property
    def has_rows(self) -> bool:
        return self._rows is not None and self._rows.num_rows > 0

    def take_below(self, until: int | None) -> pa.Table:
        """Take the rows with hashes below `until`, or all rows if it is None."""
        assert self._rows is not None
        rows = self._rows
        hashes = uint64_values(rows[KEY_HASH])
        count = rows.num_rows if until is None else int(np.searchsorted(hashes, np.uint64(until)))
        self._rows = rows.slice(count)
        return rows.slice(0, count)

    def read_more(self) -> bool:
        """Append the next piece. Return False if there are no rows left."""
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
