"""Figures of an epoch, from the measurements of its tasks.

Measurements differ between attempts, so they must not be part of rows that a later level shuffles: Spark aborts a job
whose repeated stage returns different rows. They reach the driver at the end of each successful task, in an accumulator
that keeps one value per operator and subtask, even if a task was repeated or ran twice. No decision depends on them,
and an epoch whose figures are lost is still valid.
"""

import platform
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.figures import PHASES
from statebed.spark.plan.pieces import OBSERVED, Piece
from statebed.spark.plan.routing import RouteFunction
from statebed.spark.scan.native_scan import ScanFunction
from statebed.state.host_cache import HostCache
from statebed.subtasks.figures import SubtaskFigures, WaitTimer, figures_together

READING = ""
"""Operator name in the figures of tasks that read sources."""
SCANNED = "\x00"
"""Operator name in the counts of rows that tasks have scanned."""
PLANNING, READ, SHUFFLE, MERGE, WRITE, COMMIT, PUBLISH = PHASES
_HOLDERS = 20
"""Maximum number of named holders of a host's memory; the rest is summed."""
_REST = "others"
_LOOK_SECONDS = 5.0

Key = tuple[str, int, str, int]
"""Query, epoch, operator, and subtask or partition."""
Measured = SubtaskFigures | float | tuple[int, ...]
"""Figures of a subtask, seconds of a task that reads, or the rows of each stream that a task has scanned."""
FiguresByKey = dict[Key, Measured]


class _LastOfEach(AccumulatorParam[FiguresByKey]):
    """Keeps one value per key; updated in place, because several queries and Spark's own thread share it."""

    def zero(self, value: FiguresByKey) -> FiguresByKey:  # noqa: ARG002 - pyspark's protocol
        return {}

    def addInPlace(self, value1: FiguresByKey, value2: FiguresByKey) -> FiguresByKey:  # noqa: N802 - pyspark's name
        value1.update(value2)
        return value1


_channels: "weakref.WeakKeyDictionary[SparkContext, Accumulator[FiguresByKey]]" = weakref.WeakKeyDictionary()


def _channel(context: SparkContext) -> "Accumulator[FiguresByKey]":
    """Return the accumulator shared by all queries, because Spark never releases an accumulator."""
    if context not in _channels:
        _channels[context] = context.accumulator({}, _LastOfEach())
    return _channels[context]


@dataclass(frozen=True)
class Meter:
    """Collects the measurements of the tasks of one epoch; serialised with them."""

    channel: "Accumulator[FiguresByKey]"
    query: str
    epoch: int

    @classmethod
    def of(cls, context: SparkContext, query: str, epoch: int) -> "Meter":
        return cls(_channel(context), query, epoch)

    def add(self, operator_id: str, index: int, measured: Measured) -> None:
        """Add a measurement; called in a task."""
        self.channel.add({(self.query, self.epoch, operator_id, index): measured})

    def subtask(self, index: int, cache: HostCache | None) -> Callable[[SubtaskFigures], None]:
        """Return the callback for `run_subtask`, which adds figures of the host."""

        def measured(figures: SubtaskFigures) -> None:
            figures.memory.host = platform.node()
            if cache is not None:
                figures.memory.cache_bytes, figures.memory.cache_limit_bytes = _used(cache), cache.limit_bytes
            self.add(figures.operator.operator_id, index, figures)

        return measured

    def take(self) -> "EpochMeasurements":
        """Return the measurements of the epoch, on the driver after the action, and discard those of this and older
        epochs.
        """
        collected = self.channel.value
        mine = {key: collected.pop(key) for key in list(collected) if key[0] == self.query and key[1] <= self.epoch}
        own = {key[2:]: value for key, value in mine.items() if key[1] == self.epoch}
        return EpochMeasurements(
            subtasks=[value for value in own.values() if isinstance(value, SubtaskFigures)],
            read_seconds=[value for value in own.values() if isinstance(value, float)],
            scanned=tuple(value for value in own.values() if isinstance(value, tuple)),
        )


@dataclass(frozen=True)
class MeasuredReading:
    """Function for mapInArrow that routes the rows of a batch and measures how long it waits for them."""

    route: RouteFunction
    meter: Meter

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting = WaitTimer()
        for piece in self.route(waiting.over(batches)):
            yield piece.row()
        context = TaskContext.get()
        if context is not None:
            self.meter.add(READING, context.partitionId(), waiting.seconds)


@dataclass(frozen=True)
class MeasuredScan:
    """Function of a task that scans files, routes their rows and measures how long reading takes."""

    scan: ScanFunction
    route: RouteFunction
    meter: Meter

    def __call__(self, number: int) -> Iterator[Piece]:
        waiting, counts, latest_ms = WaitTimer(), [0] * len(self.scan.programs), dict[str, int]()
        yield from self.route(waiting.over(self.scan.rows(number, counts, latest_ms)))
        yield from _observed(latest_ms)
        self.meter.add(READING, number, waiting.seconds)
        self.meter.add(SCANNED, number, tuple(counts))

    def of_subtask(self, index: int) -> Iterator[Piece]:
        """Scan all files for one subtask, which keeps only its own rows."""
        waiting, counts, latest_ms = WaitTimer(), [0] * len(self.scan.programs), dict[str, int]()
        tasks = range(len(self.scan.tasks))
        rows = (batch for number in tasks for batch in self.scan.rows(number, counts, latest_ms))
        yield from self.route(waiting.over(rows), only=index)
        self.meter.add(READING, index, waiting.seconds)
        if index == 0:
            # The others have read the same rows.
            yield from _observed(latest_ms)
            self.meter.add(SCANNED, index, tuple(counts))


def _observed(latest_ms: Mapping[str, int]) -> Iterator[Piece]:
    """Yield the piece that reports the event times at watermarks to the driver."""
    if latest_ms:
        yield Piece(0, OBSERVED, msgspec.msgpack.encode(dict(sorted(latest_ms.items()))))


@dataclass(frozen=True)
class EpochMeasurements:
    """Measurements of the tasks of an epoch, one per task."""

    subtasks: Sequence[SubtaskFigures] = ()
    read_seconds: Sequence[float] = ()
    scanned: Sequence[tuple[int, ...]] = ()
    """Rows of each stream that each task has scanned natively."""

    @property
    def scanned_rows(self) -> tuple[int, ...]:
        """Number of rows of each stream; empty if Spark has read them."""
        return tuple(map(sum, zip(*self.scanned, strict=True)))

    def phases(self, action_us: int, levels: Sequence[Sequence[str]], *, slots: int) -> dict[str, int]:
        """Divide the time of the action into phases, which add up to it; time that no task measured is Spark's own.

        The time of a level is that of its longest subtask, or the total of all subtasks divided by the task slots if
        that is more.
        """
        by_name: dict[str, list[SubtaskFigures]] = {}
        for subtask in self.subtasks:
            by_name.setdefault(subtask.operator.operator_id, []).append(subtask)
        read = _wall([round(seconds * 1e6) for seconds in self.read_seconds], slots)
        merge = write = 0
        for level in levels:
            of_level = [measured for name in level for measured in by_name.get(name, ())]
            merge += _wall([measured.merge_us for measured in of_level], slots)
            write += _wall([measured.write_us for measured in of_level], slots)
        known = {READ: read, MERGE: merge, WRITE: write}
        total = sum(known.values())
        if total > action_us:
            known = {name: us * action_us // total for name, us in known.items()}
        return {READ: known[READ], SHUFFLE: action_us - sum(known.values()), MERGE: known[MERGE], WRITE: known[WRITE]}

    def operators(self, names: Sequence[str]) -> list[pb.OperatorFigures]:
        """Return the figures of each operator, summed over its subtasks."""
        return [
            figures_together(name, [subtask.operator for subtask in self.subtasks if _is(subtask, name)])
            for name in names
        ]

    def hosts(self) -> list[pb.HostFigures]:
        """Return the figures of the fullest process of each host."""
        fullest: dict[str, pb.HostFigures] = {}
        spilled: dict[str, int] = {}
        for subtask in self.subtasks:
            host = subtask.memory.host
            spilled[host] = spilled.get(host, 0) + subtask.memory.spilled_bytes
            if host not in fullest or subtask.memory.peak_bytes > fullest[host].peak_bytes:
                fullest[host] = subtask.memory
        for host, figures in fullest.items():
            figures.spilled_bytes = spilled[host]
            _bound(figures)
        return [fullest[host] for host in sorted(fullest)]


_looked_up: dict[str, tuple[float, int]] = {}


def _used(cache: HostCache) -> int:
    """Return the bytes of the host cache, measured only now and then because there may be many files."""
    at, used = _looked_up.get(str(cache.folder), (-_LOOK_SECONDS, 0))
    if time.monotonic() - at >= _LOOK_SECONDS:
        used = cache.used
        _looked_up[str(cache.folder)] = (time.monotonic(), used)
    return used


def _is(subtask: SubtaskFigures, operator_id: str) -> bool:
    return subtask.operator.operator_id == operator_id


def _wall(times_us: Sequence[int], slots: int) -> int:
    return max(max(times_us, default=0), sum(times_us) // max(slots, 1))


def _bound(figures: pb.HostFigures) -> None:
    """Keep only the largest holders by name, because a job may have many tables."""
    largest = sorted(figures.holders.items(), key=lambda holder: (-holder[1], holder[0]))
    if len(largest) > _HOLDERS:
        rest = sum(nbytes for _, nbytes in largest[_HOLDERS:])
        figures.holders.clear()
        figures.holders.update({**dict(largest[:_HOLDERS]), _REST: rest})
