"""Timers of keys: one time-keyed table for event-time timers, another for processing-time timers.

A key has at most one timer for each time; setting it again has no effect. Due timers fire together, sorted by time,
then by key.
"""

import datetime as dt
import enum
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, one_chunk, uint64_values, validity
from statebed.arrays.grouping import group_rows
from statebed.errors import InputError
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP
from statebed.operators.keyed_rows import taken
from statebed.operators.operator import Clock
from statebed.state import TableConfig, TimeKeyedView, timestamp_table_config
from statebed.state.live.files import BEGINNING, END

AT = "at"
"""Column of a timer's time."""
_FOR_EVER = dt.timedelta(microseconds=1 << 62)
"""Retention of timers: the watermark never deletes them, they are deleted when they fire."""
_BIN = dt.timedelta(minutes=10)
_NEAR_US = 60_000_000
_FURTHER = 30


class TimerKind(enum.Enum):
    """Clock by which a timer fires; the value is the name of its table."""

    EVENT = "event_timers"
    """Fires when the watermark reaches its time."""
    PROCESSING = "processing_timers"
    """Fires when the epoch time reaches its time."""

    def now_us(self, clock: Clock) -> int | None:
        return clock.watermark_us if self is TimerKind.EVENT else clock.epoch_time_us


def timer_tables(keys: tuple[pa.Field, ...]) -> Mapping[str, TableConfig]:
    """Return the tables of timers by name."""
    return {
        kind.value: timestamp_table_config(
            kind.value,
            f"timers of {kind.name.lower()} time",
            _FOR_EVER,
            True,
            pa.schema(keys),
            keys=[key.name for key in keys],
            bin_width=_BIN,
        )
        for kind in TimerKind
    }


def timer_times(at: pa.Array | pa.ChunkedArray | pa.Scalar | int, count: int, *, where: str) -> pa.Array:
    """Return times of timers as timestamps, one per key; null sets none."""
    if isinstance(at, int):
        at = from_numpy(np.full(count, at, dtype=np.int64), TIMESTAMP)
    if isinstance(at, pa.Scalar):
        at = pa.repeat(at, count)
    if not isinstance(at, pa.Array | pa.ChunkedArray):
        raise InputError(
            f"the times of timers must be an Arrow array, a scalar or microseconds, got {type(at).__name__}",
            where=where,
            fix="pass one timestamp per key; ctx.watermark is None until the first watermark",
        )
    times = one_chunk(at)
    if pa.types.is_timestamp(times.type):
        times = times.cast(pa.timestamp("us", times.type.tz)).view(pa.int64())
    if times.type != pa.int64() or len(times) != count:
        raise InputError(
            f"timers of {count} keys need one timestamp each, got {len(times)} times of type {times.type}",
            where=where,
            fix="pass one timestamp, or one int64 of microseconds, per key; null for no timer",
        )
    return from_numpy(int64_values(times), TIMESTAMP, valid=validity(times))


def set_timers(view: TimeKeyedView, keys: pa.Table, times: pa.Array) -> None:
    """Set a timer for each key whose time is not null."""
    there = np.flatnonzero(validity(times))
    rows = taken(keys, there).append_column(
        pa.field(TIME, TIMESTAMP, nullable=False), times.take(from_numpy(there, pa.int64()))
    )
    if rows.num_rows:
        view.append(rows)


def cancel_timers(view: TimeKeyedView, keys: pa.Table, times: pa.Array) -> None:
    """Cancel the timers of keys at these times; missing ones are ignored."""
    there = np.flatnonzero(validity(times))
    if len(there):
        view.delete_at(taken(keys, there), times.take(from_numpy(there, pa.int64())))


def next_time(view: TimeKeyedView, after_us: int) -> int | None:
    """Return the time of the first timer after `after_us`; None if there is none. It looks further ahead only as
    needed.
    """
    start, span = after_us + 1, _NEAR_US
    while start < END:
        end = min(start + span, END)
        rows = view.read(start, end)
        if rows.num_rows:
            return int(int64_values(rows[TIME]).min())
        start, span = end, span * _FURTHER
    return None


def prefetch_due(view: TimeKeyedView, now_us: int) -> None:
    """Prefetch due timers in the background."""
    view.prefetch(None, min(now_us + 1, END), spare=True)


def take_due(view: TimeKeyedView, now_us: int) -> pa.Table:
    """Remove due timers from the table and return them: `_key_hash`, keys and `_time`, sorted by time and key."""
    behind = min(now_us + 1, END)
    rows = view.read(None, behind, hashed=True)
    if not rows.num_rows:
        return rows
    view.delete_times(BEGINNING, behind)
    keys = [one_chunk(rows[key.name]) for key in view.table.keys]
    grouping = group_rows(int64_values(rows[TIME]), uint64_values(rows[KEY_HASH]), keys)
    return taken(rows, grouping.first_rows)
