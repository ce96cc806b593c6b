"""Values around a percentile, so that one more value of a large group does not read all the others.

A group with many values has a window: all its values from `low` to `high`, with their counts, and how many values are
below and above. A change outside the window adds to one of these two numbers, and a change inside it to one count. As
long as the rank of the percentile is inside, the result is found there. When it leaves the window, all values are read
once, and a new window is built around it. A window that has grown too large is cut, without reading anything else.

The table has one row per value in the window, and a row with the value null for the ends and the numbers beyond them.
Values are doubles: different decimals or integers that are the same double count as one.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import float64_values, from_numpy, int64_values, one_chunk, validity
from statebed.arrays.grouping import Flags, Integers
from statebed.operators.element_groups import ElementGroups
from statebed.operators.keyed_rows import taken, unused_name
from statebed.operators.time_to_live import multiset_config
from statebed.state import KeyedView, TableConfig

WINDOW_VALUES = 1 << 10
"""Number of distinct values of a new window."""
MAX_VALUES = 4 * WINDOW_VALUES
"""Number of distinct values from which a window is cut, and from which a group has one."""
_SIGN = np.uint64(1 << 63)
_COUNT, _BELOW, _ABOVE, _LOW, _HIGH = "_count", "_below", "_above", "_low", "_high"

Codes = npt.NDArray[np.uint64]
"""Doubles as unsigned integers with the same order; NaN is the largest."""


def codes_of(values: npt.NDArray[np.float64]) -> Codes:
    """Return numbers in the order of the values."""
    bits = values.view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def values_of(codes: Codes) -> npt.NDArray[np.float64]:
    """Return the values of their numbers."""
    return np.where(codes & _SIGN, codes ^ _SIGN, ~codes).view(np.float64)


@dataclass(frozen=True)
class CountedCodes:
    """Values of groups with counts; `owners` has the group of each."""

    owners: Integers
    codes: Codes
    counts: Integers

    def where(self, flags: Flags) -> "CountedCodes":
        return CountedCodes(self.owners[flags], self.codes[flags], self.counts[flags])

    def combined(self) -> "CountedCodes":
        """Return them sorted by group and value, with the counts of equal values added."""
        order = np.lexsort((self.codes, self.owners))
        owners, codes = self.owners[order], self.codes[order]
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = (owners[1:] != owners[:-1]) | (codes[1:] != codes[:-1])
        starts = np.flatnonzero(new)
        counts = np.add.reduceat(self.counts[order], starts) if len(starts) else self.counts[:0]
        return CountedCodes(owners[starts], codes[starts], counts)

    def concatenated(self, other: "CountedCodes") -> "CountedCodes":
        return CountedCodes(
            np.concatenate([self.owners, other.owners]),
            np.concatenate([self.codes, other.codes]),
            np.concatenate([self.counts, other.counts]),
        )


@dataclass(frozen=True)
class PercentileWindows:
    """Windows of some groups; arrays by group, and the values of all windows sorted by group and value."""

    exists: Flags
    below: Integers
    above: Integers
    low: Codes
    high: Codes
    values: CountedCodes

    @staticmethod
    def none(groups: int) -> "PercentileWindows":
        integers, codes = np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=np.uint64)
        nothing = CountedCodes(integers[:0], codes[:0], integers[:0])
        return PercentileWindows(
            np.zeros(groups, dtype=np.bool_), integers, integers.copy(), codes, codes.copy(), nothing
        )

    def inside(self, change: CountedCodes) -> Flags:
        """Return which values are between the ends of the window of their group."""
        owners, codes = change.owners, change.codes
        return self.exists[owners] & (codes >= self.low[owners]) & (codes <= self.high[owners])

    def changed(self, change: CountedCodes) -> "PercentileWindows":
        """Return the windows after the counts of values have changed; values with count 0 stay, to be deleted."""
        inside = self.inside(change)
        below, above = self.below.copy(), self.above.copy()
        under = ~inside & self.exists[change.owners] & (change.codes < self.low[change.owners])
        over = ~inside & self.exists[change.owners] & (change.codes > self.high[change.owners])
        np.add.at(below, change.owners[under], change.counts[under])
        np.add.at(above, change.owners[over], change.counts[over])
        values = self.values.concatenated(change.where(inside)).combined()
        return PercentileWindows(self.exists, below, above, self.low, self.high, values)

    def with_all(
        self, values: CountedCodes, groups: Integers, starts: Integers, sizes: Integers
    ) -> "PercentileWindows":
        """Return windows of groups that contain all their values, which begin at `starts`."""
        low, high = self.low.copy(), self.high.copy()
        low[groups], high[groups] = values.codes[starts], values.codes[starts + sizes - 1]
        exists = self.exists.copy()
        exists[groups] = True
        return PercentileWindows(exists, self.below, self.above, low, high, values)

    def cut(self, groups: Integers, ranks: "Ranks") -> "PercentileWindows":
        """Return only the windows of some groups, with at most WINDOW_VALUES values around the ranks."""
        below, above = self.below.copy(), self.above.copy()
        low, high = self.low.copy(), self.high.copy()
        is_kept = np.zeros(len(self.exists), dtype=np.bool_)
        is_kept[groups] = True
        stays = is_kept[self.values.owners]
        starts, ends = (np.searchsorted(self.values.owners, groups, side=side) for side in ("left", "right"))
        for group, start, end in zip(groups.tolist(), starts.tolist(), ends.tolist(), strict=True):
            codes, counts = self.values.codes[start:end], self.values.counts[start:end]
            position = int(np.searchsorted(np.cumsum(counts), int(ranks.lower[group]), side="right"))
            first = max(min(position - WINDOW_VALUES // 2, len(codes) - WINDOW_VALUES), 0)
            behind = min(first + WINDOW_VALUES, len(codes))
            stays[start : start + first] = stays[start + behind : end] = False
            below[group] += int(counts[:first].sum())
            above[group] += int(counts[behind:].sum())
            low[group], high[group] = codes[first], codes[behind - 1]
        return PercentileWindows(self.exists & is_kept, below, above, low, high, self.values.where(stays))

    def ranked(self, at: float) -> tuple[Flags, "Ranks"]:
        """Return which groups have their percentile inside the window, and the ranks of all groups."""
        groups = len(self.exists)
        inside = np.zeros(groups, dtype=np.int64)
        np.add.at(inside, self.values.owners, self.values.counts)
        total = self.below + inside + self.above
        place = np.maximum(total - 1, 0) * at
        lower, upper = np.floor(place).astype(np.int64), np.ceil(place).astype(np.int64)
        inside_window = self.exists & (total > 0) & (lower >= self.below) & (upper < self.below + inside)
        return inside_window, Ranks(lower - self.below, upper - self.below, place - lower)

    def at_ranks(self, groups: Integers, ranks: "Ranks") -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the values at the lower and the upper rank of some groups, all of which are inside."""
        before = np.concatenate(([0], np.cumsum(self.values.counts)))
        starts = before[np.searchsorted(self.values.owners, groups)]
        values = values_of(self.values.codes)
        lower, upper = (
            values[np.searchsorted(before, starts + rank[groups], side="right") - 1]
            for rank in (ranks.lower, ranks.upper)
        )
        return lower, upper


@dataclass(frozen=True)
class Ranks:
    """Ranks of the two values that a percentile lies between, in the window, and its distance from the lower one."""

    lower: Integers
    upper: Integers
    share: npt.NDArray[np.float64]


@dataclass(frozen=True)
class WindowTable:
    """Table of the windows of one aggregate."""

    position: int
    groups: ElementGroups
    expires_with: str | None

    @property
    def name(self) -> str:
        return f"middle_{self.position}"

    @cached_property
    def config(self) -> TableConfig:
        counts = [pa.field(name, pa.int64()) for name in (_COUNT, _BELOW, _ABOVE)]
        ends = [pa.field(name, pa.float64()) for name in (_LOW, _HIGH)]
        description = "values around the percentile of keys with many values"
        keys = self.groups.keys
        elements = [*self.groups.columns[len(keys) :], self._value]
        return multiset_config(
            self.name, description, keys, elements, [*counts, *ends], ttl=None, expires_with=self.expires_with
        )

    @property
    def _value(self) -> pa.Field:
        return pa.field(unused_name("_value", self.groups.names), pa.float64())

    def read(self, view: KeyedView, keys: pa.Table, groups: Integers) -> PercentileWindows:
        """Return the windows of some of the groups whose keys are given."""
        windows = PercentileWindows.none(keys.num_rows)
        values = [windows.values]
        for owners, rows in self.groups.pages(view, keys, groups):
            column = one_chunk(rows[self._value.name])
            is_value = validity(column)
            heads = np.flatnonzero(~is_value)
            at = owners[heads]
            windows.exists[at] = True
            windows.below[at], windows.above[at] = (int64_values(rows[name])[heads] for name in (_BELOW, _ABOVE))
            windows.low[at], windows.high[at] = (
                codes_of(float64_values(one_chunk(rows[name]))[heads]) for name in (_LOW, _HIGH)
            )
            counts = int64_values(rows[_COUNT])
            values.append(CountedCodes(owners[is_value], codes_of(float64_values(column)[is_value]), counts[is_value]))
        held = values[0]
        for more in values[1:]:
            held = held.concatenated(more)
        return PercentileWindows(
            windows.exists, windows.below, windows.above, windows.low, windows.high, held.combined()
        )

    def write(
        self, view: KeyedView, keys: pa.Table, windows: PercentileWindows, groups: Integers, values: CountedCodes
    ) -> None:
        """Write the ends of the windows of some groups, and some of their values; those with count 0 are deleted."""
        gone = values.where(values.counts <= 0)
        if len(gone.owners):
            view.delete(self._rows(keys, gone.owners, from_numpy(values_of(gone.codes), pa.float64())))
        there = values.where(values.counts > 0)
        owners = np.concatenate([groups, there.owners])
        if not len(owners):
            return
        heads = np.arange(len(owners)) < len(groups)
        none = np.zeros(len(there.owners), dtype=np.int64)
        no_values = np.zeros(len(there.owners))
        shown = np.concatenate([np.zeros(len(groups)), values_of(there.codes)])
        counts = np.concatenate([np.zeros(len(groups), dtype=np.int64), there.counts])
        below, above = (np.concatenate([part[groups], none]) for part in (windows.below, windows.above))
        low, high = (np.concatenate([values_of(part[groups]), no_values]) for part in (windows.low, windows.high))
        columns = {
            _COUNT: from_numpy(counts, pa.int64(), valid=~heads),
            _BELOW: from_numpy(below, pa.int64(), valid=heads),
            _ABOVE: from_numpy(above, pa.int64(), valid=heads),
            _LOW: from_numpy(low, pa.float64(), valid=heads),
            _HIGH: from_numpy(high, pa.float64(), valid=heads),
        }
        view.upsert(self._rows(keys, owners, from_numpy(shown, pa.float64(), valid=~heads)), pa.table(columns))

    def _rows(self, keys: pa.Table, owners: Integers, values: pa.Array) -> pa.Table:
        schema = pa.schema([*self.groups.columns, self._value])
        return pa.Table.from_arrays([*taken(keys, owners).columns, values], schema=schema)


@dataclass(frozen=True)
class StoredWindows:
    """Windows of the groups of a step, which are passed as positions in `keys`."""

    table: WindowTable
    view: KeyedView
    keys: pa.Table

    def read(self, groups: Integers) -> PercentileWindows:
        """Return the windows of some groups."""
        return self.table.read(self.view, self.keys, groups)

    def update(self, windows: PercentileWindows, groups: Integers, change: CountedCodes, ranks: Ranks) -> None:
        """Write the windows of some groups after a change of the counts of values; cut those that are too large, around
        the ranks.
        """
        sizes = np.bincount(windows.values.owners, windows.values.counts > 0, minlength=len(windows.exists))
        large = groups[sizes[groups] > MAX_VALUES]
        touched = np.zeros(len(windows.exists), dtype=np.bool_)
        touched[groups] = True
        touched[large] = False
        inside = windows.inside(change) & touched[change.owners]
        both = windows.values.concatenated(change.where(inside))
        is_change = np.arange(len(both.owners)) >= len(windows.values.owners)
        marks = CountedCodes(both.owners, both.codes, is_change.astype(np.int64))
        changed = windows.values.where(marks.combined().counts > 0)
        self.table.write(self.view, self.keys, windows, np.flatnonzero(touched), changed)
        if len(large):
            self.put(windows.cut(large, ranks), there=large)

    def put(self, windows: PercentileWindows, *, there: Integers | None = None) -> None:
        """Write whole windows, replacing those of the groups in `there`."""
        if there is not None:
            self.delete(there)
        self.table.write(self.view, self.keys, windows, np.flatnonzero(windows.exists), windows.values)

    def delete(self, groups: Integers) -> None:
        """Delete the windows of some groups."""
        if len(groups):
            self.table.groups.delete(self.view, self.keys, groups)
