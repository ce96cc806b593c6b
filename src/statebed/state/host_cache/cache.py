"""Copies of data files that all processes of a host share: mapped, found by content, bounded in bytes, never trusted.

A copy is named after what it is made of (store, path with digest, layout), so it is never stale; it is written beside
and renamed, so nobody sees half of one. When the bound is reached the copies that were not read for the longest time
leave; who has mapped one reads on. Any process may be killed at any moment: at worst a file in the making is left,
which the next one to make room removes.

Whatever goes wrong here (no room, no right to write, a folder that somebody removed, a damaged copy) costs time and
is counted and logged; the rows are then read from the store. Nothing waits for long, and nothing here raises, except
for a folder that other users could write.

What is checked: at every opening the tail, the directory with its checksum and label, and the size of all parts. All
other bytes once in the life of each process, and again when the file was written to since. Where address space is
limited (RLIMIT_AS), files are read instead of mapped.
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

import numpy.typing as npt
import pyarrow as pa

from statebed.errors import CorruptObjectError, InputError, SpillError, StatebedError
from statebed.format.digest import digest
from statebed.state.host_cache.folder import SUFFIX, CacheFolder
from statebed.state.tiers.column_files import ColumnFile, ColumnFileWriter, column_file, mapped

_log = logging.getLogger(__name__)
_RESTS_SECONDS = 10.0
"""For so long nothing is written after the disk has refused it."""
_FRESH_SECONDS = 1.0
"""A copy that was read a moment ago is warm enough."""
_REMEMBERED = 1 << 14

Write = Callable[[ColumnFileWriter], None]
Identity = tuple[int, int, int, int]


class _Checked:
    """Which files this process has checked to the last byte; a file that is written to is another one."""

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


_checked = _Checked()


@dataclass
class CacheCounts:
    """What happened, in this process. Counted without a lock: a race may lose one."""

    hits: int = 0
    misses: int = 0
    written: int = 0
    written_bytes: int = 0
    evicted: int = 0
    damaged: int = 0
    """Copies that were not what was written, and were removed."""
    failures: int = 0
    """Times that something could not be read or written."""


class HostCache:
    """The copies of one user in a folder on local disk. Thread-safe; pickled, it is the same folder elsewhere."""

    def __init__(self, folder: Path | str, limit_bytes: int) -> None:
        """`folder` is made if it is not there, readable by its user alone; all copies take at most `limit_bytes`."""
        if limit_bytes < 0:
            raise InputError(f"a cache of {limit_bytes} bytes cannot work", fix="give 0 or more bytes")
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
            self._failed("make the folder of", error)

    def __reduce__(self) -> tuple[type["HostCache"], tuple[str, int]]:
        return HostCache, (str(self.folder), self.limit_bytes)

    @property
    def folder(self) -> Path:
        return self._folder.path

    @property
    def used(self) -> int:
        """Bytes of disk that copies take now."""
        return self._folder.used()

    @property
    def writable(self) -> bool:
        """Whether it is worth preparing a copy: not for a while after the disk has refused one."""
        return self.limit_bytes > 0 and time.monotonic() >= self._rests_until

    def open(self, label: str, *, in_memory: bool = False) -> ColumnFile | None:
        """The copy with this label; None: there is none. `in_memory`: not mapped, whatever is possible."""
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
            found = self._opened(descriptor, path, label, in_memory=in_memory)
        except CorruptObjectError as error:
            self.counts.damaged += 1
            _log.warning("a damaged copy is read from the store again: %s", error)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        except (OSError, MemoryError, pa.ArrowException) as error:
            self._failed("read a copy of", error)
            return None
        finally:
            os.close(descriptor)
        self.counts.hits += 1
        return found

    def add(self, label: str, kinds: Mapping[str, npt.DTypeLike], write: Write, *, most: int, nbytes: int) -> bool:
        """Write a copy, of at most so many values in fixed-width columns and about so many bytes in all.

        False: there is none now. What `write` itself raises is raised, unless the disk refused something.
        """
        if nbytes > self.limit_bytes or not self.writable:
            return False
        path = self._path(label)
        if path.exists():
            return True
        try:
            with (
                self._folder.room(nbytes) as room,
                ColumnFileWriter(room.temporary, kinds, most=most, label=label) as writer,
            ):
                room.hold(writer.descriptor)
                write(writer)
                writer.seal()
                size = room.keep(path)
        except OSError as error:
            if isinstance(error, StatebedError) and not isinstance(error, SpillError):
                raise  # not of this disk: `write` reads the store
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
        found = column_file(data, path, label=label, check=not known)
        _checked.add(identity)
        now = time.time_ns()
        if now - status.st_atime_ns > _FRESH_SECONDS * 1e9:
            # The time of reading alone, so that a file that was written to is known by its time of writing.
            with contextlib.suppress(OSError):
                os.utime(descriptor, ns=(now, status.st_mtime_ns))
        return found

    def _failed(self, what: str, error: BaseException) -> None:
        self.counts.failures += 1
        self._rests_until = time.monotonic() + _RESTS_SECONDS
        _log.warning("cannot %s the host's cache %s, going on without: %s", what, self.folder, error)


def is_address_space_limited() -> bool:
    """Whether mapped files count against a limit of this process."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _read(descriptor: int, size: int) -> pa.Buffer:
    data = pa.allocate_buffer(size)
    view, at = memoryview(data).cast("B"), 0
    while at < size and (count := os.preadv(descriptor, [view[at:]], at)):
        at += count
    return data.slice(0, at)
