"""The function of a Spark task: runs the subtasks of all operators of one level, from rows to reports.

Rows arrive and leave in pieces, each for one subtask and branch (`pieces`), or arrive as groups that the JVM has
computed. Reports travel the same way to the end of the job, where the driver collects them.

The function is pickled for the executor: it contains the URL of the store, never a store. An error that a repetition
cannot fix is returned in band and raised unchanged on the driver; others fail the task, so that Spark repeats it.
"""

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from statebed.arrays.columns import uint64_values
from statebed.errors import StatebedError, StorageError, SubtaskError
from statebed.format import names
from statebed.format.ranges import subtask_of
from statebed.format.schema import KEY_HASH
from statebed.operators.labels import operator_label
from statebed.spark.epoch.epoch_figures import READING, Meter
from statebed.spark.plan.host_memory import TaskShare
from statebed.spark.plan.pieces import FAILED, REPORT, SUBTASK, Piece, pieces_of, routed
from statebed.spark.plan.routing import MaxEventTimes, PlacedGroups
from statebed.spark.plan.topology import Route
from statebed.spark.plan.worker_resources import freeze_heap, resources
from statebed.state.memory.pages import idle_pages
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
    """Function of the tasks of a level: each is one subtask of every operator of the level."""

    state_url: str
    works: tuple[LevelOperator, ...]
    share: TaskShare | None = None
    """Share of the host's memory and cache, or None for the defaults of the process."""
    meter: Meter | None = None
    """Collects the measurements of the subtasks."""
    groups: PlacedGroups | None = None
    """Layout of the groups that arrive instead of pieces, or None."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the level as a function for mapInArrow, whose rows are pieces or groups."""
        context = TaskContext.get()
        if context is None:
            raise SubtaskError("a subtask must run inside a Spark task")
        index = context.partitionId()
        if self.groups is None:
            results = self.of_pieces(index, pieces_of(batches))
        else:
            results = self._of_groups(index, self.groups, batches)
        for piece in results:
            yield piece.row()

    def of_pieces(self, index: int, arrivals: Iterator[Piece]) -> Iterator[Piece]:
        """Run the subtasks of this index over the pieces that arrive; yield what they report and forward."""
        return self._run(index, lambda passing: self._by_branch(index, arrivals, passing))

    def _of_groups(self, index: int, groups: PlacedGroups, batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
        (branch,) = self._branches
        return self._run(index, lambda passing: {branch: self._taken(groups, batches, passing, index)})

    @property
    def _branches(self) -> set[int]:
        return {branch for work in self.works for branches in work.branches for branch in branches}

    def _by_branch(
        self, index: int, arrivals: Iterator[Piece], passing: list[Piece]
    ) -> Mapping[int, Iterable[pa.RecordBatch]]:
        own = self._branches
        arrived = _arrivals(index, arrivals, own, passing)
        if len(own) == 1:
            # A single branch: rows are processed as they arrive.
            return {next(iter(own)): (rows for _, rows in arrived)}
        gathered: dict[int, list[pa.RecordBatch]] = {}
        for branch, rows in arrived:
            gathered.setdefault(branch, []).append(rows)
        return gathered

    def _run(
        self, index: int, take: Callable[[list[Piece]], Mapping[int, Iterable[pa.RecordBatch]]]
    ) -> Iterator[Piece]:
        """Run the subtasks over the rows that `take` returns by branch; it collects what only passes this level."""
        with idle_pages.working():
            passing: list[Piece] = []
            rows: Mapping[int, Iterable[pa.RecordBatch]] = {}
            try:
                rows = take(passing)
                for work in self.works:
                    yield from self._subtask(work, index, rows)
            except StorageError:
                raise
            except StatebedError as failure:
                yield Piece(index, FAILED, pickle.dumps(failure))
            yield from passing
            del rows, passing  # before pages are returned
        freeze_heap()

    def _taken(
        self, groups: PlacedGroups, batches: Iterator[pa.RecordBatch], passing: list[Piece], index: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the groups computed in the JVM; pass on the event times of their sources to the driver."""
        seen, waiting = MaxEventTimes(), WaitTimer()
        table = groups.take(waiting.over(_placed(batch, index) for batch in batches), seen)
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
    ) -> Iterator[Piece]:
        task = work.task.of(index)
        store = ScopedStore(get_storage_provider(self.state_url), names.job_folder(task.job_id))
        inputs = [(row for branch in branches for row in rows.get(branch, ())) for branches in work.branches]
        outputs: dict[str, pa.Table] = {}
        tiers, cache = (None, None) if self.share is None else resources(self.share)
        measured = None if self.meter is None else self.meter.subtask(index, cache)
        report = run_subtask(task, store, *inputs, tiers=tiers, cache=cache, forward=outputs.update, measured=measured)
        yield Piece(index, REPORT, report.to_bytes())
        for route in work.routes:
            for part in slices_of(outputs, FILE_ROWS):
                routed_rows = route.rows(part)
                if routed_rows is not None:
                    yield from routed(routed_rows, route.number, task.parallelism, broadcast=route.feed.input.broadcast)


def _arrivals(
    index: int, pieces: Iterator[Piece], own: Collection[int], passing: list[Piece]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of this level's operators by branch; pass on what is for later levels or the driver."""
    for piece in pieces:
        if piece.subtask != index:
            raise _misplaced(index)
        if piece.branch in own:
            yield from ((piece.branch, rows) for rows in piece.batches())
        else:
            passing.extend(piece.encoded())


def _placed(batch: pa.RecordBatch, index: int) -> pa.RecordBatch:
    if batch.num_rows and pc.min_max(batch.column(SUBTASK)).as_py() != {"min": index, "max": index}:
        raise _misplaced(index)
    return batch


def _misplaced(index: int) -> SubtaskError:
    return SubtaskError(
        f"rows of another subtask arrived at subtask {index}",
        fix="this version of Spark does not place rows correctly by their subtask; report it with its version",
    )
