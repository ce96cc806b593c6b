"""Aggregation by key over sessions: rows that follow each other within a gap.

A row at t opens the session [t, t + gap). As in Spark, sessions that overlap or touch are one: they merge across
batches, and a late row may join two. Sessions may have any length. Each key has at most one pending timer, for the end
of its first session, so that closing reads only the keys that are due.

Closing, early results, lateness and the changelog work as for other windows (`windows.aggregate`). As in Spark, a row
is late if the session that it would open by itself is over.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, one_chunk, validity
from statebed.arrays.grouping import Flags, Integers
from statebed.errors import InputError
from statebed.format.schema import TIME, TIMESTAMP
from statebed.format.stream_schema import Changes
from statebed.operators.aggregation import Emit, WindowedAggregation
from statebed.operators.changelog import difference
from statebed.operators.input_rows import admit, gathered, late_rows
from statebed.operators.keyed_rows import by_key, taken
from statebed.operators.operator import LATE, MAIN, Clock, Definition, Elements, StepResult, Tables
from statebed.operators.window_definition import SessionWindow
from statebed.operators.windows.merged_sessions import Sessions, distinct_keys, merged_sessions, sessions_of_rows
from statebed.operators.windows.session_tables import SESSIONS, OpenSessions, SessionTables
from statebed.state import Combine, KeyedView, TableConfig, timestamp_table_config
from statebed.state.live.files import BEGINNING, END

TIMERS = "timers"
_LEAST_BIN_US = 60_000_000
FOREVER = dt.timedelta(days=36_500_000)


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
        return SessionTables(self.state_keys, self.partials)

    @property
    def stored_fields(self) -> Iterable[pa.Field]:
        return (*self.state_keys, *self.sessions.fields)

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        timers = timestamp_table_config(
            TIMERS,
            "when a session of a key may close",
            FOREVER,
            False,
            pa.schema(self.state_keys),
            keys=[key.name for key in self.state_keys],
            bin_width=dt.timedelta(microseconds=max(self.window.gap_us, _LEAST_BIN_US)),
        )
        return {**self.sessions.configs, TIMERS: timers}

    @property
    def earlier_tables(self) -> Mapping[str, Sequence[TableConfig]]:
        return {SESSIONS: self.sessions.listed}

    def upgrade(self, name: str, earlier: KeyedView, tables: Tables, clock: Clock) -> None:  # noqa: ARG002 - one table
        """Move the lists of an earlier version to rows of their own."""
        for rows in earlier.scan():
            self.sessions.put_lists(tables, rows)

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
            tables.get_time_keyed(TIMERS).prefetch(None, min(clock.watermark_us + 1, END), spare=True)
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
        keyed = by_key(rows, self.inputs[0])
        keys, place = self._touched(tables, keyed.keys, clock.watermark_us)
        new = sessions_of_rows(keyed.rows, place[keyed.key_index], self.window.gap_us, self.partials)
        stored = self.sessions.read(tables, keys, new, clock.watermark_us)
        old = stored.all
        merged, unchanged = merged_sessions(old, new, self.partials)
        stays = np.ones(len(merged), dtype=np.bool_)
        if clock.watermark_us is not None:
            stays = merged.ends + self.lateness_us > clock.watermark_us
        self._keep(
            tables, keys, stored, merged.where(stays), unchanged=unchanged[stays], watermark_us=clock.watermark_us
        )
        before = self._results(keys, old.where(self._shown(old, clock.late_us)))
        after = self._results(keys, merged.where(self._shown(merged, clock.watermark_us)))
        output = self.outputs[MAIN]
        if output.changes is Changes.CHANGELOG:
            return difference(before, after).cast(output.schema)
        return after

    def _touched(self, tables: Tables, fed: pa.Table, watermark_us: int | None) -> tuple[pa.Table, Integers]:
        """Return the distinct keys that have rows or are due, and the positions among them of those that have rows."""
        timers = tables.get_time_keyed(TIMERS)
        due = fed.slice(0, 0)
        if watermark_us is not None:
            behind = min(watermark_us + 1, END)
            due = timers.read(None, behind).select(fed.schema.names)
            timers.delete_times(BEGINNING, behind)
        return distinct_keys(pa.concat_tables([fed, due.cast(fed.schema)]), fed.num_rows)

    def _keep(
        self,
        tables: Tables,
        keys: pa.Table,
        stored: OpenSessions,
        kept: Sessions,
        *,
        unchanged: Integers,
        watermark_us: int | None,
    ) -> None:
        """Write the sessions that stay, and set a timer of each key for the first of them that will change."""
        starts = np.flatnonzero(np.diff(kept.key_index, prepend=-1))
        filled = kept.key_index[starts]
        changes = self._next_change(kept, watermark_us)
        first = np.minimum.reduceat(changes, starts) if len(starts) else changes
        pending = stored.pending.take(from_numpy(filled, pa.int64()))
        armed = int64_values(pending.fill_null(0))
        is_armed = validity(pending) & (armed <= first)
        if watermark_us is not None:
            is_armed &= armed > watermark_us
        unarmed = taken(keys, filled[~is_armed])
        times = from_numpy(first[~is_armed], TIMESTAMP)
        tables.get_time_keyed(TIMERS).append(unarmed.append_column(pa.field(TIME, TIMESTAMP), times))
        due = np.where(is_armed, armed, first)
        self.sessions.write(tables, keys, stored, kept, unchanged=unchanged, pending=due)

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

    def finished(self, rows: pa.Table, elements: Elements) -> pa.Table:
        """Return results so far from rows of the table of keys, one row per session.

        Rows may be of an earlier version. `elements` reads the table of earlier sessions.
        """
        sessions = self.sessions.stored_sessions(rows, elements)
        return self._results(rows, sessions).select(self.outputs[MAIN].columns.names)

    def _results(self, keys: pa.Table, sessions: Sessions) -> pa.Table:
        """Return rows of the main output, without weights, sorted by key and start."""
        session_keys = taken(keys, sessions.key_index)
        columns = [
            *(session_keys[key.name] for key in self.keys),
            from_numpy(sessions.starts, TIMESTAMP),
            from_numpy(sessions.ends, TIMESTAMP),
            *self.partials.finish([one_chunk(sessions.partials[field.name]) for field in self.partials.fields]),
            from_numpy(sessions.ends - 1, TIMESTAMP),
        ]
        fields = [*self.outputs[MAIN].columns, pa.field(TIME, TIMESTAMP)]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))
