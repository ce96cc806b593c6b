"""Windows in event time, and the durations they are written in.

Windows are half open: `start <= time < end`. Starts lie on `offset + n * period` for every whole n, so the arithmetic
is the same before and after 1970. A window is closed by a watermark when its end is not after it: no admitted row can
fall into it any more.
"""

import datetime as dt
import enum
import math
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.errors import InputError
from statebed.format.columns import int64_values, validity

Times = npt.NDArray[np.int64]
"""Microseconds since 1970-01-01T00:00:00Z."""

_UNITS_US = {
    "week": 7 * 24 * 3600 * 1_000_000,
    "day": 24 * 3600 * 1_000_000,
    "hour": 3600 * 1_000_000,
    "minute": 60 * 1_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
_SHORT = {
    "w": "week",
    "d": "day",
    "h": "hour",
    "min": "minute",
    "s": "second",
    "sec": "second",
    "ms": "millisecond",
    "us": "microsecond",
}
_CALENDAR = {"month", "quarter", "year"}
_TERM = re.compile(r"\s*([+-]?\d+)\s*([a-z]+)", re.IGNORECASE | re.ASCII)
_MAX_DURATION_US = 1 << 62


def parse_duration(text: str | dt.timedelta) -> int:
    """Microseconds of a duration such as '1 minute', '1 hour 30 minutes', '500 ms', or a timedelta.

    >>> parse_duration("1 hour 30 minutes")
    5400000000
    """
    if isinstance(text, dt.timedelta):
        return text // dt.timedelta(microseconds=1)
    fix = "write whole numbers with units week, day, hour, minute, second, ms, us, for example '1 hour 30 minutes'"
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{text!r} is no duration", fix=fix)
    body = text.strip()
    body = body[len("interval ") :] if body.lower().startswith("interval ") else body
    total, position = 0, 0
    while position < len(body):
        match = _TERM.match(body, position)
        if match is None:
            raise InputError(f"{text!r} is no duration: stuck at {body[position:].strip()!r}", fix=fix)
        total += int(match.group(1)) * _unit_us(match.group(2), text=text, fix=fix)
        position = match.end()
    if abs(total) > _MAX_DURATION_US:
        raise InputError(f"the duration {text!r} is out of range", fix="choose one below 146000 years")
    return total


def _unit_us(word: str, *, text: str, fix: str) -> int:
    unit = word.lower()
    unit = _SHORT.get(unit, unit)
    unit = unit if unit in _UNITS_US or not unit.endswith("s") else unit[:-1]
    if unit in _CALENDAR:
        raise InputError(
            f"the duration {text!r} has a calendar unit, whose length varies",
            fix="use days or weeks, for example '30 days'",
        )
    if unit not in _UNITS_US:
        raise InputError(f"{text!r} is no duration: unknown unit {word!r}", fix=fix)
    return _UNITS_US[unit]


class Shape(enum.Enum):
    """How windows follow each other."""

    TUMBLING = "tumbling"
    SLIDING = "sliding"
    CUMULATIVE = "cumulative"


@dataclass(frozen=True)
class WindowsOfPanes:
    """All windows that hold some panes, pane after pane."""

    rows: Times
    """The position of the pane."""
    starts: Times
    ends: Times


@dataclass(frozen=True)
class Window:
    """Windows of one definition.

    Tumbling: [n slide, n slide + width), with width = slide. Sliding: the same, overlapping. Cumulative: of each span
    [n width, n width + width) the windows from its start to each of its steps, which are `slide` long.
    """

    shape: Shape
    width_us: int
    slide_us: int
    offset_us: int = 0
    """From 0 up to, not including, the period."""

    def __post_init__(self) -> None:
        if not 0 < self.slide_us <= self.width_us:
            raise InputError(
                f"a {self.shape.value} window of {self.width_us} us every {self.slide_us} us",
                fix="give a positive size, such as '1 minute', and steps that are positive and not larger",
            )
        if self.shape is Shape.CUMULATIVE and self.width_us % self.slide_us:
            raise InputError(
                f"a cumulative window of {self.width_us} us is no multiple of its step of {self.slide_us} us",
                fix="choose a step that divides the size, such as cumulative('1 day', '1 hour')",
            )
        if not 0 <= self.offset_us < self.period_us:
            raise InputError(
                f"windows every {self.period_us} us with the offset {self.offset_us} us",
                fix="use tumbling(size, offset=...) and its like, which bring any offset into range",
            )

    @property
    def period_us(self) -> int:
        """After which the windows repeat."""
        return self.width_us if self.shape is Shape.CUMULATIVE else self.slide_us

    @property
    def pane_us(self) -> int:
        """The longest span of which every window is made: rows are kept by pane, once, whatever windows overlap."""
        return math.gcd(self.width_us, self.slide_us)

    def panes_of(self, times: Times) -> Times:
        """The start of the pane that holds each time."""
        pane = np.int64(self.pane_us)
        # Reduced one by one, so that no intermediate leaves the 64 bits.
        starts: Times = times - np.mod(np.mod(times, pane) - np.mod(np.int64(self.offset_us), pane), pane)
        limits, room = np.iinfo(np.int64), 2 * self.width_us
        if len(times) and bool(np.any((starts < limits.min + room) | (starts > limits.max - room))):
            raise _too_far()
        return starts

    def check_panes(self, panes: pa.ChunkedArray, times: pa.ChunkedArray) -> None:
        """Refuse panes that others found for times, unless they are those that `panes_of` finds; null for null."""
        timed = validity(times)
        found = self.panes_of(np.where(timed, int64_values(times), np.int64(0)))
        if bool(np.any(validity(panes) != timed)) or bool(np.any(int64_values(panes)[timed] != found[timed])):
            raise _too_far()

    def first_open(self, watermark_us: int) -> int:
        """The start of the first window that the watermark leaves open: times before it are in closed ones alone."""
        reach = 0 if self.shape is Shape.CUMULATIVE else self.width_us - self.slide_us
        return watermark_us - reach - (watermark_us - reach - self.offset_us) % self.period_us

    def last_closed_end(self, watermark_us: int) -> int:
        """The greatest end of a window that the watermark closes."""
        if self.shape is Shape.CUMULATIVE:
            return watermark_us - (watermark_us - self.offset_us) % self.slide_us
        return self.first_open(watermark_us) - self.slide_us + self.width_us

    def next_end(self, watermark_us: int) -> int:
        """The smallest end of a window that the watermark leaves open."""
        return self.last_closed_end(watermark_us) + self.slide_us

    def complete_until(self, watermark_us: int) -> int:
        """Up to where results are complete: those of later epochs have the last microsecond of windows open now.

        That is the watermark itself, as in Spark, unless a window ends right after it.
        """
        return min(watermark_us, self.next_end(watermark_us) - 2)

    def newest_end(self, time_us: int) -> int:
        """The greatest end of a window that holds a time."""
        return time_us - (time_us - self.offset_us) % self.period_us + self.width_us

    def windows_of(self, panes: Times) -> WindowsOfPanes:
        """Every window that holds each pane."""
        within = np.mod(panes - np.int64(self.offset_us), np.int64(self.period_us))
        latest = panes - within
        if self.shape is Shape.CUMULATIVE:
            first = within // self.slide_us
            counts = self.width_us // self.slide_us - first
        else:
            first = np.zeros(len(panes), dtype=np.int64)
            counts = (self.width_us - self.pane_us - within) // self.slide_us + 1
        rows = np.repeat(np.arange(len(panes), dtype=np.int64), counts)
        steps = np.arange(len(rows), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts) + first[rows]
        if self.shape is Shape.CUMULATIVE:
            starts = latest[rows]
            return WindowsOfPanes(rows, starts, starts + (steps + 1) * self.slide_us)
        starts = latest[rows] - steps * self.slide_us
        return WindowsOfPanes(rows, starts, starts + self.width_us)

    def described(self) -> str:
        """For people."""
        size, step = (f"{span / 1e6:g} s" for span in (self.width_us, self.slide_us))
        if self.shape is Shape.TUMBLING:
            return f"tumbling window of {size}"
        return f"{self.shape.value} window of {size} " + (
            f"every {step}" if self.shape is Shape.SLIDING else f"in steps of {step}"
        )


@dataclass(frozen=True)
class SessionWindow:
    """Windows that last as long as rows of a key follow each other by no more than a gap."""

    gap_us: int

    def check_times(self, times: pa.ChunkedArray) -> None:
        """Refuse times whose session would end outside of what a timestamp can say."""
        found = int64_values(times)
        if len(found) and int(found.max()) > np.iinfo(np.int64).max - 2 * self.gap_us:
            raise _too_far()

    def described(self) -> str:
        """For people."""
        return f"session window with a gap of {self.gap_us / 1e6:g} s"


def _too_far() -> InputError:
    return InputError(
        "an event time so far from 1970 that its window's start or end does not fit a timestamp",
        fix="filter such rows before the operator, for example with where(\"ts < '9999-12-31'\")",
    )


Duration = str | dt.timedelta


def tumbling(size: Duration, offset: Duration | None = None) -> Window:
    """Windows of `size` that follow each other, aligned to 1970-01-01T00:00:00Z plus `offset`.

    >>> tumbling("1 minute").width_us
    60000000
    """
    width = _positive("size", size)
    return Window(Shape.TUMBLING, width, width, _offset(offset, width))


def sliding(size: Duration, slide: Duration, offset: Duration | None = None) -> Window:
    """Windows of `size`, one beginning every `slide`; a row is in each window that holds its time.

    >>> sliding("10 minutes", "4 minutes").pane_us
    120000000
    """
    width, step = _positive("size", size), _positive("slide", slide)
    if step > width:
        raise InputError(
            f"windows of {size!r} every {slide!r} leave gaps, and rows in them would be in no window",
            fix="choose a slide that is not larger than the size, or leave such rows out with where(...)",
        )
    return Window(Shape.SLIDING, width, step, _offset(offset, step))


def cumulative(size: Duration, step: Duration, offset: Duration | None = None) -> Window:
    """Windows that grow by `step` until they have `size`, and then begin anew: the day so far, every hour."""
    width, grown = _positive("size", size), _positive("step", step)
    return Window(Shape.CUMULATIVE, width, grown, _offset(offset, width))


def session(gap: Duration) -> SessionWindow:
    """Windows of rows of a key that follow each other by no more than `gap`.

    >>> session("5 minutes").gap_us
    300000000
    """
    return SessionWindow(_positive("gap", gap))


def _positive(what: str, span: Duration) -> int:
    found = parse_duration(span)
    if found <= 0:
        raise InputError(
            f"the window's {what} {span!r} is not positive", fix=f"give a positive {what}, like '1 minute'"
        )
    return found


def _offset(offset: Duration | None, period: int) -> int:
    return 0 if offset is None else parse_duration(offset) % period
