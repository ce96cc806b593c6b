"""Output when user code fails: its traceback and our error last; and nothing of Java when all went well.

One of these drivers also shows what the workers of statebed's daemon have loaded.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statebed.spark.session import default_session

DRIVER = Path(__file__).with_name("failing_driver.py")


def ended(folder: Path, *scenarios: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "XDG_CACHE_HOME": str(folder / "cache")}
    environment["TMPDIR"] = str(folder)
    return subprocess.run(
        [sys.executable, str(DRIVER), str(folder), ",".join(scenarios)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(DRIVER.read_text().splitlines(), 1) if line.strip() == text)


MAX_LINES = 110
"""Lines on the screen up to our error; 180 and more of them when Spark wrote its stack traces there."""
RAISE = 'raise ValueError("three is not allowed")'
CUT_OFF_WORKER = re.compile(
    r'(?:Traceback \(most recent call last\):\n(?:  File ".*/pyspark/daemon\.py", .*\n(?:    .*\n)?)+'
    r"BrokenPipeError: .*\n*)+\Z"
)
"""Traceback that PySpark's daemon prints if Spark exits while a worker still writes. It may follow our error."""


ERRORS = {
    "on_batch": ("PROCESS", "check(n)"),
    "udf": ("SUBTASK", None),
    "sink": ("SINK", None),
}
"""Code of the error of each scenario, and the user's line that called `check`."""


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """One process for all of them: a Spark for each would take most of the time."""
    return ended(tmp_path_factory.mktemp("failures"), "workers", *ERRORS)


@pytest.mark.parametrize("scenario", ERRORS)
def test_the_users_traceback_and_our_error_are_the_last_lines(
    failures: subprocess.CompletedProcess[str], scenario: str
) -> None:
    """The last scenario ends the process; the others print what the end would print."""
    assert failures.returncode == 1
    _, *printed = re.split(r"^end of \w+\n", failures.stderr, flags=re.MULTILINE)
    check_last_lines(dict(zip(ERRORS, printed, strict=True))[scenario], *ERRORS[scenario])


def test_a_worker_has_loaded_its_modules_before_it_is_forked(failures: subprocess.CompletedProcess[str]) -> None:
    assert "[Row(known=True), Row(known=True)]" in failures.stdout, failures.stderr


@pytest.mark.long  # on_batch goes the same way
@pytest.mark.parametrize(
    ("scenario", "code", "method"), [("on_rows", "PROCESS", 'check(row["n"])'), ("aggregate", "AGGREGATE", None)]
)
def test_more_tracebacks_and_our_error_are_the_last_lines(
    tmp_path: Path, scenario: str, code: str, method: str | None
) -> None:
    found = ended(tmp_path, scenario)
    assert found.returncode == 1
    check_last_lines(found.stderr, code, method)


def check_last_lines(printed: str, code: str, method: str | None) -> None:
    lines = CUT_OFF_WORKER.sub("", printed).rstrip().splitlines()
    # What Spark logs above may have the same lines: the last of each counts.
    error = last_of(lines, lambda line: f"[{code}]" in line)
    raised = last_of(lines[:error], lambda line: line == "ValueError: three is not allowed")
    frame = f'  File "{DRIVER}", line {line_of(RAISE)}, in check'
    at = last_of(lines[:raised], lambda line: line == frame)
    assert lines[at + 1].strip() == RAISE
    assert "three is not allowed" in lines[error]
    assert error - at < 20, "nothing but our own call stands between the user's traceback and our error"
    assert lines[error + 2].startswith("  what to do: "), lines[error:]
    assert len(lines) == error + 3, lines[error:]
    assert not any(line.startswith("\tat ") for line in lines[at:])
    assert not any(line.startswith("\tat ") for line in lines), "Spark's stack traces are in a file"
    assert error < MAX_LINES, printed
    named = re.search(r"ERROR MicroBatchExecution: .* terminated with error \[stack trace: (.+)\]", printed)
    assert named is not None
    with Path(named[1]).open() as log:
        assert "\tat org.apache.spark" in log.read()
    if method is not None:
        assert method in "\n".join(lines[at - 5 : at])


def test_the_log_of_a_session_that_the_user_made_is_left_alone(spark: SparkSession) -> None:
    assert default_session("mine").sparkContext is spark.sparkContext
    jvm: Any = spark._jvm
    appenders = jvm.org.apache.logging.log4j.core.LoggerContext.getContext(False).getConfiguration().getAppenders()
    assert not [name for name in appenders if name.startswith("statebed")]


@pytest.mark.long  # as above, by what a program prints
def test_a_session_that_the_user_made_prints_the_stack_traces_of_spark(tmp_path: Path) -> None:
    found = ended(tmp_path, "own_session")
    assert found.returncode == 1
    assert "\tat org.apache.spark" in found.stderr
    assert "stack trace:" not in found.stderr
    assert "[SINK]" in found.stderr.rstrip().splitlines()[-3]


def last_of(lines: list[str], wanted: Callable[[str], bool]) -> int:
    """The number of the last line that is wanted."""
    found = [number for number, line in enumerate(lines) if wanted(line)]
    assert found, "\n".join(lines[-60:])
    return found[-1]


@pytest.mark.parametrize(
    ("scenario", "code"),
    [
        pytest.param("ends", 0, marks=pytest.mark.long),
        pytest.param("stopped", 0, marks=pytest.mark.long),
        ("sigterm", 143),
        pytest.param("sigint", 130, marks=pytest.mark.long),
    ],
)
def test_a_clean_end_shows_no_stack_trace_of_java(tmp_path: Path, scenario: str, code: int) -> None:
    found = ended(tmp_path, scenario)
    assert found.returncode == code, found.stderr[-5000:]
    assert not list(tmp_path.glob("statebed-spark-*")), "nothing was logged, so no file is left"
    assert "\tat " not in found.stderr
    assert "Exception" not in found.stderr, found.stderr[-5000:]
