"""Flink over the same events: the whole input in one job, in an environment that `make flink-env` makes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pyspark

from bench.spark.watch import MemoryWatch, ProcessorClock
from examples.nexmark.on_spark import SQL

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-flink" / "bin" / "python"
QUERIES = ("q16", "q19", "q20")
"""Queries whose results do not depend on the order in which Flink reads the files."""
_TIMEOUT_SECONDS = 1800
_LAST_CHARACTERS = 3000


@dataclass(frozen=True)
class FlinkRun:
    """Measurements of a job."""

    seconds: float
    processor_seconds: float
    peak_bytes: int


def run(query: str, events: Path, own: Path) -> FlinkRun | None:
    """Run a query over all events; None if there is no Flink."""
    if not PYTHON.exists():
        return None
    own.mkdir()
    jars = subprocess.run(
        [sys.executable, "scripts/jars.py", "flink-parquet"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    hadoop = sorted(Path(pyspark.__path__[0], "jars").glob("hadoop-client-*.jar"))
    program = [str(PYTHON), str(Path(__file__).with_name("flink_child.py")), query, str(SQL), str(events), str(own)]
    with (own / "errors.txt").open("w") as errors:
        child = subprocess.Popen(  # noqa: S603 - Flink's Python, with a file of ours
            [*program, ";".join([jars, *map(str, hadoop)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            process_group=0,
        )
    limit = threading.Timer(_TIMEOUT_SECONDS, os.killpg, (child.pid, signal.SIGKILL))
    limit.start()
    watch = MemoryWatch()
    watch.start()
    try:
        _said(child, own)
        clock = ProcessorClock(child.pid)
        before = clock.seconds()
        watch.look_at(child.pid)
        _release(child)
        seconds = _said(child, own)
        return FlinkRun(seconds, clock.seconds() - before, watch.peaks[child.pid].total)
    finally:
        watch.stop()
        limit.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _said(child: "subprocess.Popen[str]", own: Path) -> float:
    """Return the seconds of a job that has ended."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise SystemExit(f"Flink ended:\n{(own / 'errors.txt').read_text()[-_LAST_CHARACTERS:]}")
    return float(json.loads(line)["seconds"])


def _release(child: "subprocess.Popen[str]") -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()
