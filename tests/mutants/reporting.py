"""A plugin of pytest for scripts/run_mutants.py: makes sure that the copy is what is tested, and writes down how tests
fail.
"""

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

import statebed


def pytest_configure() -> None:
    wanted = Path(os.environ["MUTANT_SOURCE"]).resolve()
    found = Path(statebed.__file__).resolve()
    if not found.is_relative_to(wanted):
        pytest.exit(f"statebed was imported from {found}, not from the copy in {wanted}", returncode=3)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:
        failure = {
            "test": item.nodeid,
            "when": call.when,
            "error": call.excinfo.typename,
            "message": str(call.excinfo.value)[:500],
        }
        with Path(os.environ["MUTANT_REPORT"]).open("a") as file:
            file.write(json.dumps(failure) + "\n")
    return report
