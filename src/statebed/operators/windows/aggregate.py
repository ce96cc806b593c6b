"""Aggregation by key over windows.

The state is one partial row per pane, key and epoch that touched it; rows are combined when files are compacted. A pane
is the longest span of which every window is a multiple, so a row is kept once, however many windows overlap. A step
folds the batch into partials, merges the panes of the windows that the watermark closes, and emits one row per key and
closed window.

With `Emit.EARLY`, a window emits its result so far in every epoch that has rows for it, and retracts it when it
changes. With an allowed lateness, a window is kept for that long after its end, and rows that arrive until then change
its result in the same way. Both make the output a changelog. Windows with many values then keep each in a row of its
own (`large_groups`), so that one more row does not merge them all.

As in Spark, the watermark of the previous epoch decides which rows are late, and the current one which windows close. A
row is late if none of its windows is still kept; otherwise it counts in those that are. A row without an event time
belongs to no window and is late.
"""

import contextlib
import datetime as dt
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.aggregates.partials import Partials
from statebed.aggregates.preaggregation import GROUPS_IN
from statebed.arrays.canonical_order import in_order, is_sortable
from statebed.arrays.columns import from_numpy, int64_values, one_chunk, uint64_values
from statebed.arrays.grouping import Flags, Grouping
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME, TIMESTAMP
from statebed.format.stream_schema import Changes
from statebed.operators.aggregation import FOREVER, WINDOW_END, WINDOW_START, Emit, WindowedAggregation
from statebed.operators.changelog import consolidated, replaced, weighted
from statebed.operators.input_rows import filtered, late_rows
from statebed.operators.keyed_rows import taken
from statebed.operators.operator import LATE, MAIN, Clock, Definition, Elements, StepResult, Tables
from statebed.operators.updating.entry_results import Entries
from statebed.operators.updating.entry_tables import EntryTable
from statebed.operators.updating.replaced_rows import ReplacedRows
from statebed.operators.window_definition import Window
from statebed.operators.windows.fold import Folder
from statebed.operators.windows.large_groups import LARGE, LargeGroups, Results
from statebed.operators.windows.long_lists import LongRows, listed_entries, results_of_entries
from statebed.state import Combine, TableConfig, TimeKeyedView, timestamp_table_config
from statebed.state.live.files import BEGINNING, END

PARTIALS = "partials"
"""Name of the state table."""
LARGE_ENDS = "large_window_ends"
"""Name of the table with the ends of windows that have many values."""


@dataclass(frozen=True)
class StoredPartials:
    """Stored partials by pane. If lists take too much memory, they are in `long_parts` alone."""

    panes: pa.Table
    is_emptied: Flags
    """Flags of the `panes` whose lists are in `long_parts`."""
    long_parts: Sequence[pa.Table]
    """Rows with long lists, from a local file."""


@dataclass(frozen=True)
class TouchedWindows:
    """Partials of the windows that the rows of an epoch change."""

    rows: pa.Table
    """Partials by window, before the epoch and of it."""
    is_added: Flags
    """Flags of the `rows` of this epoch."""
    stored: StoredPartials
    new: pa.Table
    """Partials of this epoch by pane."""
    after_us: int | None
    """Windows that end at or before this time are final."""
    until_us: int | None
    """Windows that end after this time have not been emitted."""


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
        if self.large is None:
            return {PARTIALS: config}
        ends = timestamp_table_config(
            LARGE_ENDS,
            "when windows with many values end",
            FOREVER,
            False,
            pa.schema(self.state_keys),
            keys=[key.name for key in self.state_keys],
            bin_width=dt.timedelta(microseconds=self.window.width_us),
        )
        return {PARTIALS: config, **self.large.configs, LARGE_ENDS: ends}

    @cached_property
    def large(self) -> LargeGroups | None:
        """Tables of windows with many values; None if results are emitted once, or made of small partials."""
        return None if self.outputs[MAIN].changes is Changes.APPEND else self._listed

    @cached_property
    def _listed(self) -> LargeGroups | None:
        """Aggregates whose partials list their values; None if there are none."""
        return LargeGroups.of(self.state_keys, pa.field(WINDOW_END, TIMESTAMP), self.aggregates)

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
        stored = new
        if self.outputs[MAIN].changes is Changes.CHANGELOG and new.num_rows:
            changes, stored = self._updated(tables, new, clock)
            output.append(changes)
        if closed is not None:
            start, until = closed
            closing = itertools.chain(
                view.scan(start, until, hashed=True), [new.slice(0, int(np.searchsorted(panes, until)))]
            )
            output.append(self._closed(view, closing, clock))
        first = 0 if kept_from is None else int(np.searchsorted(panes, kept_from))
        view.append(stored.slice(first).drop_columns([KEY_HASH]))
        if kept_from is not None:
            view.delete_times(BEGINNING, kept_from)
        if self.large is not None and clock.watermark_us is not None:
            self._delete_large(tables, self.large, clock.watermark_us - self.lateness_us)
        late = late_rows(folder.late(), self.late_input, clock.late_us, self.operator_id)
        return StepResult(
            outputs={MAIN: pa.concat_tables(output), LATE: late},
            rows_in=folder.rows_in,
            rows_late=folder.rows_late,
            counts={GROUPS_IN: new.num_rows},
        )

    # ---- results ---------------------------------------------------------------------------------------------

    def finished(self, panes: pa.Table, elements: Elements, *, after_us: int | None, until_us: int | None) -> pa.Table:
        """Return results so far of the windows that end after `after_us` and not after `until_us`, from rows of the
        state. `elements` reads the tables of windows with many values.
        """
        stored = panes.select([KEY_HASH, *self.key_names, TIME, *(field.name for field in self.partials.fields)])
        rows = self._by_window(stored, after_us=after_us, until_us=until_us)
        results = self._results(rows) if self.large is None else self._with_large(rows, self.large, elements)
        return results.select(self.outputs[MAIN].columns.names)

    def _with_large(self, rows: pa.Table, large: LargeGroups, elements: Elements) -> pa.Table:
        """Return the results of windows, of which some may be large, from stored partials by window."""
        grouping = self.partials.grouping(rows, int64_values(rows[WINDOW_END]))
        groups = taken(self._groups(rows), grouping.first_rows)
        stored, places = large.stored_in(elements(LARGE, groups.select(large.groups.names[:-1])), groups)
        if not len(places):
            return self._results(rows)
        is_large = np.zeros(groups.num_rows, dtype=np.bool_)
        is_large[places] = True
        of_large = is_large[grouping.group_of_rows()]
        ordered = large.finished(taken(stored, np.argsort(places)), elements)
        results = [
            self._results(filtered(rows, ~of_large)),
            self._results(filtered(rows, of_large), results=ordered),
        ]
        return pa.concat_tables(results).sort_by([(WINDOW_END, "ascending")])

    def _closed(self, view: TimeKeyedView, panes: Iterable[pa.Table], clock: Clock) -> pa.Table:
        """Return the results of the windows that an epoch closes, from pieces of partials by pane."""
        span = {"after_us": clock.late_us, "until_us": clock.watermark_us}
        if self._listed is None:
            return self._results(self._by_window(pa.concat_tables(panes), **span))
        long_rows, short = LongRows(view), []
        try:
            for rows in panes:
                is_long = self._listed.are_many(self._listed.entry_counts(rows))
                short.append(filtered(rows, ~is_long))
                if is_long.any():
                    long_rows.add(filtered(rows, is_long))
                del rows  # before the next ones are read
            if long_rows.fits:
                return self._results(self._by_window(pa.concat_tables([*short, *long_rows.parts()]), **span))
            by_window = self._by_window(pa.concat_tables(short), **span)
            return self._closed_long(view, self._listed, by_window, long_rows.parts(), span)
        finally:
            long_rows.close()

    def _closed_long(
        self,
        view: TimeKeyedView,
        listed: LargeGroups,
        by_window: pa.Table,
        long_parts: Sequence[pa.Table],
        span: Mapping[str, int | None],
    ) -> pa.Table:
        """Return the results of windows, of which some have rows with long lists; others are in memory, by window."""
        leading = [KEY_HASH, *self.key_names, TIME, *(field.name for field in self._plain.fields)]
        plain = self._in_windows(pa.concat_tables([part.select(leading) for part in long_parts]), **span)
        if not plain.num_rows:
            return self._results(by_window)
        grouping = self.partials.grouping(plain, int64_values(plain[WINDOW_END]))
        groups = taken(self._groups(plain), grouping.first_rows)
        places = listed.groups.places(self._groups(by_window), groups)
        short = filtered(by_window, places >= 0)

        def entries(table: EntryTable) -> Iterator[Entries]:
            yield listed_entries(table, short, places[places >= 0])
            for part in long_parts:
                rows = self._in_windows(part, **span)
                yield listed_entries(table, rows, listed.groups.places(self._groups(rows), groups))

        results = {
            table.result_name: results_of_entries(table, entries(table), groups.num_rows, view)
            for table in listed.entries.values()
        }
        rows = pa.concat_tables([plain, short.select(plain.column_names)])
        others = self._results(filtered(by_window, places < 0))
        return pa.concat_tables([others, self._results(rows, results=results)])

    def _updated(self, tables: Tables, new: pa.Table, clock: Clock) -> tuple[pa.Table, pa.Table]:
        """Return the changes that new rows make to emitted results: retractions of the old ones, insertions of the new
        ones. Also return what to store of the new rows.
        """
        nothing = self.outputs[MAIN].schema.empty_table()
        if self.emit is Emit.AT_CLOSE and clock.late_us is None:
            return nothing, new
        # Already emitted: with AT_CLOSE the windows closed by earlier epochs, with EARLY all that are kept.
        until_us = clock.late_us if self.emit is Emit.AT_CLOSE else None
        after_us = None if clock.late_us is None else clock.late_us - self.lateness_us
        added = self._by_window(new, after_us=after_us, until_us=until_us)
        if not added.num_rows:
            return nothing, new
        keys = added.select([key.name for key in self.keys]) if self.keys else None
        first, last = int(int64_values(added[WINDOW_START]).min()), int(int64_values(added[WINDOW_END]).max())
        view = tables.get_time_keyed(PARTIALS)
        with contextlib.closing(LongRows(view)) as long_rows:
            pieces = itertools.chain([new.slice(0, 0)], view.scan(first, last, keys=keys, hashed=True))
            stored = self._stored(pieces, long_rows)
            before = self._by_window(stored.panes, after_us=after_us, until_us=until_us)
            both = pa.concat_tables([before, added])
            is_added = np.arange(both.num_rows) >= before.num_rows
            grouping = self.partials.grouping(both, int64_values(both[WINDOW_END]))
            touched = grouping.any(is_added)[grouping.group_of_rows()]
            rows, is_added = filtered(both, touched), is_added[touched]
            if self.large is None:
                return self._replaced(rows, is_added), new
            return self._updated_large(
                tables, self.large, TouchedWindows(rows, is_added, stored, new, after_us, until_us)
            )

    def _stored(self, pieces: Iterable[pa.Table], long_rows: LongRows) -> StoredPartials:
        """Collect stored partials by pane, with those that list many values in a file if they take too much memory."""
        panes = []
        for rows in pieces:
            is_long = np.zeros(rows.num_rows, dtype=np.bool_)
            if self.large is not None:
                is_long = self.large.are_many(self.large.entry_counts(rows))
            panes.append(filtered(rows, ~is_long))
            if is_long.any():
                long_rows.add(filtered(rows, is_long))
            del rows  # before the next ones are read
        short = sum(part.num_rows for part in panes)
        if self.large is None or long_rows.fits:
            panes += long_rows.parts()
            stored = pa.concat_tables(panes)
            return StoredPartials(stored, np.zeros(stored.num_rows, dtype=np.bool_), ())
        long_parts = long_rows.parts()
        panes += [self.large.without_entries(part, np.ones(part.num_rows, dtype=np.bool_)) for part in long_parts]
        stored = pa.concat_tables(panes)
        return StoredPartials(stored, np.arange(stored.num_rows) >= short, long_parts)

    def _replaced(self, rows: pa.Table, is_added: Flags) -> pa.Table:
        """Return the changes of windows, from all their partials before an epoch and those that it has added."""
        taken_back = self._results(filtered(rows, ~is_added), weight=-1)
        return consolidated(pa.concat_tables([taken_back, self._results(rows, weight=1)]))

    def _by_window(self, panes: pa.Table, *, after_us: int | None, until_us: int | None) -> pa.Table:
        """Return partials of panes, once per window that contains them and ends after `after_us` and not after
        `until_us`.
        """
        return self._in_windows(self._merged(panes), after_us=after_us, until_us=until_us)

    def _in_windows(self, merged: pa.Table, *, after_us: int | None, until_us: int | None) -> pa.Table:
        """Return rows of panes, once per window that contains them and ends after `after_us` and not after
        `until_us`.
        """
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

    def _results(self, rows: pa.Table, *, weight: int = 1, results: Results | None = None) -> pa.Table:
        """Return the results of windows from partials by window, ordered by window end.

        `results` has those of the aggregates whose partials are not used, in the same order.
        """
        finished, present = self._finished(rows, results or {})
        output = self.outputs[MAIN]
        if output.changes is Changes.CHANGELOG:
            finished = weighted(finished, np.full(finished.num_rows, weight, dtype=np.int64))
        return filtered(finished.cast(output.schema), present)

    def _finished(self, rows: pa.Table, results: Results) -> tuple[pa.Table, Flags]:
        """Return the results of windows without weights, and which of the windows still have rows."""
        # No two windows have the same end.
        ends = int64_values(rows[WINDOW_END])
        grouping = self.partials.grouping(rows, ends)
        partials = self._plain if results else self.partials
        merged = partials.merge(rows, grouping)
        firsts = from_numpy(grouping.first_rows, pa.int64())
        leading = [one_chunk(rows[name]).take(firsts) for name in (*self.key_names, WINDOW_START, WINDOW_END)]
        columns = dict(zip((field.name for field in partials.output_fields), partials.finish(merged), strict=True))
        columns |= results
        aggregates = [columns[field.name] for field in self.partials.output_fields]
        times = from_numpy(ends[grouping.first_rows] - 1, TIMESTAMP)
        schema = pa.schema([*self.outputs[MAIN].columns, pa.field(TIME, TIMESTAMP)])
        present = np.ones(grouping.groups, dtype=np.bool_)
        if self.changes is Changes.CHANGELOG:
            present = partials.present(merged)
        return pa.Table.from_arrays([*leading, *aggregates, times], schema=schema), present

    # ---- windows with many values ----------------------------------------------------------------------------

    def _updated_large(self, tables: Tables, large: LargeGroups, touched: TouchedWindows) -> tuple[pa.Table, pa.Table]:
        """Return the changes of windows, of which some may be large or become large, and what to store of the new
        rows.
        """
        rows, is_added = touched.rows, touched.is_added
        grouping = self.partials.grouping(rows, int64_values(rows[WINDOW_END]))
        groups = taken(self._groups(rows), grouping.first_rows)
        _, was_large = large.stored(tables, groups)
        becomes = large.are_many(grouping.add(large.entry_counts(rows)))
        for listed in self._long_rows(touched):
            places = large.groups.places(self._groups(listed), groups)
            becomes[places[places >= 0]] = True
        becomes &= ~was_large
        is_large = was_large | becomes
        if not is_large.any():
            return self._replaced(rows, is_added), touched.new
        group_of_rows = grouping.group_of_rows()
        if becomes.any():
            chosen = becomes[group_of_rows]
            listed = large.without_entries(filtered(rows, chosen), is_added[chosen])
            self._make_large(tables, large, filtered(groups, becomes), listed)
            self._move_long_rows(tables, large, touched, filtered(groups, becomes))
            self._store_without_entries(tables, large, touched, filtered(groups, is_large))
        of_large = is_large[group_of_rows]
        output = [self._replaced(filtered(rows, ~of_large), is_added[~of_large])]
        numbers = np.flatnonzero(is_large)
        with ReplacedRows(self.outputs[MAIN].schema, tables.get_keyed(LARGE), large=large.collects) as replaced_rows:
            # A result with all values is built in a file, one at a time.
            for several in np.split(numbers, len(numbers)) if large.collects else [numbers]:
                chosen = np.isin(group_of_rows, several)
                replaced_rows.add(
                    *self._replaced_large(
                        tables, large, taken(groups, several), filtered(rows, chosen), is_added[chosen]
                    )
                )
            output.append(replaced_rows.table())
        is_listed = self._in_other_windows(large, touched.new, filtered(groups, is_large), touched.after_us)
        return pa.concat_tables(output), large.without_entries(touched.new, ~is_listed)

    def _replaced_large(
        self, tables: Tables, large: LargeGroups, groups: pa.Table, rows: pa.Table, is_added: Flags
    ) -> tuple[pa.Table, pa.Table]:
        """Add new partials to large windows, and return the retractions and insertions of their results."""
        grouping = self.partials.grouping(rows, int64_values(rows[WINDOW_END]))
        change = self._by_group(large.without_entries(rows, ~is_added), grouping)
        before, after = large.changed(tables, groups, change)
        was_there = grouping.any(~is_added)
        at = from_numpy(np.flatnonzero(was_there), pa.int64())
        before = {name: column.take(at) for name, column in before.items()} if not was_there.all() else before
        old, had_rows = self._finished(filtered(rows, ~is_added), before)
        new, has_rows = self._finished(rows, after)
        return replaced(
            filtered(old, had_rows),
            filtered(new, has_rows),
            old_keys=np.flatnonzero(was_there)[had_rows],
            new_keys=np.flatnonzero(has_rows),
        )

    def _make_large(self, tables: Tables, large: LargeGroups, groups: pa.Table, listed: pa.Table) -> None:
        """Move the listed entries of windows to tables of entries."""
        grouping = self.partials.grouping(listed, int64_values(listed[WINDOW_END]))
        large.put(tables, groups, self._by_group(listed, grouping))
        ends = groups.drop_columns([WINDOW_END]).append_column(pa.field(TIME, TIMESTAMP), groups[WINDOW_END])
        tables.get_time_keyed(LARGE_ENDS).append(ends)

    def _move_long_rows(self, tables: Tables, large: LargeGroups, touched: TouchedWindows, groups: pa.Table) -> None:
        """Add the entries of rows with long lists to windows that have just become large."""
        if not touched.stored.long_parts:
            return

        def entries(table: EntryTable) -> Iterator[Entries]:
            for listed in self._long_rows(touched):
                places = large.groups.places(self._groups(listed), groups)
                yield listed_entries(table, filtered(listed, places >= 0), places[places >= 0])

        large.add_all(tables, groups, entries)

    def _long_rows(self, touched: TouchedWindows) -> Iterator[pa.Table]:
        """Yield rows with long lists, once per window that was emitted and is not final."""
        for part in touched.stored.long_parts:
            yield self._in_windows(part, after_us=touched.after_us, until_us=touched.until_us)

    def _store_without_entries(
        self, tables: Tables, large: LargeGroups, touched: TouchedWindows, groups: pa.Table
    ) -> None:
        """Replace stored partials that list entries for none but large windows, so that they are not read again."""
        panes, is_emptied = touched.stored.panes, touched.stored.is_emptied
        merged = self._merged(panes)
        if merged.num_rows < panes.num_rows:
            is_emptied = self.partials.grouping(panes, int64_values(panes[TIME])).any(is_emptied)
        has_lists = is_emptied | (large.entry_counts(merged) > 0)
        is_listed = self._in_other_windows(large, merged, groups, touched.after_us)
        emptied = filtered(merged, ~is_listed & has_lists)
        if emptied.num_rows:
            view = tables.get_time_keyed(PARTIALS)
            view.delete_at(emptied.select(self.key_names), emptied[TIME])
            every = np.ones(emptied.num_rows, dtype=np.bool_)
            view.append(large.without_entries(emptied, every).drop_columns([KEY_HASH]))

    def _in_other_windows(self, large: LargeGroups, panes: pa.Table, groups: pa.Table, after_us: int | None) -> Flags:
        """Return which panes are in a window that is not among `groups` and ends after `after_us`."""
        windows = self.window.windows_of(int64_values(panes[TIME]))
        chosen = np.ones(len(windows.ends), dtype=np.bool_) if after_us is None else windows.ends > after_us
        at = windows.rows[chosen]
        keys = taken(panes.drop_columns([TIME]), at)
        of_panes = self._groups(keys.append_column(WINDOW_END, from_numpy(windows.ends[chosen], TIMESTAMP)))
        is_other = large.groups.places(of_panes, groups) < 0
        return np.bincount(at[is_other], minlength=panes.num_rows) > 0

    def _delete_large(self, tables: Tables, large: LargeGroups, until_us: int) -> None:
        """Delete the large windows that end at or before `until_us`."""
        view, behind = tables.get_time_keyed(LARGE_ENDS), min(until_us + 1, END)
        due = view.read(None, behind)
        if due.num_rows:
            large.delete(tables, self._groups(due.rename_columns({TIME: WINDOW_END})))
            view.delete_times(BEGINNING, behind)

    def _groups(self, rows: pa.Table) -> pa.Table:
        """Return the columns that identify the windows of rows in the tables of large ones."""
        keys = [rows[key.name] if self.keys else pa.nulls(rows.num_rows, key.type) for key in self.state_keys]
        schema = pa.schema([*self.state_keys, pa.field(WINDOW_END, TIMESTAMP)])
        return pa.Table.from_arrays([*map(one_chunk, keys), one_chunk(rows[WINDOW_END])], schema=schema)

    def _by_group(self, rows: pa.Table, grouping: Grouping) -> pa.Table:
        return pa.Table.from_arrays(self.partials.merge(rows, grouping), schema=pa.schema(self.partials.fields))

    @cached_property
    def _plain(self) -> Partials:
        """Aggregates whose partials list no values."""
        entries = {} if self._listed is None else self._listed.entries
        rest = tuple(aggregate for position, aggregate in enumerate(self.aggregates) if position not in entries)
        return Partials(self.keys, rest, self.changes)

    # ---- partials --------------------------------------------------------------------------------------------

    def combined(self, rows: pa.Table) -> pa.Table:
        """Combine rows of the state into one for each pane and key, or a few if they list many values."""
        grouping = self.partials.grouping(rows, int64_values(rows[TIME]))
        panes = grouping.groups
        if self._listed is not None:
            grouping = self._listed.cut(grouping, rows)
        # Without the partials, which may be long lists.
        partials = {field.name for field in self.partials.fields}
        others = [name for name in rows.schema.names if name not in partials]
        firsts = rows.select(others).take(from_numpy(grouping.first_rows, pa.int64()))
        sequences = grouping.greatest(uint64_values(rows[SEQUENCE]))
        columns = self.partials.merge(rows, grouping)
        merged = {field.name: column for field, column in zip(self.partials.fields, columns, strict=True)}
        merged[SEQUENCE] = from_numpy(sequences, pa.uint64())
        columns = [merged[name] if name in merged else firsts[name] for name in rows.schema.names]
        combined = pa.Table.from_arrays(columns, schema=rows.schema)
        if grouping.groups == panes:
            return combined
        first = [BIN, KEY_HASH, *self.key_names, TIME, SEQUENCE]
        rest = [field.name for field in rows.schema if is_sortable(field.type) and field.name not in first]
        return in_order(combined, first, rest)

    def _merged(self, rows: pa.Table) -> pa.Table:
        """Return one partial row per pane and key."""
        grouping = self.partials.grouping(rows, int64_values(rows[TIME]))
        if grouping.groups == rows.num_rows:
            return rows
        firsts = rows.select([KEY_HASH, *self.key_names, TIME]).take(from_numpy(grouping.first_rows, pa.int64()))
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
