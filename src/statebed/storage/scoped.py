"""View of one folder of a store. A job gets one, so that it cannot reach another job's objects."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from statebed.storage.object_store import Listing, ObjectInfo, ObjectStore, PutOutcome
from statebed.storage.paths import check_path, check_prefix, join


class ScopedStore:
    """The folder `prefix` of `store`; every path is relative to it.

    >>> from statebed.storage.memory_store import MemoryStore
    >>> whole = MemoryStore()
    >>> ScopedStore(whole, "rides").put("savepoints/monday.metadata", b"")
    >>> [info.path for info in whole.list("")]
    ['rides/savepoints/monday.metadata']
    """

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = check_path(prefix)

    def __repr__(self) -> str:
        return f"ScopedStore({self.url!r})"

    @property
    def url(self) -> str:
        return f"{self._store.url.rstrip('/')}/{self._prefix}"

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        return self._store.put_if_absent(self._outer(path), data)

    def put(self, path: str, data: bytes) -> None:
        self._store.put(self._outer(path), data)

    def get(self, path: str) -> bytes:
        return self._store.get(self._outer(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self._store.get_range(self._outer(path), start, length)

    def head(self, path: str) -> ObjectInfo | None:
        info = self._store.head(self._outer(path))
        return None if info is None else replace(info, path=path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        listed = self._store.list(join(self._prefix, check_prefix(prefix)))
        return (replace(info, path=self._inner(info.path)) for info in listed)

    def list_level(self, prefix: str) -> Listing:
        level = self._store.list_level(join(self._prefix, check_prefix(prefix)))
        return Listing(
            objects=tuple(replace(info, path=self._inner(info.path)) for info in level.objects),
            folders=tuple(self._inner(folder) for folder in level.folders),
        )

    def delete(self, path: str) -> None:
        self._store.delete(self._outer(path))

    def delete_many(self, paths: Sequence[str]) -> None:
        self._store.delete_many([self._outer(path) for path in paths])

    def _outer(self, path: str) -> str:
        return f"{self._prefix}/{check_path(path)}"

    def _inner(self, path: str) -> str:
        return path[len(self._prefix) + 1 :]
