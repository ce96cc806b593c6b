"""Grouping of rows by window, key hash and key.

Rows are sorted by window and hash, which is numeric and fast. Equal neighbours are then compared by key, so a hash is
never taken for a key. If two keys share a hash, all key columns take part in the sort. Groups are in the order of the
state's files: window, hash, key.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.canonical_order import sortable
from statebed.arrays.columns import boolean_values, fixed_width_values, from_numpy, int64_values, validity
from statebed.arrays.compiled import loops_for
from statebed.arrays.hash_order import hash_order
from statebed.arrays.sort_order import sorted_by

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Number = TypeVar("Number", np.int64, np.uint64)

_SMALL_RANGE = 1 << 16
_SIGN = np.uint64(1 << 63)
_FIRST_LOOK = 64
"""Number of rows that are checked first, before all of them."""


@dataclass(frozen=True)
class Grouping:
    """A permutation of rows in which every group is contiguous."""

    order: Integers
    """Row numbers, group by group."""
    starts: Integers
    """Start of each group in `order`."""

    @property
    def groups(self) -> int:
        return len(self.starts)

    @cached_property
    def sizes(self) -> Integers:
        """Number of rows of each group."""
        return np.diff(self.starts, append=np.int64(len(self.order)))

    @property
    def largest(self) -> int:
        """Number of rows of the largest group."""
        return int(self.sizes.max(initial=0))

    @cached_property
    def first_rows(self) -> Integers:
        """Number of the first row of each group."""
        return self.order[self.starts]

    def add(self, values: Integers) -> Integers:
        """Return the sum of each group of values in row order; the caller ensures that it does not overflow."""
        if (loops := loops_for(len(self.order))) is not None:
            sums: Integers = loops.add_up(values, self.order, self.starts)
            return sums
        return np.add.reduceat(values[self.order], self.starts) if self.groups else values[:0]

    def greatest(self, values: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Return the greatest value of each group of integers in row order."""
        if (loops := loops_for(len(self.order))) is not None:
            maxima: npt.NDArray[Number] = loops.greatest(values, self.order, self.starts)
            return maxima
        return np.maximum.reduceat(values[self.order], self.starts) if self.groups else values[:0]

    def any(self, flags: Flags) -> Flags:
        """Return whether any row of each group has its flag set."""
        if (loops := loops_for(len(self.order))) is not None:
            result: Flags = loops.any_set(flags, self.order, self.starts)
            return result
        return np.logical_or.reduceat(flags[self.order], self.starts) if self.groups else flags[:0]

    def pieces(self, rows: int) -> "Iterator[tuple[Integers, Grouping]]":
        """Yield groups in pieces of about `rows` rows: their row numbers, group by group, and their grouping."""
        cuts = np.searchsorted(self.starts, np.arange(rows, len(self.order), rows))
        ends = np.unique(np.append(cuts, self.groups))
        for first, end in zip(np.concatenate(([0], ends[:-1])), ends, strict=True):
            if first < end:
                start = self.starts[first]
                stop = self.starts[end] if end < self.groups else len(self.order)
                numbers = np.arange(stop - start, dtype=np.int64)
                yield self.order[start:stop], Grouping(order=numbers, starts=self.starts[first:end] - start)

    def group_of_rows(self) -> Integers:
        """Return the group number of each row, in row order."""
        groups = np.empty(len(self.order), dtype=np.int64)
        groups[self.order] = np.repeat(np.arange(self.groups, dtype=np.int64), self.sizes)
        return groups


def group_rows(bins: Integers | None, hashes: npt.NDArray[np.uint64], keys: Sequence[pa.Array]) -> Grouping:
    """Group rows of equal bin, hash and key; without `bins`, all rows are in one.

    Key columns are normalised (`keyhash.normalise_key`).
    """
    if not len(hashes):
        nothing = np.zeros(0, dtype=np.int64)
        return Grouping(order=nothing, starts=nothing)
    if bins is not None and int(bins.min()) == int(bins.max()):
        bins = None
    if bins is None:
        order, in_order = hash_order(hashes)
        same = in_order[1:] == in_order[:-1]
    else:
        order = _order_by_bin(bins, hashes)
        same = _same(bins, hashes, order)
    starts, collision = _starts(same, keys, order)
    if collision:
        bins = np.zeros(len(hashes), dtype=np.int64) if bins is None else bins
        order = _order_by_key(bins, hashes, keys)
        starts, _ = _starts(_same(bins, hashes, order), keys, order)
    return Grouping(order=order, starts=starts)


def _order_by_bin(bins: Integers, hashes: npt.NDArray[np.uint64]) -> Integers:
    """Return the rows in the order of bins, then of hashes."""
    if _is_ordered(bins, hashes):
        return np.arange(len(bins), dtype=np.int64)
    encoded = from_numpy(bins, pa.int64()).dictionary_encode()
    distinct = int64_values(encoded.dictionary)
    if len(distinct) > _SMALL_RANGE:
        return sorted_by([bins, (hashes ^ _SIGN).view(np.int64)])
    places = np.empty(len(distinct), dtype=np.uint16)
    places[np.argsort(distinct)] = np.arange(len(distinct))
    order = hash_order(hashes)[0]
    # 16-bit numbers are sorted by a stable radix sort, which keeps the order of hashes.
    return order[np.argsort(places[fixed_width_values(encoded.indices, np.int32)][order], kind="stable")]


def _is_ordered(bins: Integers, hashes: npt.NDArray[np.uint64]) -> bool:
    """Return whether rows are already sorted, as rows of the state are; unsorted rows are detected early."""
    for end in (min(_FIRST_LOOK, len(bins)), len(bins)):
        earlier, later = bins[: end - 1], bins[1:end]
        ascending = (earlier < later) | ((earlier == later) & (hashes[: end - 1] <= hashes[1:end]))
        if not ascending.all():
            return False
    return True


def _same(bins: Integers, hashes: npt.NDArray[np.uint64], order: Integers) -> Flags:
    """Return whether each row of `order`, from the second on, has the bin and hash of the row before it."""
    bins, hashes = bins[order], hashes[order]
    same: Flags = (bins[1:] == bins[:-1]) & (hashes[1:] == hashes[:-1])
    return same


def _order_by_key(bins: Integers, hashes: npt.NDArray[np.uint64], keys: Sequence[pa.Array]) -> Integers:
    columns = {"bin": from_numpy(bins, pa.int64()), "hash": from_numpy(hashes, pa.uint64())}
    columns |= {f"key{number}": sortable(key) for number, key in enumerate(keys)}
    indices = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    return int64_values(indices)


def _starts(same: Flags, keys: Sequence[pa.Array], order: Integers) -> tuple[Integers, bool]:
    """Return the starts of groups, and whether two keys share a hash.

    `same` tells which rows of `order`, from the second on, have the hash of the row before them.
    """
    maybe = np.flatnonzero(same)
    if len(maybe):
        equal = np.ones(len(maybe), dtype=np.bool_)
        # If most rows equal their neighbours, all are fetched at once.
        crowded = 2 * len(maybe) > len(order)
        for key in keys:
            if crowded:
                equal &= equal_neighbours(_take(key, order))[maybe]
            else:
                equal &= _equal(_comparable(_take(key, order[maybe])), _comparable(_take(key, order[maybe + 1])))
        same[maybe] = equal
    collision = bool(np.count_nonzero(same) < len(maybe))
    return np.concatenate(([0], np.flatnonzero(~same) + 1)).astype(np.int64), collision


def equal_neighbours(key: pa.Array) -> Flags:
    column = _comparable(key)
    return _equal(column.slice(0, max(len(column) - 1, 0)), column.slice(1))


def _equal(values: pa.Array, others: pa.Array) -> Flags:
    return boolean_values(pc.equal(values, others)) | ~(validity(values) | validity(others))


def _comparable(key: pa.Array) -> pa.Array:
    """Return floats as their bits, so that NaN equals itself, and nested values as bytes."""
    if pa.types.is_nested(key.type):
        return sortable(key)
    if pa.types.is_float64(key.type):
        return key.view(pa.int64())
    if pa.types.is_float32(key.type):
        return key.view(pa.int32())
    return key.cast(pa.float32()).view(pa.int32()) if pa.types.is_float16(key.type) else key


def _take(key: pa.Array, order: Integers) -> pa.Array:
    return key.take(from_numpy(order, pa.int64()))
