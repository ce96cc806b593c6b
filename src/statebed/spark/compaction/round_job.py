"""The Spark job of a compaction round, on one driver thread and in a separate job group.

It uses few task slots, so that epochs continue beside it. With Spark's fair scheduler it runs in the pool
`statebed_compaction`, whose weight the cluster can set. A task compacts several subtasks one after the other; an error
of one comes back as text and does not affect the others.
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from pyspark.sql import SparkSession

from statebed.format import names
from statebed.spark.plan.host_memory import TaskShare
from statebed.spark.plan.worker_resources import resources
from statebed.storage import ScopedStore, get_storage_provider
from statebed.subtasks import CompactedSubtask, CompactionTask, compact_subtask

_log = logging.getLogger(__name__)
POOL = "statebed_compaction"
SLOTS_SHARE = 4
"""Fraction of task slots in use: one in `SLOTS_SHARE`."""
STOP_SECONDS = 10.0

Result = CompactedSubtask | str
"""Result of one subtask, or the text of its error."""


class Round(Protocol):
    """A round that has started."""

    @property
    def began(self) -> float:
        """Start time by the monotonic clock."""

    @property
    def done(self) -> bool: ...

    def wait(self, seconds: float) -> None:
        """Wait until it is done, at most `seconds`."""

    def result(self) -> Sequence[Result]:
        """Return the results of a round that is done, or raise its error."""

    def cancel(self) -> None:
        """Cancel the round; it ends soon."""


class Rounds(Protocol):
    """Runs rounds, one at a time."""

    def begin(self, tasks: Sequence[CompactionTask]) -> Round: ...

    def close(self) -> None:
        """Run no further rounds."""


class SparkRounds:
    """Runs rounds as Spark jobs, one at a time, on a thread that lives as long as the query."""

    def __init__(self, session: SparkSession, *, state_url: str, job_id: str, share: TaskShare | None = None) -> None:
        self._session = session
        self._state_url = state_url
        self._job_id = job_id
        self._share = share
        # A superseded query of the same job may run in the same session.
        self._group = f"statebed compaction {uuid.uuid4()}"
        self._orders: SimpleQueue[tuple[Sequence[CompactionTask], Future[list[Result]]] | None] = SimpleQueue()
        # A daemon thread, so that a round that hangs does not keep the driver alive.
        self._thread = threading.Thread(target=self._work, name="statebed-compaction", daemon=True)

    def begin(self, tasks: Sequence[CompactionTask]) -> Round:
        if self._thread.ident is None:
            self._thread.start()
        results: Future[list[Result]] = Future()
        self._orders.put((tasks, results))
        return _SparkRound(self._session, self._group, results, time.monotonic())

    def close(self) -> None:
        self._orders.put(None)
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether a round may still be running."""
        return self._thread.is_alive()

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            tasks, results = order
            try:
                results.set_result(self._run(tasks))
            except BaseException as error:  # noqa: BLE001 - raised again where the result is taken
                results.set_exception(error)

    def _run(self, tasks: Sequence[CompactionTask]) -> list[Result]:
        context = self._session.sparkContext
        described = f"statebed: compacting files of {self._job_id}, as of epoch {tasks[0].epoch}"
        context.setJobGroup(self._group, described, interruptOnCancel=True)
        if self._session.conf.get("spark.scheduler.mode", "FIFO") == "FAIR":
            context.setLocalProperty("spark.scheduler.pool", POOL)
        slots = min(len(tasks), max(1, context.defaultParallelism // SLOTS_SHARE))
        function = CompactionFunction(self._state_url, self._job_id, tuple(tasks), slots, self._share)
        # Not a DataFrame: Spark would start Python workers with settings of Spark SQL beside those that run the epochs.
        reports = context.parallelize(range(slots), slots).mapPartitionsWithIndex(function).collect()
        return [report if isinstance(report, str) else CompactedSubtask.from_bytes(report) for report in reports]


@dataclass(frozen=True)
class _SparkRound:
    session: SparkSession
    group: str
    results: Future[list[Result]]
    began: float

    @property
    def done(self) -> bool:
        return self.results.done()

    def wait(self, seconds: float) -> None:
        wait([self.results], timeout=seconds)

    def result(self) -> Sequence[Result]:
        return self.results.result(timeout=0)

    def cancel(self) -> None:
        try:
            self.session.sparkContext.cancelJobGroup(self.group)
        except Exception as error:  # noqa: BLE001 - Spark itself may have ended, in whatever way
            _log.info("could not cancel the compaction: %r", error)


@dataclass(frozen=True)
class CompactionFunction:
    """Function of a Spark task, which runs every `slots`-th of the `tasks`."""

    state_url: str
    job_id: str
    tasks: tuple[CompactionTask, ...]
    slots: int
    share: TaskShare | None = None
    """Share of the host's memory and cache, or None for the defaults of the process."""

    def __call__(self, number: int, numbers: Iterable[int]) -> Iterator[bytes | str]:
        """Yield a serialized result, or the text of an error, for each task."""
        for _ in numbers:
            pass  # they only make Spark run the partition
        store = ScopedStore(get_storage_provider(self.state_url), names.job_folder(self.job_id))
        tiers, cache = (None, None) if self.share is None else resources(self.share)
        for task in self.tasks[number :: self.slots]:
            try:
                yield compact_subtask(task, store, tiers=tiers, cache=cache).to_bytes()
            except Exception as failure:  # noqa: BLE001 - the files stay as they are; the driver counts it
                yield f"{task.info.where}: {failure!r}"
