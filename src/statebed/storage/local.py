"""Store in a folder of a file system, durable and with a true put-if-absent.

It is our own because the usual libraries never call fsync. An object is written to a temporary file, synced, and then
named in one step: `link` for put_if_absent (fails if the name is taken), `rename` for put. Then the folder is synced. A
temporary file left by a crash is in `.statebed-tmp` at the root. It is never listed, and a later store deletes it once
it is an hour old; a slow writer whose file was deleted writes it again.

Empty folders are removed. A writer whose folder was removed creates it again, so no locks are needed.
"""

import contextlib
import errno
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from statebed.errors import (
    ObjectMissingError,
    OutcomeUnknownError,
    PutIfAbsentError,
    StorageError,
    StoreNotWritableError,
)
from statebed.storage.disk import DurableFolders, sync_folder, sync_nearest, write_file
from statebed.storage.object_store import Listing, ObjectInfo, PutOutcome
from statebed.storage.paths import TEMPORARY_FOLDER, check_path, check_prefix, check_range, folder_conflict, join

STALE_AFTER_SECONDS = 3600.0
_ATTEMPTS = 100
"""Number of attempts to write if the folder is removed in the meantime."""

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT}


class LocalStore:
    """Store in the folder `root`, which the first write creates."""

    def __init__(self, root: str | Path, *, now: Callable[[], float] = time.time) -> None:
        self._root = Path(os.path.abspath(Path(root).expanduser()))  # noqa: PTH100 - resolve() would follow links
        self._temporary = self._root / TEMPORARY_FOLDER
        self._now = now
        self._folders = DurableFolders()
        self._sweep_lock = threading.Lock()
        self._swept = False

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    @property
    def url(self) -> str:
        return str(self._root)

    # ---- writing -------------------------------------------------------------------------------------------

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        return self._write(path, data, self._link)

    def put(self, path: str, data: bytes) -> None:
        self._write(path, data, self._rename)

    def delete(self, path: str) -> None:
        self.delete_many([path])

    def delete_many(self, paths: Sequence[str]) -> None:
        targets = {path: self._root / check_path(path) for path in paths}
        folders = {target.parent: path for path, target in targets.items()}
        for path, target in targets.items():
            try:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    target.unlink()
            except OSError as error:
                raise self._refused(error, path, "delete") from error
        for folder, path in folders.items():
            try:
                # Even if nothing was there: another process may have removed it without syncing yet.
                sync_nearest(folder, self._root)
            except OSError as error:
                raise self._refused(error, path, "delete") from error
            self._remove_empty_folders(folder)

    def _write(self, path: str, data: bytes, name_it: Callable[[Path, Path], PutOutcome]) -> PutOutcome:
        target = self._root / check_path(path)
        last: OSError | None = None
        for _ in range(_ATTEMPTS):
            try:
                self._make_temporary_folder()
                temporary = self._temporary / f"{os.getpid()}-{secrets.token_hex(8)}"
                write_file(temporary, data)
                try:
                    self._folders.make(target.parent, top=self._root)
                    outcome = name_it(temporary, target)
                finally:
                    temporary.unlink(missing_ok=True)
                self._make_durable(target)
            except FileNotFoundError as error:  # a folder was removed, or the temporary file deleted: retry
                last = error
            except (NotADirectoryError, IsADirectoryError) as error:
                raise self._conflict(error, path) from error
            except OSError as error:
                raise self._refused(error, path, "write") from error
            else:
                return outcome
        raise self._refused(last or FileNotFoundError(), path, "write")

    def _link(self, temporary: Path, target: Path) -> PutOutcome:
        try:
            os.link(temporary, target, follow_symlinks=False)
        except FileExistsError:
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, "a folder", str(target)) from None
            # On network file systems, the writer that made the link may get "exists" for a repeated request.
            return PutOutcome.CREATED if temporary.stat().st_nlink > 1 else PutOutcome.EXISTS
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise PutIfAbsentError(
                f"this file system does not support hard links ({error.strerror}), so put-if-absent is not possible",
                where=str(target),
                fix="keep the state on a file system with hard links (ext4, xfs, btrfs, NFS) or in an object store",
            ) from error
        return PutOutcome.CREATED

    def _rename(self, temporary: Path, target: Path) -> PutOutcome:
        temporary.rename(target)
        return PutOutcome.CREATED

    def _make_durable(self, target: Path) -> None:
        # Even after EXISTS: the process that created the name may not have synced it yet, and the caller relies on it.
        try:
            sync_folder(target.parent)
        except FileNotFoundError:
            return  # the object was deleted since, with its folder
        except OSError as error:
            raise OutcomeUnknownError(
                f"the file was created but its folder could not be synced: {error.strerror}",
                where=str(target),
                fix="check the disk, then repeat",
            ) from error

    def _make_temporary_folder(self) -> None:
        self._folders.make(self._temporary, top=self._root)
        with self._sweep_lock:
            if self._swept:
                return
            self._swept = True
        for entry in os.scandir(self._temporary):
            with contextlib.suppress(FileNotFoundError):
                if self._now() - entry.stat().st_mtime > STALE_AFTER_SECONDS:
                    os.unlink(entry.path)  # noqa: PTH108 - a DirEntry is no Path

    def _remove_empty_folders(self, folder: Path) -> None:
        while folder != self._root and self._root in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                return  # not empty, already removed, or not permitted
            folder = folder.parent

    # ---- reading -------------------------------------------------------------------------------------------

    def get(self, path: str) -> bytes:
        with self._opened(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
            return file.read()

    def get_range(self, path: str, start: int, length: int) -> bytes:
        check_range(start, length)
        with self._opened(path) as descriptor:
            parts = []
            while length and (part := os.pread(descriptor, length, start)):
                parts.append(part)
                start, length = start + len(part), length - len(part)
            return b"".join(parts)

    def head(self, path: str) -> ObjectInfo | None:
        try:
            status = (self._root / check_path(path)).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._refused(error, path, "read") from error
        return _info(path, status) if stat.S_ISREG(status.st_mode) else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._walk(check_prefix(prefix))

    def list_level(self, prefix: str) -> Listing:
        objects, folders = [], []
        for name, entry in self._entries(check_prefix(prefix)):
            path = join(prefix, name.rstrip("/"))
            if not name.endswith("/"):
                with contextlib.suppress(FileNotFoundError):
                    objects.append(_info(path, entry.stat()))
            elif self._holds_object(path, entry.path):  # empty folders are not listed, as in an object store
                folders.append(path)
        return Listing(objects=tuple(objects), folders=tuple(sorted(folders)))

    def _holds_object(self, path: str, folder: str) -> bool:
        """Return whether there is any object below a folder. Stops at the first, because logs have many folders."""
        inner = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_file():
                        return True
                    if entry.is_dir() and entry.name != TEMPORARY_FOLDER:
                        inner.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._refused(error, path, "list") from error
        return any(self._holds_object(path, child) for child in inner)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        target = self._root / check_path(path)
        try:
            descriptor = os.open(target, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ObjectMissingError("there is no such object", where=str(target)) from error
        except OSError as error:
            raise self._refused(error, path, "read") from error
        try:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise ObjectMissingError("there is no such object, only a folder", where=str(target))
            yield descriptor
        except OSError as error:
            if isinstance(error, ObjectMissingError):
                raise
            raise self._refused(error, path, "read") from error
        finally:
            os.close(descriptor)

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        for name, entry in self._entries(prefix):
            path = join(prefix, name.rstrip("/"))
            if name.endswith("/"):
                yield from self._walk(path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    yield _info(path, entry.stat())

    def _entries(self, prefix: str) -> "tuple[tuple[str, os.DirEntry[str]], ...]":
        # A folder sorts with its '/', as the paths of its objects do: 'a-b' < 'a/b' < 'a0'.
        try:
            with os.scandir(self._root / prefix) as entries:
                named = [
                    (f"{entry.name}/" if entry.is_dir() else entry.name, entry)
                    for entry in entries
                    if entry.name != TEMPORARY_FOLDER and (entry.is_dir() or entry.is_file())
                ]
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise self._refused(error, prefix, "list") from error
        return tuple(sorted(named, key=lambda pair: pair[0]))

    # ---- errors --------------------------------------------------------------------------------------------

    def _conflict(self, error: OSError, path: str) -> StorageError:
        """Return the error for a path with a file in place of a folder: a name conflict, or an unusable root."""
        if self._root.is_dir():
            return folder_conflict(self.url, path)
        return self._refused(error, path, "write")

    def _refused(self, error: OSError, path: str, verb: str) -> StorageError:
        where = str(self._root / path)
        reason = error.strerror or str(error)
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return StorageError(f"the disk is full: {reason}", where=where, fix="free some space and repeat")
        if verb in {"write", "delete"} and error.errno in _READ_ONLY:
            return StoreNotWritableError(
                f"this folder is not writable: {reason}",
                where=str(self._root),
                fix="choose another folder, or give this user write permission",
            )
        denied = error.errno in {errno.EACCES, errno.EPERM}
        fix = "give this user the right to do that" if denied else "look at the file system and repeat"
        return StorageError(f"cannot {verb}: {reason}", where=where, fix=fix)


def _info(path: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(path, status.st_size, status.st_mtime_ns // 1000)
