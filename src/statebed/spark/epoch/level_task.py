"""The function of a Spark task: runs the subtasks of all operators of one level, from rows to reports.

Rows arrive and leave in pieces, each for one subtask and branch (`pieces`). Reports travel the same way to the end of
the job, where the driver collects them.

The function is pickled for the executor: it contains the URL of the store, never a store. An error that a repetition
cannot fix is returned in band and raised unchanged on the driver; others fail the task, so that Spark repeats it.
"""

import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from statebed.arrays.columns import int64_values, uint64_values
from statebed.errors import StatebedError, StorageError, SubtaskError
from statebed.format import names
from statebed.format.ranges import subtask_of
from statebed.format.schema import KEY_HASH
from statebed.operators.labels import operator_label
from statebed.spark.epoch.epoch_figures import READING, Meter
from statebed.spark.plan.host_memory import TaskShare
from statebed.spark.plan.pieces import (
    BRANCH,
    FAILED,
    HEARTBEAT,
    PAYLOAD,
    REPORT,
    SUBTASK,
    piece,
    routed,
    rows_in,
)
from statebed.spark.plan.routing import MaxEventTimes, PlacedGroups
from statebed.spark.plan.topology import Route
from statebed.spark.plan.worker_resources import freeze_heap, resources
from statebed.state.memory.pages import give_back_pages
from statebed.storage import ScopedStore, get_storage_provider
from statebed.subtasks.figures import WaitTimer
from statebed.subtasks.outbox import FILE_ROWS
from statebed.subtasks.subtask import SubtaskTask, run_subtask, slices_of


@dataclass(frozen=True)
class LevelOperator:
    """One operator of the level."""

    task: SubtaskTask
    """Task of subtask 0; each partition derives its own."""
    branches: tuple[tuple[int, ...], ...]
    routes: tuple[Route, ...]


@dataclass(frozen=True)
class StageFunction:
    """Function for mapInArrow: each partition is one subtask of every operator of the level."""

    state_url: str
    works: tuple[LevelOperator, ...]
    share: TaskShare | None = None
    """Share of the host's memory and cache, or None for the defaults of the process."""
    meter: Meter | None = None
    """Collects the measurements of the subtasks."""
    groups: PlacedGroups | None = None
    """Layout of the groups that arrive instead of pieces, or None."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None:
            raise SubtaskError("a subtask must run inside a Spark task")
        index = context.partitionId()
        own = {branch for work in self.works for branches in work.branches for branch in branches}
        passing: list[pa.RecordBatch] = []
        try:
            placed = (_placed(batch, index) for batch in batches)
            arrivals = (arrival for batch in placed for arrival in _arrivals(batch, own, passing))
            if self.groups is not None:
                rows: Mapping[int, Iterable[pa.RecordBatch]] = {
                    next(iter(own)): self._taken(self.groups, placed, passing, index)
                }
            elif len(own) == 1:
                # A single branch: rows are processed as they arrive.
                rows = {next(iter(own)): (part for _, part in arrivals)}
            else:
                gathered: dict[int, list[pa.RecordBatch]] = {}
                for branch, arrived in arrivals:
                    gathered.setdefault(branch, []).append(arrived)
                rows = gathered
            for work in self.works:
                yield from self._subtask(work, index, rows)
        except StorageError:
            raise
        except StatebedError as failure:
            yield piece(index, FAILED, pickle.dumps(failure))
        yield from passing
        # While the worker waits for its next task, it holds only memory in use.
        rows = {}
        give_back_pages()
        freeze_heap()

    def _taken(
        self, groups: PlacedGroups, batches: Iterator[pa.RecordBatch], passing: list[pa.RecordBatch], index: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the groups computed in the JVM; pass on the event times of their sources to the driver."""
        seen, waiting = MaxEventTimes(), WaitTimer()
        table = groups.take(waiting.over(batches), seen)
        passing.extend(seen.pieces())
        if self.meter is not None:
            self.meter.add(READING, index, waiting.seconds)
        task = self.works[0].task
        if (subtask_of(uint64_values(table[KEY_HASH]), task.parallelism) != index).any():
            raise SubtaskError(
                f"Spark hashes the keys of {operator_label(task.operator)} differently",
                where=f"subtask {index}",
                fix="start the job with the setting preaggregate_below=0, and report the types of its keys",
            )
        return iter(table.to_batches())

    def _subtask(
        self, work: LevelOperator, index: int, rows: Mapping[int, Iterable[pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        task = work.task.of(index)
        store = ScopedStore(get_storage_provider(self.state_url), names.job_folder(task.job_id))
        inputs = [(row for branch in branches for row in rows.get(branch, ())) for branches in work.branches]
        outputs: dict[str, pa.Table] = {}
        tiers, cache = (None, None) if self.share is None else resources(self.share)
        measured = None if self.meter is None else self.meter.subtask(index, cache)
        report = run_subtask(task, store, *inputs, tiers=tiers, cache=cache, forward=outputs.update, measured=measured)
        yield piece(index, REPORT, report.to_bytes())
        for route in work.routes:
            for part in slices_of(outputs, FILE_ROWS):
                routed_rows = route.rows(part)
                if routed_rows is not None:
                    yield from routed(routed_rows, route.number, task.parallelism, broadcast=route.feed.input.broadcast)


def _placed(batch: pa.RecordBatch, index: int) -> pa.RecordBatch:
    if batch.num_rows and pc.min_max(batch.column(SUBTASK)).as_py() != {"min": index, "max": index}:
        raise SubtaskError(
            f"rows of another subtask arrived at subtask {index}",
            fix="this version of Spark does not place rows correctly by repartitionById; report it with its version",
        )
    return batch


def _arrivals(
    batch: pa.RecordBatch, own: Collection[int], passing: list[pa.RecordBatch]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of this level's operators by branch; pass on rows for later levels or the driver."""
    for row, branch in enumerate(int64_values(batch.column(BRANCH).cast(pa.int64())).tolist()):
        if branch in own:
            yield from ((branch, rows) for rows in rows_in(batch.column(PAYLOAD)[row]))
        elif branch != HEARTBEAT:
            # Rebuilt, because Spark may use Arrow's large types, and all output of a task must have one schema.
            passing.append(piece(batch.column(SUBTASK)[row].as_py(), branch, batch.column(PAYLOAD)[row].as_buffer()))
