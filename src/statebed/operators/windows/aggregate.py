"""Aggregation by key over windows.

The state is one partial row per pane, key and epoch that touched it; rows are combined when files are compacted. A pane
is the longest span of which every window is a multiple, so a row is kept once, however many windows overlap. A step
folds the batch into partials, merges the panes of the windows that the watermark closes, and emits one row per key and
closed window.

With `Emit.EARLY`, a window emits its result so far in every epoch that has rows for it, and retracts it when it
changes. With an allowed lateness, a window is kept for that long after its end, and rows that arrive until then change
its result in the same way. Both make the output a changelog.

As in Spark, the watermark of the previous epoch decides which rows are late, and the current one which windows close. A
row is late if none of its windows is still kept; otherwise it counts in those that are. A row without an event time
belongs to no window and is late.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.aggregates.preaggregation import GROUPS_IN
from statebed.arrays.columns import from_numpy, int64_values, one_chunk, uint64_values
from statebed.format.schema import KEY_HASH, SEQUENCE, TIME, TIMESTAMP
from statebed.format.stream_schema import Changes
from statebed.operators.aggregation import WINDOW_END, WINDOW_START, Emit, WindowedAggregation
from statebed.operators.changelog import consolidated
from statebed.operators.input_rows import filtered, late_rows
from statebed.operators.operator import LATE, MAIN, Clock, Definition, StepResult, Tables
from statebed.operators.window_definition import Window
from statebed.operators.windows.fold import Folder
from statebed.state import Combine, TableConfig, timestamp_table_config
from statebed.state.live.files import BEGINNING

PARTIALS = "partials"
"""Name of the state table."""


@dataclass(frozen=True, kw_only=True)
class WindowAggregate(WindowedAggregation):
    """Definition of a windowed aggregation."""

    window: Window

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        kept = self.window.width_us + self.window.period_us + self.lateness_us
        config = timestamp_table_config(
            PARTIALS,
            "partial aggregates by pane and key",
            dt.timedelta(microseconds=kept),
            False,
            pa.schema([*self.keys, *self.partials.fields]),
            keys=[key.name for key in self.keys],
            bin_width=dt.timedelta(microseconds=self.window.pane_us),
        )
        return {PARTIALS: config}

    @cached_property
    def combines(self) -> Mapping[str, Combine]:
        return {PARTIALS: self.combined}

    @cached_property
    def definition(self) -> Definition:
        return Definition.of(kind="window_aggregate", window=self.window.as_data(), **self.described())

    def output_watermark(self, watermark_us: int) -> int:
        return self.window.complete_until(watermark_us - self.lateness_us)

    def is_due(self, before_us: int | None, after_us: int) -> bool:
        return self.window.closes_between(before_us, after_us)

    def closing_watermark(self, event_time_us: int) -> int:
        return self.window.newest_end(event_time_us) + self.lateness_us

    def latest_result(self, event_time_us: int) -> int:
        return self.window.newest_end(event_time_us) - 1

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        view = tables.get_time_keyed(PARTIALS)
        closed = self._closed_panes(clock)
        if closed is not None:
            view.prefetch(*closed, spare=True)  # while the rows of the epoch are folded
        folder = Folder(self.inputs[0], self.partials, self.window, self._first_kept(clock.late_us), self.where)
        for batch in batches[0]:
            folder.add(batch)
        for batch in batches[1] if len(batches) > 1 else ():
            folder.add_groups(batch, self.preaggregated)
        new = folder.finish()
        kept_from = self._first_kept(clock.watermark_us)
        # Partials are sorted by pane first.
        panes = int64_values(new[TIME])
        output = [self.outputs[MAIN].schema.empty_table()]
        if self.outputs[MAIN].changes is Changes.CHANGELOG and new.num_rows:
            output.append(self._updated(tables, new, clock))
        if closed is not None:
            start, until = closed
            old = view.read(start, until, hashed=True)
            closing = pa.concat_tables([old, new.slice(0, int(np.searchsorted(panes, until)))])
            output.append(self._results(self._by_window(closing, after_us=clock.late_us, until_us=clock.watermark_us)))
        first = 0 if kept_from is None else int(np.searchsorted(panes, kept_from))
        view.append(new.slice(first).drop_columns([KEY_HASH]))
        if kept_from is not None:
            view.delete_times(BEGINNING, kept_from)
        late = late_rows(folder.late(), self.late_input, clock.late_us, self.operator_id)
        return StepResult(
            outputs={MAIN: pa.concat_tables(output), LATE: late},
            rows_in=folder.rows_in,
            rows_late=folder.rows_late,
            counts={GROUPS_IN: new.num_rows},
        )

    # ---- results ---------------------------------------------------------------------------------------------

    def finished(self, panes: pa.Table, *, after_us: int | None, until_us: int | None) -> pa.Table:
        """Return results so far of the windows that end after `after_us` and not after `until_us`, from rows of the
        state.
        """
        stored = panes.select([KEY_HASH, *self.key_names, TIME, *(field.name for field in self.partials.fields)])
        results = self._results(self._by_window(stored, after_us=after_us, until_us=until_us))
        return results.select(self.outputs[MAIN].columns.names)

    def _updated(self, tables: Tables, new: pa.Table, clock: Clock) -> pa.Table:
        """Return the changes that new rows make to emitted results: retractions of the old ones, insertions of the new
        ones.
        """
        nothing = self.outputs[MAIN].schema.empty_table()
        if self.emit is Emit.AT_CLOSE and clock.late_us is None:
            return nothing
        # Already emitted: with AT_CLOSE the windows closed by earlier epochs, with EARLY all that are kept.
        until_us = clock.late_us if self.emit is Emit.AT_CLOSE else None
        after_us = None if clock.late_us is None else clock.late_us - self.lateness_us
        added = self._by_window(new, after_us=after_us, until_us=until_us)
        if not added.num_rows:
            return nothing
        keys = added.select([key.name for key in self.keys]) if self.keys else None
        first, last = int(int64_values(added[WINDOW_START]).min()), int(int64_values(added[WINDOW_END]).max())
        old = tables.get_time_keyed(PARTIALS).read(first, last, keys=keys, hashed=True)
        before = self._by_window(old, after_us=after_us, until_us=until_us)
        both = pa.concat_tables([before, added])
        is_added = np.arange(both.num_rows) >= before.num_rows
        grouping = self.partials.grouping(both, int64_values(both[WINDOW_END]))
        touched = grouping.any(is_added)[grouping.group_of_rows()]
        taken_back = self._results(filtered(both, touched & ~is_added), weight=-1)
        return consolidated(pa.concat_tables([taken_back, self._results(filtered(both, touched), weight=1)]))

    def _by_window(self, panes: pa.Table, *, after_us: int | None, until_us: int | None) -> pa.Table:
        """Return partials of panes, once per window that contains them and ends after `after_us` and not after
        `until_us`.
        """
        merged = self._merged(panes)
        windows = self.window.windows_of(int64_values(merged[TIME]))
        chosen = np.ones(len(windows.ends), dtype=np.bool_)
        if after_us is not None:
            chosen &= windows.ends > after_us
        if until_us is not None:
            chosen &= windows.ends <= until_us
        rows = merged.take(from_numpy(windows.rows[chosen], pa.int64())).drop_columns([TIME])
        for name, edges in ((WINDOW_START, windows.starts), (WINDOW_END, windows.ends)):
            rows = rows.append_column(name, from_numpy(edges[chosen], TIMESTAMP))
        return rows

    def _results(self, rows: pa.Table, *, weight: int = 1) -> pa.Table:
        """Return the results of windows from partials by window, ordered by window end."""
        # No two windows have the same end.
        ends = int64_values(rows[WINDOW_END])
        grouping = self.partials.grouping(rows, ends)
        merged = self.partials.merge(rows, grouping)
        firsts = from_numpy(grouping.first_rows, pa.int64())
        leading = [one_chunk(rows[name]).take(firsts) for name in (*self.key_names, WINDOW_START, WINDOW_END)]
        times = from_numpy(ends[grouping.first_rows] - 1, TIMESTAMP)
        output = self.outputs[MAIN]
        weights = [] if output.changes is Changes.APPEND else [from_numpy(np.full(len(firsts), weight), pa.int64())]
        columns = [*leading, *self.partials.finish(merged), times, *weights]
        return filtered(pa.Table.from_arrays(columns, schema=output.schema), self.partials.present(merged))

    # ---- partials --------------------------------------------------------------------------------------------

    def combined(self, rows: pa.Table) -> pa.Table:
        """Combine rows of the state into one for each pane and key."""
        grouping = self.partials.grouping(rows, int64_values(rows[TIME]))
        firsts = rows.take(from_numpy(grouping.first_rows, pa.int64()))
        sequences = np.maximum.reduceat(uint64_values(rows[SEQUENCE])[grouping.order], grouping.starts)
        columns = self.partials.merge(rows, grouping)
        merged = {field.name: column for field, column in zip(self.partials.fields, columns, strict=True)}
        merged[SEQUENCE] = from_numpy(sequences, pa.uint64())
        return pa.Table.from_arrays([merged.get(name, firsts[name]) for name in rows.schema.names], schema=rows.schema)

    def _merged(self, rows: pa.Table) -> pa.Table:
        """Return one partial row per pane and key."""
        grouping = self.partials.grouping(rows, int64_values(rows[TIME]))
        if grouping.groups == rows.num_rows:
            return rows
        firsts = rows.take(from_numpy(grouping.first_rows, pa.int64())).select([KEY_HASH, *self.key_names, TIME])
        return pa.Table.from_arrays([*firsts.columns, *self.partials.merge(rows, grouping)], schema=rows.schema)

    def _closed_panes(self, clock: Clock) -> tuple[int | None, int] | None:
        """Return the range of panes in windows that this epoch closes; None if nothing is emitted at close."""
        if clock.watermark_us is None or self.emit is not Emit.AT_CLOSE:
            return None
        start = None if clock.late_us is None else self.window.first_open(clock.late_us)
        return start, self.window.last_closed_end(clock.watermark_us)

    def _first_kept(self, watermark_us: int | None) -> int | None:
        """Return the start of the first window that is kept; earlier times are only in windows that are final."""
        return None if watermark_us is None else self.window.first_open(watermark_us - self.lateness_us)
