"""Windows in event time.

Windows are half-open: `start <= time < end`. Starts lie on `offset + n * period` for every integer n, so the arithmetic
is the same before and after 1970. A watermark closes a window if the window's end is not after it: no admitted row can
fall into the window after that.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import int64_values, validity
from statebed.errors import InputError
from statebed.quantities import Duration, duration_text, parse_duration

Times = npt.NDArray[np.int64]
"""Microseconds since 1970-01-01T00:00:00Z."""


MAX_WINDOWS = 100_000
"""Most windows that a row may be in."""
BELONGS = 'pass the window to group_by: group_by("key", sb.tumbling("1 minute")).agg(...)'
"""Correct use of a window, for errors about a window in another place."""


class WindowShape(enum.Enum):
    """Shape of windows: how they follow each other."""

    TUMBLING = "tumbling"
    SLIDING = "sliding"
    CUMULATIVE = "cumulative"


@dataclass(frozen=True)
class WindowsOfPanes:
    """All windows that contain some panes, grouped by pane."""

    rows: Times
    """Position of the pane of each window."""
    starts: Times
    ends: Times


@dataclass(frozen=True, repr=False)
class Window:
    """Windows of one definition.

    Tumbling: [n slide, n slide + width), with width = slide. Sliding: the same, but overlapping. Cumulative: for each
    span [n width, n width + width), the windows from its start to the end of each of its steps, which are `slide` long.
    """

    shape: WindowShape
    width_us: int
    slide_us: int
    offset_us: int = 0
    """Offset, at least 0 and less than the period."""
    on: str | None = None
    """Time column that assigns rows to windows; the event time if None."""
    BELONGS: ClassVar[str] = BELONGS

    def __repr__(self) -> str:
        """Return the window as users write it: `tumbling('1 minute')`."""
        spans = [self.width_us] if self.shape is WindowShape.TUMBLING else [self.width_us, self.slide_us]
        options = [f"offset={duration_text(self.offset_us)!r}"] if self.offset_us else []
        return _written(self.shape.value, [*(repr(duration_text(span)) for span in spans), *options], self.on)

    def __post_init__(self) -> None:
        size, slide = duration_text(self.width_us), duration_text(self.slide_us)
        if not 0 < self.slide_us <= self.width_us:
            raise InputError(
                f"a {self.shape.value} window needs a positive size and a positive step that is not larger, "
                f"got size {size!r} and step {slide!r}",
                fix="use a positive size, such as '1 minute', and a positive step that is not larger",
            )
        if self.shape is WindowShape.CUMULATIVE and self.width_us % self.slide_us:
            raise InputError(
                f"the size of a cumulative window, {size!r}, is not a multiple of its step, {slide!r}",
                fix="choose a step that divides the size, such as cumulative('1 day', '1 hour')",
            )
        if not 0 <= self.offset_us < self.period_us:
            raise InputError(
                f"the offset {duration_text(self.offset_us)!r} of a window is outside its period of "
                f"{duration_text(self.period_us)!r}",
                fix="use tumbling(size, offset=...) or sliding(..., offset=...), which accept any offset",
            )

    @property
    def period_us(self) -> int:
        """Time after which the windows repeat."""
        return self.width_us if self.shape is WindowShape.CUMULATIVE else self.slide_us

    @property
    def pane_us(self) -> int:
        """Longest span of which every window is a multiple. Rows are kept once, by pane, even if windows overlap."""
        return math.gcd(self.width_us, self.slide_us)

    def panes_of(self, times: Times) -> Times:
        """Return the start of the pane that contains each time."""
        pane = np.int64(self.pane_us)
        # Reduced one by one, so that no intermediate value overflows 64 bits.
        starts: Times = times - np.mod(np.mod(times, pane) - np.mod(np.int64(self.offset_us), pane), pane)
        limits, room = np.iinfo(np.int64), 2 * self.width_us
        if len(times) and bool(np.any((starts < limits.min + room) | (starts > limits.max - room))):
            raise _too_far()
        return starts

    def check_panes(self, panes: pa.ChunkedArray, times: pa.ChunkedArray) -> None:
        """Raise if panes computed elsewhere differ from those that `panes_of` returns for the times; null for null."""
        timed = validity(times)
        expected = self.panes_of(np.where(timed, int64_values(times), np.int64(0)))
        if bool(np.any(validity(panes) != timed)) or bool(np.any(int64_values(panes)[timed] != expected[timed])):
            raise _too_far()

    def first_open(self, watermark_us: int) -> int:
        """Return the start of the first window open at the watermark; earlier times are only in closed windows."""
        reach = 0 if self.shape is WindowShape.CUMULATIVE else self.width_us - self.slide_us
        return watermark_us - reach - (watermark_us - reach - self.offset_us) % self.period_us

    def last_closed_end(self, watermark_us: int) -> int:
        """Return the latest end of a window that the watermark closes."""
        if self.shape is WindowShape.CUMULATIVE:
            return watermark_us - (watermark_us - self.offset_us) % self.slide_us
        return self.first_open(watermark_us) - self.slide_us + self.width_us

    def closes_between(self, before_us: int | None, after_us: int) -> bool:
        """Return whether a watermark closes windows that the previous one left open."""
        return before_us is None or self.last_closed_end(after_us) > self.last_closed_end(before_us)

    def next_end(self, watermark_us: int) -> int:
        """Return the earliest end of a window that is open at the watermark."""
        return self.last_closed_end(watermark_us) + self.slide_us

    def complete_until(self, watermark_us: int) -> int:
        """Return the time up to which results are complete: later results have the last microsecond of windows that are
        open now.

        That is the watermark itself, as in Spark, unless a window ends directly after it.
        """
        return min(watermark_us, self.next_end(watermark_us) - 2)

    def newest_end(self, time_us: int) -> int:
        """Return the latest end of the windows that contain a time."""
        return time_us - (time_us - self.offset_us) % self.period_us + self.width_us

    def windows_of(self, panes: Times) -> WindowsOfPanes:
        """Return every window that contains each pane."""
        within = np.mod(panes - np.int64(self.offset_us), np.int64(self.period_us))
        latest = panes - within
        if self.shape is WindowShape.CUMULATIVE:
            first = within // self.slide_us
            counts = self.width_us // self.slide_us - first
        else:
            first = np.zeros(len(panes), dtype=np.int64)
            counts = (self.width_us - self.pane_us - within) // self.slide_us + 1
        rows = np.repeat(np.arange(len(panes), dtype=np.int64), counts)
        steps = np.arange(len(rows), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts) + first[rows]
        if self.shape is WindowShape.CUMULATIVE:
            starts = latest[rows]
            return WindowsOfPanes(rows, starts, starts + (steps + 1) * self.slide_us)
        starts = latest[rows] - steps * self.slide_us
        return WindowsOfPanes(rows, starts, starts + self.width_us)

    def described(self) -> str:
        """Describe the window in words, for `explain` and errors."""
        size, step = duration_text(self.width_us), duration_text(self.slide_us)
        steps = {
            WindowShape.TUMBLING: "",
            WindowShape.SLIDING: f" every {step}",
            WindowShape.CUMULATIVE: f" in steps of {step}",
        }
        return f"{self.shape.value} window of {size}{steps[self.shape]}{_on(self.on)}"

    @staticmethod
    def from_data(data: Sequence[Any]) -> "Window":
        """Return the window that `as_data` described."""
        shape, width_us, slide_us, offset_us, *on = data
        return Window(WindowShape(shape), int(width_us), int(slide_us), int(offset_us), on[0] if on else None)

    def as_data(self) -> list[object]:
        """Return what the definition of an operator stores about the window."""
        data: list[object] = [self.shape.value, self.width_us, self.slide_us, self.offset_us]
        return data if self.on is None else [*data, self.on]


@dataclass(frozen=True, repr=False)
class SessionWindow:
    """Windows of rows of a key that follow each other within a gap."""

    gap_us: int
    on: str | None = None
    """Time column that assigns rows to sessions; the event time if None."""
    BELONGS: ClassVar[str] = BELONGS

    def __repr__(self) -> str:
        """Return the window as users write it: `session('5 minutes')`."""
        return _written("session", [repr(duration_text(self.gap_us))], self.on)

    def check_times(self, times: pa.ChunkedArray) -> None:
        """Raise if the session of a time would end outside the range of timestamps."""
        micros = int64_values(times)
        if len(micros) and int(micros.max()) > np.iinfo(np.int64).max - 2 * self.gap_us:
            raise _too_far()

    def described(self) -> str:
        """Describe the window in words, for `explain` and errors."""
        return f"session window with a gap of {duration_text(self.gap_us)}{_on(self.on)}"


def _written(function: str, arguments: Sequence[str], on: str | None) -> str:
    """Return the call that makes a window."""
    return f"{function}({', '.join([*arguments, *([] if on is None else [f'on={on!r}'])])})"


def _on(column: str | None) -> str:
    return "" if column is None else f" on {column}"


def _too_far() -> InputError:
    return InputError(
        "an event time is so far from 1970 that the start or end of its window does not fit a timestamp",
        fix="filter such rows before the operator, for example with where(\"ts < '9999-12-31'\")",
    )


def tumbling(size: Duration, offset: Duration | None = None, *, on: str | None = None) -> Window:
    """Build windows of `size` that follow each other, aligned to 1970-01-01T00:00:00Z plus `offset`.

    Rows are assigned to windows by their event time, or by the timestamp column `on`. After a join, the event time of a
    pair is the later of its two rows' event times; `on="ordered_at"` windows pairs by the time of one of them. A row is
    late if the watermark has closed its window, whichever column assigns it (see docs/reference/joins.md).

    >>> tumbling("1 minute").width_us
    60000000
    """
    width = _positive("size", size)
    return Window(WindowShape.TUMBLING, width, width, _offset(offset, width), on)


def sliding(size: Duration, slide: Duration, offset: Duration | None = None, *, on: str | None = None) -> Window:
    """Build windows of `size`, one starting every `slide`; a row is in each window that contains its time.

    `on` names the column with that time, see `tumbling`.

    >>> sliding("10 minutes", "4 minutes").pane_us
    120000000
    """
    width, step = _positive("size", size), _positive("slide", slide)
    if step > width:
        raise InputError(
            f"windows of {size!r} every {slide!r} leave gaps, so some rows would be in no window",
            fix="choose a slide that is not larger than the size, or filter such rows out with where(...)",
        )
    _check_number(width, step, f"windows of {size!r} every {slide!r}", "slide")
    return Window(WindowShape.SLIDING, width, step, _offset(offset, step), on)


def cumulative(size: Duration, step: Duration, offset: Duration | None = None, *, on: str | None = None) -> Window:
    """Build windows that grow by `step` up to `size` and then start again: the day so far, every hour.

    `on` names the column that assigns rows to windows, see `tumbling`.

    >>> cumulative("1 day", "1 hour").slide_us
    3600000000
    """
    width, grown = _positive("size", size), _positive("step", step)
    _check_number(width, grown, f"windows that grow by {step!r} up to {size!r}", "step")
    return Window(WindowShape.CUMULATIVE, width, grown, _offset(offset, width), on)


def session(gap: Duration, *, on: str | None = None) -> SessionWindow:
    """Build windows of rows of a key that follow each other by at most `gap`.

    `on` names the column with the time of a row, see `tumbling`.

    >>> session("5 minutes").gap_us
    300000000
    """
    return SessionWindow(_positive("gap", gap), on)


def _check_number(width: int, step: int, windows: str, what: str) -> None:
    """Raise InputError if a row would be in too many windows: each of them has results of its own."""
    if width > MAX_WINDOWS * step:
        raise InputError(
            f"with {windows}, each row is in {width // step:,} windows; the most is {MAX_WINDOWS:,}",
            fix=f"choose a larger {what}, or a smaller size",
        )


def _positive(what: str, span: Duration) -> int:
    micros = parse_duration(span)
    if micros <= 0:
        raise InputError(
            f"the {what} of a window must be positive, got {span!r}", fix=f"use a positive {what}, like '1 minute'"
        )
    return micros


def _offset(offset: Duration | None, period: int) -> int:
    return 0 if offset is None else parse_duration(offset) % period
