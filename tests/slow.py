"""The tests that `make quick` leaves out, because each takes more than about half a second: slow_tests.txt names them.

The list is made from a report of measured times. Tests that catch a mutant of tests/mutants are never in it.

    .venv/bin/pytest tests/model tests/unit tests/simulation --junitxml=report.xml
    .venv/bin/python tests/slow.py report.xml
"""

import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

LIST = Path(__file__).with_name("slow_tests.txt")
MUTANTS = Path(__file__).with_name("mutants")
SECONDS = 0.5
"""A test is slow if all its variants together take longer."""
IN_QUICK = frozenset(
    {
        "test_p1_p2_p3_p5_hold_after_a_crash_before_every_operation",  # its marks leave one sixth of the operations
        "test_p1_p2_p3_p5_hold_after_a_crash_after_every_operation",
        "test_p9_after_every_history_the_rows_are_there_or_the_start_is_refused",
    }
)
"""Slow tests that matter enough for `make quick`."""


def slow_tests() -> frozenset[str]:
    """Return the names of the slow tests."""
    return frozenset(LIST.read_text(encoding="utf-8").split())


def guards() -> frozenset[str]:
    """Return the names of the tests that catch mutants."""
    lines = [line for patch in MUTANTS.glob("*.patch") for line in patch.read_text(encoding="utf-8").splitlines()]
    tests = [line.partition("::")[2] for line in lines if line.startswith("Test: ")]
    return frozenset(test.partition("[")[0] for test in tests)


def measured(report: Path, slowdown: float = 1.0) -> frozenset[str]:
    """Return the names of the tests that took too long in a report of a machine that is `slowdown` times as slow."""
    seconds: dict[str, float] = defaultdict(float)
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest wrote it
        seconds[case.attrib["name"].partition("[")[0]] += float(case.attrib["time"])
    slow = {name for name, took in seconds.items() if took > SECONDS * slowdown and name.startswith("test_")}
    return frozenset(slow - guards() - IN_QUICK)


if __name__ == "__main__":
    LIST.write_text("\n".join(sorted(measured(Path(sys.argv[1]), float((*sys.argv, "1")[2])))) + "\n", encoding="utf-8")
