"""A store that already reads what is still being uploaded.

A table may have to read a file of its last checkpoint while that is on its way; until it is durable, its bytes come
from memory.
"""

from collections.abc import Iterator
from threading import Lock

from statebed.storage import Listing, ObjectInfo, ObjectStore, PutOutcome


class InFlight:
    """`store`, and the objects that were announced and not put yet. Putting an object ends its announcement."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = Lock()
        self._waiting: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return self._store.url

    def announce(self, path: str, data: bytes) -> None:
        """From now on `path` can be read; it is put later."""
        with self._lock:
            self._waiting[path] = data

    def withdraw(self, path: str) -> None:
        """It is not put after all, and nobody will read it."""
        with self._lock:
            self._waiting.pop(path, None)

    def put(self, path: str, data: bytes) -> None:
        self._store.put(path, data)
        self.withdraw(path)

    def get(self, path: str) -> bytes:
        data = self._announced(path)
        return self._store.get(path) if data is None else data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        data = self._announced(path)
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

    def _announced(self, path: str) -> bytes | None:
        with self._lock:
            return self._waiting.get(path)
