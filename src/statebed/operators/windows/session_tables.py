"""Tables of open sessions.

Nearly every key has one open session, so the row of a key holds its newest one. Earlier sessions, which stay open
until the watermark and the allowed lateness have passed them, are rows of their own in a multiset table. They are read
only if they may close or if a new row may belong to one of them: the row of the key has the time until which they last.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.aggregates.partials import Partials
from statebed.arrays.columns import from_numpy, int64_values, one_chunk, validity
from statebed.arrays.grouping import Flags, Integers
from statebed.format.schema import TIMESTAMP
from statebed.operators.aggregation import WINDOW_END, WINDOW_START
from statebed.operators.input_rows import filtered
from statebed.operators.keyed_rows import taken
from statebed.operators.operator import Elements, Tables
from statebed.operators.windows.merged_sessions import Sessions, distinct_keys, merged_sessions
from statebed.state import ElementPage, TableConfig, keyed_table_config, multiset_table_config

SESSIONS = "sessions"
EARLIER = "earlier_sessions"
PENDING = "_pending"
"""Column with the time at which the timer of a key is due."""
EARLIER_UNTIL = "_earlier_until"
"""Column with the latest end of the earlier sessions of a key; null if it has none."""
EARLIER_CHANGES = "_earlier_changes"
"""Column that changes with the earlier sessions of a key, so that comparing two epochs finds the key."""
_LISTED_PENDING = "pending"
_LISTED_EDGES = ("start", "end")
_CHANGES_MASK = np.int64((1 << 31) - 1)
_NEVER = np.int64(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class OpenSessions:
    """Sessions of some keys in the state, of which earlier ones may not have been read."""

    stored: pa.Table
    """Row of each key."""
    is_stored: Flags
    is_read: Flags
    """Keys whose earlier sessions were read."""
    earlier: Sessions
    newest: Sessions

    @cached_property
    def all(self) -> Sessions:
        """All sessions that were read, the earlier ones first."""
        if not len(self.earlier):
            return self.newest
        return self.earlier.followed_by(self.newest)

    @property
    def pending(self) -> pa.Array:
        """Time at which the timer of each key is due; null if it has none."""
        return one_chunk(self.stored[PENDING])


@dataclass(frozen=True)
class SessionTables:
    """Tables of the sessions of one operator."""

    keys: tuple[pa.Field, ...]
    partials: Partials

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Value columns of the row of a key."""
        return (
            *self._edges,
            *self.partials.fields,
            pa.field(PENDING, TIMESTAMP),
            pa.field(EARLIER_UNTIL, TIMESTAMP),
            pa.field(EARLIER_CHANGES, pa.int32()),
        )

    @cached_property
    def configs(self) -> Mapping[str, TableConfig]:
        names = [key.name for key in self.keys]
        start, end = self._edges
        newest, earlier = pa.schema([*self.keys, *self.fields]), [*self.keys, start, end, *self.partials.fields]
        return {
            SESSIONS: keyed_table_config(SESSIONS, "newest open session by key", names, newest),
            EARLIER: multiset_table_config(
                EARLIER, "other open sessions of the keys", names, [start.name], pa.schema(earlier)
            ),
        }

    @cached_property
    def listed(self) -> Sequence[TableConfig]:
        """Configuration of the table of an earlier version, in which all sessions of a key were one list."""
        names = [key.name for key in self.keys]
        if {SESSIONS, _LISTED_PENDING} & set(names):
            return ()  # that version refused these names
        values = [pa.field(SESSIONS, self._list_type), pa.field(_LISTED_PENDING, TIMESTAMP)]
        return (keyed_table_config(SESSIONS, "open sessions by key", names, pa.schema([*self.keys, *values])),)

    # ---- reading ---------------------------------------------------------------------------------------------

    def read(self, tables: Tables, keys: pa.Table, new: Sessions, watermark_us: int | None) -> OpenSessions:
        """Return the open sessions of keys; earlier ones only if they may close, or if new sessions may touch them."""
        stored, is_stored = tables.get_keyed(SESSIONS).get(keys)
        is_read = self._may_change(stored, new, watermark_us)
        pages: Iterable[ElementPage] = ()
        if is_read.any():
            pages = tables.get_keyed(EARLIER).elements(filtered(keys, is_read))
        at = np.flatnonzero(is_read)
        earlier = self._earlier([(at[page.groups], page.rows) for page in pages])
        return OpenSessions(stored, is_stored, is_read, earlier, self._newest(stored, is_stored))

    def _may_change(self, stored: pa.Table, new: Sessions, watermark_us: int | None) -> Flags:
        """Return for each key whether its earlier sessions may change: one is due, or a new session begins before they
        all have ended.
        """
        until = one_chunk(stored[EARLIER_UNTIL])
        has_earlier = validity(until)
        if not has_earlier.any():
            return has_earlier
        begin = np.full(len(until), np.iinfo(np.int64).max)
        np.minimum.at(begin, new.key_index, new.starts)
        changes = begin <= int64_values(until.fill_null(0))
        if watermark_us is not None:
            changes |= int64_values(one_chunk(stored[PENDING]).fill_null(0)) <= watermark_us
        return has_earlier & changes

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
            parts.append((at[places[places >= 0]], filtered(part, places >= 0)))
        return merged_sessions(self._earlier(parts), newest, self.partials)[0]

    def _newest(self, stored: pa.Table, is_stored: Flags) -> Sessions:
        at = np.flatnonzero(is_stored)
        return self._sessions(at, filtered(stored, is_stored))

    def _earlier(self, parts: Sequence[tuple[Integers, pa.Table]]) -> Sessions:
        schema = pa.schema([*self._edges, *self.partials.fields])
        rows = pa.concat_tables([schema.empty_table(), *(part.select(schema.names).cast(schema) for _, part in parts)])
        places = np.concatenate([np.zeros(0, dtype=np.int64), *(place for place, _ in parts)])
        order = np.argsort(places, kind="stable")
        return self._sessions(places[order], taken(rows, order))

    def _sessions(self, key_index: Integers, rows: pa.Table) -> Sessions:
        starts, ends = (int64_values(rows[name]) for name in (WINDOW_START, WINDOW_END))
        columns = [one_chunk(rows[field.name]) for field in self.partials.fields]
        return Sessions(key_index, starts, ends, pa.Table.from_arrays(columns, schema=pa.schema(self.partials.fields)))

    # ---- writing ---------------------------------------------------------------------------------------------

    def write(
        self,
        tables: Tables,
        keys: pa.Table,
        before: OpenSessions,
        kept: Sessions,
        *,
        unchanged: Integers,
        pending: Integers,
    ) -> None:
        """Replace the sessions that were read by those that stay open, which are sorted by key and start.

        `unchanged` is the position in `before.all` of each session that is as it was, or -1. `pending` is the time at
        which the timer is due of each key that has sessions.
        """
        counts = np.bincount(kept.key_index, minlength=keys.num_rows)
        view = tables.get_keyed(SESSIONS)
        view.delete(filtered(keys, before.is_stored & (counts == 0)))
        filled = np.flatnonzero(counts)
        lasts = np.cumsum(counts[filled]) - 1
        is_newest = np.zeros(len(kept), dtype=np.bool_)
        is_newest[lasts] = True
        changed = self._write_earlier(tables, keys, before, kept, is_newest=is_newest, unchanged=unchanged)
        if not len(filled):
            return
        newest = kept.where(is_newest)
        columns = {
            WINDOW_START: from_numpy(newest.starts, TIMESTAMP),
            WINDOW_END: from_numpy(newest.ends, TIMESTAMP),
            **{field.name: newest.partials[field.name] for field in self.partials.fields},
            PENDING: from_numpy(pending, TIMESTAMP),
            **self._of_earlier(before, kept, filled, lasts, changed),
        }
        filled_keys = keys if len(filled) == keys.num_rows else taken(keys, filled)
        view.upsert(
            filled_keys, pa.table([columns[field.name] for field in self.fields], schema=pa.schema(self.fields))
        )

    def _write_earlier(
        self,
        tables: Tables,
        keys: pa.Table,
        before: OpenSessions,
        kept: Sessions,
        *,
        is_newest: Flags,
        unchanged: Integers,
    ) -> Flags:
        """Write the sessions that are not the newest of their keys, and return the keys for which anything changed."""
        changed = np.zeros(keys.num_rows, dtype=np.bool_)
        if is_newest.all() and not len(before.earlier):
            return changed
        view = tables.get_keyed(EARLIER)
        stays = ~is_newest & (unchanged >= 0) & (unchanged < len(before.earlier))
        gone = np.ones(len(before.earlier), dtype=np.bool_)
        gone[unchanged[stays]] = False
        removed, added = before.earlier.where(gone), kept.where(~is_newest & ~stays)
        view.delete(self._element_keys(keys, removed))
        if len(added):
            view.upsert(
                self._element_keys(keys, added),
                pa.Table.from_arrays(
                    [from_numpy(added.ends, TIMESTAMP), *map(one_chunk, added.partials.columns)],
                    schema=pa.schema([self._edges[1], *self.partials.fields]),
                ),
            )
        changed[removed.key_index] = True
        changed[added.key_index] = True
        return changed

    def _of_earlier(
        self, before: OpenSessions, kept: Sessions, filled: Integers, lasts: Integers, changed: Flags
    ) -> dict[str, pa.Array]:
        """Return the columns about earlier sessions of the keys at `filled`."""
        until, changes = one_chunk(before.stored[EARLIER_UNTIL]), one_chunk(before.stored[EARLIER_CHANGES])
        if until.null_count == len(until) and changes.null_count == len(changes) and not changed.any():
            count = len(filled)
            return {EARLIER_UNTIL: pa.nulls(count, TIMESTAMP), EARLIER_CHANGES: pa.nulls(count, pa.int32())}
        unread = validity(until)[filled] & ~before.is_read[filled]
        latest = np.where(unread, int64_values(until.fill_null(0))[filled], _NEVER)
        several = np.diff(lasts, prepend=-1) > 1
        latest[several] = np.maximum(latest[several], kept.ends[lasts[several] - 1])
        number = int64_values(changes.cast(pa.int64()).fill_null(0))[filled] + changed[filled]
        return {
            EARLIER_UNTIL: from_numpy(latest, TIMESTAMP, valid=latest > _NEVER),
            EARLIER_CHANGES: from_numpy((number & _CHANGES_MASK).astype(np.int32), pa.int32(), valid=number > 0),
        }

    def _element_keys(self, keys: pa.Table, sessions: Sessions) -> pa.Table:
        rows = taken(keys, sessions.key_index)
        return rows.append_column(self._edges[0], from_numpy(sessions.starts, TIMESTAMP))

    # ---- lists of an earlier version -------------------------------------------------------------------------

    def put_lists(self, tables: Tables, rows: pa.Table) -> None:
        """Write rows of the table of an earlier version to the tables of today."""
        keys = rows.select([key.name for key in self.keys])
        kept = self._from_lists(one_chunk(rows[SESSIONS]))
        stored, is_stored = tables.get_keyed(SESSIONS).get(keys)
        nothing = kept.where(np.zeros(len(kept), dtype=np.bool_))
        before = OpenSessions(stored, is_stored, np.zeros(len(is_stored), dtype=np.bool_), nothing, nothing)
        unchanged = np.full(len(kept), -1, dtype=np.int64)
        self.write(tables, keys, before, kept, unchanged=unchanged, pending=int64_values(rows[_LISTED_PENDING]))

    @property
    def _edges(self) -> tuple[pa.Field, pa.Field]:
        return pa.field(WINDOW_START, TIMESTAMP), pa.field(WINDOW_END, TIMESTAMP)

    @property
    def _list_type(self) -> pa.DataType:
        edges = [pa.field(name, pa.int64()) for name in _LISTED_EDGES]
        return pa.list_(pa.field("element", pa.struct([*edges, *self.partials.fields])))

    def _from_lists(self, lists: pa.Array) -> Sessions:
        lengths = int64_values(pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64()))
        starts, ends, *columns = lists.flatten().flatten()
        return Sessions(
            np.repeat(np.arange(len(lists), dtype=np.int64), lengths),
            int64_values(starts),
            int64_values(ends),
            pa.Table.from_arrays(columns, schema=pa.schema(self.partials.fields)),
        )


def _places(keys: pa.Table, others: pa.Table) -> Integers:
    """Return the position in `keys` of each of the others; -1 if it is none of them."""
    both = pa.concat_tables([keys, others.cast(keys.schema)])
    distinct, groups = distinct_keys(both, both.num_rows)
    place = np.full(distinct.num_rows, -1, dtype=np.int64)
    place[groups[: keys.num_rows]] = np.arange(keys.num_rows)
    return place[groups[keys.num_rows :]]
