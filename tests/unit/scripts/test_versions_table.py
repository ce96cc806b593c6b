"""`make test-versions`: which Sparks it runs, how it counts, and the table that it writes."""

import datetime as dt
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from scripts import spark_versions as script
from scripts.spark_versions import (
    CHECKS,
    CONNECT,
    NOT_RUN,
    PAGE,
    READERS,
    Outcome,
    cells_of,
    check_of,
    is_good,
    outcomes,
    table,
    updated,
    versions,
)

ROOT = Path(__file__).parents[3]


def test_the_lock_has_the_newest_spark_and_each_other_minor_version_has_a_file() -> None:
    assert list(versions()) == ["4.1", "4.2", "4.3"]
    assert f"pyspark=={versions()['4.3']} " in script.LOCK.read_text(encoding="utf-8")


def test_every_test_of_a_check_exists() -> None:
    for listed in (test for tests in CHECKS.values() for test in tests):
        file, _, function = listed.partition("::")
        text = (ROOT / "tests" / "spark" / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {function or 'test_'}", text, re.MULTILINE), listed


def test_tests_are_counted_by_check_and_a_skipped_one_is_not_a_passed_one() -> None:
    report = ET.fromstring("""<testsuites><testsuite>
        <testcase classname="tests.spark.test_crash" name="test_a"/>
        <testcase classname="tests.spark.test_crash" name="test_b[x]"><failure/></testcase>
        <testcase classname="tests.spark.test_joins_against_spark" name="test_c"><skipped/></testcase>
        <testcase classname="tests.spark.test_nested_times" name="test_d"><error/></testcase>
    </testsuite></testsuites>""")  # noqa: S314 - written above
    counted = outcomes(report, ["kill", "joins", "nested timestamps"])
    assert {name: str(outcome) for name, outcome in counted.items()} == {
        "kill": "FAILED: 1 of 2",
        "joins": "not run",
        "nested timestamps": "FAILED: 1 of 1",
    }


def test_a_test_outside_the_checks_is_refused() -> None:
    with pytest.raises(SystemExit, match="belongs to no check"):
        check_of("tests.spark.test_pipeline", "test_of_another_check", list(CHECKS))


def test_the_page_has_a_line_for_every_check_and_a_column_for_every_pinned_version_and_no_failure() -> None:
    cells = cells_of(PAGE.read_text(encoding="utf-8"))
    assert set(cells) == {(name, version) for name in CHECKS for version in versions().values()}, "make test-versions"
    assert not [cell for cell in cells.values() if "FAILED" in cell]


def test_a_run_replaces_its_own_cells_and_leaves_the_others() -> None:
    page = f"before\n\n{table({('kill', '4.1.4'): '2 passed'}, day=dt.date(2026, 1, 2))}\nafter\n"
    assert cells_of(page)["kill", "4.1.4"] == "2 passed"
    written = updated(page, {"4.2": {"joins": Outcome(3, 1), "kill": Outcome(2, 0)}}, day=dt.date(2026, 1, 3))
    assert written.startswith("before\n\n| check on Spark |")
    assert written.endswith(f"on 2026-01-03, with Python {sys.version.split()[0]}.\n\nafter\n")
    ran = {place: cell for place, cell in cells_of(written).items() if cell != NOT_RUN}
    assert ran == {
        ("kill", "4.1.4"): "2 passed",
        ("joins", "4.2.1"): "FAILED: 1 of 4",
        ("kill", "4.2.1"): "2 passed",
    }


def test_a_failure_and_a_check_that_did_not_run_are_not_good() -> None:
    good = {"kill": Outcome(2, 0), CONNECT: Outcome(0, 0), READERS: Outcome(0, 0)}
    assert is_good(good)
    assert not is_good(good | {"kill": Outcome(1, 1)})
    assert not is_good(good | {"kill": Outcome(0, 0)})
    assert not is_good(good | {READERS: Outcome(2, 1)})
