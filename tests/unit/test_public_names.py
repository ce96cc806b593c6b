"""The public names of `statebed`: what completion shows, and examples in docstrings that run."""

import doctest
from pathlib import Path

import pytest

import statebed as sb

WITHOUT_EXAMPLE = {"Context", "EpochSummary", "Publication", "Query", "Sink", "exit_codes", "read_table", "table_files"}
"""Names whose examples need a running job: the pages of docs/ have them."""
MODULES = {"testing"}


def test_completion_shows_the_public_names_and_nothing_else() -> None:
    assert dir(sb) == sorted(sb.__all__)
    assert {"Job", "Query", "read_state"} <= set(dir(sb))


@pytest.mark.parametrize("name", sorted(set(sb.__all__) - WITHOUT_EXAMPLE - MODULES))
def test_every_public_name_has_an_example_that_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    public = getattr(sb, name)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(public, name, globs={"sb": sb, public.__name__: public})
    assert example.examples, f"sb.{name} has no example in its docstring"
    assert doctest.DocTestRunner().run(example).failed == 0


def test_names_without_an_example_are_public() -> None:
    assert set(sb.__all__) > WITHOUT_EXAMPLE
