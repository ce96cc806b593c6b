"""Timers of keys: a time-keyed table for those of event time, another for those of processing time.

A key has at most one timer for each time; setting it again changes nothing. Timers that are due fire together, in the
order of their times, then by key.
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
"""The column of a timer's time."""
_FOR_EVER = dt.timedelta(microseconds=1 << 62)
"""The watermark does not take timers away: they leave when they have fired."""
_BIN = dt.timedelta(minutes=10)
_NEAR_US = 60_000_000
_FURTHER = 30


class TimerKind(enum.Enum):
    """By which clock a timer fires; the value is the name of its table."""

    EVENT = "event_timers"
    """When the watermark has reached its time."""
    PROCESSING = "processing_timers"
    """When the time of the epoch has reached its time."""

    def now_us(self, clock: Clock) -> int | None:
        return clock.watermark_us if self is TimerKind.EVENT else clock.epoch_time_us


def timer_tables(keys: tuple[pa.Field, ...]) -> Mapping[str, TableConfig]:
    """The tables of timers."""
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
    """Times of timers as microseconds, one for each key; a null sets none."""
    if isinstance(at, int):
        at = from_numpy(np.full(count, at, dtype=np.int64), TIMESTAMP)
    if isinstance(at, pa.Scalar):
        at = pa.repeat(at, count)
    times = one_chunk(at)
    if pa.types.is_timestamp(times.type):
        times = times.cast(pa.timestamp("us", times.type.tz)).view(pa.int64())
    if times.type != pa.int64() or len(times) != count:
        raise InputError(
            f"{len(times)} times of timers of the type {times.type} for {count} keys",
            where=where,
            fix="give one timestamp, or one int64 of microseconds, for each key; null for none",
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
    """Forget the timers of keys at these times; there need be none."""
    there = np.flatnonzero(validity(times))
    if len(there):
        view.delete_at(taken(keys, there), times.take(from_numpy(there, pa.int64())))


def next_time(view: TimeKeyedView, after_us: int) -> int | None:
    """The time of the first timer after a moment; looks further ahead only while it finds none."""
    start, span = after_us + 1, _NEAR_US
    while start < END:
        end = min(start + span, END)
        rows = view.read(start, end)
        if rows.num_rows:
            return int(int64_values(rows[TIME]).min())
        start, span = end, span * _FURTHER
    return None


def prefetch_due(view: TimeKeyedView, now_us: int) -> None:
    """Load timers that are due in the background."""
    view.prefetch(None, min(now_us + 1, END), spare=True)


def take_due(view: TimeKeyedView, now_us: int) -> pa.Table:
    """Take the timers that are due out of the table: `_key_hash`, keys, `_time`, by time and key."""
    behind = min(now_us + 1, END)
    rows = view.read(None, behind, hashed=True)
    if not rows.num_rows:
        return rows
    view.delete_times(BEGINNING, behind)
    keys = [one_chunk(rows[key.name]) for key in view.table.keys]
    grouping = group_rows(int64_values(rows[TIME]), uint64_values(rows[KEY_HASH]), keys)
    return taken(rows, grouping.first_rows)
