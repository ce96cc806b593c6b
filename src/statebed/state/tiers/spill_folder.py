"""The folder on local disk of one process, and the removal of folders that dead processes left.

Spilled files are worthless once their process is gone, because checkpoints are in the store. Each process creates a
separate folder, readable only by its user, beside a lock file that stays locked while the process lives. The kernel
releases that lock however the process ends, so the next process can distinguish leftovers from the folders of living
processes.
"""

import contextlib
import fcntl
import itertools
import os
import secrets
import shutil
import tempfile
import weakref
from pathlib import Path

from statebed.errors import SpillError
from statebed.state.private_folders import check_parents, check_private

_LOCK_SUFFIX = ".lock"
_ATTEMPTS = 100
_FIX = "pass a folder on a local disk that this user can write to, with enough space for the state"


class SpillFolder:
    """A private folder for files that live no longer than this process. Thread-safe."""

    def __init__(self, root: Path | str | None = None) -> None:
        self._root = _default_root() if root is None else Path(root)
        self._numbers = itertools.count(1)
        try:
            check_parents(self._root)
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if root is None:  # the name is predictable, so another user may have created it first
                check_private(self._root, what="the folder for spilled state")
            self.removed = remove_leftovers(self._root)
            self._lock, self.path = _make(self._root)
        except OSError as error:
            if isinstance(error, SpillError):
                raise
            raise spill_error("cannot create a folder for spilled state", self._root, error) from error
        self._end = weakref.finalize(self, _remove, self._lock, self.path, os.getpid())

    def new_file(self, suffix: str) -> Path:
        """Return a path that no other file of this process has."""
        # The process id is part of the name because a forked child continues with the same numbers.
        return self.path / f"{os.getpid()}_{next(self._numbers)}{suffix}"

    def close(self) -> None:
        """Remove the folder with all of its files."""
        self._end()


def spill_error(what: str, path: Path, error: Exception) -> SpillError:
    return SpillError(f"{what}: {error}", where=str(path), fix=_FIX)


def remove_leftovers(root: Path) -> tuple[str, ...]:
    """Remove the folders of dead processes, and return their names."""
    removed = []
    for lock in sorted(root.glob(f"*{_LOCK_SUFFIX}")):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # another process removed it first
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its process is alive
        else:
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink(missing_ok=True)
            removed.append(lock.stem)
        finally:
            os.close(descriptor)
    return tuple(removed)


def _make(root: Path) -> tuple[int, Path]:
    for _ in range(_ATTEMPTS):
        folder = root / f"{os.getpid()}_{secrets.token_hex(8)}"
        lock = folder.with_suffix(_LOCK_SUFFIX)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have taken the file for a leftover before it was locked.
            if lock.stat().st_ino == os.fstat(descriptor).st_ino:
                folder.mkdir(mode=0o700)
                return descriptor, folder
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(descriptor)
            lock.unlink(missing_ok=True)
            raise
        os.close(descriptor)
    raise SpillError(
        f"{_ATTEMPTS} attempts to create a folder for spilled state failed: other processes removed it",
        where=str(root),
        fix=_FIX,
    )


def _remove(descriptor: int, folder: Path, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child must not remove its parent's files
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.with_suffix(_LOCK_SUFFIX).unlink()
    os.close(descriptor)


def _default_root() -> Path:
    return Path(tempfile.gettempdir()) / f"statebed-spill-{os.getuid()}"
