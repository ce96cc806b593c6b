"""Byte ranges of data files fetched from the store, kept on local disk as long as they fit into the cache.

A read by key needs a small part of each row group, and often soon another part of the same one: a block of a keyed
table is smaller than a row group, and neighbouring keys of a time-keyed table share row groups. Ranges are therefore
kept on local disk, so each is fetched only once. Data files never change, so a copy is never stale. A copy that is lost
or damaged is fetched again.
"""

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from statebed.checkpoint.objects import fetch_range
from statebed.format.digest import crc32c
from statebed.state.tiers.spill_cache import CachedFile, LocalCache
from statebed.state.tiers.spill_folder import SpillFolder
from statebed.storage import ObjectStore

Range = tuple[str, str, int, int]
"""Store, path, start and length."""


@dataclass(frozen=True)
class _Copy:
    path: Path
    checksum: int

    def read(self) -> bytes | None:
        """Return the bytes, or None if they are lost or damaged."""
        with contextlib.suppress(OSError):
            data = self.path.read_bytes()
            return data if crc32c(data) == self.checksum else None
        return None


class FetchedRanges:
    """Copies held by one process, which count towards its cache on local disk. Thread-safe."""

    def __init__(self, folder: SpillFolder, cache: LocalCache) -> None:
        self._folder = folder
        self._cache = cache
        self._lock = threading.Lock()
        self._copies: dict[Range, tuple[_Copy, CachedFile | None]] = {}

    def fetch(self, store: ObjectStore, path: str, start: int, length: int) -> bytes:
        """Return part of a data file from its copy. If there is none, fetch it from the store and keep a copy."""
        wanted = (store.url, path, start, length)
        with self._lock:
            copy, cached = self._copies.get(wanted, (None, None))
        data = None if copy is None else copy.read()
        if data is None:
            if copy is not None:
                self.forget(store, path, start, length)
            data = fetch_range(store, path, start, length)
            self._keep(wanted, data)
        elif cached is not None:
            self._cache.touch(cached)
        return data

    def forget(self, store: ObjectStore, path: str, start: int, length: int) -> None:
        """Drop the copy of a range that failed its checksum, so that it is fetched again."""
        wanted = (store.url, path, start, length)
        with self._lock:
            _, cached = self._copies.get(wanted, (None, None))
        if cached is not None:
            self._cache.remove(cached)
        self._drop(wanted)

    def _keep(self, wanted: Range, data: bytes) -> None:
        if len(data) != wanted[-1] or not self._cache.fits(len(data)):
            return
        path = self._folder.new_file(".range")
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(data)
        except OSError:
            path.unlink(missing_ok=True)  # the range is fetched again when it is needed
            return
        with self._lock:
            replaced = self._copies.get(wanted)
            self._copies[wanted] = (_Copy(path, crc32c(data)), None)
        if replaced is not None:
            replaced[0].path.unlink(missing_ok=True)
            if replaced[1] is not None:
                self._cache.remove(replaced[1])
        cached = self._cache.add(len(data), lambda: self._drop(wanted))
        with self._lock:
            # The cache may have dropped it already.
            if wanted in self._copies:
                self._copies[wanted] = (self._copies[wanted][0], cached)

    def _drop(self, wanted: Range) -> None:
        with self._lock:
            copy, _ = self._copies.pop(wanted, (None, None))
        if copy is not None:
            copy.path.unlink(missing_ok=True)
