"""Rows of an epoch grouped by key and in total order, regardless of the order of arrival.

Operators with state per key look up all distinct keys at once and work on the run of rows of each key. Without key
columns all rows are one run; the state then has one row under a null key, hashed over no columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, one_chunk, uint64_values, validity
from statebed.arrays.compiled import loops_for
from statebed.arrays.grouping import Grouping, group_rows
from statebed.arrays.key_hash import check_key_type
from statebed.arrays.mutable import taken as taken_values
from statebed.arrays.sort_order import Integers, OrderBy, sorted_by, total_keys, user_keys
from statebed.errors import InputError
from statebed.format.schema import KEY_HASH, TIME
from statebed.format.stream_schema import Input, check_stream_columns
from statebed.operators.input_rows import AdmittedRows, admit, filtered
from statebed.operators.time_to_live import TimeToLive, by_event_time

EVERYTHING = pa.field("_everything", pa.bool_())
"""Key column of state that is shared by all rows; its value is null."""
_MAX_SORTED_IN_PLACE = 64
"""Number of rows of a key up to which inserting one after the other is faster than a sort of all."""


def state_keys(input_: Input) -> tuple[pa.Field, ...]:
    """Return the key columns of the tables with state per key of an input."""
    return tuple(input_.columns.field(name) for name in input_.keys) or (EVERYTHING,)


def check_input(input_: Input, *, where: str) -> None:
    """Raise InputError if an operator cannot take the columns or keys of an input."""
    check_stream_columns(input_.columns.names, where=where)
    missing = [name for name in input_.keys if name not in input_.columns.names]
    if missing or len(set(input_.keys)) != len(input_.keys):
        raise InputError(
            f"the keys {list(input_.keys)} must be distinct columns of the input, which has {input_.columns.names}",
            where=where,
            fix="name each key column once, exactly as in the input",
        )
    for name in input_.keys:
        check_key_type(input_.columns.field(name))


def admit_untimed(rows: pa.Table, late_us: int | None) -> AdmittedRows:
    """Split off late rows; rows without an event time are never late."""
    times, timed = int64_values(rows[TIME]), validity(rows[TIME])
    late = np.zeros(rows.num_rows, dtype=np.bool_) if late_us is None else timed & (times <= late_us)
    return AdmittedRows(filtered(rows, ~late), filtered(rows, late))


def admit_updating(rows: pa.Table, ttl: TimeToLive | None, late_us: int | None) -> AdmittedRows:
    """Split off late rows for continuously updated results: no window closes, so without a time to live no row is late.

    With a time to live by event time, a row is late if its state would expire immediately, or if it has no event time.
    """
    if ttl is None or not by_event_time(ttl):
        return admit_untimed(rows, None)
    return admit(rows, None if late_us is None else late_us - ttl.span_us)


@dataclass(frozen=True)
class KeyedRows:
    """Rows sorted by the hash of their key, then by key, then in total order."""

    unordered: pa.Table
    """Rows as they came."""
    order: Integers
    """Positions of the rows in `unordered`."""
    keys: pa.Table
    """Distinct keys, with the columns of `state_keys`."""
    starts: Integers
    """Position of the first row of each key."""

    @cached_property
    def rows(self) -> pa.Table:
        """All rows, in order."""
        return taken(self.unordered, self.order)

    def at(self, positions: Integers, names: Sequence[str]) -> pa.Table:
        """Return columns of the rows at some positions, without a copy of all rows."""
        return taken(self.unordered.select(names), self.order[positions])

    @property
    def count(self) -> int:
        """Number of keys."""
        return len(self.starts)

    @cached_property
    def sizes(self) -> Integers:
        """Number of rows of each key."""
        return np.diff(self.starts, append=np.int64(len(self.order)))

    @cached_property
    def key_index(self) -> Integers:
        """Position in `keys` of the key of each row."""
        return np.repeat(np.arange(self.count, dtype=np.int64), self.sizes)

    @property
    def lasts(self) -> Integers:
        """Position of the last row of each key."""
        return self.starts + self.sizes - 1

    @cached_property
    def latest_times(self) -> pa.Array:
        """Latest event time of the rows of each key; null if none of them has one."""
        column = one_chunk(self.rows[TIME])
        valid = validity(column)
        earliest = np.int64(np.iinfo(np.int64).min)
        times = np.where(valid, int64_values(column), earliest)
        if not self.count:
            return column.slice(0, 0)
        latest = np.maximum.reduceat(times, self.starts)
        return from_numpy(latest, column.type, valid=np.logical_or.reduceat(valid, self.starts))


def by_key(rows: pa.Table, input_: Input, *, order: Sequence[OrderBy] = (), only_by_time: bool = False) -> KeyedRows:
    """Group the rows of an input by key; sort rows of a key by `order`, then by event time, then by all columns.

    With `only_by_time`, rows of a key are sorted by event time, which no row may lack, and nothing else.
    """
    columns = [one_chunk(rows[name]) for name in input_.keys]
    count = rows.num_rows
    hashes = uint64_values(rows[KEY_HASH]) if input_.keys else np.zeros(count, dtype=np.uint64)
    grouping = group_rows(None, hashes, columns)
    rest = [name for name in rows.column_names if name not in {KEY_HASH, TIME, *input_.keys}]
    ordered = _by_time(rows, grouping) if only_by_time else ordered_inside(rows, grouping, order, [TIME, *rest])
    firsts = ordered[grouping.starts]
    keys = [taken_values(column, firsts) for column in columns] or [pa.nulls(len(firsts), EVERYTHING.type)]
    return KeyedRows(rows, ordered, pa.Table.from_arrays(keys, schema=pa.schema(state_keys(input_))), grouping.starts)


def _by_time(rows: pa.Table, grouping: Grouping) -> Integers:
    loops = loops_for(rows.num_rows)
    if loops is None or grouping.largest > _MAX_SORTED_IN_PLACE:
        return ordered_inside(rows, grouping, (), [TIME])
    ordered = grouping.order.copy()
    loops.sort_groups(ordered, grouping.starts, int64_values(rows[TIME]))
    return ordered


def ordered_inside(rows: pa.Table, grouping: Grouping, order: Sequence[OrderBy], columns: Sequence[str]) -> Integers:
    """Sort the rows of each group by `order`, then by `columns`. Most groups have one row, and only the others are
    sorted.
    """
    several = np.repeat(grouping.sizes > 1, grouping.sizes)
    if not several.any():
        return grouping.order
    of_large_groups = grouping.order[several]
    group = np.repeat(np.arange(grouping.groups, dtype=np.int64), grouping.sizes)[several]
    # A column without values orders nothing.
    columns = [name for name in columns if rows[name].null_count < rows.num_rows]
    among = taken(rows.select(list(dict.fromkeys([*(term.column for term in order), *columns]))), of_large_groups)
    result = grouping.order.copy()
    result[several] = of_large_groups[sorted_by([group, *user_keys(among, order), *total_keys(among, columns)])]
    return result


def taken(rows: pa.Table, at: Integers) -> pa.Table:
    """Return the rows at the positions `at`, each column in one chunk."""
    return pa.Table.from_arrays([taken_values(one_chunk(column), at) for column in rows.columns], schema=rows.schema)


def unused_name(name: str, taken_names: Sequence[str]) -> str:
    """Return the name, prefixed with underscores until it is not among `taken_names`.

    >>> unused_name("_row", ["k", "_row"])
    '__row'
    """
    while name in taken_names:
        name = f"_{name}"
    return name
