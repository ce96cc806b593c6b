"""Store in a dictionary: the model that the other stores are compared with, and the disk of simulations.

It is as strict as the strictest store (an object and a folder cannot share a name, as on a file system), so whatever
works here works everywhere. It lives as long as the Python object; `memory://name` URLs share one per name and process.
"""

import threading
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from statebed.errors import ObjectMissingError
from statebed.storage.object_store import Listing, ObjectInfo, PutOutcome
from statebed.storage.paths import check_path, check_prefix, check_range, folder_conflict, join, parents


def _now_us() -> int:
    return time.time_ns() // 1000


_AFTER_SLASH = chr(ord("/") + 1)


@dataclass(frozen=True)
class _Stored:
    data: bytes
    modified_us: int


class MemoryStore:
    """Thread-safe store in memory."""

    def __init__(self, url: str = "memory://", *, now_us: Callable[[], int] = _now_us) -> None:
        self._url = url
        self._now_us = now_us
        self._lock = threading.RLock()
        self._objects: dict[str, _Stored] = {}
        self._paths: list[str] = []
        """Sorted keys of `_objects`, so that the cost of a listing depends only on its result."""
        self._folders: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"MemoryStore({self._url!r})"

    @property
    def url(self) -> str:
        return self._url

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        with self._lock:
            if check_path(path) in self._objects:
                return PutOutcome.EXISTS
            self._store(path, data)
            return PutOutcome.CREATED

    def put(self, path: str, data: bytes) -> None:
        check_path(path)
        with self._lock:
            self._store(path, data)

    def get(self, path: str) -> bytes:
        check_path(path)
        with self._lock:
            stored = self._objects.get(path)
        if stored is None:
            raise ObjectMissingError("there is no such object", where=join(self._url, path))
        return stored.data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        check_range(start, length)
        return self.get(path)[start : start + length]

    def head(self, path: str) -> ObjectInfo | None:
        check_path(path)
        with self._lock:
            stored = self._objects.get(path)
        return None if stored is None else ObjectInfo(path, len(stored.data), stored.modified_us)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._below(prefix))

    def list_level(self, prefix: str) -> Listing:
        skip = len(prefix) + 1 if prefix else 0
        objects, folders = [], set()
        for info in self._below(prefix):
            name, slash, _ = info.path[skip:].partition("/")
            if slash:
                folders.add(join(prefix, name))
            else:
                objects.append(info)
        return Listing(objects=tuple(objects), folders=tuple(sorted(folders)))

    def delete(self, path: str) -> None:
        check_path(path)
        with self._lock:
            if self._objects.pop(path, None) is not None:
                del self._paths[bisect_left(self._paths, path)]
                for folder in parents(path):
                    self._folders[folder] -= 1

    def delete_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    def _store(self, path: str, data: bytes) -> None:
        if self._folders[path] > 0 or any(folder in self._objects for folder in parents(path)):
            raise folder_conflict(self._url, path)
        if path not in self._objects:
            self._folders.update(parents(path))
            insort(self._paths, path)
        self._objects[path] = _Stored(bytes(data), self._now_us())

    def _below(self, prefix: str) -> tuple[ObjectInfo, ...]:
        start = f"{check_prefix(prefix)}/" if prefix else ""
        with self._lock:
            first = bisect_left(self._paths, start)
            end = bisect_left(self._paths, f"{prefix}{_AFTER_SLASH}") if prefix else len(self._paths)
            return tuple(self._info(path) for path in self._paths[first:end])

    def _info(self, path: str) -> ObjectInfo:
        stored = self._objects[path]
        return ObjectInfo(path, len(stored.data), stored.modified_us)
