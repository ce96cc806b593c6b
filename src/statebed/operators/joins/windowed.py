"""Window join: rows with equal keys in the same window.

Rows are stored once, by time, in one time-keyed table per side, no matter how many windows they are in. When the
watermark closes windows, their rows are read, joined window by window, and emitted; rows that are in no open window are
deleted. Nothing is emitted earlier, so each result is final, and a row without a partner in a window is emitted once
for that window.

A row is late if all its windows are closed by the watermark of the previous epoch; otherwise it counts in those that
are open, as in windowed aggregates.
"""

import datetime as dt
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, one_chunk, validity
from statebed.errors import InputError
from statebed.format import names
from statebed.format.schema import TIME, TIMESTAMP
from statebed.format.stream_schema import Input, Output
from statebed.operators.aggregation import WINDOW_END, WINDOW_START
from statebed.operators.input_rows import AdmittedRows, filtered, without_routing
from statebed.operators.joins.inputs import SIDES, Sides, gathered_sides, late_outputs
from statebed.operators.joins.join_columns import SUFFIXES, JoinColumns, PairCondition
from statebed.operators.joins.join_index import without_nulls
from statebed.operators.joins.join_type import JoinKind, JoinSide
from statebed.operators.joins.pairs import Flags, IndexedSide, Integers, PairRule, SideRows, together
from statebed.operators.joins.sorted_results import SortedResults
from statebed.operators.keyed_rows import taken
from statebed.operators.labels import operator_label
from statebed.operators.operator import MAIN, Clock, Definition, StepResult, Tables
from statebed.operators.window_definition import Window
from statebed.operators.window_operator import WindowOperator
from statebed.state import TableConfig, TimeKeyedView, timestamp_table_config
from statebed.state.live.files import BEGINNING

ROWS_AT_ONCE = 1 << 20
"""Approximate number of rows joined together, counting a row once per window."""
TABLE = {JoinSide.LEFT: "left", JoinSide.RIGHT: "right"}
_WINDOW = (pa.field(WINDOW_START, TIMESTAMP, nullable=False), pa.field(WINDOW_END, TIMESTAMP, nullable=False))


@dataclass(frozen=True)
class WindowJoin(WindowOperator):
    """Definition of a window join."""

    operator_id: str
    left: Input
    right: Input
    window: Window
    how: JoinKind = JoinKind.INNER
    condition: PairCondition | None = None
    suffixes: tuple[str, str] = SUFFIXES

    def __post_init__(self) -> None:
        names.check_part("operator", self.operator_id)
        where = operator_label(self)
        self.columns.check(where=where, condition=self.condition)
        self.columns.check_append_only(where=where)
        if self.condition is not None and self.condition.columns & {WINDOW_START, WINDOW_END}:
            raise InputError(
                f"the condition {self.condition.text!r} refers to the window",
                where=where,
                fix="compare columns of the rows: both rows are in the same window",
            )

    @cached_property
    def columns(self) -> JoinColumns:
        """Columns of pairs and results."""
        return JoinColumns(self.left, self.right, self.how, self.suffixes, _WINDOW)

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
            kind="window_join",
            window=self.window.as_data(),
            condition=None if self.condition is None else self.condition.text,
            **self.columns.described(),
        )

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        views = {side: tables.get_time_keyed(TABLE[side]) for side in SIDES}
        closes = clock.watermark_us is not None and self.is_due(clock.late_us, clock.watermark_us)
        if clock.watermark_us is not None and closes:
            for view in views.values():  # while the rows of the epoch arrive
                view.prefetch(None, self.window.last_closed_end(clock.watermark_us), spare=True)
        rows = gathered_sides(self.columns, batches, where=operator_label(self))
        admitted = {side: self._admit(rows[side], clock.late_us) for side in SIDES}
        sides, pairs = Sides(self.columns, self.operator_id, admitted), 0
        with SortedResults(self.outputs[MAIN].schema, self.left.keys, views[JoinSide.LEFT]) as results:
            if clock.watermark_us is not None and closes:
                new = {side: admitted[side].rows for side in SIDES}
                closing = _ClosingWindows(self, views, new, clock.late_us, clock.watermark_us)
                for joined in closing.results():
                    results.add(joined)
                pairs = closing.pairs
            for side in SIDES:
                self._keep(side, views[side], admitted[side].rows, clock.watermark_us)
            step_result = sides.result(clock, results.table())
        return replace(step_result, matches=sides.matches(pairs))

    def _table(self, side: JoinSide) -> TableConfig:
        side_input = self.columns.side(side)
        return timestamp_table_config(
            TABLE[side],
            f"rows of {side_input.name} in open windows",
            dt.timedelta(microseconds=self.window.width_us),
            False,
            side_input.columns,
            keys=side_input.keys,
            bin_width=dt.timedelta(microseconds=self.window.pane_us),
        )

    def _admit(self, rows: pa.Table, late_us: int | None) -> AdmittedRows:
        times, timed = int64_values(rows[TIME]), validity(rows[TIME])
        open_ones = timed.copy()
        if late_us is not None:
            open_ones[timed] = self._newest_ends(times[timed]) > late_us
        return AdmittedRows(filtered(rows, open_ones), filtered(rows, ~open_ones))

    def _newest_ends(self, times: Integers) -> Integers:
        """Return the latest end of the windows that contain each time."""
        panes = self.window.panes_of(times)
        into_period = np.mod(panes - np.int64(self.window.offset_us), np.int64(self.window.period_us))
        return np.asarray(panes - into_period + np.int64(self.window.width_us))

    def _keep(self, side: JoinSide, view: TimeKeyedView, new: pa.Table, watermark_us: int | None) -> None:
        """Store the rows of open windows, and delete rows that are only in closed ones."""
        kept = np.ones(new.num_rows, dtype=np.bool_)
        if watermark_us is not None:
            kept = self._newest_ends(int64_values(new[TIME])) > watermark_us
            view.delete_times(BEGINNING, self.window.first_open(watermark_us))
        if not self.how.gives_unmatched(side):
            kept &= without_nulls([one_chunk(new[key]) for key in self.columns.side(side).keys], new.num_rows)
        if kept.any():
            view.append(without_routing(filtered(new, kept)))


class _ClosingWindows:
    """The windows that a watermark is the first to close, and the rows in them.

    Rows are read in pieces. If each side is one piece, the two are joined. Otherwise each piece of one side is joined
    with all pieces of the other, which are read again: a window may hold more rows than fit into memory.
    """

    def __init__(
        self,
        join: WindowJoin,
        views: Mapping[JoinSide, TimeKeyedView],
        new: Mapping[JoinSide, pa.Table],
        late_us: int | None,
        watermark_us: int,
    ) -> None:
        self._join = join
        self._views = views
        self._new = new
        self._late_us = late_us
        self._watermark_us = watermark_us
        self._rule = PairRule(join.columns, condition=join.condition)
        self.pairs = 0
        """Number of pairs found so far."""

    def results(self) -> Iterator[pa.Table]:
        """Yield pairs, left rows at their match in a semi join, and rows without a partner."""
        left, right = (self._only_piece(side) for side in SIDES)
        if left is not None and right is not None:
            for windows in _some_windows([left.ends, right.ends]):
                yield from self._joined_at_once(left.within(*windows), right.within(*windows))
            return
        del left, right
        for piece in self._pieces(JoinSide.LEFT):
            for windows in _some_windows([piece.ends]):
                yield from self._joined(piece.within(*windows))
        if self._join.how.gives_unmatched(JoinSide.RIGHT):
            for piece in self._pieces(JoinSide.RIGHT):
                for windows in _some_windows([piece.ends]):
                    yield self._unmatched(piece.within(*windows))

    def _joined_at_once(self, left: "_ClosingRows", right: "_ClosingRows") -> Iterator[pa.Table]:
        """Yield the results of windows whose rows are all here."""
        indexed, others = self._rule.index(left.as_rows()), right.as_rows()
        met = np.zeros(len(others), dtype=np.bool_)
        yield from self._pairs(left, indexed, others, met)
        yield from self._left_alone(left, indexed)
        if self._join.how.gives_unmatched(JoinSide.RIGHT):
            yield self._alone(right, others, ~met)

    def _joined(self, left: "_ClosingRows") -> Iterator[pa.Table]:
        """Yield the results of left rows with all right ones."""
        indexed = self._rule.index(left.as_rows())
        for right in self._pieces(JoinSide.RIGHT, within=left):
            others = right.as_rows()
            yield from self._pairs(left, indexed, others, np.zeros(len(others), dtype=np.bool_))
        yield from self._left_alone(left, indexed)

    def _unmatched(self, right: "_ClosingRows") -> pa.Table:
        """Return right rows that no left row matches."""
        indexed = self._rule.index(right.as_rows())
        for left in self._pieces(JoinSide.LEFT, within=right):
            indexed.mark_matches(left.as_rows())
        return self._alone(right, indexed.rows, ~indexed.matched)

    def _pairs(self, left: "_ClosingRows", indexed: IndexedSide, others: SideRows, met: Flags) -> Iterator[pa.Table]:
        """Yield pairs, and set `met` for right rows in one."""
        for pairs, theirs in indexed.pairs(others):
            met[theirs] = True
            self.pairs += len(theirs)
            if self._join.how.gives_pairs:
                starts, ends = left.starts[pairs.left_at], left.ends[pairs.left_at]
                window = [from_numpy(times, TIMESTAMP) for times in (starts, ends)]
                rows = self._join.columns.paired(pairs.left, pairs.left_at, pairs.right, pairs.right_at, window)
                yield _timed(rows, ends)

    def _left_alone(self, left: "_ClosingRows", indexed: IndexedSide) -> Iterator[pa.Table]:
        if self._join.how is JoinKind.SEMI:
            yield self._alone(left, indexed.rows, indexed.matched)
        if self._join.how.gives_unmatched(JoinSide.LEFT):
            yield self._alone(left, indexed.rows, ~indexed.matched)

    def _alone(self, closing: "_ClosingRows", rows: SideRows, chosen: Flags) -> pa.Table:
        at = np.flatnonzero(chosen)
        window = [from_numpy(times[at], TIMESTAMP) for times in (closing.starts, closing.ends)]
        return _timed(self._join.columns.alone(rows.side, rows.table, at, window), closing.ends[at])

    def _only_piece(self, side: JoinSide) -> "_ClosingRows | None":
        """Return the rows of a side if they are one piece."""
        pieces = self._pieces(side)
        first = next(pieces)
        return first if next(pieces, None) is None else None

    def _pieces(self, side: JoinSide, *, within: "_ClosingRows | None" = None) -> "Iterator[_ClosingRows]":
        """Yield the rows of a side, at least one piece, which may be empty; only those in windows of `within`."""
        columns, window = self._join.columns.side(side).columns, self._join.window
        start, until = None, window.last_closed_end(self._watermark_us)
        if within is not None:
            start, until = int(within.starts.min()), int(within.ends.max())
        schema = pa.schema([*columns, pa.field(TIME, TIMESTAMP)])
        times = int64_values(self._new[side][TIME])
        new = filtered(self._new[side], (times < until) & (True if start is None else times >= start))
        view = self._views[side]
        state = view.scan(start, until)
        pieces = (rows.select(schema.names).cast(schema) for rows in itertools.chain([new], state))
        for rows in together(pieces, max_bytes=view.part_bytes):
            closing = self._closing(side, rows)
            yield closing if within is None else closing.within(int(within.ends.min()), int(within.ends.max()))

    def _closing(self, side: JoinSide, rows: pa.Table) -> "_ClosingRows":
        """Return an entry for each row and closing window that contains it."""
        windows = self._join.window.windows_of(self._join.window.panes_of(int64_values(rows[TIME])))
        closed = windows.ends <= self._watermark_us
        if self._late_us is not None:
            closed &= windows.ends > self._late_us
        return _ClosingRows(side, rows, windows.rows[closed], windows.starts[closed], windows.ends[closed])


@dataclass(frozen=True)
class _ClosingRows:
    """Rows of one side in closing windows, one entry for each row and window."""

    side: JoinSide
    rows: pa.Table
    at: Integers
    """Row of each entry."""
    starts: Integers
    ends: Integers

    def within(self, first_end: int, last_end: int) -> "_ClosingRows":
        """Return the entries of windows with ends from `first_end` to `last_end`."""
        chosen = (self.ends >= first_end) & (self.ends <= last_end)
        return replace(self, at=self.at[chosen], starts=self.starts[chosen], ends=self.ends[chosen])

    def as_rows(self) -> SideRows:
        """Return one row for each entry, with the window's end as its number."""
        return SideRows(self.side, taken(self.rows, self.at), self.ends)


def _some_windows(ends: Sequence[Integers]) -> Iterator[tuple[int, int]]:
    """Yield the first and last end of groups of windows that are joined together, to bound the number of rows."""
    distinct, counts = np.unique(np.concatenate(ends), return_counts=True)
    group = (np.cumsum(counts) - counts) // ROWS_AT_ONCE
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    lasts = np.flatnonzero(np.diff(group, append=np.iinfo(np.int64).max))
    yield from zip(distinct[starts].tolist(), distinct[lasts].tolist(), strict=True)


def _timed(rows: pa.Table, ends: Integers) -> pa.Table:
    return rows.append_column(pa.field(TIME, TIMESTAMP), from_numpy(ends - 1, TIMESTAMP))
