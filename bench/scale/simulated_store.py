"""A store in memory that counts the requests S3 would have got, and adds up the time they would have taken.

Verbs are those of S3: a large put is a multipart upload, a listing has pages of 1,000 names, and so has a bulk delete.
The time of a request is its latency plus its bytes over the bandwidth. Requests of a thread pool overlap: their time is
divided by the size of the pool, which is known by the names of its threads.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.scale.s3 import Latencies
from statebed.storage import MemoryStore, ObjectStore
from statebed.storage.object_store import Listing, ObjectInfo, PutOutcome
from statebed.storage.verified import UPLOAD_PART_BYTES, content_tags

PAGE = 1000
"""Names in a page of a listing, and in a bulk delete."""
POOLS = {"statebed-head": 64, "statebed-metadata": 64, "statebed-delete": 16}
"""Threads of the pools that send requests at the same time, by the beginning of their names."""


@dataclass
class Requests:
    """Requests by verb, their bytes, and the seconds that they took."""

    put: float = 0
    get: float = 0
    """GET and HEAD, which cost the same."""
    list: float = 0
    delete: float = 0
    put_bytes: float = 0
    get_bytes: float = 0
    seconds: float = 0.0
    objects: float = 0
    """Objects created."""
    deleted: float = 0

    def __add__(self, other: "Requests") -> "Requests":
        return Requests(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def times(self, factor: float) -> "Requests":
        """Return all counts multiplied by the factor."""
        return Requests(**{name: value * factor for name, value in vars(self).items()})

    @property
    def total(self) -> float:
        return self.put + self.get + self.list + self.delete


@dataclass
class SimulatedStore:
    """Counts what passes through, by phase. Thread-safe."""

    latencies: Latencies
    phases: dict[str, Requests] = field(default_factory=dict)
    phase: str = "start"
    _store: ObjectStore = field(default_factory=MemoryStore)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return self._store.url

    def taken(self, phase: str) -> Requests:
        """Return the requests of a phase, and forget them."""
        return self.phases.pop(phase, Requests())

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        self._count(put=1, put_bytes=len(data), seconds=self.latencies.put(len(data)), objects=1)
        return self._store.put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        parts = 1 if len(data) <= UPLOAD_PART_BYTES else -(-len(data) // UPLOAD_PART_BYTES) + 2
        self._count(put=parts, put_bytes=len(data), seconds=self.latencies.put(len(data)), objects=1)
        self._store.put(path, data)

    def get(self, path: str) -> bytes:
        data = self._store.get(path)
        self._count(get=1, get_bytes=len(data), seconds=self.latencies.get(len(data)))
        return data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        data = self._store.get_range(path, start, length)
        self._count(get=1, get_bytes=len(data), seconds=self.latencies.get(len(data)))
        return data

    def head(self, path: str) -> ObjectInfo | None:
        self._count(get=1, seconds=self.latencies.get(0))
        info = self._store.head(path)
        if info is None or info.size <= UPLOAD_PART_BYTES:
            return info
        # The ETag of S3, without which a large object would be read back.
        return ObjectInfo(path, info.size, info.modified_us, content_tags(self._store.get(path))[0])

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        infos = list(self._store.list(prefix))
        self._listed(len(infos))
        return iter(infos)

    def list_level(self, prefix: str) -> Listing:
        listing = self._store.list_level(prefix)
        self._listed(len(listing.objects) + len(listing.folders))
        return listing

    def delete(self, path: str) -> None:
        self._count(delete=1, deleted=1, seconds=self.latencies.delete)
        self._store.delete(path)

    def delete_many(self, paths: Sequence[str]) -> None:
        pages = -(-len(paths) // PAGE)
        self._count(delete=pages, deleted=len(paths), seconds=pages * self.latencies.delete_page)
        self._store.delete_many(paths)

    def _listed(self, names: int) -> None:
        pages = max(1, -(-names // PAGE))
        self._count(list=pages, seconds=pages * self.latencies.list_page)

    def _count(self, *, seconds: float, **counts: float) -> None:
        name = threading.current_thread().name
        width = next((threads for prefix, threads in POOLS.items() if name.startswith(prefix)), 1)
        with self._lock:
            before = self.phases.get(self.phase, Requests())
            self.phases[self.phase] = before + Requests(seconds=seconds / width, **counts)
