"""Interval join: rows with equal keys whose event times differ by an amount within bounds.

A left row at time t and a right row at time s are a pair if `lower <= s - t <= upper` and the condition holds. A pair
is emitted in the epoch in which the second of its rows arrives. A row without a partner is emitted once, at the first
watermark that rules out further partners: t + upper for a left row, s - lower for a right one.

State is one time-keyed table per side. Its rows are never updated: whether an older row has already been in a pair is
computed again from the rows of the other side, which are kept long enough for that. Rows are deleted by the watermark
alone:

- to find pairs, a left row is needed until the watermark passes t + upper, a right one until it passes s - lower;
- where unmatched left rows are emitted (left, full, anti) or each left row once (semi), right rows are needed as long
  as a left row that they may match: upper - lower behind the watermark. The same holds with the sides exchanged where
  unmatched right rows are emitted (right, full).
"""

import datetime as dt
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, one_chunk
from statebed.errors import InputError
from statebed.format import names
from statebed.format.schema import TIME, TIMESTAMP
from statebed.format.stream_schema import Input, Output
from statebed.operators.input_rows import admit, filtered, without_routing
from statebed.operators.joins.inputs import SIDES, Sides, gathered_sides, late_outputs
from statebed.operators.joins.join_columns import SUFFIXES, JoinColumns, PairCondition
from statebed.operators.joins.join_index import without_nulls
from statebed.operators.joins.join_type import JoinKind, JoinSide
from statebed.operators.joins.matches import MAX_BOUND_US, MatchInterval
from statebed.operators.joins.pairs import (
    Flags,
    IndexedSide,
    Integers,
    PairRule,
    Pairs,
    SideRows,
    together,
)
from statebed.operators.joins.sorted_results import SortedResults
from statebed.operators.labels import operator_label
from statebed.operators.operator import MAIN, Clock, Definition, OperatorBase, StepResult, Tables
from statebed.quantities import duration_text
from statebed.state import TableConfig, TimeKeyedView, timestamp_table_config
from statebed.state.live.files import END

BINS = 4
"""Number of time bins into which the retention is divided."""
MIN_BIN_US = 1_000_000
MANY_ROWS = 1_000
"""Number of rows from which files are prefetched; fewer rows read only small parts of the state's files."""
TABLE = {JoinSide.LEFT: "left", JoinSide.RIGHT: "right"}
"""Name of the table of each side."""


@dataclass(frozen=True)
class IntervalJoin(OperatorBase):
    """Definition of an interval join."""

    operator_id: str
    left: Input
    right: Input
    lower_us: int
    """Minimum of the right row's time minus the left row's time; may be negative."""
    upper_us: int
    """Maximum of the right row's time minus the left row's time."""
    how: JoinKind = JoinKind.INNER
    condition: PairCondition | None = None
    suffixes: tuple[str, str] = SUFFIXES

    def __post_init__(self) -> None:
        names.check_part("operator", self.operator_id)
        where = operator_label(self)
        self.columns.check(where=where, condition=self.condition)
        self.columns.check_append_only(where=where)
        if self.lower_us > self.upper_us or max(abs(self.lower_us), abs(self.upper_us)) > MAX_BOUND_US:
            raise InputError(
                f"the interval from {duration_text(self.lower_us)!r} to {duration_text(self.upper_us)!r} is empty or "
                "longer than 36,000 years",
                where=where,
                fix="put the smaller bound first, such as between('0s', '10 minutes')",
            )

    @cached_property
    def columns(self) -> JoinColumns:
        """Columns of pairs and results."""
        return JoinColumns(self.left, self.right, self.how, self.suffixes)

    def interval_text(self) -> str:
        """Describe the bounds on the time difference of a pair in words."""
        return MatchInterval(self.lower_us, self.upper_us).described()

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (self.left, self.right)

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        return {MAIN: Output(self.columns.results), **late_outputs(self.columns)}

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        return {TABLE[side]: self._table(side) for side in SIDES}

    @cached_property
    def definition(self) -> Definition:
        return Definition.of(
            kind="interval_join",
            lower_us=self.lower_us,
            upper_us=self.upper_us,
            condition=None if self.condition is None else self.condition.text,
            **self.columns.described(),
        )

    def output_watermark(self, watermark_us: int) -> int:
        """Return the watermark of the results: a pair contains a new row and has the later time of its rows; unmatched
        rows wait until no partner can arrive.
        """
        return watermark_us - self._longest_wait

    def is_due(self, before_us: int | None, after_us: int) -> bool:
        """Return whether rows may be waiting for the watermark, which only unmatched rows do."""
        waits = any(self.how.gives_unmatched(side) for side in SIDES)
        return waits and (before_us is None or after_us > before_us)

    def closing_watermark(self, event_time_us: int) -> int:
        return event_time_us + self._longest_wait

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        views = {side: tables.get_time_keyed(TABLE[side]) for side in SIDES}
        for side in SIDES:
            span = self.settled_times(side, clock)
            if span is not None and self.how.gives_unmatched(side):
                views[side].prefetch(*span, spare=True)  # while the rows of the epoch arrive
        rows = gathered_sides(self.columns, batches, where=operator_label(self))
        sides = Sides(self.columns, self.operator_id, {side: admit(rows[side], clock.late_us) for side in SIDES})
        new = {side: SideRows.timed(side, sides.admitted[side].rows) for side in SIDES}
        epoch = _JoinEpoch(self, views, new, clock)
        with SortedResults(self.outputs[MAIN].schema, self.left.keys, views[JoinSide.LEFT]) as results:
            for rows_of_epoch in epoch.results():
                results.add(rows_of_epoch)
            for side in SIDES:
                self._keep(views[side], new[side], clock.watermark_us)
            step_result = sides.result(clock, results.table())
        # An anti join only looks for partners of rows that expire, so it does not know the number of pairs.
        return step_result if self.how is JoinKind.ANTI else replace(step_result, matches=sides.matches(epoch.pairs))

    def settled_times(self, side: JoinSide, clock: Clock) -> tuple[int | None, int] | None:
        """Return the range of times of stored rows of a side for which this epoch rules out further partners; None if
        it is empty.
        """
        if clock.watermark_us is None:
            return None
        first = None if clock.late_us is None else clock.late_us - self.reach(side) + 1
        last = clock.watermark_us - self.reach(side)
        return None if first is not None and first > last else (first, min(last + 1, END))

    def reach(self, side: JoinSide) -> int:
        """Return how long after its own time a row of a side may get a new partner."""
        return self.upper_us if side is JoinSide.LEFT else -self.lower_us

    @property
    def _longest_wait(self) -> int:
        """Longest time between a row's own time and its emission as an unmatched or matched row."""
        waits = [self.reach(side) for side in SIDES if self.how.gives_unmatched(side)]
        return max([0, *waits, *([self.reach(JoinSide.LEFT)] if self.how is JoinKind.SEMI else [])])

    def _retention(self, side: JoinSide) -> int:
        """Return how far behind the watermark rows of a side are needed; negative if new rows need not be stored."""
        other = side.other
        for_others = self.how.gives_unmatched(other) or (self.how is JoinKind.SEMI and other is JoinSide.LEFT)
        return max(self.reach(side), self.upper_us - self.lower_us if for_others else self.reach(side))

    def _table(self, side: JoinSide) -> TableConfig:
        side_input, retention = self.columns.side(side), max(self._retention(side), 1)
        return timestamp_table_config(
            TABLE[side],
            f"rows of {side_input.name} that may still be in a pair",
            dt.timedelta(microseconds=retention),
            False,
            side_input.columns,
            keys=side_input.keys,
            bin_width=dt.timedelta(microseconds=max(retention // BINS, MIN_BIN_US)),
        )

    def _keep(self, view: TimeKeyedView, new: SideRows, watermark_us: int | None) -> None:
        """Store the rows that later epochs need."""
        kept = np.ones(len(new), dtype=np.bool_)
        if watermark_us is not None:
            kept = new.numbers > watermark_us - self._retention(new.side)
        keys = [one_chunk(new.table[key]) for key in self.columns.side(new.side).keys]
        if not self.how.gives_unmatched(new.side):
            kept &= without_nulls(keys, len(new))
        if kept.any():
            view.append(without_routing(filtered(new.table, kept)))


class _JoinEpoch:
    """One epoch of the join: the new rows, and the state that they are joined with."""

    def __init__(
        self,
        join: IntervalJoin,
        views: Mapping[JoinSide, TimeKeyedView],
        new: Mapping[JoinSide, SideRows],
        clock: Clock,
    ) -> None:
        self._join = join
        self._views = views
        self._new = new
        self._clock = clock
        self._matching = PairRule(join.columns, join.lower_us, join.upper_us, join.condition)
        self._indexed = {side: self._matching.index(new[side]) for side in SIDES}
        self.pairs = 0
        """Number of pairs found; in a semi join, the number of rows at their first match."""

    def results(self) -> Iterator[pa.Table]:
        """Yield pairs with a new row, left rows at their first match, and rows that can no longer get a partner."""
        self._prefetch_partners(self._indexed[JoinSide.RIGHT])
        yield from self._pairs(JoinSide.LEFT, self._state_partners(self._indexed[JoinSide.LEFT]))
        yield from self._pairs(JoinSide.LEFT, [self._new[JoinSide.RIGHT]], mark=self._indexed[JoinSide.RIGHT].matched)
        if self._join.how is JoinKind.SEMI:
            for rows in self._first_matches():
                self.pairs += rows.num_rows
                yield rows
        elif self._join.how.gives_pairs:
            yield from self._pairs(JoinSide.RIGHT, self._state_partners(self._indexed[JoinSide.RIGHT]))
        for side in SIDES:
            if self._join.how.gives_unmatched(side) and self._clock.watermark_us is not None:
                yield from self._unmatched(side, self._clock.watermark_us)

    def _pairs(
        self,
        side: JoinSide,
        others: Iterable[SideRows],
        *,
        mark: Flags | None = None,
    ) -> Iterator[pa.Table]:
        for rows in others:
            for pairs, theirs in self._indexed[side].pairs(rows):
                if mark is not None:
                    mark[theirs] = True
                self.pairs += len(theirs)
                if self._join.how.gives_pairs:
                    yield self._paired(pairs)

    def _paired(self, pairs: Pairs) -> pa.Table:
        rows = self._join.columns.paired(pairs.left, pairs.left_at, pairs.right, pairs.right_at)
        times = np.maximum(
            int64_values(pairs.left[TIME])[pairs.left_at], int64_values(pairs.right[TIME])[pairs.right_at]
        )
        return _timed(rows, times)

    def _alone(self, rows: SideRows, chosen: Flags) -> pa.Table:
        at = np.flatnonzero(chosen)
        return _timed(self._join.columns.alone(rows.side, rows.table, at), rows.numbers[at])

    def _first_matches(self) -> Iterator[pa.Table]:
        """Yield left rows that are in a pair now and were in none before."""
        yield self._alone(self._new[JoinSide.LEFT], self._indexed[JoinSide.LEFT].matched)
        for piece in self._together(self._touched(), JoinSide.LEFT):
            left_rows = self._matching.index(SideRows.timed(JoinSide.LEFT, piece))
            for earlier in self._state_partners(left_rows):
                left_rows.mark_matches(earlier)
            yield self._alone(left_rows.rows, ~left_rows.matched)

    def _touched(self) -> Iterator[pa.Table]:
        """Yield left rows of the state that are in a pair with a new right row."""
        for old in self._state_partners(self._indexed[JoinSide.RIGHT]):
            touched = np.zeros(len(old), dtype=np.bool_)
            for _, theirs in self._indexed[JoinSide.RIGHT].pairs(old):
                touched[theirs] = True
            yield filtered(old.table, touched)

    def _unmatched(self, side: JoinSide, watermark_us: int) -> Iterator[pa.Table]:
        """Yield rows of a side that are in no pair and can no longer get a partner."""
        reach = self._join.reach(side)
        new, last = self._new[side], watermark_us - reach
        yield self._alone(new, ~self._indexed[side].matched & (new.numbers <= last))
        span = self._join.settled_times(side, self._clock)
        for piece in self._together(self._views[side].scan(*span), side) if span is not None else ():
            old = self._matching.index(SideRows.timed(side, piece))
            for others in itertools.chain(self._state_partners(old), [self._new[side.other]]):
                old.mark_matches(others)
            yield self._alone(old.rows, ~old.matched)

    def _together(self, pieces: Iterable[pa.Table], side: JoinSide) -> Iterator[pa.Table]:
        """Combine rows into few pieces, because the state of the other side is read once per piece."""
        return together(pieces, max_bytes=self._views[side].part_bytes)

    def _prefetch_partners(self, asking: IndexedSide) -> None:
        """Prefetch the stored partners in the background if there are many rows to look up."""
        if len(asking.rows) >= MANY_ROWS:
            lows, highs = self._matching.partners(asking.rows)
            behind = int(highs.max()) + 1
            other = self._views[asking.rows.side.other]
            other.prefetch(int(lows.min()), behind if behind < END else None, spare=True)

    def _state_partners(self, asking: IndexedSide) -> Iterator[SideRows]:
        """Yield stored rows of the other side that may be in a pair with these."""
        rows, other = asking.rows, asking.rows.side.other
        if not len(rows):
            return
        theirs = self._join.columns.side(other)
        keys = None
        if theirs.keys:
            schema = pa.schema([theirs.columns.field(key) for key in theirs.keys])
            keys = pa.Table.from_arrays(asking.keys, schema=schema)
            if not keys.num_rows:
                return
        lows, highs = self._matching.partners(rows)
        behind = int(highs.max()) + 1
        for piece in self._views[other].scan(int(lows.min()), behind if behind < END else None, keys=keys):
            yield SideRows.timed(other, piece)


def _timed(rows: pa.Table, times: Integers) -> pa.Table:
    return rows.append_column(pa.field(TIME, TIMESTAMP), from_numpy(times, TIMESTAMP))
