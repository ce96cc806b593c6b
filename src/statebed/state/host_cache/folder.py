"""The folder of a host's cache: room in it is taken under a file lock, and made by removing what was read least lately.

    lock                 its lock, and in it the bytes that are taken, about: never less than there are
    {digest}.columns     copies
    {process}-{token}.making     files in the making, each locked by its writer while that lives

Bytes are counted before they are written and a name is given afterwards, so after a kill too much is counted, never too
little; whoever finds the bound reached looks at all files, and counts anew.
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
"""Room is made down to this part of the bound, so that it need not be made for every file."""
_BLOCK = 512
_MOST_FILES = 1 << 14
"""A small file counts as so small a part of the bound: there are never more files, and looking at all takes little."""
_LEFT_OVER_SECONDS = 5.0
"""Between its creation and its locking by its writer, a file in the making is not taken for a left-over."""


@dataclass
class Room:
    """A place for one file."""

    folder: "CacheFolder"
    temporary: Path
    nbytes: int
    """What is counted for it."""
    evicted: int = 0
    kept: bool = field(default=False, init=False)

    def hold(self, descriptor: int) -> None:
        """Say that its writer lives; whoever looks for left-overs may hold it for a moment to find out."""
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
        """Give the whole file its name; gives its bytes."""
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
    """One folder with a bound. Thread-safe, and safe between processes."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self.limit_bytes = limit_bytes

    def make(self) -> None:
        """Create the folder, private to this user; refuse one that another user could read or replace."""
        check_parents(self.path)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(self.path, what="the folder of the host's cache")

    def used(self) -> int:
        """Bytes of all files, looked up."""
        return sum(size for _, size, _ in self._files())

    @contextlib.contextmanager
    def room(self, nbytes: int) -> Iterator[Room]:
        """A place for a file of about so many bytes; other files leave for it."""
        if not self.path.is_dir():
            self.make()
        temporary = self.path / f"{os.getpid()}-{secrets.token_hex(8)}{_MAKING}"
        nbytes = self.counted(nbytes)
        with self.locked() as lock:
            room = Room(self, temporary, nbytes, evicted=self.take(lock, nbytes))
        try:
            yield room
        finally:
            if not room.kept:
                temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """The open lock file, held; TimeoutError when others hold it for long."""
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
            # The folder may have been removed and made again meanwhile.
            return (self.path / _LOCK).stat().st_ino == os.fstat(descriptor).st_ino
        except (BlockingIOError, FileNotFoundError):
            return False

    def counted(self, nbytes: int) -> int:
        """What a file of so many bytes counts."""
        return max(nbytes, self.limit_bytes // _MOST_FILES)

    def take(self, lock: int, nbytes: int) -> int:
        """Count more bytes, and make room where there is none; gives how many files left. With the lock."""
        counted = os.pread(lock, _NUMBER.size, 0)
        used = _NUMBER.unpack(counted)[0] if len(counted) == _NUMBER.size else self.limit_bytes
        evicted = 0
        if used + nbytes > self.limit_bytes:
            used, evicted = self._evict(nbytes)
        os.pwrite(lock, _NUMBER.pack(used + nbytes), 0)
        return evicted

    def _evict(self, nbytes: int) -> tuple[int, int]:
        """Remove the coldest files, and those in the making whose writers are gone."""
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
        """Remove files in the making whose writers are gone."""
        for _, _, path in self._files():
            if path.suffix == _MAKING and _is_left_over(path):
                path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[int, int, Path]]:
        """All files, left-overs first and then the coldest first: when they were read, and their bytes."""
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith((SUFFIX, _MAKING)):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        read = 0 if entry.name.endswith(_MAKING) else status.st_atime_ns
                        found.append((read, _size(status), Path(entry.path)))
        return sorted(found)


def _is_left_over(path: Path) -> bool:
    """Whether the writer of a file in the making is gone."""
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
    """Bytes of disk, without holes."""
    return min(status.st_blocks * _BLOCK, status.st_size) or status.st_size
