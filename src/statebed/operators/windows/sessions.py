"""Aggregation by key over sessions: rows that follow each other within a gap.

A row at t opens the session [t, t + gap). As in Spark, sessions that overlap or touch are one: they merge across
batches, and a late row may join two. Sessions may have any length. Each key has at most one pending timer for its
newest session, and one for each of its earlier sessions, so that closing reads only what is due.

Closing, early results, lateness and the changelog work as for other windows (`windows.aggregate`). As in Spark, a row
is late if the session that it would open by itself is over.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, one_chunk, validity
from statebed.arrays.grouping import Flags, Integers
from statebed.errors import InputError
from statebed.format.schema import TIME, TIMESTAMP
from statebed.format.stream_schema import Changes
from statebed.operators.aggregation import FOREVER, Emit, WindowedAggregation
from statebed.operators.changelog import difference
from statebed.operators.input_rows import admit, filtered, gathered, late_rows
from statebed.operators.keyed_rows import by_key, taken
from statebed.operators.operator import LATE, MAIN, Clock, Definition, Elements, StepResult, Tables
from statebed.operators.window_definition import SessionWindow
from statebed.operators.windows.large_groups import LARGE, LargeGroups, Results
from statebed.operators.windows.merged_sessions import (
    MergedSessions,
    Sessions,
    merged_sessions,
    sessions_of_rows,
)
from statebed.operators.windows.session_partials import LARGE_AS, LARGE_VALUES, SessionPartials
from statebed.operators.windows.session_tables import SESSIONS, DueSessions, KeptSessions, OpenSessions, SessionTables
from statebed.state import Combine, KeyedView, TableConfig, timestamp_table_config
from statebed.state.live.files import BEGINNING, END

TIMERS = "timers"
EARLIER_TIMERS = "earlier_timers"
SESSION = pa.field("_session", TIMESTAMP)
"""Column of the tables of values with the name of a session (`session_partials`)."""
_MIN_BIN_US = 60_000_000


@dataclass(frozen=True, kw_only=True)
class SessionAggregate(WindowedAggregation):
    """Definition of a session aggregation."""

    window: SessionWindow

    def __post_init__(self) -> None:
        if self.changes is Changes.CHANGELOG:
            raise InputError(
                "sessions cannot be built from a changelog: a retraction could split a session whose rows are folded",
                where=self.where,
                fix="build sessions from an append-only stream, or use a tumbling or sliding window",
            )
        super().__post_init__()

    @cached_property
    def sessions(self) -> SessionTables:
        """Tables of open sessions."""
        partials = SessionPartials(self.partials, lists_values=self.large is not None)
        return SessionTables(self.state_keys, partials, self.window.gap_us)

    @cached_property
    def large(self) -> LargeGroups | None:
        """Tables of sessions with many values; None if all partials are small."""
        return LargeGroups.of(self.state_keys, SESSION, self.aggregates)

    @property
    def stored_fields(self) -> Iterable[pa.Field]:
        return (*self.state_keys, *self.sessions.fields)

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        return {
            **self.sessions.configs,
            **({} if self.large is None else self.large.configs),
            TIMERS: self._timers(TIMERS, "when the newest session of a key may close"),
            EARLIER_TIMERS: self._timers(
                EARLIER_TIMERS, "when other sessions of the keys may close", *self.sessions.edges
            ),
        }

    def _timers(self, name: str, description: str, *fields: pa.Field) -> TableConfig:
        return timestamp_table_config(
            name,
            description,
            FOREVER,
            False,
            pa.schema([*self.state_keys, *fields]),
            keys=[key.name for key in self.state_keys],
            bin_width=dt.timedelta(microseconds=max(self.window.gap_us, _MIN_BIN_US)),
        )

    @property
    def earlier_tables(self) -> Mapping[str, Sequence[TableConfig]]:
        return self.sessions.earlier_configs

    def upgrade(self, name: str, earlier: KeyedView, tables: Tables, clock: Clock) -> None:  # noqa: ARG002 - timers need no clock
        """Move sessions of an earlier version to the tables of today, and set timers for the earlier ones of a key.

        The timers are for the first change that each can have: this epoch has not closed any session yet.
        """
        for keys, sessions in self.sessions.upgraded(name, earlier, tables):
            self._arm_earlier(tables, keys, sessions, None)

    @property
    def combines(self) -> Mapping[str, Combine]:
        return {}

    @cached_property
    def definition(self) -> Definition:
        on = {} if self.window.on is None else {"on": self.window.on}
        return Definition.of(kind="session_aggregate", gap=self.window.gap_us, **on, **self.described())

    def is_due(self, before_us: int | None, after_us: int) -> bool:
        return before_us is None or after_us > before_us

    def closing_watermark(self, event_time_us: int) -> int:
        return event_time_us + self.window.gap_us + self.lateness_us

    def latest_result(self, event_time_us: int) -> int:
        return event_time_us + self.window.gap_us - 1

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        if clock.watermark_us is not None:  # while the rows of the epoch arrive
            for name in (TIMERS, EARLIER_TIMERS):
                tables.get_time_keyed(name).prefetch(None, min(clock.watermark_us + 1, END), spare=True)
        rows = gathered(batches[0], self.inputs[0], where=self.where)
        over = None if clock.late_us is None else clock.late_us - self.window.gap_us - self.lateness_us
        admitted = admit(rows, over)
        self.window.check_times(admitted.rows[TIME])
        output = self._applied(tables, admitted.rows, clock)
        late = late_rows(admitted.late, self.late_input, clock.late_us, self.operator_id)
        return StepResult(
            {MAIN: output, LATE: late},
            rows_in=admitted.rows_in,
            rows_late=late.num_rows,
        )

    def _applied(self, tables: Tables, rows: pa.Table, clock: Clock) -> pa.Table:
        """Merge new rows into the sessions of their keys, close those that are due, and return the changes."""
        keyed = by_key(rows, self.inputs[0], only_by_time=True)
        keys, place, due = self._touched(tables, keyed.keys, clock.watermark_us)
        new = sessions_of_rows(keyed.rows, place[keyed.key_index], self.window.gap_us, self.sessions.partials)
        stored = self.sessions.read(tables, keys, new, due)
        old = stored.all
        before = self._results(keys, old.where(self._shown(old, clock.late_us)), partial(self._large_results, tables))
        merging = merged_sessions(old, new, self.sessions.partials)
        merged, unchanged = self._with_large(tables, keys, old, merging), merging.unchanged
        stays = np.ones(len(merged), dtype=np.bool_)
        if clock.watermark_us is not None:
            stays = merged.ends + self.lateness_us > clock.watermark_us
        self._keep(tables, keys, stored, KeptSessions(merged.where(stays), unchanged[stays]), clock.watermark_us)
        shown = merged.where(self._shown(merged, clock.watermark_us))
        after = self._results(keys, shown, partial(self._large_results, tables))
        self._delete_large(tables, keys, merged.where(~stays))
        output = self.outputs[MAIN]
        if output.changes is Changes.CHANGELOG:
            return difference(before, after).cast(output.schema)
        return after

    def _touched(
        self, tables: Tables, fed: pa.Table, watermark_us: int | None
    ) -> tuple[pa.Table, Integers, DueSessions]:
        """Return the distinct keys that have rows or are due, the positions among them of those that have rows, and the
        earlier sessions that are due.
        """
        newest = self._taken_timers(tables, TIMERS, watermark_us)
        earlier = self._taken_timers(tables, EARLIER_TIMERS, watermark_us)
        names = fed.schema.names
        pieces = [fed, *(timers.select(names).cast(fed.schema) for timers in (earlier, newest))]
        keys, groups = tables.get_keyed(SESSIONS).distinct(pa.concat_tables(pieces))
        place = groups.group_of_rows()
        starts, ends = (int64_values(earlier[field.name]) for field in self.sessions.edges)
        return keys, place[: fed.num_rows], DueSessions(place[fed.num_rows :][: earlier.num_rows], starts, ends)

    def _taken_timers(self, tables: Tables, name: str, watermark_us: int | None) -> pa.Table:
        """Return the timers that are due, and delete them."""
        timers = tables.get_time_keyed(name)
        behind = BEGINNING if watermark_us is None else min(watermark_us + 1, END)
        due = timers.read(None, behind)
        timers.delete_times(BEGINNING, behind)
        return due

    def _keep(
        self, tables: Tables, keys: pa.Table, stored: OpenSessions, kept: KeptSessions, watermark_us: int | None
    ) -> None:
        """Write the sessions that stay, and set timers for the next change of those that have none."""
        filled = kept.filled
        first = self._next_change(kept.sessions, watermark_us)[kept.lasts]
        pending = stored.pending.take(from_numpy(filled, pa.int64()))
        armed = int64_values(pending.fill_null(0))
        is_armed = validity(pending) & (armed <= first)
        if watermark_us is not None:
            is_armed &= armed > watermark_us
        unarmed = taken(keys, filled[~is_armed])
        times = from_numpy(first[~is_armed], TIMESTAMP)
        tables.get_time_keyed(TIMERS).append(unarmed.append_column(pa.field(TIME, TIMESTAMP), times))
        self._arm_earlier(tables, keys, kept.sessions.where(kept.is_unarmed(stored)), watermark_us)
        due = np.where(is_armed, armed, first)
        left_us = None if watermark_us is None else watermark_us - self.lateness_us
        self.sessions.write(tables, keys, stored, kept, pending=due, left_us=left_us)

    def _arm_earlier(self, tables: Tables, keys: pa.Table, sessions: Sessions, watermark_us: int | None) -> None:
        """Set timers for the next change of earlier sessions."""
        if not len(sessions):
            return
        timers = taken(keys, sessions.key_index)
        edges = (sessions.starts, sessions.ends)
        for field, times in zip(self.sessions.edges, edges, strict=True):
            timers = timers.append_column(field, from_numpy(times, TIMESTAMP))
        times = from_numpy(self._next_change(sessions, watermark_us), TIMESTAMP)
        tables.get_time_keyed(EARLIER_TIMERS).append(timers.append_column(pa.field(TIME, TIMESTAMP), times))

    def _next_change(self, kept: Sessions, watermark_us: int | None) -> Integers:
        """Return when each session closes, or expires from the state if it has closed."""
        leaves = kept.ends + self.lateness_us
        if self.emit is Emit.EARLY or not self.lateness_us:
            return leaves
        return kept.ends if watermark_us is None else np.where(kept.ends > watermark_us, kept.ends, leaves)

    def _shown(self, sessions: Sessions, watermark_us: int | None) -> Flags:
        """Return which sessions have an emitted result."""
        if self.emit is Emit.EARLY:
            return np.ones(len(sessions), dtype=np.bool_)
        if watermark_us is None:
            return np.zeros(len(sessions), dtype=np.bool_)
        return sessions.ends <= watermark_us

    # ---- sessions with many values ---------------------------------------------------------------------------

    def _with_large(self, tables: Tables, keys: pa.Table, old: Sessions, merging: MergedSessions) -> Sessions:
        """Move the values of sessions that have many to the tables of entries; return the sessions without them."""
        merged, large = merging.sessions, self.large
        if large is None:
            return merged
        names, was_large = _large_names(merged)
        counts = large.entry_counts(merged.partials)
        changed = (merging.unchanged < 0) & (was_large | large.are_many(counts))
        if not changed.any():
            return merged
        names = np.where(was_large, names, merged.starts)
        sizes = int64_values(one_chunk(merged.partials[LARGE_VALUES]).fill_null(0)) + np.where(changed, counts, 0)
        old_names, is_large = _large_names(old)
        into = merging.into[: len(old)]
        for place in np.flatnonzero(is_large & (old_names != names[into])).tolist():
            absorbed, absorbing = (
                self._groups(keys, sessions.key_index[at : at + 1], session_names[at : at + 1])
                for sessions, session_names, at in ((old, old_names, place), (merged, names, int(into[place])))
            )
            large.absorb(tables, absorbed, absorbing)
            sizes[into[place]] += int64_values(old.partials[LARGE_VALUES].slice(place, 1))[0]
        for chosen, store in ((changed & ~was_large, large.put), (changed & was_large, large.add)):
            if chosen.any():
                groups = self._groups(keys, merged.key_index[chosen], names[chosen])
                store(tables, groups, filtered(merged.partials, chosen))
        columns = {
            LARGE_AS: from_numpy(names, TIMESTAMP, valid=was_large | changed),
            LARGE_VALUES: from_numpy(sizes, pa.int64(), valid=was_large | changed),
        }
        partials = large.without_entries(merged.partials, changed)
        for name, column in columns.items():
            at = partials.schema.get_field_index(name)
            partials = partials.set_column(at, partials.schema.field(at), column)
        return replace(merged, partials=partials)

    def _delete_large(self, tables: Tables, keys: pa.Table, gone: Sessions) -> None:
        if self.large is not None and len(gone):
            names, is_large = _large_names(gone)
            if is_large.any():
                self.large.delete(tables, self._groups(keys, gone.key_index[is_large], names[is_large]))

    def _large_results(self, tables: Tables, groups: pa.Table) -> Results:
        assert self.large is not None
        return self.large.results(tables, groups)

    def _stored_large_results(self, elements: Elements, groups: pa.Table) -> Results:
        assert self.large is not None
        stored, places = self.large.stored_in(elements(LARGE, groups.select(self.large.groups.names[:-1])), groups)
        return self.large.finished(taken(stored, np.argsort(places)), elements)

    def _groups(self, keys: pa.Table, key_index: Integers, names: Integers) -> pa.Table:
        """Return the columns that identify large sessions in the tables of their values."""
        session_keys = taken(keys.select([key.name for key in self.state_keys]), key_index)
        return session_keys.append_column(SESSION, from_numpy(names, TIMESTAMP))

    # ---- results ---------------------------------------------------------------------------------------------

    def finished(self, rows: pa.Table, elements: Elements) -> pa.Table:
        """Return results so far from rows of the table of keys, one row per session.

        Rows may be of an earlier version. `elements` reads the tables of earlier sessions and of values.
        """
        sessions = self.sessions.stored_sessions(rows, elements)
        results = self._results(rows, sessions, partial(self._stored_large_results, elements))
        return results.select(self.outputs[MAIN].columns.names)

    def _results(self, keys: pa.Table, sessions: Sessions, of_large: Callable[[pa.Table], Results]) -> pa.Table:
        """Return rows of the main output, without weights, sorted by key and start.

        `of_large` returns the results of large sessions.
        """
        session_keys = taken(keys, sessions.key_index)
        partials = [one_chunk(sessions.partials[field.name]) for field in self.sessions.partials.fields]
        results = dict(
            zip(
                (field.name for field in self.partials.output_fields),
                self.sessions.partials.finish(partials),
                strict=True,
            )
        )
        if self.large is not None:
            names, is_large = _large_names(sessions)
            if is_large.any():
                groups = self._groups(keys, sessions.key_index[is_large], names[is_large])
                places = np.arange(len(sessions), dtype=np.int64)
                places[is_large] = len(sessions) + np.arange(groups.num_rows)
                for name, column in of_large(groups).items():
                    both = pa.concat_arrays([results[name], column.cast(results[name].type)])
                    results[name] = both.take(from_numpy(places, pa.int64()))
        columns = [
            *(session_keys[key.name] for key in self.keys),
            from_numpy(sessions.starts, TIMESTAMP),
            from_numpy(sessions.ends, TIMESTAMP),
            *results.values(),
            from_numpy(sessions.ends - 1, TIMESTAMP),
        ]
        fields = [*self.outputs[MAIN].columns, pa.field(TIME, TIMESTAMP)]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _large_names(sessions: Sessions) -> tuple[Integers, Flags]:
    """Return the names of large sessions, and which sessions are large."""
    names = one_chunk(sessions.partials[LARGE_AS])
    return int64_values(names.fill_null(0)), validity(names)
