"""Changes of an updating join in one epoch: the difference between its results before and after the epoch.

The weight of a pair is the product of its rows' weights. Only pairs with a changed row are built, each of them once:
changed rows of one side with unchanged rows of the other, which are read in pages, and changed rows with each other. A
key with many rows costs time for the pairs it produces, but not memory.

A row without a partner is a result by itself. Without a condition, either all rows of a key have partners or none has:
where that changes, all rows of the key are read. With a condition, the partners of a row are counted pair by pair.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import boolean_values, from_numpy, int64_values, one_chunk, validity
from statebed.format.schema import TIME, TIMESTAMP
from statebed.operators.changelog import weighted
from statebed.operators.joins.join_columns import JoinColumns, PairCondition
from statebed.operators.joins.join_index import expanded
from statebed.operators.joins.join_type import JoinKind, JoinSide
from statebed.operators.keyed_rows import taken
from statebed.operators.weighted_rows import (
    ChangedRows,
    TouchedKeys,
    WeightedRows,
    WeightedTable,
)
from statebed.state import KeyedView
from statebed.state.live.row_set import ascending

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Updates:
    """Changes of both sides, and the state before them."""

    columns: JoinColumns
    condition: PairCondition | None
    touched: TouchedKeys
    tables: Mapping[JoinSide, WeightedTable]
    views: Mapping[JoinSide, KeyedView]
    changed: Mapping[JoinSide, ChangedRows]

    def results(self) -> Iterator[pa.Table]:
        """Yield weighted rows. Each pair and each row without a partner is yielded once; different pairs may be equal
        rows.
        """
        if self.columns.how.gives_pairs:
            yield from self._changed_pairs()
        for side in JoinSide:
            if self.columns.how.gives_unmatched(side) or (self.columns.how is JoinKind.SEMI and side is JoinSide.LEFT):
                yield from self.unmatched(side)

    def unmatched(self, side: JoinSide) -> Iterator[pa.Table]:
        """Yield changes of rows of one side that are results by themselves."""
        return self._alone(side) if self.condition is None else self._alone_by_condition(side)

    # ---- pairs -----------------------------------------------------------------------------------------------

    def _changed_pairs(self) -> Iterator[pa.Table]:
        """Yield the pairs of changed rows with unchanged ones, and with each other."""
        for side in JoinSide:
            changed = self.changed[side].weighted()
            for page in self._pages(side.other, self.changed[side].keys):
                rest = self._unchanged(side.other, page)
                for our_rows, their_rows in self._pairs(side, changed, rest):
                    weights = changed.weights[our_rows] * rest.weights[their_rows]
                    yield self._paired(side, (changed.rows, our_rows), (rest.rows, their_rows), weights)
        left, right = self.changed[JoinSide.LEFT], self.changed[JoinSide.RIGHT]
        for left_rows, right_rows in self._pairs(JoinSide.LEFT, left.weighted(), right.weighted()):
            before = left.before[left_rows] * right.before[right_rows]
            weights = left.after[left_rows] * right.after[right_rows] - before
            yield self._paired(JoinSide.LEFT, (left.rows, left_rows), (right.rows, right_rows), weights)

    def _unchanged(self, side: JoinSide, page: WeightedRows) -> WeightedRows:
        """Return the rows of a page that the epoch does not change."""
        is_changed = self.tables[side].among(page, self.changed[side])
        if not is_changed.any():
            return page
        at = np.flatnonzero(~is_changed)
        return WeightedRows(taken(page.rows, at), page.places[at], page.weights[at])

    def _paired(
        self,
        side: JoinSide,
        our_rows: tuple[pa.Table, Integers],
        their_rows: tuple[pa.Table, Integers],
        weights: Integers,
    ) -> pa.Table:
        """Return pairs of rows of `side` and rows of the other side, each passed as a table and positions in it."""
        (left, left_at), (right, right_at) = (our_rows, their_rows) if side is JoinSide.LEFT else (their_rows, our_rows)
        rows = self.columns.paired(left, left_at, right, right_at)
        times = _later(left[TIME], left_at, right[TIME], right_at)
        return weighted(rows.append_column(pa.field(TIME, TIMESTAMP), times), weights)

    def _pairs(self, side: JoinSide, ours: WeightedRows, theirs: WeightedRows) -> Iterator[tuple[Integers, Integers]]:
        """Yield positions of rows of both sides with equal keys that meet the condition, in chunks; `ours` are rows of
        `side`.
        """
        counts = np.bincount(ours.places, minlength=self.touched.count)
        starts = np.cumsum(counts) - counts
        for their_rows, at in expanded(starts[theirs.places], counts[theirs.places]):
            our_rows = at if ours.by_key is None else ours.by_key[at]
            if self.condition is None:
                yield our_rows, their_rows
                continue
            our_part, their_part = (ours.rows, our_rows), (theirs.rows, their_rows)
            (left, left_at), (right, right_at) = (
                (our_part, their_part) if side is JoinSide.LEFT else (their_part, our_part)
            )
            batch = self.columns.paired(left, left_at, right, right_at, only=self.condition.columns)
            kept = boolean_values(self.condition.evaluate(batch))
            if kept.any():
                yield our_rows[kept], their_rows[kept]

    def _pages(self, side: JoinSide, places: Integers) -> Iterator[WeightedRows]:
        """Yield the rows of some keys as they were before the epoch."""
        if not len(places):
            return iter(())
        return self.tables[side].pages(self.views[side], self.touched, places)

    # ---- rows without a partner ------------------------------------------------------------------------------

    def _alone(self, side: JoinSide) -> Iterator[pa.Table]:
        """Yield changes of rows of one side that are results by themselves, if all rows of a key are partners."""
        before, after = self._has_rows(side.other)
        if self.columns.how is not JoinKind.SEMI:
            before, after = ~before, ~after
        changed = self.changed[side]
        shown_before = np.where(before[changed.places], changed.before, 0)
        yield self._given(side, changed.rows, np.where(after[changed.places], changed.after, 0) - shown_before)
        turned = after.astype(np.int64) - before.astype(np.int64)
        for page in self._pages(side, np.flatnonzero(turned)):
            rest = self._unchanged(side, page)
            yield self._given(side, rest.rows, rest.weights * turned[rest.places])

    def _has_rows(self, side: JoinSide) -> tuple[Flags, Flags]:
        """Return whether each touched key has rows on one side, before and after the epoch."""
        changed, count = self.changed[side], self.touched.count
        places = np.arange(count, dtype=np.int64)
        known = np.bincount(changed.places[changed.before > 0], minlength=count)
        there = self.tables[side].counts(self.views[side], self.touched, places, known)
        added = np.bincount(changed.places[changed.after > 0], minlength=count)
        return there > 0, (there > known) | (added > 0)

    def _alone_by_condition(self, side: JoinSide) -> Iterator[pa.Table]:
        """Yield changes of rows of one side that are results by themselves, if a condition decides which rows are
        partners.
        """
        changed, others = self.changed[side], self.changed[side.other]
        rows = WeightedRows(changed.rows, changed.places, changed.after)
        yield self._matched(side, rows, changed.before)
        for page in self._pages(side, others.keys):
            # Among unchanged rows, only those with partners among the changed rows matter.
            met = np.zeros(len(page.places), dtype=np.bool_)
            for _, at in self._pairs(side.other, others.weighted(), page):
                met[at] = True
            if met.any():
                at = np.flatnonzero(met & ~self.tables[side].among(page, changed))
                changed_rows = WeightedRows(taken(page.rows, at), page.places[at], page.weights[at])
                yield self._matched(side, changed_rows, changed_rows.weights)

    def _matched(self, side: JoinSide, rows: WeightedRows, before: Integers) -> pa.Table:
        """Return the changes of rows of a side that are results by themselves, from their partner counts before and
        after the epoch.

        The weights of the rows are those after the epoch.
        """
        sums = np.zeros(len(rows.places), dtype=np.int64)
        for page in self._pages(side.other, ascending(rows.places)):
            for at, partners in self._pairs(side, rows, page):
                np.add.at(sums, at, page.weights[partners])
        change = np.zeros(len(rows.places), dtype=np.int64)
        others = self.changed[side.other].weighted()
        for at, partners in self._pairs(side, rows, others):
            np.add.at(change, at, others.weights[partners])
        semi = self.columns.how is JoinKind.SEMI
        given_before, given_after = ((total > 0) if semi else (total == 0) for total in (sums, sums + change))
        weights = np.where(given_after, rows.weights, 0) - np.where(given_before, before, 0)
        return self._given(side, rows.rows, weights)

    def _given(self, side: JoinSide, rows: pa.Table, weights: Integers) -> pa.Table:
        return alone(self.columns, side, rows, np.flatnonzero(weights), weights)


def alone(columns: JoinColumns, side: JoinSide, rows: pa.Table, at: Integers, weights: Integers) -> pa.Table:
    """Return rows of one side as results without a partner; `weights` has the weights of all rows."""
    times = one_chunk(rows[TIME]).take(from_numpy(at, pa.int64()))
    results = columns.alone(side, rows, at).append_column(pa.field(TIME, TIMESTAMP), times)
    return weighted(results, weights[at])


def _later(left: pa.ChunkedArray, ours: Integers, right: pa.ChunkedArray, theirs: Integers) -> pa.Array:
    """Return the later of each two times, or the known one if the other is null."""
    times = (int64_values(left).take(ours), int64_values(right).take(theirs))
    if not left.null_count and not right.null_count:
        return from_numpy(np.maximum(*times), TIMESTAMP)
    valid = (validity(left)[ours], validity(right)[theirs])
    earliest = np.int64(np.iinfo(np.int64).min)
    latest = np.maximum(*(np.where(known, time, earliest) for known, time in zip(valid, times, strict=True)))
    return from_numpy(latest, TIMESTAMP, valid=valid[0] | valid[1])
