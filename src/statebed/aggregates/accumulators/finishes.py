"""Results of multisets: distinct counts, percentiles, sets, lists, and values at one end of the order."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators.bits import BitOperation
from statebed.aggregates.accumulators.doubles import as_doubles
from statebed.aggregates.accumulators.extremes import End
from statebed.aggregates.accumulators.multisets import Multisets, list_array, repeated_values
from statebed.aggregates.accumulators.sums import DecimalSum, FloatSum, IntegerSum
from statebed.aggregates.exact_sums import Doubles
from statebed.arrays.columns import fixed_width_values, float64_values, from_numpy, one_chunk
from statebed.arrays.grouping import Grouping, Integers, equal_neighbours


class _SameKind:
    """Base of results with the type of the values."""

    def kind(self, values: pa.DataType) -> pa.DataType:
        return values


@dataclass(frozen=True)
class DistinctCount:
    """Number of distinct values; 0 if there are none."""

    def kind(self, values: pa.DataType) -> pa.DataType:  # noqa: ARG002 - the same for all
        return pa.int64()

    def result(self, sets: Multisets) -> pa.Array:
        return from_numpy(sets.sizes, pa.int64())


@dataclass(frozen=True)
class CollectedSet:
    """Distinct values, in order; an empty list if there are none."""

    def kind(self, values: pa.DataType) -> pa.DataType:
        return pa.list_(values)

    def result(self, sets: Multisets) -> pa.Array:
        return list_array(self.kind(sets.values.type), sets.offsets, sets.values)


@dataclass(frozen=True)
class AllValues:
    """All values with repetitions, in the order of the entries; an empty list if there are none."""

    def kind(self, values: pa.DataType) -> pa.DataType:
        return pa.list_(pa.field("element", values))

    def result(self, sets: Multisets) -> pa.Array:
        values, offsets = repeated_values(sets)
        return list_array(self.kind(values.type), offsets, values)


@dataclass(frozen=True)
class AtEnd(_SameKind):
    """Value at one end of the order; for pairs, that of the smallest or largest first half, ties by the value."""

    end: End

    def result(self, sets: Multisets) -> pa.Array:
        return _taken(sets, self.deciding(sets))

    def deciding(self, sets: Multisets) -> Integers:
        """Return the entry of each group that determines the result; undefined for a group without entries."""
        return sets.offsets[:-1] if self.end is End.SMALLEST else _last_runs(sets)


@dataclass(frozen=True)
class MostFrequent(_SameKind):
    """Most frequent value; ties go to the smallest."""

    def result(self, sets: Multisets) -> pa.Array:
        return _taken(sets, self.deciding(sets))

    def deciding(self, sets: Multisets) -> Integers:
        """Return the entry of each group that determines the result; undefined for a group without entries."""
        has_entries = sets.sizes > 0
        highest = np.zeros(len(has_entries), dtype=np.int64)
        highest[has_entries] = (
            np.maximum.reduceat(sets.counts, sets.offsets[:-1][has_entries])
            if has_entries.any()
            else highest[has_entries]
        )
        frequent = np.flatnonzero(sets.counts == highest[sets.owners])
        rows = np.zeros(len(has_entries), dtype=np.int64)
        owners, firsts = np.unique(sets.owners[frequent], return_index=True)
        rows[owners] = frequent[firsts]
        return rows


@dataclass(frozen=True)
class CombinedBits(_SameKind):
    """Bitwise combination of all values; repetitions make no difference."""

    operation: BitOperation

    def result(self, sets: Multisets) -> pa.Array:
        has_entries = sets.sizes > 0
        bits = fixed_width_values(sets.values, f"i{sets.values.type.bit_width // 8}")
        combined = np.zeros(len(has_entries), dtype=bits.dtype)
        if has_entries.any():
            combined[has_entries] = self.operation.ufunc.reduceat(bits, sets.offsets[:-1][has_entries])
        return from_numpy(combined, sets.values.type, valid=has_entries)


@dataclass(frozen=True)
class DistinctSum:
    """Sum of the distinct values; null if there are none."""

    sum: IntegerSum | FloatSum | DecimalSum

    def kind(self, values: pa.DataType) -> pa.DataType:  # noqa: ARG002 - the sum knows
        return self.sum.output_field.type

    def result(self, sets: Multisets) -> pa.Array:
        has_entries = sets.sizes > 0
        rows = np.arange(len(sets.values), dtype=np.int64)
        sums = self.sum.finish(
            self.sum.fold([sets.values], Grouping(order=rows, starts=sets.offsets[:-1][has_entries]))
        )
        return sums.take(from_numpy(np.cumsum(has_entries) - 1, pa.int64(), valid=has_entries))


@dataclass(frozen=True)
class Percentile:
    """Value at the fraction `at` of the sorted values, interpolated linearly; null if there are none."""

    at: float

    def kind(self, values: pa.DataType) -> pa.DataType:  # noqa: ARG002 - the same for all
        return pa.float64()

    def result(self, sets: Multisets) -> pa.Array:
        before = np.concatenate(([0], np.cumsum(sets.counts)))
        first, total = before[sets.offsets[:-1]], np.diff(before[sets.offsets])
        values = np.append(float64_values(one_chunk(as_doubles(sets.values))), np.nan)
        place = np.maximum(total - 1, 0) * self.at
        low = np.floor(place).astype(np.int64)
        # Find the distinct value at each rank among all values of all groups.
        lower, upper = (
            values[np.searchsorted(before, first + position, side="right") - 1]
            for position in (low, np.minimum(low + 1, np.maximum(total - 1, 0)))
        )
        between = _between(lower, upper, place - low)
        return from_numpy(between, pa.float64(), valid=sets.sizes > 0)

    def between(self, lower: Doubles, upper: Doubles, share: Doubles) -> Doubles:
        """Interpolate between values and the next ones."""
        return _between(lower, upper, share)


def _between(lower: Doubles, upper: Doubles, share: Doubles) -> Doubles:
    with np.errstate(invalid="ignore"):
        return np.where((share == 0.0) | (lower == upper), lower, (1.0 - share) * lower + share * upper)


def _last_runs(sets: Multisets) -> Integers:
    """Return where the entries with the largest first column begin in each group; undefined for a group without
    entries.
    """
    owners = sets.owners
    new = np.ones(len(owners), dtype=np.bool_)
    if len(owners):
        new[1:] = (owners[1:] != owners[:-1]) | ~equal_neighbours(sets.columns[0])
    runs = np.flatnonzero(new)
    last = np.searchsorted(runs, sets.offsets[1:], side="left") - 1
    return runs[last] if len(runs) else np.zeros(len(sets.sizes), dtype=np.int64)


def _taken(sets: Multisets, rows: Integers) -> pa.Array:
    """Return the values of these entries, one per group; null for a group without entries."""
    return sets.values.take(from_numpy(rows, pa.int64(), valid=sets.sizes > 0))
