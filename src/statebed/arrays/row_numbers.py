"""Row numbers inside partitions: row_number, rank, dense_rank, ntile and similar, over sorted rows.

Rows are sorted by partition and order; peers are rows of a partition that are equal in the order. Everything is
arithmetic over whole columns.
"""

import enum
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from statebed.arrays.sort_order import Flags, Integers

Doubles = npt.NDArray[np.float64]


class Numbering(enum.Enum):
    """Ways to number the rows of a partition, from 1."""

    ROW_NUMBER = "row_number"
    """Consecutive numbers; peers are ordered by all their columns."""
    RANK = "rank"
    """Peers have the number of the first of them; numbers are skipped after them."""
    DENSE_RANK = "dense_rank"
    """Peers have the same number; no number is skipped."""


@dataclass(frozen=True)
class Partitions:
    """Partitions and peers of sorted rows."""

    partition_begins: Flags
    """Whether a row is the first of its partition."""
    peers_begin: Flags
    """Whether a row is the first of its peers, as the first row of a partition always is."""

    @cached_property
    def starts(self) -> Integers:
        """First row of each partition."""
        return np.flatnonzero(self.partition_begins)

    @cached_property
    def sizes(self) -> Integers:
        return np.diff(self.starts, append=np.int64(len(self.partition_begins)))

    @cached_property
    def partition(self) -> Integers:
        """Number of each row's partition, from 0."""
        return np.cumsum(self.partition_begins) - 1

    @cached_property
    def place(self) -> Integers:
        """Position of each row in its partition, from 0."""
        return np.arange(len(self.partition), dtype=np.int64) - self.starts[self.partition]

    @cached_property
    def size(self) -> Integers:
        """Number of rows in each row's partition."""
        return self.sizes[self.partition]

    @cached_property
    def first_peer(self) -> Integers:
        """First peer of each row."""
        return np.flatnonzero(self.peers_begin)[self._peer_group]

    @cached_property
    def last_peer(self) -> Integers:
        """Last peer of each row."""
        return np.append(np.flatnonzero(self.peers_begin)[1:], len(self.peers_begin))[self._peer_group] - 1

    @cached_property
    def _peer_group(self) -> Integers:
        return np.cumsum(self.peers_begin) - 1

    def numbers(self, numbering: Numbering) -> Integers:
        """Return the number of each row."""
        if numbering is Numbering.ROW_NUMBER:
            return self.place + 1
        if numbering is Numbering.RANK:
            return self.place[self.first_peer] + 1
        return self._peer_group - self._peer_group[self.starts[self.partition]] + 1

    def ntile(self, buckets: int) -> Integers:
        """Return the number of each row's bucket; bucket sizes differ by at most one row, larger ones first."""
        small, larger = self.size // buckets, self.size % buckets
        in_larger = larger * (small + 1)
        beyond = self.place - in_larger
        return np.where(self.place < in_larger, self.place // (small + 1), larger + beyond // np.maximum(small, 1)) + 1

    def percent_rank(self) -> Doubles:
        """Return the share of the other rows that come before; 0 in a partition of one row."""
        return (self.numbers(Numbering.RANK) - 1) / np.maximum(self.size - 1, 1)

    def cume_dist(self) -> Doubles:
        """Return the share of rows that do not come after the row."""
        return (self.place[self.last_peer] + 1) / self.size if len(self.size) else np.zeros(0)
