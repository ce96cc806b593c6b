"""A row of a job on Spark passes through the steps of its walk in docs/architecture.md, on driver and workers."""

import os
import subprocess
import sys
from pathlib import Path

from docs.markdown import ROOT
from docs.walks import Call, first_missing, steps_of

import statebed

TRACER = """
import os, sys, threading, time

folder, package = os.environ["WALK_TRACE"], os.environ["WALK_PACKAGE"]
files = {}


def note(frame, event, argument):
    path = frame.f_code.co_filename
    if event == "call" and path.startswith(package):
        process = os.getpid()
        if process not in files:
            files[process] = open(os.path.join(folder, f"{process}.txt"), "a", buffering=1)
        files[process].write(f"{time.time_ns()} {path.removeprefix(package)} {frame.f_code.co_qualname}\\n")


def trace():
    threading.setprofile(note)
    sys.setprofile(note)


os.register_at_fork(after_in_child=trace)
"""
"""Imported by every Python process as `sitecustomize`, so workers are traced, too.

Tracing begins after the imports, which it would slow down: in a worker once its daemon has forked it.
"""
PROGRAM = """
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import sitecustomize

import statebed as sb

folder = Path(sys.argv[1])
(folder / "in").mkdir()
pq.write_table(pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3]}), folder / "in" / "rows.parquet")
job = sb.Job("walk", state=folder / "state", parallelism=1)
rows = job.spark.readStream.schema("k STRING, v LONG").parquet(str(folder / "in"))
keyed = job.source(rows, name="rows").key_by("k", name="totals")
totals = keyed.agg(total=sb.sum("v"), ttl="1 day", ttl_clock="epoch_time")
totals.write("sqlite", path=folder / "totals.db", table="totals", key="k")
sitecustomize.trace()
job.start(available_now=True).await_termination()
print(sorted(sb.read_state(folder / "state", operator="totals", results=True).to_arrow()["total"].to_pylist()))
"""


def test_a_row_passes_through_the_steps_of_its_walk(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    (tmp_path / "sitecustomize.py").write_text(TRACER)
    package = Path(statebed.__file__).parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(package.parent)]),
        "PYSPARK_PYTHON": sys.executable,
        "WALK_TRACE": str(tmp_path / "trace"),
        "WALK_PACKAGE": f"{package}/",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "[2, 4]"
    lines = [line.split() for path in (tmp_path / "trace").iterdir() for line in path.read_text().splitlines()]
    calls = [Call(file, function) for _, file, function in sorted(lines, key=lambda line: int(line[0]))]
    missing = first_missing(steps_of((ROOT / "docs" / "architecture.md").read_text(), "One row"), calls)
    assert missing is None, f"nothing passed through {missing} after the step before it"
