"""Index of rows by key and number, which finds matching rows without enumerating other pairs.

Rows are sorted once, by key, and by number where keys have many rows. A probe then finds the range of its partners by
binary search over whole columns. Hashes only locate a key; the keys themselves are compared. A key that contains a null
matches nothing.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import from_numpy, validity
from statebed.arrays.grouping import group_rows
from statebed.arrays.mutable import column_of
from statebed.state.live.row_set import ascending
from statebed.state.tiers.hash_index import HashIndex
from statebed.state.tiers.selection import among

Integers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
N = TypeVar("N", np.int64, np.uint64)

FEW_ROWS = 8
"""Up to this many rows per key, scanning all rows of a key is faster than searching for those within the bounds."""
PAIRS_AT_ONCE = 1 << 16
"""Number of pairs processed together, so that a key with many rows on both sides costs time but not memory."""


class KeyIndex:
    """Distinct keys, sorted by hash."""

    def __init__(self, hashes: Hashes, keys: Sequence[pa.Array]) -> None:
        self._hashes = hashes
        self._index = HashIndex(hashes)
        self._columns = [column_of(key) for key in keys]

    def find(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Integers:
        """Return the position of each key, -1 if it is not in the index. The keys to look up have no nulls."""
        places = np.full(len(hashes), -1, dtype=np.int64)
        at, same_hash = self._first_with(hashes)
        open_rows = np.flatnonzero(same_hash)
        # Keys with equal hashes are adjacent: this loop runs once unless hashes collide.
        while len(open_rows):
            rows = from_numpy(open_rows, pa.int64())
            equal = np.ones(len(open_rows), dtype=np.bool_)
            for column, key in zip(self._columns, keys, strict=True):
                equal &= column.equals(at[open_rows], key if len(open_rows) == len(key) else key.take(rows))
            places[open_rows[equal]] = at[open_rows[equal]]
            open_rows = open_rows[~equal]
            at[open_rows] += 1
            open_rows = open_rows[at[open_rows] < len(self._hashes)]
            open_rows = open_rows[self._hashes[at[open_rows]] == hashes[open_rows]]
        return places

    def _first_with(self, hashes: Hashes) -> tuple[Integers, Flags]:
        """Return, for each hash in any order, the first position with an equal or greater hash, and whether it is
        equal.
        """
        if _ascend(hashes):
            return self._index.find(hashes)
        order = np.argsort(hashes)
        at, equal = np.empty(len(hashes), dtype=np.int64), np.empty(len(hashes), dtype=np.bool_)
        at[order], equal[order] = self._index.find(hashes[order])
        return at, equal


class JoinIndex:
    """Rows by key and number. Without key columns all rows have the same key."""

    def __init__(self, hashes: Hashes, keys: Sequence[pa.Array], numbers: Integers) -> None:
        rows = np.flatnonzero(without_nulls(keys, len(hashes)))
        indexed_keys = [_taken(key, rows) for key in keys]
        grouping = group_rows(None, hashes[rows], indexed_keys)
        firsts = grouping.first_rows
        self._hashes = hashes[rows][firsts]
        self.keys = [_taken(key, firsts) for key in indexed_keys]
        """Columns of the distinct keys."""
        self._key_index = KeyIndex(self._hashes, self.keys)
        self._grouping = grouping
        self._rows = rows[grouping.order]
        self._numbers = numbers[self._rows]

    def pairs(
        self, hashes: Hashes, keys: Sequence[pa.Array], lows: Integers, highs: Integers
    ) -> Iterator[tuple[Integers, Integers]]:
        """Yield pairs (indexed row, probe row) with equal keys and low <= number <= high, in chunks."""
        if not len(self._rows):
            return
        probe_rows = np.flatnonzero(without_nulls(keys, len(hashes)) & among(hashes, self._hashes))
        groups = self._key_index.find(hashes[probe_rows], [_taken(key, probe_rows) for key in keys])
        probe_rows, groups = probe_rows[groups >= 0], groups[groups >= 0]
        if self._grouping.largest > FEW_ROWS:
            yield from self._by_number(probe_rows, groups, lows, highs)
            return
        for probes, at in expanded(self._grouping.starts[groups], self._grouping.sizes[groups]):
            theirs, numbers = probe_rows[probes], self._numbers[at]
            kept = (numbers >= lows[theirs]) & (numbers <= highs[theirs])
            yield self._rows[at[kept]], theirs[kept]

    def _by_number(
        self, probe_rows: Integers, groups: Integers, lows: Integers, highs: Integers
    ) -> Iterator[tuple[Integers, Integers]]:
        """Yield the same pairs where a key has many rows, touching only rows within the bounds."""
        numbers, places, rows = self._places
        stride = len(numbers) + 1
        low = groups * stride + searched(numbers, lows[probe_rows], "left")
        high = groups * stride + searched(numbers, highs[probe_rows], "right")
        first, behind = searched(places, low, "left"), searched(places, high, "left")
        for probes, at in expanded(first, np.maximum(behind - first, 0)):
            yield rows[at], probe_rows[probes]

    @cached_property
    def _places(self) -> tuple[Integers, Integers, Integers]:
        """The distinct numbers; an ascending code for key and number of each row; and the rows in that order."""
        numbers, grouping = ascending(self._numbers), self._grouping
        groups = np.repeat(np.arange(grouping.groups, dtype=np.int64), grouping.sizes)
        places = groups * (len(numbers) + 1) + searched(numbers, self._numbers, "left")
        order = np.argsort(places)
        return numbers, places[order], self._rows[order]


def expanded(starts: Integers, counts: Integers, *, limit: int = PAIRS_AT_ONCE) -> Iterator[tuple[Integers, Integers]]:
    """Yield pairs (i, j) for each i and each j from starts[i] to starts[i] + counts[i] - 1, in chunks."""
    with_counts = np.flatnonzero(counts)
    ends = np.cumsum(counts[with_counts])
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, limit):
        end = min(begin + limit, total)
        first, last = np.searchsorted(ends, [begin, end - 1], side="right")
        part = with_counts[first : last + 1]
        before = ends[first : last + 1] - counts[part]
        low, high = np.maximum(before, begin), np.minimum(ends[first : last + 1], end)
        steps = np.arange(begin, end, dtype=np.int64)
        yield np.repeat(part, high - low), steps + np.repeat(starts[part] - before, high - low)


def without_nulls(keys: Sequence[pa.Array], count: int) -> Flags:
    """Return which rows have a value in every key column."""
    complete = np.ones(count, dtype=np.bool_)
    for key in keys:
        if key.null_count:
            complete &= validity(key)
    return complete


def searched(ascending_values: npt.NDArray[N], values: npt.NDArray[N], side: Literal["left", "right"]) -> Integers:
    """Return the same as `np.searchsorted`, which is several times faster if the values to search for are ascending,
    too.
    """
    if _ascend(values):
        return np.searchsorted(ascending_values, values, side=side)
    order = np.argsort(values)
    places = np.empty(len(values), dtype=np.int64)
    places[order] = np.searchsorted(ascending_values, values[order], side=side)
    return places


def _ascend(values: npt.NDArray[N]) -> bool:
    return not len(values) or bool((values[1:] >= values[:-1]).all())


def _taken(key: pa.Array, rows: Integers) -> pa.Array:
    return (
        key if len(rows) == len(key) and bool((rows[1:] > rows[:-1]).all()) else key.take(from_numpy(rows, pa.int64()))
    )
