"""The memory of Spark's Python workers while a job's state grows to ten times its budget.

    peak <= base + budget + three times the subtask's share of a batch + one row group + what the allocator keeps

- base: what a worker takes at rest, after it has done a little of the same work;
- budget: of one task, as `explain()` tells it;
- the share of a batch: its groups, and their results before and after, which are put out;
- what the allocator keeps: half the budget.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import statebed as sb
from statebed.format.segment_writer import ROW_GROUP_BYTES
from statebed.spark.session import WORKER_DAEMON

pytestmark = pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")
MIB = 1 << 20
BUDGET = 16 * MIB
"""Budget of a task slot: half of 64 MiB is for the host cache, and there are two slots."""
EPOCHS, ROWS, WIDTH = 6, 7_000, 4_000
LOOK_SECONDS = 0.005
LIST_EVERY = 20


class Workers:
    """The Python workers of this process's Spark, looked at from outside."""

    def __init__(self) -> None:
        self.peaks: dict[int, int] = {}
        self._done = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join(30)

    def now(self) -> dict[int, int]:
        """Anonymous and shared memory of each; clean pages of mapped files are not part of it."""
        return {pid: taken for pid in _workers() if (taken := _taken(pid))}

    def _look(self) -> None:
        looks, pids = 0, list[int]()
        while not self._done.wait(LOOK_SECONDS):
            if looks % LIST_EVERY == 0:
                pids = _workers()
            looks += 1
            for pid in pids:
                self.peaks[pid] = max(self.peaks.get(pid, 0), _taken(pid))


def _taken(pid: int) -> int:
    lines = _read(Path("/proc", str(pid), "status")).splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))


def _workers() -> list[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # The name stands in brackets and may have any character; state and parent follow it.
        fields = _read(path).rpartition(")")[2].split()
        if fields:
            parents[int(path.parent.name)] = int(fields[1])
    return [pid for pid in parents if _descends(pid, parents) and _is_worker(_command(pid))]


def _is_worker(command: str) -> bool:
    """Return whether a process runs tasks: a daemon of Spark's or of ours, or what it forked."""
    return any(name in command for name in ("pyspark.daemon", WORKER_DAEMON))


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False


def _command(pid: int) -> str:
    return _read(Path("/proc", str(pid), "cmdline"))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def run(spark: SparkSession, folder: Path, *, epochs: int, rows: int, width: int) -> int:
    """A job that remembers a text for each key, and never sees a key twice; bytes of one batch's rows."""
    (folder / "in").mkdir(parents=True)
    for epoch in range(epochs):
        keys = list(range(epoch * rows, (epoch + 1) * rows))
        texts = [f"{key:08d}" * (width // 8) for key in keys]
        path = folder / "in" / f"{epoch:04d}.parquet"
        pq.write_table(pa.table({"k": keys, "text": texts}), path)
        os.utime(path, (1_700_000_000 + epoch, 1_700_000_000 + epoch))
    job = sb.Job("memory", state=folder / "state", spark=spark, parallelism=1, memory="64m")
    reader = spark.readStream.schema("k bigint, text string").option("maxFilesPerTrigger", 1)
    stream = job.source(reader.parquet(str(folder / "in")), name="rows")
    stream.key_by("k", name="texts").agg(n=sb.count(), text=sb.max("text")).write(lambda *_: None, name="nothing")
    assert "16 MiB for each of 2 task slots" in str(job.explain())
    query = job.start(available_now=True)
    assert query.await_termination(400)
    assert sum(one.rows_in for one in query.recent_progress) == epochs * rows
    return rows * (width + 16)


def test_p4_a_worker_takes_no_more_than_its_budget_and_a_few_batches_when_state_is_ten_times_the_budget(
    spark: SparkSession, tmp_path: Path
) -> None:
    workers = Workers()
    # As many rows, so that workers have loaded the compiled loops: those take tens of MiB, and no state is in them.
    run(spark, tmp_path / "little", epochs=2, rows=ROWS, width=8)
    base = max(workers.now().values())
    with workers.watched():
        batch = run(spark, tmp_path / "much", epochs=EPOCHS, rows=ROWS, width=WIDTH)
    state = EPOCHS * batch
    assert state >= 10 * BUDGET
    allowed = BUDGET + 3 * batch + ROW_GROUP_BYTES + BUDGET // 2
    peak = max(workers.peaks.values())
    figures: dict[str, Any] = {"base": base, "peak": peak, "batch": batch, "state": state, "allowed": allowed}
    print({name: f"{size / MIB:.0f} MiB" for name, size in figures.items()})  # noqa: T201 - the figures, with -s or on failure
    assert peak - base <= allowed < state
    # At rest it has given back most of what it took.
    assert max(workers.now().values()) - base <= (peak - base) // 2
