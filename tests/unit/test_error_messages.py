"""Error messages stay as reviewed: the page docs/reference/error-messages.md is what statebed prints."""

import re

from error_messages import PAGE, plain_part, reviewed
from mistakes import ON_SPARK, SECTIONS

LEAST = 640
"""Number of mistakes that the page has at least."""


def test_the_page_of_error_messages_is_what_is_printed() -> None:
    written, accepted = plain_part()
    assert accepted == [], "these mistakes raised no error of statebed"
    assert reviewed()[0] == written, "run: python tests/error_messages.py, and review"


def test_every_mistake_is_listed_once() -> None:
    mistakes = [(section, mistake) for section in (*SECTIONS, *ON_SPARK) for mistake in section.mistakes]
    assert len(set(mistakes)) == len(mistakes) >= LEAST


def test_messages_say_is_not_instead_of_is_no() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"(?<!there )\bis no [a-z]+|\bgave\b", text) == []
