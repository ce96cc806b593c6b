"""Context of a process that is written for one key at a time: timers, side outputs and the clock."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy
from statebed.errors import InputError
from statebed.format.schema import TIMESTAMP
from statebed.operators.process.context import Context
from statebed.operators.process.dict_rows import rows_as_table
from statebed.operators.process.timers import TimerKind

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class KeyContext:
    """Context of the current key."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._place = 0
        self._timers: dict[tuple[TimerKind, int, int], bool] = {}
        self._sides: dict[str, list[Mapping[str, Any]]] = {}

    @property
    def watermark(self) -> dt.datetime | None:
        """Watermark of this epoch; None if it is not known."""
        mark = self._ctx.watermark
        return None if mark is None else _EPOCH + int(mark.value) * _MICROSECOND

    @property
    def epoch_time(self) -> dt.datetime:
        """Processing time of the epoch."""
        return _EPOCH + int(self._ctx.epoch_time.value) * _MICROSECOND

    def table(self, name: str) -> pa.Table:
        """Return all rows of a broadcast table, as of this epoch, sorted by key."""
        return self._ctx.table(name)

    @property
    def timer_kind(self) -> TimerKind | None:
        """Kind of the timers that fire; None in `on_rows`."""
        return self._ctx.timer_kind

    def timer(self, at: dt.datetime) -> None:
        """Set a timer that calls `on_key_timer` for the key when the watermark reaches a time."""
        self._timers[TimerKind.EVENT, self._place, self._micros(at)] = True

    def processing_timer(self, at: dt.datetime) -> None:
        """Set a timer that calls `on_key_timer` for the key when the epoch time reaches a time."""
        self._timers[TimerKind.PROCESSING, self._place, self._micros(at)] = True

    def cancel(self, at: dt.datetime) -> None:
        """Cancel the event-time timer of the key at a time."""
        self._timers[TimerKind.EVENT, self._place, self._micros(at)] = False

    def cancel_processing(self, at: dt.datetime) -> None:
        """Cancel the processing-time timer of the key at a time."""
        self._timers[TimerKind.PROCESSING, self._place, self._micros(at)] = False

    def side(self, name: str, row: Mapping[str, Any]) -> None:
        """Emit a row to a side output."""
        self._sides.setdefault(name, []).append(row)

    def turn_to(self, place: int) -> None:
        """Make the key at this position the current one."""
        self._place = place

    def write(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Apply the collected timer changes, and emit the collected rows to side outputs."""
        ways = {
            (TimerKind.EVENT, True): self._ctx.timer,
            (TimerKind.PROCESSING, True): self._ctx.processing_timer,
            (TimerKind.EVENT, False): self._ctx.cancel,
            (TimerKind.PROCESSING, False): self._ctx.cancel_processing,
        }
        for (kind, is_set), act in ways.items():
            of_kind = [key[1:] for key, wanted in self._timers.items() if key[0] is kind and wanted is is_set]
            if of_kind:
                places, times = np.array(of_kind, dtype=np.int64).T
                act(from_numpy(np.ascontiguousarray(times), TIMESTAMP), np.ascontiguousarray(places))
        for name, rows in self._sides.items():
            schema = schemas.get(name)
            where = f"{self._ctx.where}, side output {name!r}"
            empty = pa.table({})
            self._ctx.side(name, empty if schema is None else rows_as_table(rows, schema, what="rows", where=where))

    def _micros(self, at: dt.datetime) -> int:
        if not isinstance(at, dt.datetime) or at.utcoffset() is None:
            raise InputError(
                f"the time of a timer must be a datetime with a time zone, got {at!r}",
                where=self._ctx.where,
                fix="pass a datetime with a time zone, such as ctx.epoch_time + timedelta(minutes=5)",
            )
        return (at - _EPOCH) // _MICROSECOND
