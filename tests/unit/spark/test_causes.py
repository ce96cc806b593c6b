"""The line of an error of Spark's that people are shown."""

import pytest

from statebed.spark.causes import cause_of

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
