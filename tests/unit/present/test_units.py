"""Numbers, sizes and times as people read them."""

import pytest

from statebed.present import units


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (999, "999 µs"),
        (59_949_000, "59.9 s"),
        (60_000_000, "1 min"),
        (3_660_000_000, "1 h 1 min"),
        (-5_000_000, "-5 s"),
    ],
)
def test_durations_have_one_or_two_units(micros: int, text: str) -> None:
    assert units.duration(micros) == text


def test_what_is_unknown_is_a_dash_everywhere() -> None:
    shown = [units.number(None), units.short(None), units.size(None), units.duration(None), units.instant(None)]
    assert {*shown, units.exact(None), units.ago(None, now_us=0)} == {"-"}


def test_a_time_that_no_calendar_has_is_shown_as_its_number() -> None:
    assert units.instant(10**18 * 9) == "9000000000000000000 µs"
    assert units.exact(-(10**18)) == "-1000000000000000000 µs"
