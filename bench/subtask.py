"""An epoch of one subtask as Spark runs it: a manager that is made anew each time, over state in a local folder.

Two subtasks share the keys, and each epoch has 500,000 rows. Between epochs, apart from them, files are merged as the
compaction job on Spark does it. States of two sizes, and one of them without the host cache, take turns. At the end
the state of each is read from its files, without the cache, and compared with the sum of all that was fed.

The goal is one of the processor's time, which other programs on the machine disturb less than the time on the clock.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.report import Report, is_chosen, smaller
from statebed.aggregates.functions import count
from statebed.aggregates.functions import sum as sum_of
from statebed.arrays.columns import from_numpy
from statebed.arrays.key_hash import hash_columns
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import in_range, owned_range
from statebed.operators import WindowAggregate, tumbling
from statebed.operators.operator import Clock, Operator, StepResult, Tables
from statebed.operators.updating.aggregate import GROUPS, UpdatingAggregate
from statebed.state import MemoryController, TableManager, Tiers
from statebed.state.host_cache import HostCache
from statebed.storage import LocalStore
from statebed.subtasks import SubtaskReport, SubtaskTask, run_subtask
from statebed.subtasks.compaction import CompactionTask, compact_subtask

Ids = npt.NDArray[np.int64]
_PARALLELISM = 2
ROWS = 500_000
_MILLION = 1_000_000
_EPOCH_US = 20_000_000
"""Event time of an epoch; a window takes three."""
_BUDGET = 2 << 30
_CACHE_BYTES = 8 << 30
_MAX_FILES = 8
_GOAL_MS = 200.0
_TIME = 1 / 1.5
"""Target: with five times the keys an epoch takes at most 1.5 times as long."""
_KEYS = (pa.field("k", pa.int64()),)
_AGGREGATES = (count().bind("n"), sum_of("v").bind("total", input_types=(pa.int64(),)))
OPERATORS: dict[str, Operator] = {
    "updating aggregate": UpdatingAggregate(operator_id="totals", keys=_KEYS, aggregates=_AGGREGATES),
    "tumbling window": WindowAggregate(
        operator_id="minutes", keys=_KEYS, aggregates=_AGGREGATES, window=tumbling("1 minute")
    ),
}


@dataclass
class Timed:
    """An operator that says when its step began and ended."""

    operator: Operator
    began: float = 0.0
    ended: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operator, name)

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        self.began = time.perf_counter()
        try:
            return self.operator.step(tables, batches, clock)
        finally:
            self.ended = time.perf_counter()


@dataclass(frozen=True)
class Spent:
    """Seconds of one subtask in one epoch."""

    restore: float
    step: float
    store: float
    """Outbox, checkpoint, metadata: encoded, put, synced, read back."""
    processor: float
    """Processor time of all threads."""

    @property
    def total(self) -> float:
        return self.restore + self.step + self.store


class Job:
    """One operator over its own store, with a cache or without."""

    def __init__(self, operator: Operator, keys: int, folder: Path, *, cached: bool) -> None:
        self._operator = Timed(operator)
        self._keys = keys
        self._store = LocalStore(str(folder / "state"))
        self._tiers = Tiers(MemoryController(_BUDGET), folder=folder / "spill")
        self._cache = HostCache(folder / "cache", _CACHE_BYTES) if cached else None
        self._random = np.random.default_rng(keys)
        self._bases: list[tuple[bytes, ...]] = [()] * _PARALLELISM
        self._edits: list[tuple[bytes, ...]] = [()] * _PARALLELISM
        self._reports: list[SubtaskReport] = []
        self._epoch = 0
        self._watermark: int | None = None
        self._rows = self._total = 0
        if isinstance(operator, UpdatingAggregate):
            self._feed(np.arange(keys, dtype=np.int64))
            self._compact()

    def epoch(self) -> list[Spent]:
        spent = self._feed(self._random.integers(0, self._keys, ROWS))
        if max(report.state_files for report in self._reports[-_PARALLELISM:]) >= _MAX_FILES:
            self._compact()
        return spent

    def _feed(self, ids: Ids, *, watermark: int | None = None) -> list[Spent]:
        self._epoch += 1
        now = self._epoch * _EPOCH_US
        late, self._watermark = self._watermark, watermark or now
        hashes = hash_columns([pa.array(ids)])
        times = now + self._random.integers(1, _EPOCH_US, len(ids))
        columns: list[npt.NDArray[Any]] = [hashes, times, ids, ids % 97]
        schema = self._operator.inputs[0].schema
        arrays = [from_numpy(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
        self._rows, self._total = self._rows + len(ids), self._total + int((ids % 97).sum())
        shares = [np.flatnonzero(in_range(hashes, owned_range(index, _PARALLELISM))) for index in range(_PARALLELISM)]
        batches = [rows.take(from_numpy(share, pa.int64())) for share in shares]
        return [self._subtask(index, batch, late) for index, batch in enumerate(batches)]

    def _subtask(self, index: int, batch: pa.RecordBatch, late: int | None) -> Spent:
        task = SubtaskTask(
            job_id="bench",
            epoch=self._epoch,
            operator=cast("Operator", self._operator),
            subtask_index=index,
            parallelism=_PARALLELISM,
            base=self._bases[index],
            late_us=late,
            watermark_us=self._watermark,
            epoch_time_us=self._epoch * _EPOCH_US,
            edits=self._edits[index],
        )
        processor, start = time.process_time(), time.perf_counter()
        report = run_subtask(task, self._store, [batch], tiers=self._tiers, cache=self._cache)
        processor, end = time.process_time() - processor, time.perf_counter()
        self._bases[index] = (report.reference.SerializeToString(),)
        self._edits[index] = ()
        self._reports.append(report)
        began, ended = self._operator.began, self._operator.ended
        return Spent(restore=began - start, step=ended - began, store=end - ended, processor=processor)

    def _compact(self) -> None:
        for index, (reference,) in enumerate(self._bases):
            task = CompactionTask(
                job_id="bench",
                run=1,
                epoch=self._epoch,
                operator=cast("Operator", self._operator),
                parallelism=_PARALLELISM,
                reference=reference,
                epoch_time_us=self._epoch * _EPOCH_US,
                max_bytes=1 << 40,
            )
            self._edits[index] = compact_subtask(task, self._store, tiers=self._tiers, cache=self._cache).edits

    def check(self) -> None:
        """Check that the files hold what was fed."""
        totals = self._in_state() if isinstance(self._operator.operator, UpdatingAggregate) else self._in_outboxes()
        if totals != (self._rows, self._total):
            raise SystemExit(f"subtask: {totals} rows and their sum are in files, not {self._rows, self._total}")

    def close(self) -> None:
        self._tiers.close()

    def _in_state(self) -> tuple[int, int]:
        references = [pb.SubtaskReference.FromString(reference) for (reference,) in self._bases]
        entry = pb.OperatorEntry(operator_id=self._operator.operator_id, subtasks=references)
        record = pb.CheckpointMetadata(job_id="bench", epoch=self._epoch, operators=[entry])
        rows = total = 0
        for index in range(_PARALLELISM):
            task = SubtaskTask("bench", 0, self._operator.operator, index, _PARALLELISM, (), None, None, 0).info
            with TableManager(
                task, self._operator.tables, self._store, restore_from=record, tiers=self._tiers
            ) as manager:
                for piece in manager.get_keyed(GROUPS).scan():
                    rows += pc.sum(piece["n"]).as_py()
                    total += pc.sum(piece["total"]).as_py()
        return rows, total

    def _in_outboxes(self) -> tuple[int, int]:
        self._feed(np.zeros(0, dtype=np.int64), watermark=(self._epoch + 10) * _EPOCH_US)
        rows = total = 0
        for file in (file for report in self._reports for file in report.outbox):
            table = pq.read_table(pa.BufferReader(self._store.get(file.path)), columns=["n", "total"])
            rows += pc.sum(table["n"]).as_py()
            total += pc.sum(table["total"]).as_py()
        return rows, total


def run(report: Report, *, quick: bool, only: str = "") -> int | None:
    """Measure every case whose name contains `only`; an exit status when there is none."""
    names = [name for name in OPERATORS if is_chosen(name, only)]
    if not names:
        print("no such case; there are:", *OPERATORS, sep="\n  ", file=sys.stderr)
        return 2
    for name in names:
        measure(name, report, epochs=9 if quick else 24)
    return None


def measure(name: str, report: Report, *, epochs: int) -> None:
    """One operator, over states of two sizes and without the cache."""
    with tempfile.TemporaryDirectory(prefix="statebed-bench-") as folder:
        places = [Path(folder) / label for label in ("small", "large", "plain")]
        sizes = (_MILLION, 5 * _MILLION, _MILLION)
        jobs = [
            Job(OPERATORS[name], keys, place, cached=place.name != "plain")
            for keys, place in zip(sizes, places, strict=True)
        ]
        for job in jobs:
            job.epoch()  # warms up
        rounds = [[job.epoch() for job in jobs] for _ in range(epochs)]
        for job in jobs:
            job.check()
            job.close()
    small, large, plain = ([spent for spent_by_size in rounds for spent in spent_by_size[index]] for index in range(3))
    case = f"subtask, {name}"
    for keys, runs in (("1M", small), ("5M", large), ("1M, no cache", plain)):
        report.note(f"  {name}, {keys}: a subtask takes {_described(runs)}")
    clock, processor = ([_median(runs, name) for runs in (small, large, plain)] for name in ("total", "processor"))
    one_million, five_million = f"{case}, 1M keys", f"{case}, 5M keys"
    report.add(smaller(one_million, "no host cache", "time", ours=clock[0], theirs=clock[2], unit="ms"))
    report.add(smaller(one_million, "no host cache", "processor", ours=processor[0], theirs=processor[2], unit="ms"))
    report.add(smaller(one_million, "goal", "processor", ours=processor[0], theirs=_GOAL_MS, unit="ms", target=1.0))
    report.add(smaller(five_million, "1M keys", "time", ours=clock[1], theirs=clock[0], unit="ms", target=_TIME))
    report.add(
        smaller(five_million, "1M keys", "processor", ours=processor[1], theirs=processor[0], unit="ms", target=_TIME)
    )


def _median(runs: Sequence[Spent], name: str) -> float:
    return float(1000 * statistics.median(getattr(run, name) for run in runs))


def _described(runs: Sequence[Spent]) -> str:
    return ", ".join(f"{_median(runs, what):.0f} ms to {what}" for what in ("restore", "step", "store"))
