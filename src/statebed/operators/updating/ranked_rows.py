"""Ranked rows of keys with weights, before and after a step, and the first n of them.

Old and new rows are sorted together, by key. Rows that are equal in every column become one, whose weight is the sum of
theirs but at least zero, because a row that does not exist cannot be retracted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.row_numbers import Numbering, Partitions
from statebed.arrays.sort_order import Flags, Integers, OrderBy, changes, sorted_by, total_keys, user_keys


@dataclass(frozen=True)
class RankedRows:
    """Rows without their keys; `index` has the position of the key of each row in the batch."""

    index: Integers
    rows: pa.Table
    weights: Integers


@dataclass(frozen=True)
class FirstRows:
    """First n rows of keys."""

    at: Integers
    """Positions of the rows."""
    numbers: Integers
    weights: Integers


@dataclass(frozen=True)
class RankingStep:
    """Ranked rows of keys before and after a step."""

    keys: int
    """Number of keys."""
    old: RankedRows
    new: RankedRows
    n: int
    order: Sequence[OrderBy]
    numbering: Numbering
    prunes: bool
    """Whether rows beyond the first n are dropped."""
    touches_all: bool
    """Whether every key counts as touched, changed or not."""

    @cached_property
    def rows(self) -> pa.Table:
        """Old rows, then new ones."""
        return pa.concat_tables([self.old.rows, self.new.rows]).combine_chunks()

    @cached_property
    def index(self) -> Integers:
        return np.concatenate([self.old.index, self.new.index])

    @cached_property
    def first_before(self) -> FirstRows:
        """First n rows of touched keys before the step."""
        count = len(self.old.index)
        at = self._sorted[self._sorted < count]
        return self._of_touched(self._first(at, self.old.weights[at]))

    @cached_property
    def first_after(self) -> FirstRows:
        """First n rows of touched keys after the step."""
        return self._of_touched(self._first(*self._standing))

    @cached_property
    def kept(self) -> tuple[Integers, Integers]:
        """Rows that are kept for touched keys, in order, and their weights."""
        at, weights = self._kept
        mine = self._is_touched[self.index[at]]
        return at[mine], weights[mine]

    @property
    def all_kept(self) -> tuple[Integers, Integers]:
        """Rows that are kept for all keys, in order, and their weights."""
        return self._kept

    @cached_property
    def touched(self) -> Integers:
        """Keys whose kept rows change."""
        return np.flatnonzero(self._is_touched)

    @cached_property
    def unknown(self) -> int:
        """Number of retractions that matched no row."""
        return int(-np.minimum(self._net, 0).sum())

    # ---- inside ----------------------------------------------------------------------------------------------

    @cached_property
    def _user_keys(self) -> list[Integers]:
        return [self.index, *user_keys(self.rows, self.order)]

    @cached_property
    def _all_keys(self) -> list[Integers]:
        return [*self._user_keys, *total_keys(self.rows, self.rows.column_names)]

    @cached_property
    def _sorted(self) -> Integers:
        return sorted_by(self._all_keys)

    @cached_property
    def _groups(self) -> Integers:
        """Positions, in sorted order, at which each distinct row begins."""
        return np.flatnonzero(changes(self._all_keys, self._sorted))

    @cached_property
    def _weights(self) -> Integers:
        return np.concatenate([self.old.weights, self.new.weights])[self._sorted]

    @cached_property
    def _net(self) -> Integers:
        return np.add.reduceat(self._weights, self._groups) if len(self._groups) else self._weights

    @cached_property
    def _standing(self) -> tuple[Integers, Integers]:
        there = self._net > 0
        return self._sorted[self._groups[there]], self._net[there]

    @cached_property
    def _kept(self) -> tuple[Integers, Integers]:
        if not self.prunes:
            return self._standing
        first = self._first(*self._standing)
        # Copies of a row are adjacent.
        begins = np.flatnonzero(np.append(True, first.at[1:] != first.at[:-1])) if len(first.at) else first.at
        return first.at[begins], np.add.reduceat(first.weights, begins) if len(begins) else first.weights

    @cached_property
    def _is_touched(self) -> Flags:
        touched = np.full(self.keys, self.touches_all)
        if self.touches_all or not len(self._groups):
            return touched
        before = np.where(self._sorted < len(self.old.index), self._weights, 0)
        before = np.add.reduceat(before, self._groups)
        firsts = self._sorted[self._groups]
        at, weights = self._kept
        place = np.zeros(len(self.index), dtype=np.int64)
        place[at] = weights
        moved: Flags = before != place[firsts]
        touched[self.index[firsts[moved]]] = True
        return touched

    def _first(self, at: Integers, weights: Integers) -> FirstRows:
        """Return those of the distinct rows at `at`, in order, that are among the first n."""
        several = self.numbering is not Numbering.DENSE_RANK
        copies = np.minimum(weights, self.n) if several else np.ones(len(at), dtype=np.int64)
        each = np.repeat(at, copies)
        shape = Partitions(changes([self.index], each), changes(self._user_keys, each))
        numbers = shape.numbers(self.numbering)
        if self.numbering is Numbering.ROW_NUMBER:
            within = np.flatnonzero(numbers <= self.n)
            return FirstRows(each[within], numbers[within], np.ones(len(within), dtype=np.int64))
        firsts = np.cumsum(copies) - copies
        within = np.flatnonzero(numbers[firsts] <= self.n)
        return FirstRows(at[within], numbers[firsts[within]], weights[within])

    def _of_touched(self, first: FirstRows) -> FirstRows:
        mine = self._is_touched[self.index[first.at]]
        return FirstRows(first.at[mine], first.numbers[mine], first.weights[mine])
