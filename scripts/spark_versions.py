"""`make test-versions`: run a smoke set on every supported Spark, and write the table of docs/reference/versions.md.

Each `requirements/spark-X.Y.txt` pins one older Spark. Its environment, `.venv-spark-X.Y`, holds the packages of the
lock with that pyspark in place of the lock's own; it is made once, and again after a change of the files. The newest
Spark is that of the lock, in the environment that runs this script.

    python scripts/spark_versions.py                all versions
    python scripts/spark_versions.py 4.1            one version: writes its column, and leaves the others as they are
    python scripts/spark_versions.py --check joins  one check: writes its line
"""

import argparse
import datetime as dt
import hashlib
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
LOCK, BUILD = REQUIREMENTS / "dev.txt", REQUIREMENTS / "build.txt"
REPORTS = ROOT / "artifacts" / "versions"
PAGE = ROOT / "docs" / "reference" / "versions.md"
PYSPARK = re.compile(r"^pyspark==(\S+).*\n(?:    .*\n)*", re.MULTILINE)
HEAD = "| check on Spark |"
TABLE = re.compile(rf"^{re.escape(HEAD)}.*\n(?:\|.*\n)+\n.*\n", re.MULTILINE)
MAXIMUM_SECONDS = 3600
"""Time-out of a version's tests."""
NOT_RUN = "not run"

CONNECT = "Spark Connect is refused"
"""A check that needs Connect's client, which only the environments of older versions have."""
READERS = "Delta and Iceberg tables read by Spark"
"""A check that needs readers which exist for Spark 4.1 only."""
CHECKS: Mapping[str, tuple[str, ...]] = {
    "demo": (
        "test_demo.py::test_p1_p2_kills_in_mid_epoch_lose_and_repeat_nothing",
        "test_demo.py::test_p2_the_next_run_resumes_from_the_record_and_takes_only_new_events",
    ),
    "restart": ("test_pipeline.py::test_closed_windows_equal_a_batch_answer_and_a_restart_goes_on",),
    "rescale": ("test_faults_rescale.py",),
    "joins": ("test_joins_against_spark.py",),
    "processes": ("test_process_on_spark.py",),
    "kill": ("test_crash.py",),
    "queries of Spark (sb.stream)": ("queries/test_queries_against_spark.py",),
    "Columns behind operators": ("test_columns_behind_operators.py", "test_projection_rebuilt.py"),
    "nested timestamps": ("test_nested_times.py",),
    "SQL text": ("test_sql_text.py", "test_sql_windows.py"),
    "state as a table of Spark": ("test_state_as_table.py",),
    "change feed": ("test_change_feed.py",),
    READERS: ("test_lake_tables_in_spark.py",),
    CONNECT: ("test_connect_refused.py",),
}
"""Tests of tests/spark by what they show."""


@dataclass(frozen=True)
class Outcome:
    """Results of the tests of one check."""

    passed: int
    failed: int

    def __str__(self) -> str:
        if self.failed:
            return f"FAILED: {self.failed} of {self.passed + self.failed}"
        return f"{self.passed} passed" if self.passed else NOT_RUN


def pinned(text: str) -> str:
    """Return the version of pyspark that a requirements file pins."""
    match = PYSPARK.search(text)
    if match is None:
        raise SystemExit("statebed: a requirements file pins no pyspark")
    return match[1]


def versions() -> dict[str, str]:
    """Return the supported versions of Spark by their minor version, oldest first."""
    files = [*REQUIREMENTS.glob("spark-*.txt"), LOCK]
    exact = sorted((pinned(file.read_text(encoding="utf-8")) for file in files), key=_numbers)
    return {version.rpartition(".")[0]: version for version in exact}


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def environment(minor: str) -> Path:
    """Return the Python interpreter of a version's environment; make the environment if it is missing or outdated."""
    pin = REQUIREMENTS / f"spark-{minor}.txt"
    if not pin.exists():
        return Path(sys.executable)
    own = pin.read_text(encoding="utf-8")
    locked = PYSPARK.sub(lambda _: own, LOCK.read_text(encoding="utf-8"))
    folder = ROOT / f".venv-spark-{minor}"
    stamp = folder / f".stamp-{hashlib.sha256(locked.encode()).hexdigest()[:16]}"
    python = folder / "bin" / "python"
    if not stamp.exists():
        print(f"statebed: making {folder.name} (one to three minutes)", flush=True)
        # Debian's Python may lack the part that puts pip into a new environment; the pip that is here can do that.
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
        bootstrap = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
        subprocess.run([*bootstrap, "--require-hashes", "-r", str(BUILD)], check=True)
        install = [str(python), "-m", "pip", "install", "-q"]
        requirements = folder / "requirements.txt"
        requirements.write_text(locked, encoding="utf-8")
        install += ["--no-build-isolation"]
        subprocess.run([*install, "--require-hashes", "-r", str(requirements)], check=True)
        subprocess.run([*install, "--no-deps", "-e", str(ROOT)], check=True)
        stamp.touch()
    return python


def run_checks(minor: str, names: Sequence[str]) -> dict[str, Outcome]:
    """Run checks on one version, in one process with one Spark; return their outcomes."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"spark-{minor}.xml"
    report.unlink(missing_ok=True)
    python = environment(minor)
    tests = [f"tests/spark/{test}" for name in names for test in CHECKS[name]]
    command = [str(ROOT / "scripts" / "with-java"), str(python), "-m", "pytest", "-q", f"--junitxml={report}"]
    # The client of Spark 4.1 leaves sockets to the garbage collector, which warns.
    command += ["-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning", *tests]
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": str(python)}
    # An archive of Java's classes, or a SPARK_HOME, belongs to another version.
    variables = {name: value for name, value in variables.items() if name not in {"SPARK_HOME", "JAVA_TOOL_OPTIONS"}}
    variables["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
    subprocess.run(command, cwd=ROOT, env=variables, check=False, timeout=MAXIMUM_SECONDS, stdin=subprocess.DEVNULL)
    if not report.exists():
        raise SystemExit(f"statebed: the tests on Spark {minor} ended without a report")
    return outcomes(ET.parse(report).getroot(), names)  # noqa: S314 - pytest wrote it


def outcomes(report: ET.Element, names: Sequence[str]) -> dict[str, Outcome]:
    """Count the tests of a JUnit report by check."""
    passed: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for case in report.iter("testcase"):
        name = check_of(case.get("classname", ""), case.get("name", ""), names)
        if case.find("failure") is not None or case.find("error") is not None:
            failed[name] += 1
        elif case.find("skipped") is None:
            passed[name] += 1
    return {name: Outcome(passed[name], failed[name]) for name in names}


def check_of(module: str, test: str, names: Sequence[str]) -> str:
    """Return the check that a test belongs to."""
    for name in names:
        for listed in CHECKS[name]:
            file, _, function = listed.partition("::")
            is_in_file = module.endswith("." + file.removesuffix(".py").replace("/", "."))
            if is_in_file and function in {"", test.partition("[")[0]}:
                return name
    raise SystemExit(f"statebed: {module}::{test} belongs to no check")


def table(cells: Mapping[tuple[str, str], str], *, day: dt.date) -> str:
    """Lay out the outcomes by check and version: a line for each check, a column for each version."""
    exact = versions().values()
    lines = [
        f"{HEAD} {' | '.join(exact)} |",
        "|---|" + "---|" * len(exact),
        *(f"| {name} | {' | '.join(cells.get((name, version), NOT_RUN) for version in exact)} |" for name in CHECKS),
        "",
        f"Last written by `make test-versions` on {day.isoformat()}, with Python {sys.version.split()[0]}.",
    ]
    return "\n".join(lines) + "\n"


def cells_of(page: str) -> dict[tuple[str, str], str]:
    """Return the outcomes that a page holds, by check and exact version."""
    match = TABLE.search(page)
    if match is None:
        raise SystemExit(f"statebed: {PAGE.name} has no table of checks")
    head, _, *rows = (line.strip("| ").split(" | ") for line in match[0].splitlines() if line.startswith("|"))
    return {(row[0], version): cell for row in rows for version, cell in zip(head[1:], row[1:], strict=True)}


def is_good(outcomes_of_version: Mapping[str, Outcome]) -> bool:
    """Return whether all checks of a version ran and passed; those that not every version can run may be left out."""
    outcomes = outcomes_of_version.items()
    return all(not outcome.failed and (outcome.passed or name in {CONNECT, READERS}) for name, outcome in outcomes)


def updated(page: str, results: Mapping[str, Mapping[str, Outcome]], *, day: dt.date) -> str:
    """Return the page with new outcomes of some checks on some versions; all others stay as they are."""
    exact = versions()
    new = {(name, exact[minor]): str(outcome) for minor in results for name, outcome in results[minor].items()}
    text = table(cells_of(page) | new, day=day)
    return TABLE.sub(lambda _: text, page)


def main() -> int:
    supported = versions()
    parser = argparse.ArgumentParser(description="run a smoke set on every supported Spark")
    parser.add_argument("versions", nargs="*", choices=[[], *supported], metavar="VERSION", help=", ".join(supported))
    parser.add_argument("--check", action="append", choices=list(CHECKS), help="only this check")
    arguments = parser.parse_args()
    minors, names = arguments.versions or list(supported), arguments.check or list(CHECKS)
    results = {minor: run_checks(minor, names) for minor in minors}
    page = updated(PAGE.read_text(encoding="utf-8"), results, day=dt.datetime.now(dt.UTC).date())
    PAGE.write_text(page, encoding="utf-8")
    print("\n".join(line for line in page.splitlines() if line.startswith(HEAD) or line.split(" |")[0][2:] in names))
    return 0 if all(map(is_good, results.values())) else 1


if __name__ == "__main__":
    sys.exit(main())
