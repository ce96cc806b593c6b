"""A job of many subtasks in one process: real subtasks, records, compaction rounds and clean-ups, a simulated S3.

Epochs take the path of the Spark driver without Spark: every subtask is restored from its metadata, applies its rows
and reports; the driver takes the reports, commits the record, and starts compaction rounds and clean-ups by the same
rules. The clock is virtual and advances by one epoch length per epoch, so that retention and grace periods are those of
a real job.
"""

import datetime as dt
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.scale.s3 import Latencies
from bench.scale.simulated_store import Requests, SimulatedStore
from bench.subtask import OPERATORS
from statebed.arrays.columns import from_numpy
from statebed.arrays.key_hash import hash_columns
from statebed.checkpoint import Environment, EpochDraft, Retention, Run, RunOptions
from statebed.checkpoint.objects import fetch_subtask
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import subtask_of
from statebed.operators.operator import Clock
from statebed.spark.compaction.rounds import CompactionOptions, CompactionRounds
from statebed.spark.epoch.reports import accepted, new_entry
from statebed.spark.plan.pieces import REPORT, Piece
from statebed.state import MemoryController, Tiers
from statebed.state.host_cache import HostCache
from statebed.state.keyed.files import BASE
from statebed.storage import ScopedStore
from statebed.subtasks import CompactedSubtask, CompactionTask, SubtaskReport, SubtaskTask, run_subtask
from statebed.subtasks.compaction import compact_subtask

JOB = "scale"
_BUDGET = 2 << 30
_SECOND_US = 1_000_000
_FIRST_US = 1_700_000_000 * _SECOND_US


@dataclass(frozen=True)
class Shape:
    """Size of a simulated job."""

    operator: str
    subtasks: int
    keys: int
    """Keys of each subtask."""
    rows: int
    """Rows of each subtask and epoch."""
    epoch_seconds: float = 10.0
    retained_epochs: int = 10
    grace_seconds: float = 600.0
    collect_every: int = 16
    compaction_every: int = 32


@dataclass
class Totals:
    """Costs of some epochs of a job."""

    epochs: int = 0
    subtasks: Requests = field(default_factory=Requests)
    driver: Requests = field(default_factory=Requests)
    compaction: Requests = field(default_factory=Requests)
    cleanups: list[Requests] = field(default_factory=list)
    record_bytes: int = 0
    metadata_bytes: int = 0
    """Size of the metadata object of a subtask, in the mean."""
    commit_seconds: float = 0.0
    """Seconds of the driver's own work for the last epoch, without requests."""
    subtask_seconds: float = 0.0
    """Seconds of a subtask's own work, in the mean."""
    state_bytes: int = 0
    state_rows: int = 0
    state_files: int = 0
    base_files: int = 0
    base_bytes: int = 0


@dataclass(frozen=True)
class _Done:
    """A round of compactions that has ended."""

    results: Sequence[CompactedSubtask]
    began: float = 0.0
    done: bool = True

    def wait(self, seconds: float) -> None:
        del seconds

    def result(self) -> Sequence[CompactedSubtask]:
        return self.results

    def cancel(self) -> None:
        pass


@dataclass(frozen=True)
class _Rounds:
    """Runs the compactions of a round at once."""

    job: "SimulatedJob"

    def begin(self, tasks: Sequence[CompactionTask]) -> _Done:
        self.job.store.phase = "compaction"
        return _Done([compact_subtask(task, self.job.scoped, tiers=self.job.tiers) for task in tasks])

    def close(self) -> None:
        pass


class SimulatedJob:
    """One operator, `Shape.subtasks` subtasks."""

    def __init__(self, shape: Shape, folder: Path, latencies: Latencies, *, cached: bool = True) -> None:
        self.shape = shape
        self.operator = OPERATORS[shape.operator]
        self.store = SimulatedStore(latencies)
        self.scoped = ScopedStore(self.store, JOB)
        self.tiers = Tiers(MemoryController(_BUDGET), folder=folder / "spill")
        self._cache = HostCache(folder / "cache", 8 << 30) if cached else None
        self._random = np.random.default_rng(shape.subtasks)
        self._now_us = _FIRST_US
        self._mark: int | None = None
        self._epochs = 0
        self.totals = Totals()
        self.run = self.open()
        self._compaction = CompactionRounds(
            _Rounds(self),
            run=self.run.number,
            operators={self.operator.operator_id: self.operator},
            options=CompactionOptions(every_epochs=shape.compaction_every),
        )

    def close(self) -> None:
        self.tiers.close()

    def open(self) -> Run:
        """Open a run, as a restarted driver does."""
        shape = self.shape
        retention = Retention(epochs=shape.retained_epochs, reader_grace=dt.timedelta(seconds=int(shape.grace_seconds)))
        self.store.phase = "open"
        environment = Environment(now_us=lambda: self._now_us)
        return Run.open(self.scoped, JOB, options=RunOptions(retention=retention), environment=environment)

    def fill(self) -> None:
        """Give every subtask its keys, in one epoch that is not counted."""
        self._epoch(np.arange(self.shape.keys * self.shape.subtasks, dtype=np.int64))
        self.forget()

    def forget(self) -> None:
        """Begin to count anew."""
        self.store.phases.clear()
        self.totals = Totals()

    def epoch(self) -> None:
        """Run an epoch with rows of random keys."""
        keys, subtasks = self.shape.keys, self.shape.subtasks
        self._epoch(self._random.integers(0, keys * subtasks, self.shape.rows * subtasks))

    def restart(self) -> tuple[Requests, Requests]:
        """Return the requests of a driver that opens the next run, and of a subtask's first epoch, with an empty cache.

        The job is at its end then.
        """
        self.store.taken("open")
        self.run = self.open()
        opened = self.store.taken("open")
        reference = self.run.head.operators[0].subtasks[0]
        self._cache, late = None, self._mark
        ids = self._random.integers(0, self.shape.keys * self.shape.subtasks, self.shape.rows * self.shape.subtasks)
        self.store.phase = "restore"
        self._subtask(0, reference.SerializeToString(), self._batches(ids)[0], late=late, edits=(), compacting=None)
        return opened, self.store.taken("restore")

    def base_files(self) -> tuple[int, int]:
        """Return the number and bytes of the base files of the first subtask."""
        metadata = fetch_subtask(self.scoped, self.run.head.operators[0].subtasks[0])
        self.store.phases.clear()
        files = [file for table in metadata.tables.values() for part in table.subtasks.values() for file in part.files]
        base = [file for file in files if file.level == BASE] or files
        return len(base), sum(file.size for file in base)

    def _epoch(self, ids: npt.NDArray[np.int64]) -> None:
        shape, totals, operator = self.shape, self.totals, self.operator
        self._epochs += 1
        self._now_us += int(shape.epoch_seconds * _SECOND_US)
        batches = self._batches(ids)
        edits = self._compaction.before_epoch(self.run.next_epoch)
        late, self._mark = self._mark, self._now_us - 2 * int(shape.epoch_seconds * _SECOND_US)
        head = {entry.operator_id: entry for entry in self.run.head.operators}
        bases = [part.SerializeToString() for part in head[operator.operator_id].subtasks] if head else []
        self.store.phase = "subtasks"
        start = time.perf_counter()
        payloads = [
            self._subtask(
                index,
                bases[index] if bases else None,
                batches[index],
                late=late,
                edits=edits.edits.get(operator.operator_id, ()),
                compacting=edits.compacting_epoch.get(operator.operator_id),
            ).to_bytes()
            for index in range(shape.subtasks)
        ]
        totals.subtask_seconds += (time.perf_counter() - start) / shape.subtasks
        self.store.phase = "driver"
        start = time.perf_counter()
        reports = self._commit(payloads, late)
        totals.commit_seconds = time.perf_counter() - start
        self._compaction.after_epoch(self.run.head, reports)
        totals.cleanups += self._cleaned_up()
        self._add_up(reports)

    def _commit(self, payloads: Sequence[bytes], late: int | None) -> Sequence[SubtaskReport]:
        operator, shape = self.operator, self.shape
        pieces = [Piece(index, REPORT, payload) for index, payload in enumerate(payloads)]
        taken = accepted(pieces, operators={operator.operator_id: shape.operator}, parallelism=shape.subtasks)
        reports = taken.reports[operator.operator_id]
        clock = Clock(late, self._mark, self._now_us)
        entry = new_entry(operator, reports, clock, origins=[["rows"]], parallelism=shape.subtasks)
        self.run.commit(
            EpochDraft(
                operators=[entry],
                source_position=pb.SourcePosition(kind="bench", opaque=b"{}"),
                outbox=[file for report in reports for file in report.outbox],
                epoch_time_us=self._now_us,
                parallelism=shape.subtasks,
            )
        )
        return reports

    def _cleaned_up(self) -> list[Requests]:
        if self._epochs % self.shape.collect_every:
            return []
        self.store.phase = "cleanup"
        self.run.clean_up(in_flight=self._compaction.in_flight)
        taken = self.store.taken("cleanup")
        return [taken] if taken.deleted else []

    def _add_up(self, reports: Sequence[SubtaskReport]) -> None:
        totals, head = self.totals, self.run.head
        totals.epochs += 1
        totals.subtasks += self.store.taken("subtasks")
        totals.driver += self.store.taken("driver")
        totals.compaction += self.store.taken("compaction")
        totals.record_bytes = head.ByteSize()
        totals.metadata_bytes = sum(report.reference.size for report in reports) // len(reports)
        totals.state_bytes = sum(report.state_bytes for report in reports)
        totals.state_rows = sum(report.state_rows for report in reports)
        totals.state_files = sum(report.state_files for report in reports)

    def _subtask(
        self,
        index: int,
        base: bytes | None,
        batch: pa.RecordBatch,
        *,
        late: int | None,
        edits: tuple[bytes, ...],
        compacting: int | None,
    ) -> SubtaskReport:
        task = SubtaskTask(
            job_id=JOB,
            epoch=self.run.next_epoch,
            operator=self.operator,
            subtask_index=index,
            parallelism=self.shape.subtasks,
            base=() if base is None else (base,),
            late_us=late,
            watermark_us=self._mark,
            epoch_time_us=self._now_us,
            edits=edits,
            compacting_epoch=compacting,
        )
        return run_subtask(task, self.scoped, [batch], tiers=self.tiers, cache=self._cache)

    def _batches(self, ids: npt.NDArray[np.int64]) -> list[pa.RecordBatch]:
        """Return the rows of each subtask, with times of this epoch."""
        schema = self.operator.inputs[0].schema
        hashes = hash_columns([pa.array(ids)])
        owners = subtask_of(hashes, self.shape.subtasks)
        order = np.argsort(owners, kind="stable")
        span = int(self.shape.epoch_seconds * _SECOND_US)
        times = self._now_us - self._random.integers(0, span, len(ids))
        columns: list[npt.NDArray[Any]] = [hashes, times, ids, ids % 97]
        arrays = [from_numpy(column[order], kind) for column, kind in zip(columns, schema.types, strict=True)]
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
        edges = np.searchsorted(owners[order], np.arange(self.shape.subtasks + 1))
        return [rows.slice(int(first), int(end - first)) for first, end in itertools.pairwise(edges)]
