"""Clean-up alongside the epochs: one at a time, on a separate thread.

The controller prepares a clean-up after an epoch and continues; it takes the result after a later one. Errors of the
store are reported and never stop the job: the next clean-up resumes. All methods are for the controller, which
serialises its calls.
"""

import threading
import time
from collections.abc import Callable, Container
from concurrent.futures import Future, wait

from statebed.checkpoint import Run
from statebed.checkpoint.cleanup import CleanupResult, PreparedCleanup
from statebed.errors import CleanupError, StatebedError, StorageError

END_SECONDS = 60.0
"""Seconds that the end of a query waits for clean-ups; a later run removes what is left."""
CLOSE_SECONDS = 5.0
"""Seconds that a failed query waits for the clean-up in progress."""


class BackgroundCleanup:
    """Clean-ups of one query."""

    def __init__(self, run: Run, *, failed: Callable[[StatebedError], None]) -> None:
        """Create the clean-up; `failed` is called with the error of a clean-up that the store or unreadable records
        prevented.
        """
        self._run = run
        self._failed = failed
        self._under_way: tuple[PreparedCleanup, Future[CleanupResult]] | None = None
        self._again = False

    @property
    def under_way(self) -> bool:
        """Whether a clean-up may still delete files, so that no compaction round may start."""
        return self._under_way is not None and not self._under_way[1].done()

    def begin(self, in_flight: Container[str]) -> None:
        """Start a clean-up of what the committed records allow, after the one in progress if there is one."""
        self.settle()
        if self._under_way is not None:
            self._again = True
            return
        try:
            cleanup = self._run.prepare_cleanup(in_flight=in_flight)
        except CleanupError as error:
            self._failed(error)
            return
        done: Future[CleanupResult] = Future()
        self._under_way = (cleanup, done)
        # A daemon thread, so that a store that hangs does not keep the driver alive.
        threading.Thread(target=_work, args=(cleanup, done), name="statebed-cleanup", daemon=True).start()

    def settle(self) -> bool:
        """Take the result of a clean-up that has ended. Return whether another one was requested in the meantime."""
        if self._under_way is not None and self._under_way[1].done():
            (cleanup, done), self._under_way = self._under_way, None
            try:
                self._run.settle_cleanup(cleanup, done.result())
            except (CleanupError, StorageError) as error:
                self._failed(error)
        wanted = self._again and self._under_way is None
        self._again = self._again and not wanted
        return wanted

    def end(self, in_flight: Container[str]) -> None:
        """Run a last clean-up and wait for it, at most `END_SECONDS` in total."""
        deadline = time.monotonic() + END_SECONDS
        self._wait(END_SECONDS)
        self.settle()
        if self._under_way is None:
            self.begin(in_flight)
            self._wait(deadline - time.monotonic())
            self.settle()

    def close(self) -> None:
        """Wait briefly for the clean-up in progress; its result no longer matters."""
        self._wait(CLOSE_SECONDS)

    def _wait(self, seconds: float) -> None:
        if self._under_way is not None:
            wait([self._under_way[1]], timeout=max(0.0, seconds))


def _work(cleanup: PreparedCleanup, done: "Future[CleanupResult]") -> None:
    try:
        done.set_result(cleanup.run())
    except BaseException as error:  # noqa: BLE001 - raised again where the result is taken
        done.set_exception(error)
