"""A driver of the fault tests in a process of its own, which can be told to die at an exact point.

python faults_driver.py SETTINGS, a JSON object; see `Settings`.
"""

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from spark.faults_world import FileWorld, GroupsWorld, SketchesWorld

import statebed as sb
from statebed.checkpoint import Run
from statebed.sinks import ParquetTableSink
from statebed.spark.checkpoint.folder import SparkProjection

POINTS: dict[str, tuple[type, str]] = {
    "before_record": (SparkProjection, "position"),  # every subtask has written, nothing is committed
    "after_record": (Run, "commit"),  # between the record and the sinks, and Spark's own commit
    "in_publish": (ParquetTableSink, "publish"),  # a sink has the epoch, the marker does not say so
    "after_publish": (Run, "mark_published"),  # between a sink's marker and Spark's own commit
}
"""Place where a driver can die: right after this function of this class has returned."""


WORLDS = {one.kind: one for one in (FileWorld, GroupsWorld, SketchesWorld)}


@dataclass(frozen=True)
class Settings:
    """Settings of one driver."""

    folder: str
    state: str
    master: str = "local[2]"
    available_now: bool = True
    parallelism: int = 4
    point: str = ""
    occasion: int = 1
    """Number of the call at which it dies, from 1."""
    armed_by: str = ""
    """File that must exist for a call to count; all calls count if it is empty."""
    spark: tuple[tuple[str, str], ...] = ()
    world: str = FileWorld.kind


def dies(point: str, occasion: int, armed_by: str) -> None:
    """Kill this process right after the function has returned for the given time, counted while `armed_by` exists."""
    owner, name = POINTS[point]
    function = getattr(owner, name)
    calls = 0

    def deadly(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        result = function(*arguments, **named)
        calls += not armed_by or Path(armed_by).exists()
        if calls == occasion:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)


def session(settings: Settings) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(settings.master).appName("statebed fault tests")
    fixed = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # Executors die often here; do not wait a minute to detect it.
        "spark.network.timeout": "60s",
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": "500ms",
    }
    for name, value in [*fixed.items(), *settings.spark]:
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    given = json.loads(sys.argv[1])
    settings = Settings(**{**given, "spark": tuple(map(tuple, given.get("spark", ())))})
    if settings.point:
        dies(settings.point, settings.occasion, settings.armed_by)
    world = WORLDS[settings.world](Path(settings.folder))
    made = world.job(session(settings), state=settings.state, parallelism=settings.parallelism)
    trigger: dict[str, Any] = {"available_now": True}
    if not settings.available_now:
        trigger = {"processing_time": "100 milliseconds"}
    with sb.exit_codes():
        if not made.start(**trigger).await_termination(590):
            raise SystemExit("the query did not end in time")


if __name__ == "__main__":
    main()
