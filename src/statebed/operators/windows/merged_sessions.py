"""Sessions of many keys at once: built from rows, and merged if they overlap or touch."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import int64_values, one_chunk
from statebed.arrays.compiled import loops_for
from statebed.arrays.grouping import Flags, Grouping, Integers, group_rows
from statebed.arrays.hash_order import is_ascending
from statebed.arrays.key_hash import hash_columns
from statebed.format.schema import TIME
from statebed.operators.keyed_rows import taken
from statebed.operators.windows.session_partials import SessionPartials

_WORD_BITS = 63


@dataclass(frozen=True)
class Sessions:
    """Sessions of keys, which are identified by their positions."""

    key_index: Integers
    """Position of the key of each session."""
    starts: Integers
    ends: Integers
    partials: pa.Table

    def __len__(self) -> int:
        return len(self.starts)

    def where(self, chosen: Flags) -> "Sessions":
        """Return the sessions whose flag is set."""
        return self if chosen.all() else self.take(np.flatnonzero(chosen))

    def take(self, at: Integers) -> "Sessions":
        """Return the sessions at these positions."""
        return Sessions(self.key_index[at], self.starts[at], self.ends[at], taken(self.partials, at))

    def concatenated(self, others: "Sessions") -> "Sessions":
        """Return these sessions, then the others."""
        return Sessions(
            np.concatenate([self.key_index, others.key_index]),
            np.concatenate([self.starts, others.starts]),
            np.concatenate([self.ends, others.ends]),
            pa.concat_tables([self.partials, others.partials]),
        )


def sessions_of_rows(rows: pa.Table, key_index: Integers, gap_us: int, partials: SessionPartials) -> Sessions:
    """Build sessions from rows alone; rows must be grouped by key and sorted by time."""
    times = int64_values(rows[TIME])
    begins = np.ones(len(times), dtype=np.bool_)
    begins[1:] = (key_index[1:] != key_index[:-1]) | (times[1:] - times[:-1] > gap_us)
    starts = np.flatnonzero(begins)
    lasts = np.append(starts[1:], len(times))[: len(starts)] - 1
    grouping = Grouping(order=np.arange(len(times), dtype=np.int64), starts=starts)
    folded = pa.Table.from_arrays(partials.fold(rows, grouping), schema=pa.schema(partials.fields))
    return Sessions(key_index[starts], times[starts], times[lasts] + gap_us, folded)


@dataclass(frozen=True)
class MergedSessions:
    """Sessions after others were merged with them, sorted by key and start."""

    sessions: Sessions
    unchanged: Integers
    """Position among the sessions before of each that is one of them, unchanged; -1 for all others."""
    grouping: Grouping
    """The sessions before, and then the others, by the session that they have become a part of."""

    @property
    def into(self) -> Integers:
        """Position of the session that each of those before, and then each of the others, has become a part of."""
        return self.grouping.group_of_rows()


def merged_sessions(sessions: Sessions, others: Sessions, partials: SessionPartials) -> MergedSessions:
    """Merge sessions of a key that overlap or touch."""
    both = sessions.concatenated(others)
    grouping, ends = _grouped(both, len(sessions))
    merged = pa.Table.from_arrays(partials.merge(both.partials, grouping), schema=both.partials.schema)
    firsts = grouping.first_rows
    unchanged = np.where((grouping.sizes == 1) & (firsts < len(sessions)), firsts, -1)
    return MergedSessions(Sessions(both.key_index[firsts], both.starts[firsts], ends, merged), unchanged, grouping)


def _grouped(both: Sessions, count: int) -> tuple[Grouping, Integers]:
    """Group sessions, the first `count` of them and others, that overlap or touch; return the end of each group too."""
    keys, starts, ends = both.key_index, both.starts, both.ends
    if (loops := loops_for(len(both))) is not None:
        parts = (slice(0, count), slice(count, len(both)))
        old, new = (_in_order(keys[part], starts[part], ends[part]) for part in parts)
        order, firsts, latest = (np.empty(len(both), dtype=np.int64) for _ in range(3))
        groups = loops.merge_spans((keys, starts, ends), (old, new + count), (order, firsts, latest))
        return Grouping(order=order, starts=firsts[:groups].copy()), latest[:groups].copy()
    order = _in_order(keys, starts, ends)
    latest = _running_ends(keys[order], ends[order])
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (keys[order][1:] != keys[order][:-1]) | (starts[order][1:] > latest[:-1])
    grouping = Grouping(order=order, starts=np.flatnonzero(begins))
    lasts = np.append(grouping.starts[1:], len(order))[: grouping.groups] - 1
    return grouping, latest[lasts]


def _in_order(keys: Integers, starts: Integers, ends: Integers) -> Integers:
    """Return the positions of sessions by key, start and end.

    Old and new sessions are each in order of their keys, which a stable sort merges quickly. Only keys whose sessions
    are then still out of order are sorted by all three.
    """
    if is_ascending(keys):
        order, key, start, end = np.arange(len(keys), dtype=np.int64), keys, starts, ends
    else:
        order = np.argsort(keys, kind="stable")
        key, start, end = keys[order], starts[order], ends[order]
    earlier = (start[1:] < start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] < end[:-1]))
    wrong = np.flatnonzero((key[1:] == key[:-1]) & earlier)
    if len(wrong):
        unordered = np.zeros(int(key[-1]) + 1, dtype=np.bool_)
        unordered[key[wrong]] = True
        at = np.flatnonzero(unordered[key])
        sessions = order[at]
        order[at] = sessions[np.lexsort((ends[sessions], starts[sessions], keys[sessions]))]
    return order.astype(np.int64)


def _running_ends(keys: Integers, ends: Integers) -> Integers:
    """Return the greatest end so far of each key's sessions, which are grouped by ascending key."""
    if not len(ends):
        return ends
    # Key and end are put into one number that grows with both: ends from the first one on, or else their ranks.
    first = int(ends.min())
    bits = (int(ends.max()) - first).bit_length()
    if bits + int(keys[-1]).bit_length() < _WORD_BITS:
        numbers: Integers = (keys << bits) | (ends - first)
        running = np.maximum.accumulate(numbers)
        return (running & ((1 << bits) - 1)) + first
    values, ranks = np.unique(ends, return_inverse=True)
    running = np.maximum.accumulate(keys * len(values) + ranks)
    return values[running - keys * len(values)]


def distinct_keys(keys: pa.Table, first: int) -> tuple[pa.Table, Integers]:
    """Return the distinct keys, and the position among them of each of the first `first` rows."""
    columns = [one_chunk(column) for column in keys.columns]
    grouping = group_rows(None, hash_columns(columns), columns)
    return taken(keys, grouping.first_rows), grouping.group_of_rows()[:first]
