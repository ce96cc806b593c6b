"""Results of aggregates whose entries are rows of a multiset table, maintained from the changed entries.

Most changes only need the changed entries and the group's own row, which holds a distinct count or sum, or the entry
that decides the result with its count. Otherwise the entries of a group are read in pages, and only a page and a
bounded remainder are in memory. That happens when the deciding entry is removed (`min`, `max`, `min_by`, `max_by`,
`mode`), when a value is removed (`bit_and`, `bit_or`), and when a percentile leaves the window of values around it
(`percentile_windows`).

A result that contains all values (`collect_list`, `collect_set`, `string_agg`) is not stored a second time in the
group's row, which only has their number and a digest. It is built from the entries whenever it is emitted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators import Counted, DecimalSum, FloatSum, IntegerSum
from statebed.aggregates.accumulators.bits import BitOperation
from statebed.aggregates.accumulators.doubles import as_doubles
from statebed.aggregates.accumulators.finishes import (
    AtEnd,
    CombinedBits,
    DistinctCount,
    DistinctSum,
    MostFrequent,
    Percentile,
)
from statebed.aggregates.accumulators.multisets import EntryAccumulator, Multiset, Multisets, sorted_sets
from statebed.aggregates.exact_sums import Doubles
from statebed.arrays.columns import float64_values, from_numpy, int64_values, one_chunk, validity
from statebed.arrays.grouping import Flags, Grouping, Integers
from statebed.arrays.key_hash import hash_columns
from statebed.arrays.mutable import column_over
from statebed.arrays.sort_order import total_order
from statebed.operators.updating.percentile_windows import (
    MAX_VALUES,
    WINDOW_VALUES,
    Codes,
    CountedCodes,
    PercentileWindows,
    StoredWindows,
    codes_of,
    values_of,
)
from statebed.state import Reservation

_AT_ONCE = 1 << 16
"""Number of entries of percentiles that are in memory at once."""
_ENTRY_BYTES = 96
"""Memory of an entry while it is sorted: its group, value and count, and copies of them."""
_BUCKETS = 1 << 16

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
        return self if flags.all() else self.at(np.flatnonzero(flags))

    def present(self) -> "Entries":
        """Return the entries with a positive count."""
        return self.where(self.counts > 0)

    def at(self, rows: Integers) -> "Entries":
        """Return the entries at these positions."""
        at = from_numpy(rows, pa.int64())
        return Entries(self.owners[rows], tuple(column.take(at) for column in self.columns), self.counts[rows])

    def concatenated(self, other: "Entries") -> "Entries":
        """Concatenate the entries with others."""
        columns = (pa.concat_arrays(list(pair)) for pair in zip(self.columns, other.columns, strict=True))
        counts = np.concatenate([self.counts, other.counts])
        return Entries(np.concatenate([self.owners, other.owners]), tuple(columns), counts)

    def added_up(self) -> "Entries":
        """Return each entry once, with the sum of its counts."""
        order, begins = total_order([self.owners], self.columns)
        if begins.all():
            return self
        starts = np.flatnonzero(begins)
        return replace(self.at(order[starts]), counts=np.add.reduceat(self.counts[order], starts))

    def values(self, at: Integers) -> pa.Array:
        """Return the values of some entries, which are their last column."""
        return self.columns[-1].take(from_numpy(at, pa.int64()))

    def sets(self, groups: int) -> Multisets:
        """Return one multiset per group."""
        return sorted_sets(self.owners, self.columns, self.counts, groups=groups)


@dataclass(frozen=True)
class EntryReads:
    """Access to what is stored for the groups of a step."""

    pages: Pages
    windows: StoredWindows | None
    """Windows around percentiles; None for other aggregates."""
    reservation: Callable[[], Reservation]
    """Returns a charge of 0 bytes for entries that are held in memory."""


@dataclass(frozen=True)
class ChangedEntries:
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
        """Columns of the group's own row: the result, or what decides it."""

    def updated(self, changed: ChangedEntries, before: Columns, reads: EntryReads) -> Columns:
        """Return the fields of each group after a change; `before` is null for groups without a result."""

    def of_sets(self, sets: Multisets) -> Columns:
        """Return the fields of groups whose entries are all in memory."""

    def finish(self, fields: Columns) -> pa.Array | None:
        """Return the result of each group from its fields; None if it is built from all entries."""


def entry_result(accumulator: EntryAccumulator) -> EntryResult:
    """Return how to maintain the result of an aggregate."""
    if isinstance(accumulator, Multiset):
        match accumulator.finishing:
            case DistinctCount():
                return _Count(accumulator)
            case DistinctSum(total):
                return _Sum(accumulator, total)
            case AtEnd() | MostFrequent() as finishing:
                return _Deciding(accumulator, finishing)
            case CombinedBits(operation):
                return _Combined(accumulator, operation)
            case Percentile() as finishing:
                return _Percentile(accumulator, finishing)
    return _Collected(accumulator)


def computed_fields(result: EntryResult, reads: EntryReads) -> Columns:
    """Return the fields of one group from its distinct entries, which are read page by page; several times for a
    percentile. Not for results that contain all entries.
    """
    if isinstance(result, _Percentile):
        return result.computed(reads)
    columns = tuple(pa.nulls(1, field.type) for field in result.fields)
    for page in reads.pages(np.zeros(1, dtype=np.int64)):
        columns = result.updated(ChangedEntries(1, page, np.zeros_like(page.counts)), columns, reads)
    return columns


class _StoredResult:
    """Base of results that are stored as the first field."""

    def finish(self, fields: Columns) -> pa.Array:
        return fields[0]


@dataclass(frozen=True)
class _Count(_StoredResult):
    """Number of distinct values."""

    accumulator: Multiset

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (self.accumulator.output_field,)

    def updated(self, changed: ChangedEntries, before: Columns, reads: EntryReads) -> Columns:  # noqa: ARG002 - the counts are enough
        owners = changed.entries.owners
        more, less = (np.bincount(owners[flags], minlength=changed.groups) for flags in (changed.came, changed.left))
        return (from_numpy(int64_values(before[0].fill_null(0)) + more - less, pa.int64()),)

    def of_sets(self, sets: Multisets) -> Columns:
        return (self.accumulator.finishing.result(sets),)


@dataclass(frozen=True)
class _Sum:
    """Sum of the distinct values, as partials from which a value can be retracted."""

    accumulator: Multiset
    total: IntegerSum | FloatSum | DecimalSum

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return tuple(field.with_nullable(True) for field in self._sum.partial_fields)

    def updated(self, changed: ChangedEntries, before: Columns, reads: EntryReads) -> Columns:  # noqa: ARG002 - the changes are enough
        weights = changed.came.astype(np.int64) - changed.left.astype(np.int64)
        changed_rows = np.flatnonzero(weights)
        added = self._folded(
            changed.entries.owners[changed_rows],
            changed.entries.values(changed_rows),
            weights[changed_rows],
            changed.groups,
        )
        stored = np.flatnonzero(validity(before[-1]))
        rows = from_numpy(stored, pa.int64())
        both = [
            pa.concat_arrays([column.take(rows).cast(more.type), more])
            for column, more in zip(before, added, strict=True)
        ]
        owners = np.concatenate([stored, np.arange(changed.groups, dtype=np.int64)])
        return self._sum.merge(both, _by_owner(owners))

    def of_sets(self, sets: Multisets) -> Columns:
        return self._folded(sets.owners, sets.values, np.ones(len(sets.counts), dtype=np.int64), len(sets.sizes))

    def finish(self, fields: Columns) -> pa.Array:
        return self._sum.finish(fields)

    @property
    def _sum(self) -> Counted:
        return Counted(replace(self.total, changelog=True))

    def _folded(self, owners: Integers, values: pa.Array, weights: Integers, groups: int) -> Columns:
        """Fold values to one partial per group; a group without values gets an empty one."""
        nothing = pa.nulls(groups, values.type)
        owners = np.concatenate([owners, np.arange(groups, dtype=np.int64)])
        weights = np.concatenate([weights, np.ones(groups, dtype=np.int64)])
        return self._sum.fold([pa.concat_arrays([values, nothing])], _by_owner(owners), weights)


def _by_owner(owners: Integers) -> Grouping:
    """Group rows by owner; every owner has at least one row."""
    order = np.argsort(owners, kind="stable")
    return Grouping(order=order, starts=np.flatnonzero(np.diff(owners[order], prepend=-1)))


@dataclass(frozen=True)
class _Collected:
    """All values: the group's row has their number and a digest, so that it changes when they do."""

    accumulator: EntryAccumulator

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        name = self.accumulator.name
        return (pa.field(f"_{name}_count", pa.int64()), pa.field(f"_{name}_digest", pa.int64()))

    def updated(self, changed: ChangedEntries, before: Columns, reads: EntryReads) -> Columns:  # noqa: ARG002 - the changes are enough
        more = changed.entries.counts.clip(0) - changed.old_counts.clip(0)
        added = self._summed(changed.entries.owners, changed.entries.columns, more, changed.groups)
        sums = (int64_values(old.fill_null(0)) + new for old, new in zip(before, added, strict=True))
        return tuple(from_numpy(total, pa.int64()) for total in sums)

    def of_sets(self, sets: Multisets) -> Columns:
        sums = self._summed(sets.owners, sets.columns, sets.counts, len(sets.sizes))
        return tuple(from_numpy(total, pa.int64()) for total in sums)

    def finish(self, fields: Columns) -> None:  # noqa: ARG002 - the values are not among them
        return None

    def _summed(self, owners: Integers, columns: Columns, counts: Integers, groups: int) -> tuple[Integers, Integers]:
        """Return the sums of counts, and of the hashes of entries times their counts, modulo 2**64."""
        sizes, digests = np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=np.int64)
        np.add.at(sizes, owners, counts)
        if len(owners):
            with np.errstate(over="ignore"):
                np.add.at(digests, owners, hash_columns(columns).view(np.int64) * counts)
        return sizes, digests


@dataclass(frozen=True)
class _Deciding(_StoredResult):
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

    def updated(self, changed: ChangedEntries, before: Columns, reads: EntryReads) -> Columns:
        standing = self._standing(before)
        place = np.full(changed.groups, -1, dtype=np.int64)
        place[standing.owners] = np.arange(len(standing.owners))
        entries = changed.entries
        # ChangedEntries entries that were the deciding ones: their current counts apply.
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
        known = standing.where(stays).concatenated(entries.where((entries.counts > 0) & ~lost[entries.owners]))
        known = known.where(~lost[known.owners])
        if lost.any():
            known = known.concatenated(self._first_of(reads.pages(np.flatnonzero(lost)), changed.groups))
        return self.of_sets(known.sets(changed.groups))

    def of_sets(self, sets: Multisets) -> Columns:
        has_entries = sets.sizes > 0
        rows = from_numpy(self.finishing.deciding(sets), pa.int64(), valid=has_entries)
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
            best = self._standing(self.of_sets(best.concatenated(page).sets(groups)))
        return best


@dataclass(frozen=True)
class _Combined(_StoredResult):
    """Bitwise combination of all values."""

    accumulator: Multiset
    operation: BitOperation

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (self.accumulator.output_field,)

    def updated(self, changed: ChangedEntries, before: Columns, reads: EntryReads) -> Columns:
        entries, lost = changed.entries, np.zeros(changed.groups, dtype=np.bool_)
        lost[entries.owners[changed.left]] = True
        (value,) = before
        stands = validity(value) & ~lost
        known = Entries(np.arange(len(value), dtype=np.int64), before, np.ones(len(value), dtype=np.int64)).where(
            stands
        )
        combined = self._both(known, entries.where(changed.came & ~lost[entries.owners]), changed.groups)
        for page in reads.pages(np.flatnonzero(lost)) if lost.any() else ():
            combined = self._both(combined, page, changed.groups)
        return self.of_sets(combined.sets(changed.groups))

    def of_sets(self, sets: Multisets) -> Columns:
        return (self.accumulator.finishing.result(sets),)

    def _both(self, entries: Entries, other: Entries, groups: int) -> Entries:
        (combined,) = self.of_sets(entries.concatenated(other).sets(groups))
        return _of_groups(combined).where(validity(combined))


def _of_groups(values: pa.Array) -> Entries:
    """Return one entry per group, with count 1."""
    return Entries(np.arange(len(values), dtype=np.int64), (values,), np.ones(len(values), dtype=np.int64))


@dataclass(frozen=True)
class _Percentile(_StoredResult):
    """Percentile of all values, found in the window of a group with many values, or computed from all its entries."""

    accumulator: Multiset
    finishing: Percentile

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (self.accumulator.output_field,)

    def updated(self, changed: ChangedEntries, before: Columns, reads: EntryReads) -> Columns:
        assert reads.windows is not None
        delta = changed.entries.counts.clip(0) - changed.old_counts.clip(0)
        moved = np.flatnonzero(delta)
        if not len(moved):
            return before
        owners = changed.entries.owners[moved]
        change = CountedCodes(owners, _codes(changed.entries.values(moved)), delta[moved]).combined()
        groups = np.unique(owners)
        (value,) = before
        results, there = float64_values(value.fill_null(0.0)).copy(), validity(value).copy()
        there[groups] = False
        windows = reads.windows.read(groups)
        after = windows.changed(change)
        inside, ranks = after.ranked(self.finishing.at)
        in_window = np.flatnonzero(inside)
        results[in_window], there[in_window] = (
            self._between(*after.at_ranks(in_window, ranks), ranks.share[in_window]),
            True,
        )
        reads.windows.update(after, in_window, change, ranks)
        rest = groups[~inside[groups]]
        reads.windows.delete(rest[windows.exists[rest]])
        for computed in self._computed(rest, reads):
            results[computed.groups], there[computed.groups] = computed.values, True
            if computed.windows is not None:
                reads.windows.put(computed.windows)
        return (from_numpy(results, pa.float64(), valid=there),)

    def of_sets(self, sets: Multisets) -> Columns:
        return (self.finishing.result(sets),)

    def computed(self, reads: EntryReads) -> Columns:
        """Return the fields of one group from all its entries."""
        values = [computed.values for computed in self._computed(np.zeros(1, dtype=np.int64), reads)]
        return (from_numpy(values[0], pa.float64()) if values else pa.nulls(1, pa.float64()),)

    def _computed(self, groups: Integers, reads: EntryReads) -> Iterator["_Computed"]:
        """Yield the results of groups from all their entries, with windows for groups that have many."""
        with reads.reservation() as held_bytes:
            for few_groups, held in _few_at_a_time(groups, reads.pages, held_bytes):
                yield self._selected(few_groups, reads, held_bytes) if held is None else self._of_entries(held)

    def _of_entries(self, held: Entries) -> "_Computed":
        values = CountedCodes(held.owners, _codes(held.columns[-1]), held.counts).combined()
        groups, starts, sizes = np.unique(values.owners, return_index=True, return_counts=True)
        everything = PercentileWindows.none(int(groups[-1]) + 1).with_all(values, groups, starts, sizes)
        _, ranks = everything.ranked(self.finishing.at)
        percentiles = self._between(*everything.at_ranks(groups, ranks), ranks.share[groups])
        large = groups[sizes > MAX_VALUES]
        return _Computed(groups, percentiles, everything.cut(large, ranks) if len(large) else None)

    def _selected(self, group: Integers, reads: EntryReads, held_bytes: Reservation) -> "_Computed":
        """Compute the result of one group with many entries in several passes over them."""
        first, last, below = 0, (1 << 64) - 1, 0
        place: float | None = None
        total = 0
        while True:
            width = -(-(last - first + 1) // _BUCKETS)
            counts, sizes = np.zeros(_BUCKETS, dtype=np.int64), np.zeros(_BUCKETS, dtype=np.int64)
            for keys, times in _keys_within(reads.pages(group), first, last):
                buckets = ((keys - np.uint64(first)) // np.uint64(width)).astype(np.int64)
                np.add.at(counts, buckets, times)
                sizes += np.bincount(buckets, minlength=_BUCKETS)
            before = below + np.concatenate(([0], np.cumsum(counts)))
            if place is None:
                total = int(before[-1])
                place = (total - 1) * self.finishing.at
            ranks = int(np.floor(place)), int(np.ceil(place))
            low, high = (int(np.searchsorted(before, rank, side="right")) - 1 for rank in ranks)
            start, end = _neighbours(sizes, low, high)
            if sizes[start : end + 1].sum() <= _AT_ONCE:
                edges = first + start * width, min(first + (end + 1) * width - 1, last)
                held_bytes.resize(int(sizes[start : end + 1].sum()) * _ENTRY_BYTES)
                parts = list(_keys_within(reads.pages(group), *edges))
                codes, times = (np.concatenate(part) for part in zip(*parts, strict=True))
                held = CountedCodes(np.repeat(group, len(codes)), codes, times).combined()
                return self._of_range(int(group[0]), held, below=int(before[start]), total=total)
            share = place - ranks[0]
            edges = first + low * width, first + high * width
            if low != high:
                # The lower value is the last of its bucket, the upper one the first of its bucket.
                lower = max(
                    int(keys.max()) for keys, _ in _keys_within(reads.pages(group), edges[0], edges[0] + width - 1)
                )
                upper = min(
                    int(keys.min()) for keys, _ in _keys_within(reads.pages(group), edges[1], edges[1] + width - 1)
                )
                values = values_of(np.array([lower, upper], dtype=np.uint64))
                return _Computed(group, self._between(values[:1], values[1:], np.array([share])), None)
            first, last, below = edges[0], min(edges[0] + width - 1, last), int(before[low])

    def _of_range(self, group: int, held: CountedCodes, *, below: int, total: int) -> "_Computed":
        """Return the result of a group from the values around its percentile."""
        windows = PercentileWindows.none(group + 1)
        windows.exists[group], windows.below[group] = True, below
        windows.above[group] = total - below - int(held.counts.sum())
        windows.low[group], windows.high[group] = held.codes[0], held.codes[-1]
        windows = replace(windows, values=held)
        _, ranks = windows.ranked(self.finishing.at)
        groups = np.array([group], dtype=np.int64)
        percentiles = self._between(*windows.at_ranks(groups, ranks), ranks.share[groups])
        return _Computed(groups, percentiles, windows.cut(groups, ranks))

    def _between(self, lower: Doubles, upper: Doubles, share: Doubles) -> Doubles:
        return self.finishing.between(lower, upper, share)


@dataclass(frozen=True)
class _Computed:
    """Results of some groups, and windows to store."""

    groups: Integers
    values: Doubles
    windows: PercentileWindows | None


def _neighbours(sizes: Integers, low: int, high: int) -> tuple[int, int]:
    """Return the first and last bucket to read for a window around two buckets: themselves, and if they are not too
    large, others that together have enough values on each side.
    """
    ends = np.cumsum(sizes)
    starts = ends - sizes
    first = min(int(np.searchsorted(ends, starts[low] - WINDOW_VALUES, side="right")), low)
    last = max(int(np.searchsorted(starts, ends[high] + WINDOW_VALUES, side="left")) - 1, high)
    limit = _AT_ONCE // 4
    return (
        first if sizes[first:low].sum() <= limit else low,
        last if sizes[high + 1 : last + 1].sum() <= limit else high,
    )


def _few_at_a_time(
    groups: Integers, pages: Pages, held_bytes: Reservation
) -> Iterator[tuple[Integers, Entries | None]]:
    """Yield groups with all their entries, as many as may be in memory; a larger group alone, without entries.

    Groups without entries are left out. The entries in memory are charged.
    """
    left = groups
    while len(left):
        held: Entries | None = None
        for page in pages(left):
            held = page if held is None else held.concatenated(page)
            held_bytes.resize(len(held.owners) * _ENTRY_BYTES)
            if len(held.owners) > _AT_ONCE:
                break
        if held is None or not len(held.owners):
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
            held = None
            held_bytes.resize(0)
            yield last, None
            done = last
        left = np.setdiff1d(left, done)


def _keys_within(pages: Iterator[Entries], first: int, last: int) -> Iterator[tuple[Codes, Integers]]:
    """Yield the values from `first` to `last` as order-preserving numbers, with their counts."""
    for page in pages:
        keys = _codes(page.columns[-1])
        inside = (keys >= np.uint64(first)) & (keys <= np.uint64(last))
        if inside.any():
            yield keys[inside], page.counts[inside]
        del page, keys  # before the next page is built


def _codes(values: pa.Array) -> Codes:
    return codes_of(float64_values(one_chunk(as_doubles(values))))
