"""Durations and windows."""

import datetime as dt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.errors import InputError
from statebed.operators import Window, cumulative, sliding, tumbling
from statebed.operators.window_definition import WindowShape
from statebed.quantities import parse_duration

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1 minute", 60 * SECOND),
        ("1 hour 30 minutes", 5400 * SECOND),
        ("2 WEEKS", 14 * 86400 * SECOND),
        ("1 day", 86400 * SECOND),
        ("10s", 10 * SECOND),
        ("0s", 0),
        ("500 ms", 500_000),
        ("3 milliseconds 7 us", 3007),
        ("interval 5 min", 300 * SECOND),
        ("-1 hour", -3600 * SECOND),
        (dt.timedelta(minutes=1, microseconds=1), 60 * SECOND + 1),
    ],
)
def test_a_duration_is_its_microseconds(text: str | dt.timedelta, microseconds: int) -> None:
    assert parse_duration(text) == microseconds


@pytest.mark.parametrize("text", ["", "  ", "minute", "1", "1 fortnight", "1.5 hours", "1 minute and a bit", "5 m"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="is not a duration") as caught:
        parse_duration(text)
    assert "1 hour 30 minutes" in caught.value.fix


@pytest.mark.parametrize("text", ["1 month", "2 years", "1 day 1 month", "1 quarter"])
def test_calendar_units_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="calendar unit"):
        parse_duration(text)


@pytest.mark.parametrize("size", ["0 s", "-1 minute"])
def test_a_window_has_a_positive_size(size: str) -> None:
    with pytest.raises(InputError, match="must be positive"):
        tumbling(size)


def test_an_offset_is_brought_into_the_first_window() -> None:
    assert tumbling("1 hour", offset="-15 minutes") == tumbling("1 hour", offset="45 minutes")
    assert tumbling("1 hour", offset="2 hours") == tumbling("1 hour")


def test_windows_are_half_open_and_aligned_before_1970_too() -> None:
    window = tumbling("10 us")
    starts = window.panes_of(np.array([-11, -10, -1, 0, 9, 10], dtype=np.int64))
    assert starts.tolist() == [-20, -10, -10, 0, 0, 10]


def windows_by_hand(window: Window, time: int) -> set[tuple[int, int]]:
    """Every window that holds a time, by trying all that are near."""
    found = set()
    for number in range((time - window.width_us) // window.period_us - 2, time // window.period_us + 3):
        start = window.offset_us + number * window.period_us
        steps = range(window.slide_us, window.width_us + 1, window.slide_us)
        for size in steps if window.shape is WindowShape.CUMULATIVE else [window.width_us]:
            if start <= time < start + size:
                found.add((start, start + size))
    return found


WINDOWS = st.one_of(
    st.builds(lambda size, offset: tumbling(us(size), us(offset)), st.integers(1, 30), st.integers(-50, 50)),
    st.builds(
        lambda slide, more, offset: sliding(us(slide + more), us(slide), us(offset)),
        st.integers(1, 12),
        st.integers(0, 30),
        st.integers(-50, 50),
    ),
    st.builds(
        lambda step, steps, offset: cumulative(us(step * steps), us(step), us(offset)),
        st.integers(1, 9),
        st.integers(1, 6),
        st.integers(-50, 50),
    ),
)


def us(number: int) -> dt.timedelta:
    return dt.timedelta(microseconds=number)


@settings(deadline=None)
@given(window=WINDOWS, times=st.lists(st.integers(-200, 200), min_size=1, max_size=5))
def test_a_pane_lies_in_exactly_the_windows_that_hold_its_times(window: Window, times: list[int]) -> None:
    panes = window.panes_of(np.array(times, dtype=np.int64))
    found = window.windows_of(panes)
    for row, (time, pane) in enumerate(zip(times, panes.tolist(), strict=True)):
        assert pane <= time < pane + window.pane_us
        mine = found.rows == row
        pairs = list(zip(found.starts[mine].tolist(), found.ends[mine].tolist(), strict=True))
        assert len(pairs) == len(set(pairs))
        assert set(pairs) == windows_by_hand(window, time)
        assert max(end for _, end in pairs) == window.newest_end(time)


@settings(deadline=None)
@given(window=WINDOWS, time=st.integers(-200, 200), watermark=st.integers(-200, 200))
def test_a_watermark_closes_exactly_the_windows_that_end_at_it_or_before(
    window: Window, time: int, watermark: int
) -> None:
    around = [pair for near in range(watermark - 60, watermark + 60) for pair in windows_by_hand(window, near)]
    assert window.last_closed_end(watermark) == max(end for _, end in around if end <= watermark)
    assert window.next_end(watermark) == min(end for _, end in around if end > watermark)
    assert window.first_open(watermark) == min(start for start, end in around if end > watermark)
    all_closed = all(end <= watermark for _, end in windows_by_hand(window, time))
    pane = int(window.panes_of(np.array([time], dtype=np.int64))[0])
    assert (pane < window.first_open(watermark)) == all_closed


@settings(deadline=None)
@given(time=st.integers(-(1 << 60), 1 << 60), size=st.integers(1, 1 << 59), offset=st.integers(0, 1 << 60))
def test_every_time_lies_in_its_window_however_far_from_1970(time: int, size: int, offset: int) -> None:
    window = Window(WindowShape.TUMBLING, size, size, offset % size)
    start = int(window.panes_of(np.array([time], dtype=np.int64))[0])
    assert start <= time < start + size
    assert (start - window.offset_us) % size == 0


@pytest.mark.parametrize("time", [-(1 << 63), (1 << 63) - 1])
def test_a_time_whose_window_does_not_fit_a_timestamp_is_refused(time: int) -> None:
    with pytest.raises(InputError, match="far from 1970"):
        tumbling("1 week").panes_of(np.array([time], dtype=np.int64))


def test_windows_that_cannot_be_are_refused_with_advice() -> None:
    with pytest.raises(InputError, match="leave gaps"):
        sliding("1 minute", "2 minutes")
    with pytest.raises(InputError, match="not a multiple of its step"):
        cumulative("1 hour", "7 minutes")
    with pytest.raises(InputError, match="slide of a window must be positive, got '0 s'"):
        sliding("1 minute", "0 s")


def test_windows_describe_themselves() -> None:
    assert tumbling("1 minute").described() == "tumbling window of 1 minute"
    assert sliding("1 minute", "20 s").described() == "sliding window of 1 minute every 20 seconds"
    assert cumulative("1 hour", "5 minutes").described() == "cumulative window of 1 hour in steps of 5 minutes"
