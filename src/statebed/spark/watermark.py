"""Watermarks by Spark's rule, one step per epoch.

The watermark of epoch n comes from the greatest event time seen up to epoch n - 1, minus the delay, and never goes
back. In epoch n a row is late by the watermark of epoch n - 1, and windows close by that of epoch n.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from statebed.format import checkpoint_pb2 as pb
from statebed.operators import Window
from statebed.operators.rows import greatest


@dataclass(frozen=True)
class Watermark:
    """What one epoch works with; None until an event time was seen."""

    late_us: int | None = None
    watermark_us: int | None = None
    max_event_time_us: int | None = None
    """Seen up to and including this epoch."""

    @staticmethod
    def of(entry: pb.InputWatermark) -> "Watermark":
        """As a record holds it."""
        return Watermark(
            late_us=entry.late_us if entry.HasField("late_us") else None,
            watermark_us=entry.watermark_us if entry.HasField("watermark_us") else None,
            max_event_time_us=entry.max_event_time_us if entry.HasField("max_event_time_us") else None,
        )

    def next(self, *, delay_us: int) -> "Watermark":
        """What the following epoch works with, before it has seen its rows."""
        reached = None if self.max_event_time_us is None else self.max_event_time_us - delay_us
        return Watermark(
            late_us=self.watermark_us,
            watermark_us=greatest((self.watermark_us, reached)),
            max_event_time_us=self.max_event_time_us,
        )

    def drained(self, window: Window) -> "Watermark":
        """What a drain works with: the end of the newest window that has seen a row, so that every window closes."""
        if self.max_event_time_us is None:
            return self
        newest_end = window.newest_end(self.max_event_time_us)
        return Watermark(self.watermark_us, greatest((self.watermark_us, newest_end)), self.max_event_time_us)

    def seen(self, max_event_times_us: Iterable[int | None]) -> "Watermark":
        """The same, after the epoch's rows."""
        return Watermark(self.late_us, self.watermark_us, greatest((self.max_event_time_us, *max_event_times_us)))

    def entry(self, input_name: str) -> pb.InputWatermark:
        """For the record."""
        return pb.InputWatermark(
            input=input_name,
            late_us=self.late_us,
            watermark_us=self.watermark_us,
            max_event_time_us=self.max_event_time_us,
        )


def can_close(before: Watermark, after: Watermark, window: Window) -> bool:
    """Whether some window lies open before and closed after."""
    if after.watermark_us is None:
        return False
    if before.watermark_us is None:
        return True
    return window.last_closed_end(after.watermark_us) > window.last_closed_end(before.watermark_us)
