"""The public names of `statebed`: what completion shows, and examples in docstrings that run."""

import doctest
import inspect

import pytest

import statebed as sb
from statebed.aggregates import functions
from statebed.flow import window_calls

CALLS = sorted(name for name in sb.__all__ if inspect.getmodule(getattr(sb, name)) in {functions, window_calls})


def test_completion_shows_the_public_names_and_nothing_else() -> None:
    assert dir(sb) == sorted(sb.__all__)
    assert {"Job", "Query", "read_state"} <= set(dir(sb))


@pytest.mark.parametrize("name", CALLS)
def test_every_function_has_an_example_that_runs(name: str) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(sb, name), name, globs={"sb": sb})
    assert example.examples, f"sb.{name} has no example in its docstring"
    assert doctest.DocTestRunner().run(example).failed == 0


def test_functions_with_examples_are_most_of_the_module() -> None:
    assert len(CALLS) > 50
