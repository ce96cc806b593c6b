"""A state location, read for pages: bounded, and never the same object twice. Nothing here writes.

A job's log is listed once; from then on the next number is looked up, one request, as long as the log grows. Records
and metadata of subtasks never change, so what was read is kept. A job that was removed and begun again is told by the
nonce of the record that was its newest.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.objects import fetch_subtask
from statebed.checkpoint.run_status import RunStatus
from statebed.errors import EpochNotRetainedError, FormatError, InvalidNameError, JobNotFoundError, NewerFormatError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.inspect.records import DAMAGED, MISSING, NEWER, unreadable
from statebed.inspect.run_states import RunReport, newest_run, run_reports, run_status
from statebed.storage import ObjectStore, ScopedStore, get_storage_provider
from statebed.ui.cache import Cache
from statebed.ui.points import Point, point_of

A = TypeVar("A")
B = TypeVar("B")
READERS = 16
LIST_AGAIN_SECONDS = 300.0
LOOK_AGAIN_SECONDS = 5.0
"""How long a job is taken to be the same that it was."""
STATUS_AGAIN_SECONDS = 2.0
"""How long what a run told about itself is taken to be new."""
PASSED_OVER = 20
"""How many damaged records are passed over to show an older one."""
_MOST_JOBS = 256
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
        self._jobs: Cache[JobReader] = Cache(_MOST_JOBS)

    @property
    def url(self) -> str:
        return self.store.url

    def folders(self) -> list[str]:
        """What may be jobs, by name."""
        return [folder for folder in self.store.list_level("").folders if "/" not in folder]

    def job(self, name: str) -> "JobReader":
        """The reader of a job, which may have no record."""
        try:
            names.check_name("job", name)
        except InvalidNameError as error:
            raise JobNotFoundError(
                f"there is no job {name[:200]!r}", where=self.url, fix="the list of jobs shows what is there"
            ) from error
        reader = self._jobs.get(name)
        if reader is None:
            log = CheckpointLog(ScopedStore(self.store, names.job_folder(name)), name)
            reader = JobReader(log, self._pool, self._clock)
            self._jobs.put(name, reader)
        return reader

    def gather(self, read: Callable[[A], B], things: Iterable[A]) -> list[B]:
        """Read several things at once, in their order; `read` itself does not."""
        return list(self._pool.map(read, things))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class JobReader:
    """The log of one job. Thread-safe."""

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
        """The newest number that has a record, readable or not."""
        with self._lock:
            if self._is_due(self._listed_at, LIST_AGAIN_SECONDS) or not self._is_the_same_job():
                self._list()
            if not self._advanced() and not self.log.exists(self._numbers[-1]):
                self._list()  # it was collected since: the log has moved on further
            head = self._numbers[-1]
            if self._known is None or self._known[0] != head:
                point = self.point(head)
                self._known, self._looked_at = (head, point.nonce), self._clock()
        return head

    def _advanced(self) -> bool:
        """Whether there are records behind the one that was the newest."""
        before = self._numbers[-1]
        while self.log.exists(self._numbers[-1] + 1):
            self._numbers.append(self._numbers[-1] + 1)
        return self._numbers[-1] > before

    def numbers(self) -> Sequence[int]:
        """All numbers of the log as last listed, ascending."""
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
        # What is listed anew may be another job of the same name, whose numbers are the same.
        self._points.clear()
        self._records.clear()
        self._known = None
        self._status = (None, 0.0)
        # The newest folder may be of an epoch that is not committed yet.
        while numbers and not self.log.exists(numbers[-1]):
            numbers.pop()
        if not numbers:
            self._listed_at = None
            raise JobNotFoundError(
                f"there is no record of a job {self.log.job_id!r}",
                where=self.log.store.url,
                fix="it was removed, or has not begun; the list of jobs shows what is there",
            )
        self._numbers, self._listed_at = numbers, self._clock()

    # ---- what stands at its numbers --------------------------------------------------------------------------

    def point(self, epoch: int) -> Point:
        """What stands at a number; one without record is missing."""
        found = self._points.get(epoch)
        if found is None:
            try:
                found = point_of(self.log.read(epoch))
            except NewerFormatError as error:
                return Point(unreadable(epoch, status=NEWER, problem=error.what))
            except FormatError as error:
                return Point(unreadable(epoch, status=DAMAGED, problem=error.what))
            except EpochNotRetainedError:
                return Point(unreadable(epoch, status=MISSING, problem="its record is not there"))
            self._points.put(epoch, found)
        return found

    def points(self, count: int, *, before: int | None = None) -> list[Point]:
        """The newest ones, ascending; those that were collected since the log was listed are left out."""
        numbers = self.numbers()
        end = len(numbers)
        if before is not None:
            end = next((place for place, number in enumerate(numbers) if number >= before), end)
        wanted = numbers[max(0, end - count) : end]
        found = self.gather(self.point, wanted)
        least = max((point.min_epoch for point in found), default=1)
        return [point for point in found if point.summary.status != MISSING or point.epoch >= least]

    def record(self, epoch: int) -> pb.CheckpointMetadata:
        """A whole record."""
        found = self._records.get(epoch)
        if found is None:
            found = self.log.read(epoch)
            self._records.put(epoch, found, weight=found.ByteSize())
        return found

    def readable(self, epoch: int) -> pb.CheckpointMetadata | None:
        """The same; None where it is gone or damaged."""
        try:
            return self.record(epoch)
        except (EpochNotRetainedError, FormatError):
            return None

    def newest(self) -> pb.CheckpointMetadata:
        """The newest record that can be read, among the last ones; an error where none can."""
        head = self.head()
        for number in range(head, max(head - PASSED_OVER, 0), -1):
            if (record := self.readable(number)) is not None:
                return record
        return self.record(head)

    def subtasks(self, entry: pb.OperatorEntry) -> list[pb.OperatorCheckpointMetadata]:
        """The metadata of an operator's subtasks."""
        return self.gather(self._subtask, entry.subtasks)

    def run(self, *, now_us: int) -> RunReport:
        """State of the newest run."""
        return newest_run(self.log, self.newest(), now_us=now_us, status=self.status())

    def runs(self, *, now_us: int, limit: int) -> list[RunReport]:
        """What became of the newest runs, newest first."""
        return run_reports(self.log, self.newest(), now_us=now_us, limit=limit)

    def status(self) -> RunStatus:
        """What the newest run told; read again after a while, and no more once the run has ended."""
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
        """A text that differs when the job has a new record, or its run another state."""
        head = self.head()
        return f"{head} {self.run(now_us=time.time_ns() // 1000).state.value}"

    def gather(self, read: Callable[[A], B], things: Iterable[A]) -> list[B]:
        """Read several things at once, in their order."""
        return list(self._pool.map(read, things))

    def _subtask(self, reference: pb.SubtaskReference) -> pb.OperatorCheckpointMetadata:
        found = self._subtasks.get(reference.path)
        if found is None:
            found = fetch_subtask(self.log.store, reference)
            self._subtasks.put(reference.path, found, weight=reference.size)
        return found
