"""Uploads on a pool of threads, with a limit on the bytes that wait for the store.

A caller that exceeds the limit waits, so encoding never runs ahead of a slow store; a single file larger than the limit
is uploaded alone. Every wait has a deadline.
"""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Condition

from statebed.errors import CheckpointTimeoutError
from statebed.state.deadlines import wait_until_ended
from statebed.state.manager.in_flight import InFlight
from statebed.state.upload import Upload


class Uploads:
    """Uploads files on a pool. Used by one thread at a time: `submit` files, then `finish`."""

    def __init__(self, store: InFlight, *, threads: int, max_bytes: int, timeout_seconds: float) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._timeout = timeout_seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="statebed-upload")
        self._space = Condition()
        self._in_flight = 0
        self._waiting: list[Future[None]] = []
        self._begun: list[tuple[str, Future[None]]] = []

    def submit(self, upload: Upload) -> None:
        """Start to upload an object as soon as there is room for its bytes."""
        with self._space:
            if not self._space.wait_for(lambda: self._fits(upload.size), timeout=self._timeout):
                raise self._timed_out(f"{self._in_flight} bytes of earlier files are still on their way")
            self._in_flight += upload.size
        begun = self._pool.submit(self._put, upload)
        self._waiting.append(begun)
        self._begun = [*(running for running in self._begun if not running[1].done()), (upload.path, begun)]

    def finish(self) -> None:
        """Return when everything submitted is durable, or raise the first failure."""
        waiting, self._waiting = self._waiting, []
        _, unfinished = wait(waiting, timeout=self._timeout)
        if unfinished:
            raise self._timed_out(f"{len(unfinished)} files are still on their way")
        for upload in waiting:
            upload.result()

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of uploads in progress."""
        return self._in_flight

    def close(self) -> None:
        """Stop uploading; after a failure, wait for uploads in progress, within the time limit."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        left = "the files being uploaded, in memory or on local disk"
        wait_until_ended(self._begun, seconds=self._timeout, where=self._store.url, left=left)

    def _fits(self, size: int) -> bool:
        return self._in_flight == 0 or self._in_flight + size <= self._max_bytes

    def _put(self, upload: Upload) -> None:
        try:
            self._store.upload(upload)
        finally:
            with self._space:
                self._in_flight -= upload.size
                self._space.notify_all()

    def _timed_out(self, what: str) -> CheckpointTimeoutError:
        return CheckpointTimeoutError(
            f"{what} after {self._timeout:g} seconds",
            where=self._store.url,
            fix="check that the store responds; restore from the last committed record, perhaps with a longer time-out",
        )
