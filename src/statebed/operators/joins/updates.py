"""What an epoch does to the join of two sides: the difference between their results before it and after it.

Pairs have the product of their rows' weights. Only pairs with a row that has changed are made, unless a condition
decides which rows are in no pair at all: then all pairs of the touched keys are looked at.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.format.columns import boolean_values, from_numpy, int64_values, one_chunk, validity
from statebed.format.schema import TIME, TIMESTAMP
from statebed.operators.changelog import weighted
from statebed.operators.joins.columns import Condition, JoinColumns
from statebed.operators.joins.index import expanded
from statebed.operators.joins.kinds import JoinKind, Side
from statebed.operators.joins.weighted_rows import Standing

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Updates:
    """The touched keys of both sides."""

    columns: JoinColumns
    condition: Condition | None
    keys: int
    """How many are touched."""
    sides: Mapping[Side, Standing]

    def results(self) -> Iterator[pa.Table]:
        """Weighted rows, not consolidated."""
        sums = self._sums()
        left, right = self.sides[Side.LEFT], self.sides[Side.RIGHT]
        needs_pairs = self.columns.how.gives_pairs
        for ours, theirs in self._pairs(all_of_them=self._counts_pairs) if needs_pairs or self._counts_pairs else ():
            sums.add(left, ours, right, theirs)
            weights = left.after[ours] * right.after[theirs] - left.before[ours] * right.before[theirs]
            kept = np.flatnonzero(weights)
            if needs_pairs and len(kept):
                yield self._paired(ours[kept], theirs[kept], weights[kept])
        for side in Side:
            if self.columns.how.gives_unmatched(side):
                yield self._alone(side, sums.before[side] == 0, sums.after[side] == 0)
        if self.columns.how is JoinKind.SEMI:
            yield self._alone(Side.LEFT, sums.before[Side.LEFT] > 0, sums.after[Side.LEFT] > 0)

    @property
    def _counts_pairs(self) -> bool:
        """Whether partners have to be counted pair by pair; without a condition all rows of a key are partners."""
        return self.condition is not None and self.columns.how is not JoinKind.INNER

    def _sums(self) -> "_Sums":
        sums = _Sums(
            {side: np.zeros(len(one.places), dtype=np.int64) for side, one in self.sides.items()},
            {side: np.zeros(len(one.places), dtype=np.int64) for side, one in self.sides.items()},
            counting=self._counts_pairs,
        )
        if self.condition is None:
            for side in Side:
                other, places = self.sides[side.other], self.sides[side].places
                sums.before[side] += _by_place(other.places, other.before, self.keys)[places]
                sums.after[side] += _by_place(other.places, other.after, self.keys)[places]
        return sums

    def _pairs(self, *, all_of_them: bool) -> Iterator[tuple[Integers, Integers]]:
        """Left and right rows with one key that meet the condition: all, or those where one has changed."""
        left, right = self.sides[Side.LEFT], self.sides[Side.RIGHT]
        chosen = np.flatnonzero(left.changed | all_of_them)
        starts = right.starts(self.keys)
        places = left.places[chosen]
        for probes, theirs in expanded(starts[places], starts[places + 1] - starts[places]):
            yield from self._meeting(chosen[probes], theirs)
        if all_of_them:
            return
        others = np.flatnonzero(~left.changed)
        starts = np.searchsorted(left.places[others], np.arange(self.keys + 1, dtype=np.int64))
        chosen = np.flatnonzero(right.changed)
        places = right.places[chosen]
        for probes, ours in expanded(starts[places], starts[places + 1] - starts[places]):
            yield from self._meeting(others[ours], chosen[probes])

    def _meeting(self, ours: Integers, theirs: Integers) -> Iterator[tuple[Integers, Integers]]:
        if self.condition is None:
            yield ours, theirs
            return
        left, right = self._tables
        batch = self.columns.paired(left, ours, right, theirs, only=self.condition.columns)
        kept = boolean_values(self.condition.evaluate(batch))
        if kept.any():
            yield ours[kept], theirs[kept]

    @cached_property
    def _tables(self) -> tuple[pa.Table, pa.Table]:
        return self.sides[Side.LEFT].rows, self.sides[Side.RIGHT].rows

    def _paired(self, ours: Integers, theirs: Integers, weights: Integers) -> pa.Table:
        left, right = self._tables
        rows = self.columns.paired(left, ours, right, theirs)
        times = _later(left[TIME], ours, right[TIME], theirs)
        return weighted(rows.append_column(pa.field(TIME, TIMESTAMP), times), weights)

    def _alone(self, side: Side, before: npt.NDArray[np.bool_], after: npt.NDArray[np.bool_]) -> pa.Table:
        """Rows of one side that are results by themselves, before and after the epoch."""
        standing = self.sides[side]
        weights = np.where(after, standing.after, 0) - np.where(before, standing.before, 0)
        return alone(self.columns, side, standing.rows, np.flatnonzero(weights), weights)


@dataclass(frozen=True)
class _Sums:
    """Of each row how many partners it has, before and after."""

    before: dict[Side, Integers]
    after: dict[Side, Integers]
    counting: bool

    def add(self, left: Standing, ours: Integers, right: Standing, theirs: Integers) -> None:
        if self.counting:
            for side, rows, other, partners in ((Side.LEFT, ours, right, theirs), (Side.RIGHT, theirs, left, ours)):
                np.add.at(self.before[side], rows, other.before[partners])
                np.add.at(self.after[side], rows, other.after[partners])


def alone(columns: JoinColumns, side: Side, rows: pa.Table, at: Integers, weights: Integers) -> pa.Table:
    """Rows of one side as results without a partner; the weights are those of all rows."""
    times = one_chunk(rows[TIME]).take(from_numpy(at, pa.int64()))
    results = columns.alone(side, rows, at).append_column(pa.field(TIME, TIMESTAMP), times)
    return weighted(results, weights[at])


def _by_place(places: Integers, weights: Integers, keys: int) -> Integers:
    """The sum of the weights at each place."""
    sums = np.zeros(keys, dtype=np.int64)
    np.add.at(sums, places, weights)
    return sums


def _later(left: pa.ChunkedArray, ours: Integers, right: pa.ChunkedArray, theirs: Integers) -> pa.Array:
    """The later of two times each; one of them where the other is unknown."""
    valid = (validity(left)[ours], validity(right)[theirs])
    least = np.int64(np.iinfo(np.int64).min)
    times = (int64_values(left)[ours], int64_values(right)[theirs])
    latest = np.maximum(*(np.where(known, time, least) for known, time in zip(valid, times, strict=True)))
    return from_numpy(latest, TIMESTAMP, valid=valid[0] | valid[1])
