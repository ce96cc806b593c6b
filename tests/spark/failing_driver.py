"""A job in a process of its own, whose user code fails, or that ends as it should.

python failing_driver.py FOLDER SCENARIO,SCENARIO,...

Each scenario is a job. The errors of all but the last are printed as if they had ended the process.
"""

import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import statebed as sb


class PerKey(sb.ProcessKey):
    output = "k string"

    def on_rows(self, key: Any, rows: Any, state: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        for row in rows:
            check(row["n"])
            yield {"k": key}


class Batches(sb.Process):
    output = "k string"

    def on_batch(self, rows: pa.RecordBatch, ctx: sb.Context) -> pa.Table:
        for n in rows["n"].to_pylist():
            check(n)
        return pa.table({"k": rows["k"]})


class Total:
    state = "total bigint"
    output = "bigint"

    def accumulate(self, groups: pa.Array, n_groups: int, numbers: pa.Array) -> list[pa.Array]:
        for n in numbers.to_pylist():
            check(n)
        return [pa.array([0] * n_groups, pa.int64())]

    def merge(self, groups: pa.Array, n_groups: int, total: pa.Array) -> list[pa.Array]:
        return [pa.array([0] * n_groups, pa.int64())]

    def finish(self, total: pa.Array) -> pa.Array:
        return total


def check(n: int) -> None:
    if n == 3:
        raise ValueError("three is not allowed")


def sink(rows: Any, epoch: int) -> None:
    for row in rows.collect():
        check(row["n"])


def keep(rows: Any, epoch: int) -> None:
    pass


def started(folder: Path, scenario: str, **how: Any) -> sb.Query:
    """The job of a scenario, over two rows, one of which user code refuses."""
    if scenario == "own_session":
        from pyspark.sql import SparkSession  # noqa: PLC0415 - only here

        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    (folder / "in").mkdir()
    (folder / "in" / "rows.json").write_text(
        "".join(json.dumps({"k": k, "n": n}) + "\n" for k, n in [("a", 1), ("b", 3)])
    )
    job = sb.Job("failing", state=folder / "state", parallelism=2)
    frame = job.spark.readStream.schema("k string, n bigint").json(str(folder / "in"))
    if scenario == "udf":
        from pyspark.sql import functions as F  # noqa: PLC0415 - needs a session

        frame = frame.withColumn("m", F.udf(check)("n"))
    rows = job.source(frame, name="rows")
    if scenario == "on_rows":
        rows.key_by("k", name="op").process(PerKey()).write(keep, name="out")
    elif scenario == "on_batch":
        rows.key_by("k", name="op").process(Batches()).write(keep, name="out")
    elif scenario == "aggregate":
        rows.key_by("k", name="op").agg(total=sb.aggregate(Total(), "n")).write(keep, name="out")
    else:
        rows.key_by("k", name="op").deduplicate(keep="first").write(
            sink if scenario in {"sink", "own_session"} else keep, name="out"
        )
    return job.start(**how)


def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tell whether the worker's daemon had loaded what tasks need, and left it out of garbage collection."""
    collected = {id(entry) for entry in gc.get_objects()}
    known = all(id(sys.modules[name]) not in collected for name in ("statebed.operators", "pyspark.worker", "pandas"))
    yield from (pa.RecordBatch.from_pydict({"known": [known]}) for batch in batches if batch.num_rows)


def main() -> None:
    *others, last = sys.argv[2].split(",")
    for scenario in others:
        try:
            run(Path(sys.argv[1], scenario), scenario)
        except sb.StatebedError as error:
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.write(f"end of {scenario}\n")
    run(Path(sys.argv[1], last), last)


def run(folder: Path, scenario: str) -> None:
    folder.mkdir()
    if scenario == "workers":
        session = sb.Job("workers", state=folder / "state").spark
        sys.stdout.write(f"{session.range(0, 2, 1, 2).mapInArrow(loaded, 'known boolean').collect()}\n")
        return
    if scenario in {"sigterm", "sigint"}:
        query = started(folder, scenario, processing_time="100 milliseconds")
        query.await_epoch(2, timeout=120)
        number = signal.SIGTERM if scenario == "sigterm" else signal.SIGINT
        threading.Timer(1.0, os.kill, (os.getpid(), number)).start()
        with sb.exit_codes():
            query.await_termination()
    elif scenario == "stopped":
        query = started(folder, scenario, processing_time="10 milliseconds")
        query.await_epoch(2, timeout=120)
        query.stop()
    elif scenario in {"sink", "own_session"}:
        with sb.exit_codes():
            started(folder, scenario, available_now=True).await_termination()
    else:
        started(folder, scenario, available_now=True).await_termination()


if __name__ == "__main__":
    main()
