"""Garbage collection beside the epochs: one collection at a time, on a thread of its own.

The controller prepares a collection after an epoch and goes on; it takes the result after a later one. Trouble with the
store is reported and never stops the job: the next collection resumes. All methods are for the controller, which
serialises its calls.
"""

import threading
import time
from collections.abc import Callable, Container
from concurrent.futures import Future, wait

from statebed.checkpoint import Run
from statebed.checkpoint.cleanup import Collected, Collection
from statebed.errors import CollectionError, StatebedError, StorageError

END_SECONDS = 60.0
"""How long the end of a query waits for collections; what they leave, a later run collects."""
CLOSE_SECONDS = 5.0
"""How long a query that failed waits for the collection under way."""


class BackgroundCollection:
    """The collections of one query."""

    def __init__(self, run: Run, *, failed: Callable[[StatebedError], None]) -> None:
        """`failed` is told of a collection that the store or unreadable records prevented."""
        self._run = run
        self._failed = failed
        self._under_way: tuple[Collection, Future[Collected]] | None = None
        self._again = False

    @property
    def under_way(self) -> bool:
        """Whether a collection may still delete: no round of compaction may begin meanwhile."""
        return self._under_way is not None and not self._under_way[1].done()

    def begin(self, in_flight: Container[str]) -> None:
        """Collect what the records committed so far allow; after the collection under way, if there is one."""
        self.settle()
        if self._under_way is not None:
            self._again = True
            return
        try:
            collection = self._run.prepare_collection(in_flight=in_flight)
        except CollectionError as error:
            self._failed(error)
            return
        done: Future[Collected] = Future()
        self._under_way = (collection, done)
        # A daemon: a store that hangs does not keep the driver from ending.
        threading.Thread(target=_work, args=(collection, done), name="statebed-collection", daemon=True).start()

    def settle(self) -> bool:
        """Take the result of a collection that has ended; whether another was asked for meanwhile."""
        if self._under_way is not None and self._under_way[1].done():
            (collection, done), self._under_way = self._under_way, None
            try:
                self._run.settle_collection(collection, done.result())
            except (CollectionError, StorageError) as error:
                self._failed(error)
        wanted = self._again and self._under_way is None
        self._again = self._again and not wanted
        return wanted

    def end(self, in_flight: Container[str]) -> None:
        """Collect once more and wait for it, at most `END_SECONDS` in all."""
        deadline = time.monotonic() + END_SECONDS
        self._wait(END_SECONDS)
        self.settle()
        if self._under_way is None:
            self.begin(in_flight)
            self._wait(deadline - time.monotonic())
            self.settle()

    def close(self) -> None:
        """Wait a little for the collection under way; its result no longer matters."""
        self._wait(CLOSE_SECONDS)

    def _wait(self, seconds: float) -> None:
        if self._under_way is not None:
            wait([self._under_way[1]], timeout=max(0.0, seconds))


def _work(collection: Collection, done: "Future[Collected]") -> None:
    try:
        done.set_result(collection.run())
    except BaseException as error:  # noqa: BLE001 - it is the answer to whoever takes the result
        done.set_exception(error)
