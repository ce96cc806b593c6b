"""Rows of an epoch by key: the rows of one key stand together, in total order, whatever order they came in.

Operators that keep something per key look all distinct keys up at once, and work on the runs of rows that belong to
each. Without keys all rows are one run; the state then has one row, under a key that is null, whose hash is that of no
columns at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, one_chunk, uint64_values, validity
from statebed.arrays.grouping import Grouping, group_rows
from statebed.arrays.key_hash import check_key_type
from statebed.arrays.sort_order import Integers, OrderBy, sorted_by, total_keys, user_keys
from statebed.errors import InputError
from statebed.format.schema import KEY_HASH, TIME, check_user_columns
from statebed.format.stream_schema import WEIGHT, Input
from statebed.operators.input_rows import Admitted, admit, filtered
from statebed.operators.time_to_live import TimeToLive, by_event_time

EVERYTHING = pa.field("_everything", pa.bool_())
"""The key of state that is kept for all rows together: null."""


def state_keys(one: Input) -> tuple[pa.Field, ...]:
    """The key columns of the tables in which an operator keeps something per key of its input."""
    return tuple(one.columns.field(name) for name in one.keys) or (EVERYTHING,)


def check_input(one: Input, *, where: str) -> None:
    """Refuse an input whose columns or keys no operator can take."""
    check_user_columns(one.columns.names, where=where)
    taken = [name for name in one.columns.names if name.lower() == WEIGHT]
    if taken:
        raise InputError(f"the column name {taken[0]!r} is reserved", where=where, fix="rename the column")
    missing = [name for name in one.keys if name not in one.columns.names]
    if missing or len(set(one.keys)) != len(one.keys):
        raise InputError(
            f"the keys {list(one.keys)} are not distinct columns of {one.columns.names}",
            where=where,
            fix="name each key column once, as it stands in the input",
        )
    for name in one.keys:
        check_key_type(one.columns.field(name))


def admit_untimed(rows: pa.Table, late_us: int | None) -> Admitted:
    """Tell late rows from the others, where rows without event time are as good as any."""
    times, timed = int64_values(rows[TIME]), validity(rows[TIME])
    late = np.zeros(rows.num_rows, dtype=np.bool_) if late_us is None else timed & (times <= late_us)
    return Admitted(filtered(rows, ~late), filtered(rows, late))


def admit_updating(rows: pa.Table, ttl: TimeToLive | None, late_us: int | None) -> Admitted:
    """The rows for results that are kept up to date: no window closes there, so no row is too late for them.

    With a time to live by event time, a row is late whose state would be gone at once, or that has no event time.
    """
    if ttl is None or not by_event_time(ttl):
        return admit_untimed(rows, None)
    return admit(rows, None if late_us is None else late_us - ttl.span_us)


@dataclass(frozen=True)
class KeyedRows:
    """Rows sorted by the hash of their key, then by key, then in an order of their own."""

    rows: pa.Table
    keys: pa.Table
    """Each key once, with the columns of `state_keys`."""
    starts: Integers
    """The first row of each key."""

    @property
    def count(self) -> int:
        """How many keys there are."""
        return len(self.starts)

    @cached_property
    def sizes(self) -> Integers:
        """Rows of each key."""
        return np.diff(self.starts, append=np.int64(self.rows.num_rows))

    @cached_property
    def key_index(self) -> Integers:
        """For each row the place of its key in `keys`."""
        return np.repeat(np.arange(self.count, dtype=np.int64), self.sizes)

    @property
    def lasts(self) -> Integers:
        """The last row of each key."""
        return self.starts + self.sizes - 1

    @cached_property
    def latest_times(self) -> pa.Array:
        """The latest event time of each key's rows; null: none has one."""
        column = one_chunk(self.rows[TIME])
        valid = validity(column)
        least = np.int64(np.iinfo(np.int64).min)
        times = np.where(valid, int64_values(column), least)
        if not self.count:
            return column.slice(0, 0)
        latest = np.maximum.reduceat(times, self.starts)
        return from_numpy(latest, column.type, valid=np.logical_or.reduceat(valid, self.starts))


def by_key(rows: pa.Table, one: Input, *, order: Sequence[OrderBy] = ()) -> KeyedRows:
    """The gathered rows of an input by key; those of a key by `order`, then by event time, then by all columns."""
    columns = [one_chunk(rows[name]) for name in one.keys]
    count = rows.num_rows
    hashes = uint64_values(rows[KEY_HASH]) if one.keys else np.zeros(count, dtype=np.uint64)
    grouping = group_rows(np.zeros(count, dtype=np.int64), hashes, columns)
    rest = [name for name in rows.column_names if name not in {KEY_HASH, TIME, *one.keys}]
    ordered = taken(rows, ordered_inside(rows, grouping, order, [TIME, *rest]))
    firsts = taken(ordered, grouping.starts)
    keys = [one_chunk(firsts[name]) for name in one.keys] or [pa.nulls(firsts.num_rows, EVERYTHING.type)]
    return KeyedRows(ordered, pa.Table.from_arrays(keys, schema=pa.schema(state_keys(one))), grouping.starts)


def ordered_inside(rows: pa.Table, grouping: Grouping, order: Sequence[OrderBy], columns: Sequence[str]) -> Integers:
    """The rows of each group by `order`, then by `columns`. Most groups have one row: only the others are sorted."""
    several = np.repeat(grouping.sizes > 1, grouping.sizes)
    if not several.any():
        return grouping.order
    some = grouping.order[several]
    group = np.repeat(np.arange(grouping.groups, dtype=np.int64), grouping.sizes)[several]
    among = taken(rows, some)
    result = grouping.order.copy()
    result[several] = some[sorted_by([group, *user_keys(among, order), *total_keys(among, columns)])]
    return result


def taken(rows: pa.Table, at: Integers) -> pa.Table:
    """Some rows, in the order given, each column in one piece."""
    indices = from_numpy(at, pa.int64())
    return pa.Table.from_arrays([one_chunk(column).take(indices) for column in rows.columns], schema=rows.schema)


def unused_name(name: str, taken_names: Sequence[str]) -> str:
    """The name, behind as many underscores as it takes not to be one of those taken.

    >>> unused_name("_row", ["k", "_row"])
    '__row'
    """
    while name in taken_names:
        name = f"_{name}"
    return name
