"""Accounting of local copies of data in the store: limited in bytes, evicting the coldest first.

Only files that are also in the store are counted and dropped here. A spilled segment that is in no checkpoint yet
exists nowhere else, and is kept.
"""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass

from statebed.errors import InputError
from statebed.state.memory.eviction import Candidate, choose_victims


@dataclass
class CachedFile:
    """One local copy. `drop` removes it, and is called with no lock held."""

    number: int
    nbytes: int
    drop: Callable[[], None]
    last_used: int


class LocalCache:
    """Local copies and when they were last used. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise InputError(f"the cache capacity must be at least 0 bytes, got {capacity}", fix="pass 0 or more bytes")
        self.capacity = capacity
        # Garbage collection of a view may remove files at any moment, while this thread holds the lock.
        self._lock = threading.RLock()
        self._files: dict[int, CachedFile] = {}
        self._numbers = itertools.count(1)
        self._clock = itertools.count(1)

    @property
    def used(self) -> int:
        with self._lock:
            return sum(file.nbytes for file in self._files.copy().values())

    def fits(self, nbytes: int) -> bool:
        """Return whether a file of this size fits into the cache at all."""
        return nbytes <= self.capacity

    def add(self, nbytes: int, drop: Callable[[], None]) -> CachedFile:
        """Count a local copy, evicting others if needed, or the new one itself if it does not fit."""
        file = CachedFile(next(self._numbers), nbytes, drop, next(self._clock))
        with self._lock:
            self._files[file.number] = file
            files = self._files.copy()
            too_much = sum(cached.nbytes for cached in files.values()) - self.capacity
            victims = [file]
            if self.fits(nbytes):
                candidates = [
                    Candidate(cached.number, "", cached.nbytes, cached.last_used) for cached in files.values()
                ]
                victims = [files[candidate.number] for candidate in choose_victims(candidates, to_free=too_much)]
            for victim in victims:
                self._files.pop(victim.number, None)
        for victim in victims:
            victim.drop()
        return file

    def touch(self, file: CachedFile) -> None:
        """Mark a copy as just used."""
        file.last_used = next(self._clock)

    def remove(self, file: CachedFile) -> None:
        """Stop counting a copy that is gone."""
        with self._lock:
            self._files.pop(file.number, None)
