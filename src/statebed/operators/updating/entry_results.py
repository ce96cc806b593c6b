"""Results of aggregates whose entries are rows of a multiset table, maintained from the changed entries.

Most changes only need the changed entries and the group's own row, which holds a distinct count, or the entry that
decides the result with its count. Otherwise the entries of a group are read in pages, and only a page and a bounded
remainder are in memory. That happens when the deciding entry is removed (`min`, `max`, `min_by`, `max_by`, `mode`),
when a value is removed (`bit_and`, `bit_or`), and for every change of a percentile.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.aggregates.accumulators.bits import BitOperation
from statebed.aggregates.accumulators.doubles import as_doubles
from statebed.aggregates.accumulators.finishes import AtEnd, CombinedBits, DistinctCount, MostFrequent, Percentile
from statebed.aggregates.accumulators.multisets import Multiset, Multisets, sorted_sets
from statebed.arrays.columns import float64_values, from_numpy, int64_values, one_chunk, validity
from statebed.arrays.grouping import Flags, Integers
from statebed.arrays.mutable import column_over

_AT_ONCE = 1 << 17
"""Number of entries of percentiles that are in memory at once."""
_BUCKETS = 1 << 16
_SIGN = np.uint64(1 << 63)

Columns = tuple[pa.Array, ...]
Pages = Callable[[Integers], Iterator["Entries"]]
"""Function that reads the present entries of some groups, passed as group numbers in ascending order."""


@dataclass(frozen=True)
class Entries:
    """Entries of groups; `owners` has the group number of each entry."""

    owners: Integers
    columns: Columns
    counts: Integers

    def where(self, flags: Flags) -> "Entries":
        """Return the entries whose flag is set."""
        if flags.all():
            return self
        at = from_numpy(np.flatnonzero(flags), pa.int64())
        return Entries(self.owners[flags], tuple(column.take(at) for column in self.columns), self.counts[flags])

    def and_those(self, other: "Entries") -> "Entries":
        """Concatenate the entries with others."""
        columns = (pa.concat_arrays(list(pair)) for pair in zip(self.columns, other.columns, strict=True))
        counts = np.concatenate([self.counts, other.counts])
        return Entries(np.concatenate([self.owners, other.owners]), tuple(columns), counts)

    def sets(self, groups: int) -> Multisets:
        """Return one multiset per group."""
        return sorted_sets(self.owners, self.columns, self.counts, groups=groups)


@dataclass(frozen=True)
class Changed:
    """Entries changed by an epoch, with their counts before it; `entries.counts` are those after it."""

    groups: int
    entries: Entries
    old_counts: Integers

    @property
    def came(self) -> Flags:
        return (self.old_counts <= 0) & (self.entries.counts > 0)

    @property
    def left(self) -> Flags:
        return (self.old_counts > 0) & (self.entries.counts <= 0)


class EntryResult(Protocol):
    """Computes the result of a group from its entries."""

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Columns of the group's own row: the result, and what else decides it."""

    def updated(self, changed: Changed, before: Columns, pages: Pages) -> Columns:
        """Return the fields of each group after a change; `before` is null for groups without a result."""

    def of_sets(self, sets: Multisets) -> Columns:
        """Return the fields of groups whose entries are all in memory."""


def entry_result(accumulator: Multiset) -> EntryResult | None:
    """Return how to maintain the result of an aggregate; None if the result contains all its entries."""
    finishing = accumulator.finishing
    if isinstance(finishing, DistinctCount):
        return _Count(accumulator)
    if isinstance(finishing, AtEnd | MostFrequent):
        return _Deciding(accumulator, finishing)
    if isinstance(finishing, CombinedBits):
        return _Combined(accumulator, finishing.operation)
    return _Percentile(accumulator, finishing) if isinstance(finishing, Percentile) else None


@dataclass(frozen=True)
class _Count:
    """Number of distinct values."""

    accumulator: Multiset

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (self.accumulator.output_field,)

    def updated(self, changed: Changed, before: Columns, pages: Pages) -> Columns:  # noqa: ARG002 - the counts are enough
        owners = changed.entries.owners
        more, less = (np.bincount(owners[flags], minlength=changed.groups) for flags in (changed.came, changed.left))
        return (from_numpy(int64_values(before[0].fill_null(0)) + more - less, pa.int64()),)

    def of_sets(self, sets: Multisets) -> Columns:
        return (self.accumulator.finishing.result(sets),)


@dataclass(frozen=True)
class _Deciding:
    """Value of one entry: the first or last in the order, or the most frequent."""

    accumulator: Multiset
    finishing: AtEnd | MostFrequent

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Columns of the entry and, if counts decide, its count."""
        name, columns = self.accumulator.name, self.accumulator.columns
        fields = [pa.field(f"_{name}_{column.word}", column.kind) for column in columns[:-1]]
        counts = [pa.field(f"_{name}_count", pa.int64())] if self._by_count else []
        return (self.accumulator.output_field, *fields, *counts)

    @property
    def _by_count(self) -> bool:
        return isinstance(self.finishing, MostFrequent)

    def updated(self, changed: Changed, before: Columns, pages: Pages) -> Columns:
        standing = self._standing(before)
        place = np.full(changed.groups, -1, dtype=np.int64)
        place[standing.owners] = np.arange(len(standing.owners))
        entries = changed.entries
        # Changed entries that were the deciding ones: their current counts apply.
        at = np.flatnonzero(place[entries.owners] >= 0)
        for ours, theirs in zip(entries.columns, standing.columns, strict=True):
            known = theirs.take(from_numpy(place[entries.owners[at]], pa.int64()))
            rows = from_numpy(at, pa.int64())
            at = at[column_over(known).equals(np.arange(len(known), dtype=np.int64), ours.take(rows))]
        now = entries.counts[at]
        worse = now < standing.counts[place[entries.owners[at]]] if self._by_count else now <= 0
        lost = np.zeros(changed.groups, dtype=np.bool_)
        lost[entries.owners[at[worse]]] = True
        stays = np.ones(len(standing.owners), dtype=np.bool_)
        stays[place[entries.owners[at]]] = False
        known = standing.where(stays).and_those(entries.where((entries.counts > 0) & ~lost[entries.owners]))
        known = known.where(~lost[known.owners])
        if lost.any():
            known = known.and_those(self._first_of(pages(np.flatnonzero(lost)), changed.groups))
        return self.of_sets(known.sets(changed.groups))

    def of_sets(self, sets: Multisets) -> Columns:
        some = sets.sizes > 0
        rows = from_numpy(self.finishing.deciding(sets), pa.int64(), valid=some)
        *others, value = (column.take(rows) for column in sets.columns)
        counts = [from_numpy(sets.counts, pa.int64()).take(rows)] if self._by_count else []
        return (value, *others, *counts)

    def _standing(self, before: Columns) -> Entries:
        """Return the deciding entries so far, for the groups that have one."""
        value, *others = before
        counts = int64_values(others.pop().fill_null(0)) if self._by_count else np.ones(len(value), dtype=np.int64)
        columns = (*others, value)
        # The first column is never null in an entry.
        there = validity(columns[0])
        return Entries(np.arange(len(value), dtype=np.int64), columns, counts).where(there)

    def _first_of(self, pages: Iterator[Entries], groups: int) -> Entries:
        """Find the deciding entries among all entries of some groups, page by page."""
        best = Entries(
            np.zeros(0, dtype=np.int64),
            tuple(pa.nulls(0, column.kind) for column in self.accumulator.columns),
            np.zeros(0, dtype=np.int64),
        )
        for page in pages:
            best = self._standing(self.of_sets(best.and_those(page).sets(groups)))
        return best


@dataclass(frozen=True)
class _Combined:
    """Bitwise combination of all values."""

    accumulator: Multiset
    operation: BitOperation

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (self.accumulator.output_field,)

    def updated(self, changed: Changed, before: Columns, pages: Pages) -> Columns:
        entries, lost = changed.entries, np.zeros(changed.groups, dtype=np.bool_)
        lost[entries.owners[changed.left]] = True
        (value,) = before
        stands = validity(value) & ~lost
        known = Entries(np.arange(len(value), dtype=np.int64), before, np.ones(len(value), dtype=np.int64)).where(
            stands
        )
        combined = self._both(known, entries.where(changed.came & ~lost[entries.owners]), changed.groups)
        for page in pages(np.flatnonzero(lost)) if lost.any() else ():
            combined = self._both(combined, page, changed.groups)
        return self.of_sets(combined.sets(changed.groups))

    def of_sets(self, sets: Multisets) -> Columns:
        return (self.accumulator.finishing.result(sets),)

    def _both(self, one: Entries, other: Entries, groups: int) -> Entries:
        (combined,) = self.of_sets(one.and_those(other).sets(groups))
        return _of_groups(combined).where(validity(combined))


def _of_groups(values: pa.Array) -> Entries:
    """Return one entry per group, with count 1."""
    return Entries(np.arange(len(values), dtype=np.int64), (values,), np.ones(len(values), dtype=np.int64))


@dataclass(frozen=True)
class _Percentile:
    """Percentile of all values, computed from the entries of each changed group."""

    accumulator: Multiset
    finishing: Percentile

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (self.accumulator.output_field,)

    def updated(self, changed: Changed, before: Columns, pages: Pages) -> Columns:
        moved = changed.entries.counts.clip(0) != changed.old_counts.clip(0)
        groups = np.unique(changed.entries.owners[moved])
        (value,) = before
        results, there = float64_values(value.fill_null(0.0)).copy(), validity(value).copy()
        there[groups] = False
        for some, held in _few_at_a_time(groups, pages):
            if held is None:
                results[some], there[some] = self._selected(some, pages), True
                continue
            (found,) = self.of_sets(held.sets(changed.groups))
            results[some], there[some] = float64_values(found.fill_null(0.0))[some], validity(found)[some]
        return (from_numpy(results, pa.float64(), valid=there),)

    def of_sets(self, sets: Multisets) -> Columns:
        return (self.finishing.result(sets),)

    def _selected(self, group: Integers, pages: Pages) -> float:
        """Compute the result of one group with many entries in several passes over them."""
        first, last, below = 0, (1 << 64) - 1, 0
        place: float | None = None
        while True:
            width = -(-(last - first + 1) // _BUCKETS)
            counts, sizes = np.zeros(_BUCKETS, dtype=np.int64), np.zeros(_BUCKETS, dtype=np.int64)
            for keys, times in _keys_within(pages(group), first, last):
                buckets = ((keys - np.uint64(first)) // np.uint64(width)).astype(np.int64)
                np.add.at(counts, buckets, times)
                sizes += np.bincount(buckets, minlength=_BUCKETS)
            before = below + np.concatenate(([0], np.cumsum(counts)))
            place = (int(before[-1]) - 1) * self.finishing.at if place is None else place
            ranks = int(np.floor(place)), int(np.ceil(place))
            low, high = (int(np.searchsorted(before, rank, side="right")) - 1 for rank in ranks)
            edges = [first + bucket * width for bucket in (low, high)]
            share = place - ranks[0]
            if low != high:
                # The lower value is the last of its bucket, the upper one the first of its bucket.
                lower = max(int(keys.max()) for keys, _ in _keys_within(pages(group), edges[0], edges[0] + width - 1))
                upper = min(int(keys.min()) for keys, _ in _keys_within(pages(group), edges[1], edges[1] + width - 1))
                return self._between(lower, upper, share)
            first, last, below = edges[0], min(edges[0] + width - 1, last), int(before[low])
            if width == 1:
                return self._between(first, first, share)
            if sizes[low] <= _AT_ONCE:
                held = list(_keys_within(pages(group), first, last))
                keys, times = (np.concatenate(part) for part in zip(*held, strict=True))
                order = np.argsort(keys)
                ends = below + np.cumsum(times[order])
                lower, upper = (int(keys[order[np.searchsorted(ends, rank, side="right")]]) for rank in ranks)
                return self._between(lower, upper, share)

    def _between(self, lower: int, upper: int, share: float) -> float:
        """Interpolate between two values, passed as order-preserving numbers (see `_keys_within`)."""
        keys = np.array([lower, upper], dtype=np.uint64)
        values = np.where(keys & _SIGN, keys ^ _SIGN, ~keys).view(np.float64)
        return self.finishing.between(float(values[0]), float(values[1]), share)


def _few_at_a_time(groups: Integers, pages: Pages) -> Iterator[tuple[Integers, Entries | None]]:
    """Yield groups with all their entries, as many as may be in memory; a larger group alone, without entries.

    Groups without entries may be left out.
    """
    left = groups
    while len(left):
        held: Entries | None = None
        for page in pages(left):
            held = page if held is None else held.and_those(page)
            if len(held.owners) > _AT_ONCE:
                break
        if held is None:
            return
        if len(held.owners) <= _AT_ONCE:
            yield left, held
            return
        # Groups are read in order: all but the last one are complete.
        last = held.owners[-1:]
        done = np.setdiff1d(held.owners, last)
        if len(done):
            yield done, held.where(held.owners != last[0])
        else:
            yield last, None
            done = last
        left = np.setdiff1d(left, done)


def _keys_within(pages: Iterator[Entries], first: int, last: int) -> Iterator[tuple[npt.NDArray[np.uint64], Integers]]:
    """Yield the values from `first` to `last` as order-preserving numbers, with their counts."""
    for page in pages:
        bits = float64_values(one_chunk(as_doubles(page.columns[-1]))).view(np.uint64)
        keys = np.where(bits & _SIGN, ~bits, bits | _SIGN)
        inside = (keys >= np.uint64(first)) & (keys <= np.uint64(last))
        if inside.any():
            yield keys[inside], page.counts[inside]
