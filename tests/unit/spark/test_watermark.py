"""Watermarks by Spark's rule."""

from statebed.operators import tumbling
from statebed.spark.watermark import Watermark, can_close

MINUTE = 60_000_000


def test_the_watermark_follows_one_epoch_behind_and_lateness_two() -> None:
    first = Watermark().next(delay_us=10).seen([100, None, 70])
    assert first == Watermark(late_us=None, watermark_us=None, max_event_time_us=100)
    second = first.next(delay_us=10).seen([500])
    assert second == Watermark(late_us=None, watermark_us=90, max_event_time_us=500)
    third = second.next(delay_us=10)
    assert third == Watermark(late_us=90, watermark_us=490, max_event_time_us=500)


def test_a_watermark_never_goes_back_even_if_the_delay_grows() -> None:
    mark = Watermark(late_us=0, watermark_us=400, max_event_time_us=500).next(delay_us=1000)
    assert mark.watermark_us == 400


def test_a_watermark_survives_the_record() -> None:
    for mark in (Watermark(), Watermark(-5, 0, 7)):
        assert Watermark.of(mark.entry("rides")) == mark


def test_windows_can_close_only_when_the_watermark_crosses_an_edge() -> None:
    window = tumbling("1 minute")
    inside = Watermark(watermark_us=10 * MINUTE + 5)
    assert not can_close(Watermark(), Watermark(), window)
    assert not can_close(inside, Watermark(watermark_us=11 * MINUTE - 1), window)
    assert can_close(inside, Watermark(watermark_us=11 * MINUTE), window)
    assert can_close(Watermark(), inside, window)
