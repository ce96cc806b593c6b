"""A program with a real Spark Connect session: prints, as JSON, the error of each way to begin a job with it.

It is a process of its own, because a process has either classic or Connect sessions. `remote("local[1]")` starts the
Connect server, which listens on loopback. Argument: a folder.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import statebed as sb
from statebed.errors import InputError


def main() -> None:
    folder = Path(sys.argv[1])
    builder = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false")
    for name in ("spark.driver.host", "spark.driver.bindAddress", "spark.connect.grpc.binding.address"):
        builder = builder.config(name, "127.0.0.1")
    session = builder.getOrCreate()
    rows = session.readStream.format("rate").load()
    ways: dict[str, Callable[[], object]] = {
        "Job(spark=...)": lambda: sb.Job("rows", state=folder, spark=session),
        "Job().source(df)": lambda: sb.Job("rows", state=folder).source(rows, name="rows"),
        "stream(df)": lambda: sb.stream(rows, state=folder),
        "write_stream(df)": lambda: sb.write_stream(rows),
    }
    errors = {name: error_of(way) for name, way in ways.items()}
    print(json.dumps({"session": type(session).__module__, "rows": session.range(3).count(), "errors": errors}))  # noqa: T201
    session.stop()


def error_of(way: Callable[[], object]) -> str:
    try:
        way()
    except InputError as error:
        return str(error)
    return "none"


if __name__ == "__main__":
    main()
