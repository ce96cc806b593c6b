"""Durable file system operations: creating a folder, writing a file, syncing a folder.

Linux keeps a new name only once its folder has been synced, and a new folder only once its parent has been. Folders
known to be durable are remembered by inode, so that the usual write syncs only one folder.
"""

import contextlib
import os
import stat
import threading
from pathlib import Path

_REMEMBERED = 4096
_NOT_THERE = (FileNotFoundError, NotADirectoryError)


def write_file(path: Path, data: bytes) -> None:
    """Create `path` with `data` and sync the file; its name is not yet durable. On failure, nothing is left behind."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def sync_folder(path: Path) -> None:
    """Make the names in the folder `path` durable, including removals."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_nearest(folder: Path, root: Path) -> None:
    """Sync `folder`, or its nearest existing parent: that makes the removal of a folder durable."""
    for candidate in (folder, *folder.parents):
        try:
            sync_folder(candidate)
        except _NOT_THERE:
            if candidate == root:
                return
        else:
            return


class DurableFolders:
    """Creates folders, and makes them and all parents that it created durable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[int, int]] = {}

    def make(self, folder: Path, *, top: Path) -> None:
        """Create `folder` and missing parents, and make them durable.

        Syncs the parent of every folder up to `top` that is not known to be durable, because another process may have
        created it without syncing it yet. Above `top`, only new folders are synced.
        """
        missing = []
        current = folder
        while not _is_folder(current):
            missing.append(current)
            current = current.parent
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                path.mkdir()
        above_top = [path for path in missing if path != top and path in top.parents]
        inside = [path for path in (folder, *folder.parents) if path == top or top in path.parents]
        for path in (*inside, *above_top):
            self._settle(path)

    def _settle(self, path: Path) -> None:
        status = path.stat()
        identity = (status.st_dev, status.st_ino)
        if self._known.get(path) == identity:
            return
        sync_folder(path.parent)
        with self._lock:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[path] = identity


def _is_folder(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(f"{path} is a file")
    return True
