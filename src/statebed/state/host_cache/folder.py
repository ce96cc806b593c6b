"""The folder of a host cache. Space in it is reserved under a file lock, and freed by removing the least recently
read files.

    lock                 its lock, which contains an upper bound of the bytes in use
    {digest}.columns     copies
    {process}-{token}.making     temporary files, each locked by its writer while that lives

Bytes are counted before they are written, and files are renamed afterwards, so a kill can make the count too high but
never too low. A process that reaches the limit looks at all files, and counts again.
"""

import contextlib
import fcntl
import os
import secrets
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from statebed.state.private_folders import check_parents, check_private

SUFFIX = ".columns"
_MAKING = ".making"
_LOCK = "lock"
_NUMBER = struct.Struct("<Q")
_WAIT_SECONDS = 2.0
_LOOK_SECONDS = 1.0
_STEP_SECONDS = 0.002
_KEPT = 0.9
"""Files are removed until this fraction of the limit is in use, so that not every new file has to make room."""
_BLOCK = 512
_MAX_FILES = 1 << 14
"""Maximum number of files. Each counts as at least 1/n of the limit, so scanning all of them stays cheap."""
_LEFT_OVER_SECONDS = 5.0
"""Age up to which a temporary file is never a leftover, because its writer may not have locked it yet."""


@dataclass
class ReservedSpace:
    """Space reserved for one file."""

    folder: "CacheFolder"
    temporary: Path
    nbytes: int
    """Bytes counted for the file."""
    evicted: int = 0
    kept: bool = field(default=False, init=False)

    def hold(self, descriptor: int) -> None:
        """Lock the temporary file, which shows that its writer is alive. A process that looks for leftovers may hold it
        briefly.
        """
        deadline = time.monotonic() + _LOOK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_STEP_SECONDS)
            else:
                return

    def keep(self, path: Path) -> int:
        """Rename the complete file, and return its size."""
        size = _size(self.temporary.stat())
        counted = self.folder.counted(size)
        if counted > self.nbytes:
            with self.folder.locked() as lock:
                self.evicted += self.folder.take(lock, counted - self.nbytes)
            self.nbytes = counted
        self.temporary.rename(path)
        self.kept = True
        return size


class CacheFolder:
    """A folder with a size limit. Safe for threads and processes."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self.limit_bytes = limit_bytes

    def make(self) -> None:
        """Create the folder, private to this user. Raise if another user could read or replace it."""
        check_parents(self.path)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(self.path, what="the folder of the host cache")

    def used(self) -> int:
        """Return the total size of the files, by scanning them."""
        return sum(_size(status) for _, status in self._entries())

    @contextlib.contextmanager
    def room(self, nbytes: int) -> Iterator[ReservedSpace]:
        """Reserve space for a file of about `nbytes` bytes, removing other files if needed."""
        if not self.path.is_dir():
            self.make()
        temporary = self.path / f"{os.getpid()}-{secrets.token_hex(8)}{_MAKING}"
        nbytes = self.counted(nbytes)
        with self.locked() as lock:
            room = ReservedSpace(self, temporary, nbytes, evicted=self.take(lock, nbytes))
        try:
            yield room
        finally:
            if not room.kept:
                temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the lock and yield the open lock file. Raise TimeoutError if others hold it for too long."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                if self._lock(descriptor):
                    yield descriptor
                    return
            finally:
                os.close(descriptor)
            if time.monotonic() > deadline:
                raise TimeoutError(f"other processes hold the lock of {self.path}")
            time.sleep(_STEP_SECONDS)

    def _lock(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The folder may have been removed and created again in the meantime.
            return (self.path / _LOCK).stat().st_ino == os.fstat(descriptor).st_ino
        except (BlockingIOError, FileNotFoundError):
            return False

    def counted(self, nbytes: int) -> int:
        """Return how many bytes to count for a file of this size."""
        return max(nbytes, self.limit_bytes // _MAX_FILES)

    def take(self, lock: int, nbytes: int) -> int:
        """Count more bytes, making room if needed, and return the number of files removed. Call with the lock."""
        counted = os.pread(lock, _NUMBER.size, 0)
        used = _NUMBER.unpack(counted)[0] if len(counted) == _NUMBER.size else self.limit_bytes
        evicted = 0
        if used + nbytes > self.limit_bytes:
            used, evicted = self._evict(nbytes)
        os.pwrite(lock, _NUMBER.pack(used + nbytes), 0)
        return evicted

    def _evict(self, nbytes: int) -> tuple[int, int]:
        """Remove the coldest files, and temporary files whose writers are gone. Return the bytes in use and the number
        removed.
        """
        files = self._files()
        used = sum(self.counted(size) for _, size, _ in files)
        evicted = 0
        if used + nbytes <= self.limit_bytes:
            return used, 0
        for _, size, path in files:
            if used + nbytes <= _KEPT * self.limit_bytes:
                break
            if path.suffix != _MAKING or _is_left_over(path):
                path.unlink(missing_ok=True)
                used -= self.counted(size)
                evicted += 1
        return used, evicted

    def remove_left_overs(self) -> None:
        """Remove temporary files whose writers are gone."""
        for _, _, path in self._files():
            if path.suffix == _MAKING and _is_left_over(path):
                path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[int, int, Path]]:
        """Return access time, size and path of all files, temporary ones first, then the coldest first."""
        return sorted(
            (0 if name.endswith(_MAKING) else status.st_atime_ns, _size(status), self.path / name)
            for name, status in self._entries()
        )

    def _entries(self) -> Iterator[tuple[str, os.stat_result]]:
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith((SUFFIX, _MAKING)):
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.name, entry.stat(follow_symlinks=False)


def _is_left_over(path: Path) -> bool:
    """Return whether the writer of a temporary file is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return time.time() - os.fstat(descriptor).st_mtime > _LEFT_OVER_SECONDS
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _size(status: os.stat_result) -> int:
    """Return the bytes on disk, without holes."""
    return min(status.st_blocks * _BLOCK, status.st_size) or status.st_size
