"""The interval join: rows with one key whose event times lie within bounds of each other.

A left row at time t and a right row at time s are a pair when `lower <= s - t <= upper` and the condition is met. A
pair is given in the epoch in which the second of its rows comes. A row that is in no pair is given once, by the first
watermark that lets no partner come any more: at t + upper for a left row, at s - lower for a right one.

State is one time-keyed table for each side. Nothing in it is ever changed: whether an older row has been in a pair is
found out again from the rows of the other side, which are kept long enough for that. Rows leave by the watermark alone:

- to find pairs, a left row is needed until the watermark passes t + upper, a right one until it passes s - lower;
- where unmatched left rows are given (left, full, anti) or each left row once (semi), right rows are needed as long as
  a left row that they may be a partner of: upper - lower behind the watermark. The same holds with the sides exchanged
  where unmatched right rows are given (right, full).
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
from statebed.operators.joins.matches import MatchInterval
from statebed.operators.joins.pairs import Flags, Indexed, Integers, PairRule, Pairs, SideRows, in_output_order
from statebed.operators.labels import operator_label
from statebed.operators.operator import MAIN, Clock, Definition, StepResult, Tables
from statebed.quantities import duration_text
from statebed.state import Combine, TableConfig, TimeKeyedView, timestamp_table_config
from statebed.state.live.files import END

MAX_BOUND_US = 1 << 60
"""36,000 years."""
BINS = 4
"""Into so many bins of time the retention is cut."""
LEAST_BIN_US = 1_000_000
ROWS_AT_ONCE = 1 << 18
"""About so many older rows are looked at together."""
MANY_ROWS = 1_000
"""With fewer rows, only few parts of the state's files are read for them, and no file is prefetched."""
TABLE = {JoinSide.LEFT: "left", JoinSide.RIGHT: "right"}
"""The table of each side."""


@dataclass(frozen=True)
class IntervalJoin:
    """The definition of an interval join."""

    operator_id: str
    left: Input
    right: Input
    lower_us: int
    """Least value of the right row's time minus the left row's; may be negative."""
    upper_us: int
    """Greatest value of that difference."""
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
                fix="give the smaller bound first, such as between('0s', '10 minutes')",
            )

    @cached_property
    def columns(self) -> JoinColumns:
        """Columns of pairs and results."""
        return JoinColumns(self.left, self.right, self.how, self.suffixes)

    def interval_text(self) -> str:
        """Describe in words how far the times of a pair lie apart."""
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

    @property
    def combines(self) -> Mapping[str, Combine]:
        return {}

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
        """Pairs have the later time of their rows, one of which is new; others wait until they can have no partner."""
        return watermark_us - self._longest_wait

    def is_due(self, before_us: int | None, after_us: int) -> bool:
        """Only rows that are in no pair wait for the watermark."""
        waits = any(self.how.gives_unmatched(side) for side in SIDES)
        return waits and (before_us is None or after_us > before_us)

    def closing_watermark(self, event_time_us: int) -> int:
        return event_time_us + self._longest_wait

    def latest_result(self, event_time_us: int) -> int:
        return event_time_us

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        views = {side: tables.get_time_keyed(TABLE[side]) for side in SIDES}
        for side in SIDES:
            span = self.settled_times(side, clock)
            if span is not None and self.how.gives_unmatched(side):
                views[side].prefetch(*span, spare=True)  # while the rows of the epoch come in
        rows = gathered_sides(self.columns, batches, where=operator_label(self))
        sides = Sides(self.columns, self.operator_id, {side: admit(rows[side], clock.late_us) for side in SIDES})
        new = {side: SideRows.timed(side, sides.admitted[side].rows) for side in SIDES}
        epoch = _JoinEpoch(self, views, new, clock)
        results = [self.outputs[MAIN].schema.empty_table(), *epoch.results()]
        for side in SIDES:
            self._keep(views[side], new[side], clock.watermark_us)
        made = sides.result(clock, in_output_order(pa.concat_tables(results), self.left.keys))
        # An anti join looks for partners of rows that leave alone, so it cannot tell.
        return made if self.how is JoinKind.ANTI else replace(made, matches=sides.matches(epoch.pairs))

    def settled_times(self, side: JoinSide, clock: Clock) -> tuple[int | None, int] | None:
        """The times of stored rows of a side that can get no partner any more since this epoch; None: no times."""
        if clock.watermark_us is None:
            return None
        first = None if clock.late_us is None else clock.late_us - self.reach(side) + 1
        last = clock.watermark_us - self.reach(side)
        return None if first is not None and first > last else (first, min(last + 1, END))

    def reach(self, side: JoinSide) -> int:
        """How long after its own time a row of a side may get a new partner."""
        return self.upper_us if side is JoinSide.LEFT else -self.lower_us

    @property
    def _longest_wait(self) -> int:
        """How long after its own time a row may be given that waits to be in no pair, or in one."""
        waits = [self.reach(side) for side in SIDES if self.how.gives_unmatched(side)]
        return max([0, *waits, *([self.reach(JoinSide.LEFT)] if self.how is JoinKind.SEMI else [])])

    def _retention(self, side: JoinSide) -> int:
        """How far behind the watermark rows of a side are needed; below zero: they are not even needed at once."""
        other = side.other
        for_others = self.how.gives_unmatched(other) or (self.how is JoinKind.SEMI and other is JoinSide.LEFT)
        return max(self.reach(side), self.upper_us - self.lower_us if for_others else self.reach(side))

    def _table(self, side: JoinSide) -> TableConfig:
        one, retention = self.columns.side(side), max(self._retention(side), 1)
        return timestamp_table_config(
            TABLE[side],
            f"rows of {one.name} that may still be in a pair",
            dt.timedelta(microseconds=retention),
            False,
            one.columns,
            keys=one.keys,
            bin_width=dt.timedelta(microseconds=max(retention // BINS, LEAST_BIN_US)),
        )

    def _keep(self, view: TimeKeyedView, new: SideRows, watermark_us: int | None) -> None:
        """Add the rows to the state that are of any use later."""
        kept = np.ones(len(new), dtype=np.bool_)
        if watermark_us is not None:
            kept = new.numbers > watermark_us - self._retention(new.side)
        keys = [one_chunk(new.table[key]) for key in self.columns.side(new.side).keys]
        if not self.how.gives_unmatched(new.side):
            kept &= without_nulls(keys, len(new))
        if kept.any():
            view.append(without_routing(filtered(new.table, kept)))


class _JoinEpoch:
    """One epoch of the join: the new rows, and the state that they meet."""

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
        """Pairs that were found, or in a semi join rows at their first match."""

    def results(self) -> Iterator[pa.Table]:
        """Pairs with a new row; left rows at their first match; rows that can be in no pair any more."""
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
        for some in others:
            for pairs, theirs in self._indexed[side].pairs(some):
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
        """Left rows that are in a pair now, and were in none before."""
        yield self._alone(self._new[JoinSide.LEFT], self._indexed[JoinSide.LEFT].matched)
        for piece in _together(self._touched()):
            some = self._matching.index(SideRows.timed(JoinSide.LEFT, piece))
            for earlier in self._state_partners(some):
                some.ask(earlier)
            yield self._alone(some.rows, ~some.matched)

    def _touched(self) -> Iterator[pa.Table]:
        """Left rows of the state that are in a pair with a new right row."""
        for old in self._state_partners(self._indexed[JoinSide.RIGHT]):
            touched = np.zeros(len(old), dtype=np.bool_)
            for _, theirs in self._indexed[JoinSide.RIGHT].pairs(old):
                touched[theirs] = True
            yield filtered(old.table, touched)

    def _unmatched(self, side: JoinSide, watermark_us: int) -> Iterator[pa.Table]:
        """Rows of a side that are in no pair, and can be in none any more."""
        reach = self._join.reach(side)
        new, last = self._new[side], watermark_us - reach
        yield self._alone(new, ~self._indexed[side].matched & (new.numbers <= last))
        span = self._join.settled_times(side, self._clock)
        for piece in _together(self._views[side].scan(*span)) if span is not None else ():
            old = self._matching.index(SideRows.timed(side, piece))
            for others in itertools.chain(self._state_partners(old), [self._new[side.other]]):
                old.ask(others)
            yield self._alone(old.rows, ~old.matched)

    def _prefetch_partners(self, asking: Indexed) -> None:
        """Load rows of the state in the background that many rows will ask for."""
        if len(asking.rows) >= MANY_ROWS:
            lows, highs = self._matching.partners(asking.rows)
            behind = int(highs.max()) + 1
            other = self._views[asking.rows.side.other]
            other.prefetch(int(lows.min()), behind if behind < END else None, spare=True)

    def _state_partners(self, asking: Indexed) -> Iterator[SideRows]:
        """Rows of the other side in the state that may be in a pair with these."""
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


def _together(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in few pieces: for each of them the other side's state is read."""
    held: list[pa.Table] = []
    for piece in pieces:
        held.append(piece)
        if sum(one.num_rows for one in held) >= ROWS_AT_ONCE:
            yield pa.concat_tables(held).combine_chunks()
            held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _timed(rows: pa.Table, times: Integers) -> pa.Table:
    return rows.append_column(pa.field(TIME, TIMESTAMP), from_numpy(times, TIMESTAMP))
