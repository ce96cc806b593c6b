"""Texts of others as text, a cache that stays within its bound, and examples in docstrings of the pages."""

import doctest
import importlib

import pytest

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
