"""From what tasks measured to the figures of an epoch.

Measured figures differ from attempt to attempt, so they must not lie in rows that a later level shuffles: Spark aborts
a job whose repeated stage gives other rows. They come to the driver with the end of each successful task, in an
accumulator: of each operator and subtask the driver keeps one, whatever was repeated or ran twice. No decision rests on
them, and an epoch whose figures are lost is an epoch all the same.
"""

import platform
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.figures import PHASES
from statebed.state.host_cache import HostCache
from statebed.subtasks.figures import SubtaskFigures, Waiting, figures_together

READING = ""
"""Stands for an operator's name in the figures of tasks that read sources."""
PLANNING, READ, SHUFFLE, MERGE, WRITE, COMMIT, PUBLISH = PHASES
_HOLDERS = 20
"""Of a host's memory that are named; the rest is summed up."""
_REST = "others"
_LOOK_SECONDS = 5.0

Key = tuple[str, int, str, int]
"""Query, epoch, operator, subtask or partition."""
Collected = dict[Key, "SubtaskFigures | float"]


class _LastOfEach(AccumulatorParam[Collected]):
    """One value for each key; changed in place, because several queries and Spark's own thread share it."""

    def zero(self, value: Collected) -> Collected:  # noqa: ARG002 - pyspark's protocol
        return {}

    def addInPlace(self, value1: Collected, value2: Collected) -> Collected:  # noqa: N802 - pyspark's name
        value1.update(value2)
        return value1


_channels: "weakref.WeakKeyDictionary[SparkContext, Accumulator[Collected]]" = weakref.WeakKeyDictionary()


def _channel(context: SparkContext) -> "Accumulator[Collected]":
    """One for all queries: Spark never forgets an accumulator."""
    if context not in _channels:
        _channels[context] = context.accumulator({}, _LastOfEach())
    return _channels[context]


@dataclass(frozen=True)
class Meter:
    """Takes what tasks of one epoch measure; travels with them."""

    channel: "Accumulator[Collected]"
    query: str
    epoch: int

    @classmethod
    def of(cls, context: SparkContext, query: str, epoch: int) -> "Meter":
        return cls(_channel(context), query, epoch)

    def add(self, operator_id: str, index: int, measured: "SubtaskFigures | float") -> None:
        """In a task."""
        self.channel.add({(self.query, self.epoch, operator_id, index): measured})

    def subtask(self, index: int, cache: HostCache | None) -> Callable[[SubtaskFigures], None]:
        """For `run_subtask`: adds what is known of the host."""

        def measured(figures: SubtaskFigures) -> None:
            figures.memory.host = platform.node()
            if cache is not None:
                figures.memory.cache_bytes, figures.memory.cache_limit_bytes = _used(cache), cache.limit_bytes
            self.add(figures.operator.operator_id, index, figures)

        return measured

    def take(self) -> "Taken":
        """On the driver, after the action: what came, which is forgotten with all that is older."""
        collected = self.channel.value
        mine = {key: collected.pop(key) for key in list(collected) if key[0] == self.query and key[1] <= self.epoch}
        own = {key[2:]: one for key, one in mine.items() if key[1] == self.epoch}
        return Taken(
            subtasks=[one for one in own.values() if isinstance(one, SubtaskFigures)],
            read_seconds=[one for one in own.values() if isinstance(one, float)],
        )


@dataclass(frozen=True)
class MeasuredReading:
    """For mapInArrow, around what routes the rows of a batch: how long it waits for them is measured."""

    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    meter: Meter

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting = Waiting()
        yield from self.function(waiting.over(batches))
        context = TaskContext.get()
        if context is not None:
            self.meter.add(READING, context.partitionId(), waiting.seconds)


@dataclass(frozen=True)
class Taken:
    """What the tasks of an epoch measured, one of each."""

    subtasks: Sequence[SubtaskFigures] = ()
    read_seconds: Sequence[float] = ()

    def phases(self, action_us: int, levels: Sequence[Sequence[str]], *, slots: int) -> dict[str, int]:
        """Where the time of the action went; they sum up to it, and what no task of ours saw is Spark's own.

        Of a level that is its longest subtask, or the time of all divided by the task slots where that is more.
        """
        by_name: dict[str, list[SubtaskFigures]] = {}
        for one in self.subtasks:
            by_name.setdefault(one.operator.operator_id, []).append(one)
        read = _wall([round(seconds * 1e6) for seconds in self.read_seconds], slots)
        merge = write = 0
        for level in levels:
            some = [one for name in level for one in by_name.get(name, ())]
            merge += _wall([one.merge_us for one in some], slots)
            write += _wall([one.write_us for one in some], slots)
        known = {READ: read, MERGE: merge, WRITE: write}
        total = sum(known.values())
        if total > action_us:
            known = {name: us * action_us // total for name, us in known.items()}
        return {READ: known[READ], SHUFFLE: action_us - sum(known.values()), MERGE: known[MERGE], WRITE: known[WRITE]}

    def operators(self, names: Sequence[str]) -> list[pb.OperatorFigures]:
        """Of each operator, its subtasks together."""
        return [figures_together(name, [one.operator for one in self.subtasks if _is(one, name)]) for name in names]

    def hosts(self) -> list[pb.HostFigures]:
        """Of each host the process that was fullest."""
        found: dict[str, pb.HostFigures] = {}
        spilled: dict[str, int] = {}
        for one in self.subtasks:
            host = one.memory.host
            spilled[host] = spilled.get(host, 0) + one.memory.spilled_bytes
            if host not in found or one.memory.peak_bytes > found[host].peak_bytes:
                found[host] = one.memory
        for host, figures in found.items():
            figures.spilled_bytes = spilled[host]
            _bound(figures)
        return [found[host] for host in sorted(found)]


_looked_up: dict[str, tuple[float, int]] = {}


def _used(cache: HostCache) -> int:
    """Bytes of the host's cache, looked up by this process now and then: there may be many files."""
    at, used = _looked_up.get(str(cache.folder), (-_LOOK_SECONDS, 0))
    if time.monotonic() - at >= _LOOK_SECONDS:
        used = cache.used
        _looked_up[str(cache.folder)] = (time.monotonic(), used)
    return used


def _is(one: SubtaskFigures, operator_id: str) -> bool:
    return one.operator.operator_id == operator_id


def _wall(times_us: Sequence[int], slots: int) -> int:
    return max(max(times_us, default=0), sum(times_us) // max(slots, 1))


def _bound(figures: pb.HostFigures) -> None:
    """A job may have many tables: the largest holders are named."""
    largest = sorted(figures.holders.items(), key=lambda one: (-one[1], one[0]))
    if len(largest) > _HOLDERS:
        rest = sum(nbytes for _, nbytes in largest[_HOLDERS:])
        figures.holders.clear()
        figures.holders.update({**dict(largest[:_HOLDERS]), _REST: rest})
