"""A state location as read by pages: bounded, cached and read-only.

The log of a job is listed once. Afterwards only the next record number is looked up, with one request. Records and
metadata of subtasks are immutable and therefore cached. A job that was removed and created again is detected by the
nonce of the newest known record.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.objects import fetch_subtask
from statebed.checkpoint.run_status import RunStatus
from statebed.errors import EpochNotRetainedError, FormatError, InvalidNameError, JobNotFoundError, NewerFormatError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.inspect.records import DAMAGED, MISSING, NEWER, unreadable
from statebed.inspect.run_states import RunReport, newest_run, run_reports, run_status
from statebed.storage import ObjectStore, ScopedStore, get_storage_provider
from statebed.ui.points import Point, point_of

T = TypeVar("T")


class Cache(Generic[T]):
    """An LRU cache limited by total weight. Thread-safe."""

    def __init__(self, max_weight: int) -> None:
        self._max_weight = max_weight
        self._weight = 0
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        with self._lock:
            entry = self._kept.get(key)
            if entry is None:
                return None
            self._kept.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: T, *, weight: int = 1) -> None:
        """Add a value, evicting the least recently used ones. A value heavier than the limit is not cached."""
        with self._lock:
            self._drop(key)
            if weight > self._max_weight:
                return
            self._kept[key] = (value, weight)
            self._weight += weight
            while self._weight > self._max_weight:
                self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._weight = 0

    @property
    def weight(self) -> int:
        return self._weight

    def _drop(self, key: Hashable) -> None:
        entry = self._kept.pop(key, None)
        if entry is not None:
            self._weight -= entry[1]


A = TypeVar("A")
B = TypeVar("B")
READERS = 16
LIST_AGAIN_SECONDS = 300.0
LOOK_AGAIN_SECONDS = 5.0
"""Seconds between checks whether the job was replaced by one of the same name."""
STATUS_AGAIN_SECONDS = 2.0
"""Seconds for which the status of a run is cached."""
PASSED_OVER = 20
"""Maximum number of damaged records skipped to show an older one."""
_MAX_JOBS = 256
_POINTS_KEPT = 20_000
_RECORD_BYTES_KEPT = 32 << 20
_SUBTASK_BYTES_KEPT = 64 << 20


class StateLocation:
    """A folder or URL that holds the state of jobs."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.store: ObjectStore = get_storage_provider(url)
        self.given = url
        self._clock = clock
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="statebed-ui")
        self._jobs: Cache[JobReader] = Cache(_MAX_JOBS)

    @property
    def url(self) -> str:
        return self.store.url

    def folders(self) -> list[str]:
        """Return the names of folders that may be jobs, sorted."""
        return [folder for folder in self.store.list_level("").folders if "/" not in folder]

    def job(self, name: str) -> "JobReader":
        """Return the reader of a job, which may have no record."""
        try:
            names.check_name("job", name)
        except InvalidNameError as error:
            raise JobNotFoundError(
                f"there is no job {name[:200]!r}", where=self.url, fix="open the list of jobs"
            ) from error
        reader = self._jobs.get(name)
        if reader is None:
            log = CheckpointLog(ScopedStore(self.store, names.job_folder(name)), name)
            reader = JobReader(log, self._pool, self._clock)
            self._jobs.put(name, reader)
        return reader

    def gather(self, read: Callable[[A], B], things: Iterable[A]) -> list[B]:
        """Read several things concurrently, in order. `read` must not call `gather` itself."""
        return list(self._pool.map(read, things))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class JobReader:
    """Reader of the log of one job. Thread-safe."""

    def __init__(self, log: CheckpointLog, pool: ThreadPoolExecutor, clock: Callable[[], float]) -> None:
        self.log = log
        self._pool = pool
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers: list[int] = []
        self._listed_at: float | None = None
        self._known: tuple[int, str] | None = None
        self._looked_at = 0.0
        self._status: tuple[RunStatus | None, float] = (None, 0.0)
        self._points: Cache[Point] = Cache(_POINTS_KEPT)
        self._records: Cache[pb.CheckpointMetadata] = Cache(_RECORD_BYTES_KEPT)
        self._subtasks: Cache[pb.OperatorCheckpointMetadata] = Cache(_SUBTASK_BYTES_KEPT)

    # ---- the end of the log ----------------------------------------------------------------------------------

    def head(self) -> int:
        """Return the newest record number, whether the record is readable or not."""
        with self._lock:
            if self._is_due(self._listed_at, LIST_AGAIN_SECONDS) or not self._is_the_same_job():
                self._list()
            if not self._advanced() and not self.log.exists(self._numbers[-1]):
                self._list()  # clean-up has removed the newest known record, so the log has advanced further
            head = self._numbers[-1]
            if self._known is None or self._known[0] != head:
                point = self.point(head)
                self._known, self._looked_at = (head, point.nonce), self._clock()
        return head

    def _advanced(self) -> bool:
        """Advance to the newest record. Return whether there are new records."""
        before = self._numbers[-1]
        while self.log.exists(self._numbers[-1] + 1):
            self._numbers.append(self._numbers[-1] + 1)
        return self._numbers[-1] > before

    def numbers(self) -> Sequence[int]:
        """Return all record numbers of the log as last listed, in ascending order."""
        if not self._numbers:
            self.head()
        return self._numbers

    def _is_due(self, since: float | None, seconds: float) -> bool:
        return since is None or self._clock() - since > seconds

    def _is_the_same_job(self) -> bool:
        if self._known is None or not self._is_due(self._looked_at, LOOK_AGAIN_SECONDS):
            return True
        number, nonce = self._known
        self._looked_at = self._clock()
        try:
            return self.log.read(number).nonce == nonce
        except EpochNotRetainedError:
            return False
        except FormatError:
            return not nonce

    def _list(self) -> None:
        numbers = self.log.numbers()
        # The listing may belong to another job of the same name with the same record numbers.
        self._points.clear()
        self._records.clear()
        self._known = None
        self._status = (None, 0.0)
        # The newest folder may belong to an epoch that is not committed yet.
        while numbers and not self.log.exists(numbers[-1]):
            numbers.pop()
        if not numbers:
            self._listed_at = None
            raise JobNotFoundError(
                f"the job {self.log.job_id!r} has no record",
                where=self.log.store.url,
                fix="it was removed or has not started; open the list of jobs",
            )
        self._numbers, self._listed_at = numbers, self._clock()

    # ---- what stands at its numbers --------------------------------------------------------------------------

    def point(self, epoch: int) -> Point:
        """Return the point at a record number; its status says if the record is missing or damaged."""
        point = self._points.get(epoch)
        if point is None:
            try:
                point = point_of(self.log.read(epoch))
            except NewerFormatError as error:
                return Point(unreadable(epoch, status=NEWER, problem=error.what))
            except FormatError as error:
                return Point(unreadable(epoch, status=DAMAGED, problem=error.what))
            except EpochNotRetainedError:
                return Point(unreadable(epoch, status=MISSING, problem="the record is missing"))
            self._points.put(epoch, point)
        return point

    def points(self, count: int, *, before: int | None = None) -> list[Point]:
        """Return the newest points in ascending order, without those removed by clean-up since the log was listed."""
        numbers = self.numbers()
        end = len(numbers)
        if before is not None:
            end = next((place for place, number in enumerate(numbers) if number >= before), end)
        wanted = numbers[max(0, end - count) : end]
        newest = self.gather(self.point, wanted)
        min_epoch = max((point.min_epoch for point in newest), default=1)
        return [point for point in newest if point.summary.status != MISSING or point.epoch >= min_epoch]

    def record(self, epoch: int) -> pb.CheckpointMetadata:
        """Return the full record of an epoch."""
        record = self._records.get(epoch)
        if record is None:
            record = self.log.read(epoch)
            self._records.put(epoch, record, weight=record.ByteSize())
        return record

    def readable(self, epoch: int) -> pb.CheckpointMetadata | None:
        """Return the full record of an epoch, or None if it is missing or damaged."""
        try:
            return self.record(epoch)
        except (EpochNotRetainedError, FormatError):
            return None

    def newest(self) -> pb.CheckpointMetadata:
        """Return the newest readable record among the last `PASSED_OVER` ones. Raise if none is readable."""
        head = self.head()
        for number in range(head, max(head - PASSED_OVER, 0), -1):
            if (record := self.readable(number)) is not None:
                return record
        return self.record(head)

    def subtasks(self, entry: pb.OperatorEntry) -> list[pb.OperatorCheckpointMetadata]:
        """Return the metadata of an operator's subtasks."""
        return self.gather(self._subtask, entry.subtasks)

    def run(self, *, now_us: int) -> RunReport:
        """Return the state of the newest run."""
        return newest_run(self.log, self.newest(), now_us=now_us, status=self.status())

    def runs(self, *, now_us: int, limit: int) -> list[RunReport]:
        """Return the reports of the newest runs, newest first."""
        return run_reports(self.log, self.newest(), now_us=now_us, limit=limit)

    def status(self) -> RunStatus:
        """Return the status of the newest run. It is re-read after a while, until the run has ended."""
        run = self.newest().run
        with self._lock:
            known, read_at = self._status
            is_new = known is None or known.run != run
            if is_new or (known is not None and known.end is None and self._is_due(read_at, STATUS_AGAIN_SECONDS)):
                known = run_status(self.log, run)
                self._status = known, self._clock()
        assert known is not None
        return known

    def news(self) -> str:
        """Return a text that differs if the job has a new record or its run another state."""
        head = self.head()
        return f"{head} {self.run(now_us=time.time_ns() // 1000).state.value}"

    def gather(self, read: Callable[[A], B], things: Iterable[A]) -> list[B]:
        """Read several things concurrently, in order."""
        return list(self._pool.map(read, things))

    def _subtask(self, reference: pb.SubtaskReference) -> pb.OperatorCheckpointMetadata:
        metadata = self._subtasks.get(reference.path)
        if metadata is None:
            metadata = fetch_subtask(self.log.store, reference)
            self._subtasks.put(reference.path, metadata, weight=reference.size)
        return metadata
