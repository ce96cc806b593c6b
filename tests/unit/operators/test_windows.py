"""Durations and tumbling windows."""

import datetime as dt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.errors import InputError
from statebed.operators import TumblingWindow, parse_duration, tumbling

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
    with pytest.raises(InputError, match="no duration") as caught:
        parse_duration(text)
    assert "1 hour 30 minutes" in caught.value.fix


@pytest.mark.parametrize("text", ["1 month", "2 years", "1 day 1 month", "1 quarter"])
def test_calendar_units_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="calendar unit"):
        parse_duration(text)


@pytest.mark.parametrize("size", ["0 s", "-1 minute"])
def test_a_window_has_a_positive_size(size: str) -> None:
    with pytest.raises(InputError, match="not positive"):
        tumbling(size)


def test_an_offset_is_brought_into_the_first_window() -> None:
    assert tumbling("1 hour", offset="-15 minutes") == tumbling("1 hour", offset="45 minutes")
    assert tumbling("1 hour", offset="2 hours") == tumbling("1 hour")


def test_windows_are_half_open_and_aligned_before_1970_too() -> None:
    window = tumbling("10 us")
    starts = window.starts_of(np.array([-11, -10, -1, 0, 9, 10], dtype=np.int64))
    assert starts.tolist() == [-20, -10, -10, 0, 0, 10]


TIMES = st.integers(-(1 << 62), 1 << 62)


@settings(deadline=None)
@given(time=TIMES, size=st.integers(1, 1 << 60), offset=st.integers(0, 1 << 60))
def test_every_time_lies_in_exactly_its_window(time: int, size: int, offset: int) -> None:
    window = TumblingWindow(size_us=size, offset_us=offset % size)
    start = int(window.starts_of(np.array([time], dtype=np.int64))[0])
    assert start <= time < start + size
    assert (start - window.offset_us) % size == 0
    assert start == window.start_of(time)


@settings(deadline=None)
@given(start=st.integers(-1000, 1000), watermark=st.integers(-20_000, 20_000), size=st.integers(1, 30))
def test_a_watermark_closes_exactly_the_windows_that_end_at_it_or_before(start: int, watermark: int, size: int) -> None:
    window = TumblingWindow(size_us=size)
    assert (start * size < window.first_open(watermark)) == (start * size + size <= watermark)


@pytest.mark.parametrize("time", [-(1 << 63), (1 << 63) - 1])
def test_a_time_whose_window_does_not_fit_a_timestamp_is_refused(time: int) -> None:
    with pytest.raises(InputError, match="far from 1970"):
        tumbling("1 week").starts_of(np.array([time], dtype=np.int64))
