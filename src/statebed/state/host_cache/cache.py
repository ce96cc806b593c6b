"""Copies of data files that all processes of a host share: mapped, addressed by content, limited in bytes, never
trusted.

A copy is named after its source (store, path with digest, layout), so it is never stale. It is written to a temporary
file and renamed, so no reader sees a partial one. When the limit is reached, the copies that were read least recently
are removed; readers that have one mapped can continue. Any process may be killed at any moment: at worst a temporary
file is left, which the next process that makes room removes.

Whatever fails here (no space, no permission, a removed folder, a damaged copy) costs time, is counted and is logged;
the rows are then read from the store. Nothing waits for long, and nothing raises, except for a folder that other users
could write.

Each time a copy is opened, its tail, its directory with checksum and label, and the size of all parts are checked. All
other bytes are verified once per process, and again if the file was written since. If address space is limited
(RLIMIT_AS), files are read instead of mapped.
"""

import contextlib
import logging
import os
import resource
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from statebed.arrays.columns import DType
from statebed.errors import CorruptObjectError, InputError, SpillError, StatebedError
from statebed.format.digest import digest
from statebed.state.host_cache.folder import SUFFIX, CacheFolder
from statebed.state.tiers.column_files import ColumnFile, ColumnFileWriter, column_file, mapped

_log = logging.getLogger(__name__)
_RESTS_SECONDS = 10.0
"""Time without writes after a disk error."""
_FRESH_SECONDS = 1.0
"""The access time of a copy is not updated if it was read less than this many seconds ago."""
_REMEMBERED = 1 << 14

Write = Callable[[ColumnFileWriter], None]
Identity = tuple[int, int, int, int]


class _VerifiedFiles:
    """Files that this process has fully verified. A file that is modified gets a new identity."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[Identity, None] = OrderedDict()

    def __contains__(self, identity: Identity) -> bool:
        return identity in self._files

    def add(self, identity: Identity) -> None:
        with self._lock:
            self._files[identity] = None
            while len(self._files) > _REMEMBERED:
                self._files.popitem(last=False)


_checked = _VerifiedFiles()


@dataclass
class CacheCounts:
    """Event counts of this process. Counted without a lock, so a race may lose one."""

    hits: int = 0
    misses: int = 0
    written: int = 0
    written_bytes: int = 0
    evicted: int = 0
    damaged: int = 0
    """Copies that differed from what was written, and were removed."""
    failures: int = 0
    """Number of failed reads and writes."""


class HostCache:
    """Copies of one user in a folder on local disk. Thread-safe. A pickled cache refers to the same folder."""

    def __init__(self, folder: Path | str, limit_bytes: int) -> None:
        """Create `folder` if it does not exist, readable only by its user. All copies together take at most
        `limit_bytes`.
        """
        if limit_bytes < 0:
            raise InputError(f"the cache limit must be at least 0 bytes, got {limit_bytes}", fix="pass 0 or more bytes")
        self.limit_bytes = limit_bytes
        self.counts = CacheCounts()
        self._folder = CacheFolder(Path(folder), limit_bytes)
        self._rests_until = 0.0
        try:
            self._folder.make()
            self._folder.remove_left_overs()
        except OSError as error:
            if isinstance(error, SpillError):
                raise
            self._failed("create the folder of", error)

    def __reduce__(self) -> tuple[type["HostCache"], tuple[str, int]]:
        return HostCache, (str(self.folder), self.limit_bytes)

    @property
    def folder(self) -> Path:
        return self._folder.path

    @property
    def used(self) -> int:
        """Bytes on disk that copies take now."""
        return self._folder.used()

    @property
    def writable(self) -> bool:
        """Whether it is worth preparing a copy. False for a while after a disk error."""
        return self.limit_bytes > 0 and time.monotonic() >= self._rests_until

    def open(self, label: str, *, in_memory: bool = False) -> ColumnFile | None:
        """Open the copy with this label, or return None if there is none. With `in_memory`, it is never mapped."""
        path = self._path(label)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            self.counts.misses += 1
            return None
        except OSError as error:
            self._failed("open a copy of", error)
            return None
        try:
            copy = self._opened(descriptor, path, label, in_memory=in_memory)
        except CorruptObjectError as error:
            self.counts.damaged += 1
            _log.warning("removed a damaged copy, its rows are read from the store: %s", error)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        except (OSError, MemoryError, pa.ArrowException) as error:
            self._failed("read a copy of", error)
            return None
        finally:
            os.close(descriptor)
        self.counts.hits += 1
        return copy

    def add(self, label: str, kinds: Mapping[str, DType], write: Write, *, max_rows: int, nbytes: int) -> bool:
        """Write a copy with at most `max_rows` values in each fixed-width column and about `nbytes` in total.

        Return whether the copy exists now. Errors of `write` are raised, unless they are disk errors.
        """
        if nbytes > self.limit_bytes or not self.writable:
            return False
        path = self._path(label)
        if path.exists():
            return True
        try:
            with (
                self._folder.room(nbytes) as room,
                ColumnFileWriter(room.temporary, kinds, max_rows=max_rows, label=label) as writer,
            ):
                room.hold(writer.descriptor)
                write(writer)
                writer.seal()
                size = room.keep(path)
        except OSError as error:
            if isinstance(error, StatebedError) and not isinstance(error, SpillError):
                raise  # not an error of this disk, because `write` reads the store
            self._failed("write a copy to", error)
            return False
        self.counts.written += 1
        self.counts.written_bytes += size
        self.counts.evicted += room.evicted
        return True

    def _path(self, label: str) -> Path:
        return self.folder / f"{digest(label.encode())}{SUFFIX}"

    def _opened(self, descriptor: int, path: Path, label: str, *, in_memory: bool) -> ColumnFile:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid():
            raise CorruptObjectError("a copy belongs to another user", where=str(path))
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        reads = in_memory or is_address_space_limited()
        data = _read(descriptor, status.st_size) if reads else mapped(descriptor)
        known = identity in _checked
        copy = column_file(data, path, label=label, check=not known)
        _checked.add(identity)
        now = time.time_ns()
        if now - status.st_atime_ns > _FRESH_SECONDS * 1e9:
            # Set only the access time, because the modification time shows whether the file was written.
            with contextlib.suppress(OSError):
                os.utime(descriptor, ns=(now, status.st_mtime_ns))
        return copy

    def _failed(self, what: str, error: BaseException) -> None:
        self.counts.failures += 1
        self._rests_until = time.monotonic() + _RESTS_SECONDS
        _log.warning("cannot %s the host cache %s, continuing without it: %s", what, self.folder, error)


def is_address_space_limited() -> bool:
    """Return whether mapped files count towards a limit of this process."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _read(descriptor: int, size: int) -> pa.Buffer:
    data = pa.allocate_buffer(size)
    view, at = memoryview(data).cast("B"), 0
    while at < size and (count := os.preadv(descriptor, [view[at:]], at)):
        at += count
    return data.slice(0, at)
