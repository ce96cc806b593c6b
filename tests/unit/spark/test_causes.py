"""The line of an error of Spark's that people are shown."""

import pytest

from statebed.spark.causes import cause_of, source_problem

FRAMES = 'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n    process()\n'
ARROW = "pyarrow.lib.ArrowInvalid: Tried to write record batch with different schema"
JVM = "\n\n\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)\n"
ANOTHER = "During handling of the above exception, another exception occurred:"
THROWN = f"org.apache.spark.api.python.PythonException: {FRAMES}{ARROW}\n{JVM}"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"An exception was thrown from the Python worker:\n{FRAMES}ValueError: no\n", "ValueError: no"),
        (f"An exception was thrown from the Python worker:\n{FRAMES}{ARROW}\n", ARROW),
        (f"\n  An exception was thrown:\n{FRAMES}AssertionError\n{JVM}", "AssertionError"),
        (f"{FRAMES}job.steps.<locals>.Halt: now\nhint: try again\n", "job.steps.<locals>.Halt: now"),
        (f"{FRAMES}KeyError: 'k'\n\n{ANOTHER}\n\n{FRAMES}{ARROW}\n", ARROW),
        (
            f": org.apache.spark.SparkException: {THROWN}\nDriver stacktrace:\n\tat x\nCaused by: {THROWN}\t... 1 more",
            ARROW,
        ),
        (
            f": org.apache.spark.SparkException: Job aborted{JVM}Caused by: java.io.IOException: disk full{JVM}",
            "java.io.IOException: disk full",
        ),
        (
            ": org.apache.spark.SparkException: Job 3 cancelled\n\tat x\n",
            "org.apache.spark.SparkException: Job 3 cancelled",
        ),
        ("something\nelse", "something"),
        ("", "RuntimeError"),
    ],
)
def test_the_cause_is_the_line_that_says_what_happened(text: str, cause: str) -> None:
    assert cause_of(RuntimeError(text)) == cause


PLAN = "\n== Analyzed Logical Plan ==\nProject [driver#1]\n+- StreamingRelation" + "\n   +- more" * 15


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH] Encountered error while reading file "
            "file:///in/0001.parquet. Data type mismatches when reading Parquet column `[cents]`. Expected Spark type "
            "bigint, actual Parquet type BINARY. SQLSTATE: KD001" + PLAN,
            (
                "a file of a source cannot be read: file:///in/0001.parquet: Data type mismatches when reading Parquet "
                "column `[cents]`. Expected Spark type bigint, actual Parquet type BINARY."
            ),
        ),
        (
            (
                "Job aborted: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file "
                "s3a://in/0001.json. File does not exist. SQLSTATE: KD001"
            ),
            "a file of a source cannot be read: s3a://in/0001.json: File does not exist.",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a.b.json.  SQLSTATE: KD001",
            "a file of a source cannot be read: file:///in/a.b.json: no reason given",
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/moved/in. SQLSTATE: 42K03" + PLAN,
            "the path of a source does not exist: file:/moved/in",
        ),
        ("ValueError: no", None),
        ("[DIVIDE_BY_ZERO] Division by zero." + PLAN, None),
    ],
)
def test_a_source_that_cannot_be_read_is_named_with_its_file_and_without_the_plan(
    text: str, problem: str | None
) -> None:
    assert source_problem(text) == problem
