"""Numbers as people read them, texts of others as text, and a cache that stays within its bound."""

import doctest
import importlib

import pytest

from statebed.present import units
from statebed.ui import visible_text
from statebed.ui.location import Cache

MODULES = [
    *("statebed.ui.visible_text", "statebed.ui.security", "statebed.ui.addresses", "statebed.present.units"),
    *("statebed.present.colours", "statebed.inspect.sources", "statebed.checkpoint.run_status"),
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings_hold(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


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


def test_texts_show_what_cannot_be_seen_and_are_cut_where_they_are_long() -> None:
    assert visible_text.plain("a\u202eb\u200bc\x00") == "a⟨202e⟩b⟨200b⟩c⟨0000⟩"
    assert visible_text.clipped("x" * 1000, 10) == "xxxxxxxxxx … (1,000 characters)"


def test_a_cache_forgets_what_was_used_least_lately() -> None:
    cache: Cache[str] = Cache(10)
    cache.put("a", "A", weight=4)
    cache.put("b", "B", weight=4)
    assert cache.get("a") == "A"
    cache.put("c", "C", weight=4)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("A", None, "C")
    cache.put("huge", "H", weight=11)
    assert cache.get("huge") is None
    cache.put("a", "AA", weight=1)
    assert (cache.get("a"), cache.weight) == ("AA", 5)
