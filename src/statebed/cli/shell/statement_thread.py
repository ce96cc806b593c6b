"""Runs statements in a thread of their own, so that Ctrl-C ends the statement and never a call of Spark's JVM.

An exception inside such a call would leave its answer in the connection, for the next call to read.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
_POLL_SECONDS = 0.1


class StatementThread:
    """Runs one statement at a time; `on_interrupt` is called in addition to setting the event."""

    def __init__(self, on_interrupt: Callable[[], None]) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="statebed-sql")
        self._on_interrupt = on_interrupt

    def run(self, work: Callable[[threading.Event], T]) -> T:
        """Return the result of `work`, which should end soon after its event is set."""
        interrupted = threading.Event()
        future: Future[T] = self._threads.submit(work, interrupted)
        while True:
            try:
                # The system may deliver a signal to another thread, which would not wake an endless wait of this one.
                while not wait([future], _POLL_SECONDS).done:
                    pass
                return future.result()
            except KeyboardInterrupt:
                interrupted.set()
                self._on_interrupt()
            except SystemExit:  # raised here by a signal: the statement ends, and then the process
                interrupted.set()
                self._on_interrupt()
                raise

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
