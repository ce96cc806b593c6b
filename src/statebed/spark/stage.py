"""What a Spark task runs: the subtasks of all operators of one level, from rows to reports.

To the first level rows come as Spark has them; between levels they travel as Arrow IPC, one piece for each subtask and
branch, in rows of three columns: who owns it, its branch, its bytes. Reports go along in the same way to the end of the
job, where the driver collects them.

The function travels to the executor by pickle: it holds the URL of the store, never a store. An error that a
repetition cannot mend travels back in band and is raised on the driver as what it is; others fail the task, so that
Spark repeats it.
"""

import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from statebed.errors import StatebedError, StorageError, SubtaskError
from statebed.format import names
from statebed.format.columns import from_numpy, int64_values, uint64_values, validity
from statebed.format.ranges import subtask_of
from statebed.format.schema import KEY_HASH, TIME
from statebed.operators.operator import WEIGHT
from statebed.operators.rows import in_total_order
from statebed.operators.subtask import SubtaskTask, run_subtask
from statebed.spark.memory import TaskShare
from statebed.spark.resources import resources
from statebed.spark.topology import Route
from statebed.storage import ScopedStore, get_storage_provider

SUBTASK = "_subtask"
BRANCH = "_branch"
SOURCE = "_source"
PAYLOAD = "_payload"
HEARTBEAT = -1
"""A row of nobody's, so that every subtask has one."""
REPORT = -2
SEEN = -3
"""The greatest event times of sources."""
FAILED = -4
STAGE_SCHEMA = f"{SUBTASK} int, {BRANCH} int, {PAYLOAD} binary"
_STAGE = pa.schema([(SUBTASK, pa.int32()), (BRANCH, pa.int32()), (PAYLOAD, pa.binary())])
PIECE_ROWS = 1 << 16
"""Rows of one piece on its way to another level: it must fit a value of Spark's, whatever its columns are."""


@dataclass(frozen=True)
class Layout:
    """How a branch's rows lie in Spark's: the columns of its operator's input, in this order."""

    schema: pa.Schema
    columns: tuple[str, ...]
    sources: tuple[str, ...]
    latest: str = TIME
    """The column with the greatest event time that a row stands for."""

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of this branch as its operator takes them."""
        given = {name: batch.column(slot) for name, slot in zip(self.names, self.columns, strict=True)}
        given |= {name: batch.column(name) for name in (KEY_HASH, TIME)}
        if WEIGHT in self.schema.names:
            given[WEIGHT] = from_numpy(np.ones(batch.num_rows, dtype=np.int64), pa.int64())
        return pa.RecordBatch.from_arrays([given[one.name].cast(one.type) for one in self.schema], schema=self.schema)

    @property
    def names(self) -> list[str]:
        """Of the columns, as the operator knows them."""
        return [name for name in self.schema.names if name not in {KEY_HASH, TIME, WEIGHT}]


@dataclass(frozen=True)
class Work:
    """One operator of the level."""

    task: SubtaskTask
    """For subtask 0; each partition takes its own."""
    branches: tuple[tuple[int, ...], ...]
    routes: tuple[Route, ...]


@dataclass
class Arrived:
    """What a task was given beside the rows of its operators."""

    passing: list[pa.RecordBatch] = field(default_factory=list)
    """For later levels, or for the driver."""
    later: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    """Rows of sources for later levels, by branch."""
    seen: dict[str, int] = field(default_factory=dict)

    def see(self, source: str, times: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        if len(times):
            latest = int(times.max())
            self.seen[source] = max(latest, self.seen.get(source, latest))


@dataclass(frozen=True)
class StageFunction:
    """For mapInArrow: every partition is one subtask of each operator of the level."""

    state_url: str
    works: tuple[Work, ...]
    sources: tuple[str, ...] = ()
    """By their positions in frames of several."""
    layouts: Mapping[int, Layout] | None = None
    """Of the first level; None: rows come from another level."""
    share: TaskShare | None = None
    """Of the host's memory and cache; None: what all of a process share."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None:
            raise SubtaskError("a subtask runs outside of a Spark task")
        index = context.partitionId()
        arrived = Arrived()
        own = {branch for work in self.works for some in work.branches for branch in some}
        given = (one for batch in batches for one in self._arrivals(batch, index, own, arrived))
        try:
            if len(own) == 1:
                # One way for all rows: they are taken as they come.
                rows: Mapping[int, Iterable[pa.RecordBatch]] = {next(iter(own)): (one for _, one in given)}
            else:
                gathered: dict[int, list[pa.RecordBatch]] = {}
                for branch, one in given:
                    gathered.setdefault(branch, []).append(one)
                rows = gathered
            for work in self.works:
                yield from self._subtask(work, index, rows)
        except StorageError:
            raise
        except StatebedError as failure:
            yield _row(index, FAILED, pickle.dumps(failure))
        yield from arrived.passing
        for branch, some in sorted(arrived.later.items()):
            # In an order of their own, because another attempt gets them in another one and must give the same bytes.
            yield from _pieces(in_total_order(pa.Table.from_batches(some)), branch, index)
        if arrived.seen:
            yield _row(index, SEEN, msgspec.msgpack.encode(dict(sorted(arrived.seen.items()))))

    def _subtask(
        self, work: Work, index: int, rows: Mapping[int, Iterable[pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        task = work.task.of(index)
        store = ScopedStore(get_storage_provider(self.state_url), names.job_folder(task.job_id))
        inputs = [(one for branch in some for one in rows.get(branch, ())) for some in work.branches]
        outputs: dict[str, pa.Table] = {}
        tiers, cache = (None, None) if self.share is None else resources(self.share)
        report = run_subtask(task, store, *inputs, tiers=tiers, cache=cache, forward=outputs.update)
        yield _row(index, REPORT, report.to_bytes())
        for route in work.routes:
            given = route.rows(outputs)
            if given is not None:
                yield from _routed(given, route.number, task.parallelism)

    def _arrivals(
        self, batch: pa.RecordBatch, index: int, own: Collection[int], arrived: Arrived
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Rows of this level's operators, by branch; what is not for them goes on."""
        numbers = int64_values(batch.column(BRANCH).cast(pa.int64()))
        _check_owner(batch, index)
        if self.layouts is None:
            for row, number in enumerate(numbers.tolist()):
                if number in own:
                    piece = pa.ipc.open_stream(batch.column(PAYLOAD)[row].as_buffer())
                    yield from ((number, one) for one in piece)
                else:
                    arrived.passing.append(batch.slice(row, 1))
            return
        for number, layout in self.layouts.items():
            mine = numbers == number
            if not mine.any():
                continue
            rows = batch if mine.all() else batch.filter(from_flags(mine))
            self._see(rows, layout, arrived)
            if number in own:
                yield number, layout.rows(rows)
            else:
                arrived.later.setdefault(number, []).append(layout.rows(rows))

    def _see(self, rows: pa.RecordBatch, layout: Layout, arrived: Arrived) -> None:
        times, timed = int64_values(rows.column(layout.latest)), validity(rows.column(layout.latest))
        if len(layout.sources) == 1:
            arrived.see(layout.sources[0], times[timed])
            return
        origins = int64_values(rows.column(SOURCE).cast(pa.int64()))[timed]
        for position, source in enumerate(self.sources):
            arrived.see(source, times[timed][origins == position])


def from_flags(flags: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> pa.Array:
    """A boolean array."""
    bits = np.packbits(flags, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, pa.py_buffer(bits)])


def _check_owner(batch: pa.RecordBatch, index: int) -> None:
    if batch.num_rows and pc.min_max(batch.column(SUBTASK)).as_py() != {"min": index, "max": index}:
        raise SubtaskError(
            f"rows of another subtask arrived at subtask {index}",
            fix="this Spark does not place rows by repartitionById as it should; report it with its version",
        )


def _routed(rows: pa.Table, branch: int, parallelism: int) -> Iterator[pa.RecordBatch]:
    """The rows in pieces, each for one subtask."""
    owners = subtask_of(uint64_values(rows[KEY_HASH]), parallelism)
    order = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[order], np.arange(parallelism + 1))
    for index in range(parallelism):
        mine = order[ends[index] : ends[index + 1]]
        if len(mine):
            yield from _pieces(rows.take(from_numpy(mine.astype(np.int64), pa.int64())), branch, index)


def _pieces(rows: pa.Table, branch: int, index: int) -> list[pa.RecordBatch]:
    made = []
    for start in range(0, rows.num_rows, PIECE_ROWS):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows.slice(start, PIECE_ROWS).combine_chunks())
        made.append(_row(index, branch, sink.getvalue().to_pybytes()))
    return made


def _row(index: int, branch: int, payload: bytes) -> pa.RecordBatch:
    offsets = np.array([0, len(payload)], dtype=np.int32)
    values = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(payload)])
    numbers = [from_numpy(np.array([number], dtype=np.int32), pa.int32()) for number in (index, branch)]
    return pa.RecordBatch.from_arrays([*numbers, values], schema=_STAGE)
