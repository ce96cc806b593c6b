"""Examples in docstrings of public names that need a job on Spark."""

import doctest
from pathlib import Path

import pytest
from unit.test_public_names import WITH_SPARK

import statebed as sb


@pytest.mark.usefixtures("spark")
def test_examples_that_need_a_job_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The example of Query writes the table that the others read.
    for name in sorted(WITH_SPARK):
        public = getattr(sb, name)
        (example,) = doctest.DocTestFinder(recurse=False).find(public, name, globs={"sb": sb})
        assert example.examples, f"sb.{name} has no example in its docstring"
        assert doctest.DocTestRunner().run(example).failed == 0, name
