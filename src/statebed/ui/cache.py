"""A bounded cache of records and metadata, which are immutable."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cache(Generic[T]):
    """An LRU cache limited by total weight. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: T, *, weight: int = 1) -> None:
        """Add a value, evicting the least recently used ones. A value heavier than the limit is not cached."""
        with self._lock:
            self._drop(key)
            if weight > self._most:
                return
            self._kept[key] = (value, weight)
            self._weight += weight
            while self._weight > self._most:
                self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._weight = 0

    @property
    def weight(self) -> int:
        return self._weight

    def _drop(self, key: Hashable) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._weight -= found[1]
