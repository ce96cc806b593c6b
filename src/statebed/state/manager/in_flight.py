"""Store that can already read objects that are still being uploaded.

A table may have to read a file of its last checkpoint during its upload. Until it is durable, its bytes come from
memory, which is charged to the budget, or from a spilled file.
"""

from collections.abc import Iterator, Sequence
from threading import Lock

from statebed.errors import MissingFileError
from statebed.state.memory.controller import MemoryController, Purpose, Reservation
from statebed.state.upload import Upload
from statebed.storage import Listing, ObjectInfo, ObjectStore, PutOutcome, put_verified


class InFlight:
    """Adds announced objects that are not stored yet to `store`. Uploading an object ends its announcement."""

    def __init__(self, store: ObjectStore, memory: MemoryController, *, owner: str) -> None:
        self._store = store
        self._memory = memory
        self._owner = owner
        self._lock = Lock()
        self._waiting: dict[str, tuple[Upload, Reservation | None]] = {}

    @property
    def url(self) -> str:
        return self._store.url

    def announce(self, upload: Upload) -> None:
        """Make an object readable under its path before it is uploaded."""
        charged = self._memory.reserve(self._owner, Purpose.WRITES, upload.size) if upload.resident else None
        with self._lock:
            replaced = self._waiting.get(upload.path)
            self._waiting[upload.path] = (upload, charged)
        _release(replaced)

    def withdraw(self, path: str) -> None:
        """Withdraw an object that will not be uploaded or read."""
        with self._lock:
            waiting = self._waiting.pop(path, None)
        _release(waiting)

    def close(self) -> None:
        """Release the memory and local files that a failed checkpoint left behind; nothing more is uploaded."""
        with self._lock:
            left, self._waiting = list(self._waiting.values()), {}
        for waiting in left:
            _release(waiting)
            waiting[0].on_stored()

    def upload(self, upload: Upload) -> None:
        """Put an object into the store and verify it."""
        if upload.resident:
            put_verified(self._store, upload.path, upload.content())
        else:
            with self._memory.reserve(self._owner, Purpose.WRITES, upload.size):
                put_verified(self._store, upload.path, upload.content())
        self.withdraw(upload.path)
        upload.on_stored()

    def put(self, path: str, data: bytes) -> None:
        self._store.put(path, data)

    def get(self, path: str) -> bytes:
        data = self._announced_bytes(path)
        return self._store.get(path) if data is None else data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        data = self._announced_bytes(path)
        return self._store.get_range(path, start, length) if data is None else data[start : start + length]

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        return self._store.put_if_absent(path, data)

    def head(self, path: str) -> ObjectInfo | None:
        return self._store.head(path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def list_level(self, prefix: str) -> Listing:
        return self._store.list_level(prefix)

    def delete(self, path: str) -> None:
        self._store.delete(path)

    def delete_many(self, paths: Sequence[str]) -> None:
        self._store.delete_many(paths)

    def _announced_bytes(self, path: str) -> bytes | None:
        upload = self._announced(path)
        if upload is None:
            return None
        try:
            return upload.content()
        except (FileNotFoundError, MissingFileError):
            if self._announced(path) is None:
                return None  # it was stored a moment ago, and its local file removed
            raise

    def _announced(self, path: str) -> Upload | None:
        with self._lock:
            waiting = self._waiting.get(path)
        return None if waiting is None else waiting[0]


def _release(waiting: tuple[Upload, Reservation | None] | None) -> None:
    if waiting is not None and waiting[1] is not None:
        waiting[1].release()
