"""Tables of open sessions.

Nearly every key has one open session, so the row of a key holds its newest one. Earlier sessions, which stay open
until the watermark and the allowed lateness have passed them, are rows of their own in a multiset table, by the cells
of `session_grid`. Only those are read that a new row may belong to, or whose timers are due: a key may have millions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import from_numpy, int64_values, one_chunk, validity
from statebed.arrays.grouping import Flags, Integers
from statebed.format.schema import TIMESTAMP
from statebed.operators.aggregation import WINDOW_END, WINDOW_START
from statebed.operators.input_rows import filtered
from statebed.operators.keyed_rows import taken
from statebed.operators.operator import Elements, Tables
from statebed.operators.windows.merged_sessions import Sessions, distinct_keys, merged_sessions
from statebed.operators.windows.session_grid import Cells, cells_of, level_bits, touched_cells
from statebed.operators.windows.session_partials import SessionPartials
from statebed.state import KeyedView, TableConfig, keyed_table_config, multiset_table_config

SESSIONS = "sessions"
EARLIER = "earlier_sessions"
PENDING = "_pending"
"""Column with the time at which the timer of a key is due."""
EARLIER_UNTIL = "_earlier_until"
"""Column with a time at which all earlier sessions of a key have ended; null if it has none."""
EARLIER_LEVELS = "_earlier_levels"
"""Column with a bit for each level that earlier sessions of a key may have; null if it has none."""
EARLIER_CHANGES = "_earlier_changes"
"""Column that changes with the earlier sessions of a key, so that comparing two epochs finds the key."""
LEVEL, CELL = pa.field("_level", pa.int64()), pa.field("_cell", pa.int64())
_LISTED_PENDING = "pending"
_LISTED_EDGES = ("start", "end")
_CHANGES_MASK = np.int64((1 << 31) - 1)
_NEVER = np.int64(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class DueSessions:
    """Earlier sessions whose timers are due. They may have changed since their timers were set."""

    key_index: Integers
    starts: Integers
    ends: Integers


@dataclass(frozen=True)
class OpenSessions:
    """Sessions of some keys in the state: the newest of each, and those earlier ones that may change."""

    stored: pa.Table
    """Row of each key."""
    is_stored: Flags
    earlier: Sessions
    is_due: Flags
    """Earlier sessions whose timers are due."""
    newest: Sessions

    @cached_property
    def all(self) -> Sessions:
        """All sessions that were read, the earlier ones first."""
        if not len(self.earlier):
            return self.newest
        return self.earlier.concatenated(self.newest)

    @property
    def pending(self) -> pa.Array:
        """Time at which the timer of each key is due; null if it has none."""
        return one_chunk(self.stored[PENDING])


@dataclass(frozen=True)
class KeptSessions:
    """Sessions that stay open, of those that were read and the new ones, sorted by key and start."""

    sessions: Sessions
    unchanged: Integers
    """Position in `OpenSessions.all` of each session that is as it was, or -1."""

    @cached_property
    def firsts(self) -> Integers:
        """Position of the first session of each key that has any."""
        return np.flatnonzero(np.diff(self.sessions.key_index, prepend=-1))

    @cached_property
    def lasts(self) -> Integers:
        """Position of the newest session of each key that has any."""
        return np.append(self.firsts[1:], len(self.sessions))[: len(self.firsts)] - 1

    @property
    def filled(self) -> Integers:
        """Position of each key that has any."""
        return self.sessions.key_index[self.lasts]

    @cached_property
    def is_newest(self) -> Flags:
        newest = np.zeros(len(self.sessions), dtype=np.bool_)
        newest[self.lasts] = True
        return newest

    def is_as_before(self, before: OpenSessions) -> Flags:
        """Return which earlier sessions were earlier ones before, and are unchanged."""
        return ~self.is_newest & (self.unchanged >= 0) & (self.unchanged < len(before.earlier))

    def is_unarmed(self, before: OpenSessions) -> Flags:
        """Return which earlier sessions have no timer, because it fired or was never set."""
        armed = self.is_as_before(before)
        armed[armed] = ~before.is_due[self.unchanged[armed]]
        return ~self.is_newest & ~armed


@dataclass(frozen=True)
class SessionTables:
    """Tables of the sessions of one operator."""

    keys: tuple[pa.Field, ...]
    partials: SessionPartials
    gap_us: int

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Value columns of the row of a key."""
        return (
            *self.edges,
            *self.partials.fields,
            pa.field(PENDING, TIMESTAMP),
            pa.field(EARLIER_UNTIL, TIMESTAMP),
            pa.field(EARLIER_CHANGES, pa.int32()),
            pa.field(EARLIER_LEVELS, pa.int64()),
        )

    @property
    def edges(self) -> tuple[pa.Field, pa.Field]:
        """Columns of the start and the end of a session."""
        return pa.field(WINDOW_START, TIMESTAMP), pa.field(WINDOW_END, TIMESTAMP)

    @property
    def _earlier_fields(self) -> tuple[pa.Field, ...]:
        """Value columns of an earlier session."""
        return (*self.edges, *self.partials.fields)

    @cached_property
    def configs(self) -> Mapping[str, TableConfig]:
        names = [key.name for key in self.keys]
        newest = pa.schema([*self.keys, *self.fields])
        earlier = pa.schema([*self.keys, LEVEL, CELL, *self._earlier_fields])
        return {
            SESSIONS: keyed_table_config(SESSIONS, "newest open session by key", names, newest),
            EARLIER: multiset_table_config(
                EARLIER, "other open sessions of the keys", names, [LEVEL.name, CELL.name], earlier
            ),
        }

    @cached_property
    def earlier_configs(self) -> Mapping[str, Sequence[TableConfig]]:
        """Configurations of earlier versions: a list of all sessions of a key, and earlier sessions by their start."""
        names = [key.name for key in self.keys]
        by_start = multiset_table_config(
            EARLIER,
            "other open sessions of the keys",
            names,
            [WINDOW_START],
            pa.schema([*self.keys, *self.edges, *self.partials.partials.fields]),
        )
        if {SESSIONS, _LISTED_PENDING} & set(names):
            return {EARLIER: (by_start,)}  # the version with lists refused these names
        values = [pa.field(SESSIONS, self._list_type), pa.field(_LISTED_PENDING, TIMESTAMP)]
        listed = keyed_table_config(SESSIONS, "open sessions by key", names, pa.schema([*self.keys, *values]))
        return {SESSIONS: (listed,), EARLIER: (by_start,)}

    # ---- reading ---------------------------------------------------------------------------------------------

    def read(self, tables: Tables, keys: pa.Table, new: Sessions, due: DueSessions) -> OpenSessions:
        """Return the newest session of each key, and the earlier ones that are due or that new sessions may touch."""
        stored, is_stored = tables.get_keyed(SESSIONS).get(keys)
        touched = self._touched(stored, new)
        cells = touched.concatenated(cells_of(due.key_index, due.starts, due.ends, self.gap_us))
        earlier, at = self._earlier_in(tables, keys, cells)
        is_due = at >= len(touched)
        is_due[is_due] = earlier.starts[is_due] == due.starts[at[is_due] - len(touched)]
        # Several new sessions and timers may lead to one cell.
        order = np.lexsort((earlier.starts, earlier.key_index))
        earlier, is_due = earlier.take(order), is_due[order]
        is_first = np.ones(len(earlier), dtype=np.bool_)
        is_first[1:] = (np.diff(earlier.key_index) != 0) | (np.diff(earlier.starts) != 0)
        if len(earlier):
            is_due = np.logical_or.reduceat(is_due, np.flatnonzero(is_first))
        return OpenSessions(stored, is_stored, earlier.where(is_first), is_due, self._newest(stored, is_stored))

    def _touched(self, stored: pa.Table, new: Sessions) -> Cells:
        """Return the cells of earlier sessions that new ones may touch; some of them more than once."""
        until = one_chunk(stored[EARLIER_UNTIL])
        lasts = np.where(validity(until), int64_values(until.fill_null(0)), _NEVER)
        at = np.flatnonzero(new.starts <= lasts[new.key_index])
        levels = int64_values(one_chunk(stored[EARLIER_LEVELS]).fill_null(0))
        key_index = new.key_index[at]
        return touched_cells(key_index, new.starts[at], new.ends[at], levels[key_index], self.gap_us)

    def _earlier_in(self, tables: Tables, keys: pa.Table, cells: Cells) -> tuple[Sessions, Integers]:
        """Return the earlier sessions in some cells, and the positions of their cells."""
        rows, has_session = pa.schema(self._earlier_fields).empty_table(), np.zeros(0, dtype=np.bool_)
        if len(cells):
            rows, has_session = tables.get_keyed(EARLIER).get(self._cell_keys(keys, cells))
        at = np.flatnonzero(has_session)
        return self._sessions(cells.key_index[at], filtered(rows, has_session)), at

    def stored_sessions(self, rows: pa.Table, elements: Elements) -> Sessions:
        """Return all sessions of rows of the table of keys, in the layout of any version."""
        if WINDOW_START not in rows.column_names:
            return self._from_lists(one_chunk(rows[SESSIONS]))
        keys = rows.select([key.name for key in self.keys])
        newest = self._newest(rows, np.ones(rows.num_rows, dtype=np.bool_))
        has_earlier = validity(one_chunk(rows[EARLIER_UNTIL]))
        if not has_earlier.any():
            return newest
        at = np.flatnonzero(has_earlier)
        groups = taken(keys, at)
        parts = []
        for part in elements(EARLIER, groups):
            places = _places(groups, part.select(keys.column_names))
            parts.append(self._sessions(at[places[places >= 0]], filtered(part, places >= 0)))
        earlier = self._sessions(np.zeros(0, dtype=np.int64), pa.schema(self._earlier_fields).empty_table())
        for sessions in parts:
            earlier = earlier.concatenated(sessions)
        return merged_sessions(earlier, newest, self.partials).sessions

    def _newest(self, stored: pa.Table, is_stored: Flags) -> Sessions:
        fields = [field.name for field in self._earlier_fields if field.name in stored.column_names]
        return self._sessions(np.flatnonzero(is_stored), filtered(stored.select(fields), is_stored))

    def _sessions(self, key_index: Integers, rows: pa.Table) -> Sessions:
        starts, ends = (int64_values(rows[name]) for name in (WINDOW_START, WINDOW_END))
        columns = [one_chunk(rows[field.name]) for field in self.partials.fields if field.name in rows.column_names]
        return Sessions(key_index, starts, ends, self._partials_of(columns))

    def _partials_of(self, columns: Sequence[pa.Array]) -> pa.Table:
        """Return a table of partials; those of earlier versions lack the last columns."""
        fields = self.partials.fields
        count = len(columns[0]) if columns else 0
        missing = [pa.nulls(count, field.type) for field in fields[len(columns) :]]
        return pa.Table.from_arrays([*columns, *missing], schema=pa.schema(fields))

    # ---- writing ---------------------------------------------------------------------------------------------

    def write(
        self,
        tables: Tables,
        keys: pa.Table,
        before: OpenSessions,
        kept: KeptSessions,
        *,
        pending: Integers,
        left_us: int | None,
    ) -> None:
        """Replace the sessions that were read by those that stay open.

        `pending` is the time at which the timer of each key that has sessions is due. Sessions that ended at or before
        `left_us` have left the state.
        """
        is_filled = np.zeros(keys.num_rows, dtype=np.bool_)
        is_filled[kept.filled] = True
        changed = self._write_earlier(tables, keys, before, kept)
        newest = kept.sessions.where(kept.is_newest)
        columns = {
            WINDOW_START: from_numpy(newest.starts, TIMESTAMP),
            WINDOW_END: from_numpy(newest.ends, TIMESTAMP),
            **{field.name: newest.partials[field.name] for field in self.partials.fields},
            PENDING: from_numpy(pending, TIMESTAMP),
            **self._about_earlier(before, kept, changed, left_us),
        }
        values = pa.table([columns[field.name] for field in self.fields], schema=pa.schema(self.fields))
        tables.get_keyed(SESSIONS).replace(keys, values, is_filled)

    def _write_earlier(self, tables: Tables, keys: pa.Table, before: OpenSessions, kept: KeptSessions) -> Flags:
        """Write the sessions that are not the newest of their keys, and return the keys for which anything changed."""
        changed = np.zeros(keys.num_rows, dtype=np.bool_)
        if kept.is_newest.all() and not len(before.earlier):
            return changed
        stays = kept.is_as_before(before)
        gone = np.ones(len(before.earlier), dtype=np.bool_)
        gone[kept.unchanged[stays]] = False
        removed, added = before.earlier.where(gone), kept.sessions.where(~kept.is_newest & ~stays)
        tables.get_keyed(EARLIER).delete(self._cell_keys(keys, self._cells(removed)))
        self._put_earlier(tables, keys, added)
        changed[removed.key_index] = True
        changed[added.key_index] = True
        return changed

    def _put_earlier(self, tables: Tables, keys: pa.Table, sessions: Sessions) -> None:
        if not len(sessions):
            return
        edges = (from_numpy(times, TIMESTAMP) for times in (sessions.starts, sessions.ends))
        tables.get_keyed(EARLIER).upsert(
            self._cell_keys(keys, self._cells(sessions)),
            pa.Table.from_arrays(
                [*edges, *map(one_chunk, sessions.partials.columns)], schema=pa.schema(self._earlier_fields)
            ),
        )

    def _about_earlier(
        self, before: OpenSessions, kept: KeptSessions, changed: Flags, left_us: int | None
    ) -> dict[str, pa.Array]:
        """Return the columns about earlier sessions of the keys that have sessions."""
        filled = kept.filled
        until, changes = one_chunk(before.stored[EARLIER_UNTIL]), one_chunk(before.stored[EARLIER_CHANGES])
        if until.null_count == len(until) and changes.null_count == len(changes) and not changed.any():
            count = len(filled)
            return {
                EARLIER_UNTIL: pa.nulls(count, TIMESTAMP),
                EARLIER_CHANGES: pa.nulls(count, pa.int32()),
                EARLIER_LEVELS: pa.nulls(count, pa.int64()),
            }
        # Earlier sessions that were not read are still there, until the latest of them has left.
        latest = np.where(validity(until), int64_values(until.fill_null(0)), _NEVER)[filled]
        if left_us is not None:
            latest[latest <= left_us] = _NEVER
        levels = int64_values(one_chunk(before.stored[EARLIER_LEVELS]).fill_null(0))[filled]
        levels[latest == _NEVER] = 0
        bits = np.zeros(len(kept.sessions), dtype=np.int64)
        bits[~kept.is_newest] = level_bits(self._cells(kept.sessions.where(~kept.is_newest)).levels)
        levels |= np.bitwise_or.reduceat(bits, kept.firsts)
        several = kept.lasts > kept.firsts
        latest[several] = np.maximum(latest[several], kept.sessions.ends[kept.lasts[several] - 1])
        number = int64_values(changes.cast(pa.int64()).fill_null(0))[filled] + changed[filled]
        has_earlier = latest > _NEVER
        return {
            EARLIER_UNTIL: from_numpy(latest, TIMESTAMP, valid=has_earlier),
            EARLIER_CHANGES: from_numpy((number & _CHANGES_MASK).astype(np.int32), pa.int32(), valid=number > 0),
            EARLIER_LEVELS: from_numpy(levels, pa.int64(), valid=has_earlier),
        }

    def _cells(self, sessions: Sessions) -> Cells:
        return cells_of(sessions.key_index, sessions.starts, sessions.ends, self.gap_us)

    def _cell_keys(self, keys: pa.Table, cells: Cells) -> pa.Table:
        rows = taken(keys, cells.key_index)
        for field, values in ((LEVEL, cells.levels), (CELL, cells.cells)):
            rows = rows.append_column(field, from_numpy(values, pa.int64()))
        return rows

    # ---- tables of earlier versions --------------------------------------------------------------------------

    def upgraded(self, name: str, earlier: KeyedView, tables: Tables) -> Iterator[tuple[pa.Table, Sessions]]:
        """Write rows of a table of an earlier version to those of today, and yield the keys and their earlier sessions,
        which have no timers yet.
        """
        put = {SESSIONS: self._put_lists, EARLIER: self._put_by_start}[name]
        for rows in earlier.scan():
            yield put(tables, rows)

    def _put_lists(self, tables: Tables, rows: pa.Table) -> tuple[pa.Table, Sessions]:
        keys = rows.select([key.name for key in self.keys])
        sessions = self._from_lists(one_chunk(rows[SESSIONS]))
        kept = KeptSessions(sessions, np.full(len(sessions), -1, dtype=np.int64))
        stored, is_stored = tables.get_keyed(SESSIONS).get(keys)
        nothing = sessions.where(np.zeros(len(sessions), dtype=np.bool_))
        before = OpenSessions(stored, is_stored, nothing, np.zeros(0, dtype=np.bool_), nothing)
        pending = int64_values(rows[_LISTED_PENDING])[kept.filled]
        self.write(tables, keys, before, kept, pending=pending, left_us=None)
        return keys, sessions.where(~kept.is_newest)

    def _put_by_start(self, tables: Tables, rows: pa.Table) -> tuple[pa.Table, Sessions]:
        keys, key_index = distinct_keys(rows.select([key.name for key in self.keys]), rows.num_rows)
        sessions = self._sessions(key_index, rows)
        self._put_earlier(tables, keys, sessions)
        view = tables.get_keyed(SESSIONS)
        stored, _ = view.get(keys)
        levels = int64_values(one_chunk(stored[EARLIER_LEVELS]).fill_null(0)).copy()
        np.bitwise_or.at(levels, key_index, level_bits(self._cells(sessions).levels))
        at = stored.schema.get_field_index(EARLIER_LEVELS)
        view.upsert(keys, stored.set_column(at, stored.schema.field(at), from_numpy(levels, pa.int64())))
        return keys, sessions

    @property
    def _list_type(self) -> pa.DataType:
        edges = [pa.field(name, pa.int64()) for name in _LISTED_EDGES]
        return pa.list_(pa.field("element", pa.struct([*edges, *self.partials.partials.fields])))

    def _from_lists(self, lists: pa.Array) -> Sessions:
        lengths = int64_values(pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64()))
        starts, ends, *columns = lists.flatten().flatten()
        return Sessions(
            np.repeat(np.arange(len(lists), dtype=np.int64), lengths),
            int64_values(starts),
            int64_values(ends),
            self._partials_of(columns),
        )


def _places(keys: pa.Table, others: pa.Table) -> Integers:
    """Return the position in `keys` of each of the others; -1 if it is none of them."""
    both = pa.concat_tables([keys, others.cast(keys.schema)])
    distinct, groups = distinct_keys(both, both.num_rows)
    place = np.full(distinct.num_rows, -1, dtype=np.int64)
    place[groups[: keys.num_rows]] = np.arange(keys.num_rows)
    return place[groups[keys.num_rows :]]
