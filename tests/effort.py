"""Numbers of examples that property tests try, and of combinations of parameters that are run.

The numbers in tests are the usual ones. `make test` sets TEST_EFFORT to a half, `make test-long` to ten, and any other
target can be given a number of its own.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest

LEAST = 4
"""Number of examples that are tried at any effort, by tests that usually try as many."""


def examples(usual: int) -> int:
    """Return `usual` times the requested effort."""
    return max(round(usual * float(os.environ.get("TEST_EFFORT", "1"))), min(usual, LEAST))


def every_third(values: Iterable[Any], first: int = 0) -> list[Any]:
    """Return parameters of which every third is run by `make test`, and the others by `make test-long`.

    Tests of the same values begin at different ones, so that each value is used by several tests in `make test`.
    """
    return [_marked(value, is_run=number % 3 == first % 3) for number, value in enumerate(values)]


def diagonals(rows: Iterable[Any], columns: Iterable[Any], kept: int = 1, first: int = 0) -> list[Any]:
    """Return all pairs as parameters; `make test` runs `kept` pairs of each row, and `make test-long` the others.

    The columns of these pairs differ from row to row, so that each row and each column is run.
    """
    choices = list(columns)
    return [
        _marked(row, column, is_run=(place - number - first) % len(choices) < kept)
        for number, row in enumerate(rows)
        for place, column in enumerate(choices)
    ]


def _marked(*values: Any, is_run: bool) -> Any:
    return pytest.param(*values, marks=() if is_run else pytest.mark.long)
