"""Local copies of what the store has: bounded in bytes, the coldest leaves first.

Only files that the store has, too, are counted and dropped here. A segment that was spilled and is in no checkpoint yet
exists nowhere else, and stays.
"""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass

from statebed.errors import InputError
from statebed.state.memory.eviction import Candidate, choose_victims


@dataclass
class CachedFile:
    """One local copy; `drop` removes it, and is called with no lock held."""

    number: int
    nbytes: int
    drop: Callable[[], None]
    last_used: int


class LocalCache:
    """Which local copies there are, and how warm. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise InputError(f"a cache of {capacity} bytes cannot work", fix="give 0 or more bytes")
        self.capacity = capacity
        # A view's files leave when garbage is collected: at any moment, with the lock held by this thread.
        self._lock = threading.RLock()
        self._files: dict[int, CachedFile] = {}
        self._numbers = itertools.count(1)
        self._clock = itertools.count(1)

    @property
    def used(self) -> int:
        with self._lock:
            return sum(file.nbytes for file in self._files.copy().values())

    def fits(self, nbytes: int) -> bool:
        """Whether a file of this size can be kept at all."""
        return nbytes <= self.capacity

    def add(self, nbytes: int, drop: Callable[[], None]) -> CachedFile:
        """Count a local copy; others leave for it, or the new one itself where it does not fit."""
        file = CachedFile(next(self._numbers), nbytes, drop, next(self._clock))
        with self._lock:
            self._files[file.number] = file
            files = self._files.copy()
            too_much = sum(one.nbytes for one in files.values()) - self.capacity
            victims = [file]
            if self.fits(nbytes):
                candidates = [Candidate(one.number, "", one.nbytes, one.last_used) for one in files.values()]
                victims = [files[one.number] for one in choose_victims(candidates, to_free=too_much)]
            for victim in victims:
                self._files.pop(victim.number, None)
        for victim in victims:
            victim.drop()
        return file

    def touch(self, file: CachedFile) -> None:
        """Say that it was just read."""
        file.last_used = next(self._clock)

    def remove(self, file: CachedFile) -> None:
        """The copy is gone."""
        with self._lock:
            self._files.pop(file.number, None)
