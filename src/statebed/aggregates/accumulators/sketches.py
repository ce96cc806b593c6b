"""Percentiles from a histogram with logarithmic buckets: small, mergeable, and deterministic.

A value's bucket is determined by its exponent and the leading part of its mantissa, so the ends of a bucket differ by
less than twice the relative accuracy, whatever the magnitude. This holds for buckets of at most one doubling, which is
an accuracy of a third. Only exact arithmetic determines the bucket, so it is the same on every machine, and counts do
not depend on the order of rows. The state holds the non-empty buckets, a few hundred for data that spans several orders
of magnitude at an accuracy of one percent. Counts can be retracted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.aggregates.accumulators.doubles import as_doubles
from statebed.aggregates.accumulators.multisets import Multiset, Multisets, multiset_of
from statebed.aggregates.exact_sums import Doubles
from statebed.arrays.columns import float64_values, from_numpy, int64_values, validity
from statebed.arrays.grouping import Grouping, Integers

_EXPONENTS = 1100
"""Upper bound of the number of exponents of doubles on either side of 1."""


@dataclass(frozen=True)
class _Buckets:
    """Bucket numbers in the order of values: negative ones, zero, positive ones, infinity, NaN."""

    accuracy: float

    @property
    def width(self) -> float:
        """Width of a bucket, where 1 is one doubling."""
        return 2.0 * self.accuracy / (1.0 - self.accuracy)

    @property
    def middle(self) -> int:
        """Number greater than the bucket of every finite size, counted from the bucket of 1."""
        return int(_EXPONENTS / self.width) + 1

    def of(self, values: Doubles) -> npt.NDArray[np.int64]:
        mantissa, exponent = np.frexp(np.abs(np.where(np.isfinite(values), values, 1.0)))
        place = (exponent - 1) + (2.0 * mantissa - 1.0)
        size = np.floor(place / self.width).astype(np.int64) + self.middle
        size = np.where(np.isinf(values), 2 * self.middle, size)
        bucket = np.where(values < 0.0, -size, size)
        bucket = np.where(values == 0.0, np.int64(0), bucket)
        return np.where(np.isnan(values), np.int64(2 * self.middle + 1), bucket)

    def value(self, buckets: npt.NDArray[np.int64]) -> Doubles:
        """Return a value within the relative accuracy of all values in its bucket."""
        size = np.abs(buckets)
        inner = np.clip(size - self.middle, -self.middle, self.middle).astype(np.float64)
        low, high = (_doubled(place * self.width) for place in (inner, inner + 1.0))
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            between = np.where(high > 0.0, low * (2.0 / (1.0 + low / high)), 0.0)
        between = np.where(size == 2 * self.middle, np.inf, between)
        between = np.where(buckets > 2 * self.middle, np.nan, np.where(buckets < 0, -between, between))
        return np.where(buckets == 0, 0.0, between)


def _doubled(places: Doubles) -> Doubles:
    """Return the size at a place: 2**place, linear between two powers of two; at most the largest double."""
    whole = np.floor(places)
    with np.errstate(over="ignore", under="ignore"):
        return np.minimum(np.ldexp(places - whole + 1.0, whole.astype(np.int64)), np.finfo(np.float64).max)


@dataclass(frozen=True)
class _At:
    """Value at a fraction of all values, taken from its bucket."""

    at: float
    buckets: _Buckets

    def kind(self, values: pa.DataType) -> pa.DataType:  # noqa: ARG002 - the same for all
        return pa.float64()

    def result(self, sets: Multisets) -> pa.Array:
        before = np.concatenate(([0], np.cumsum(sets.counts)))
        first, total = before[sets.offsets[:-1]], np.diff(before[sets.offsets])
        rank = np.floor(np.maximum(total - 1, 0) * self.at).astype(np.int64)
        values = np.append(self.buckets.value(int64_values(sets.values)), np.nan)
        at_rank = values[np.searchsorted(before, first + rank, side="right") - 1]
        return from_numpy(at_rank, pa.float64(), valid=sets.sizes > 0)


@dataclass(frozen=True)
class ApproximatePercentile:
    """Value at rank floor(at * (n - 1)), within the relative `accuracy`; null if there are none."""

    name: str
    at: float
    accuracy: float

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return self._counted.partial_fields

    @property
    def output_field(self) -> pa.Field:
        return self._counted.output_field

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        column = as_doubles(inputs[0])
        buckets = from_numpy(_Buckets(self.accuracy).of(float64_values(column)), pa.int64(), valid=validity(column))
        return self._counted.fold([buckets], grouping, weights)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return self._counted.merge(partials, grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        return self._counted.finish(partials)

    @property
    def _counted(self) -> Multiset:
        return multiset_of(self.name, pa.int64(), _At(self.at, _Buckets(self.accuracy)))
