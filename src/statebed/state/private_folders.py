"""Checks that a folder for state on local disk cannot be replaced by another user.

The owner of a folder above it, or of a link on the way to it, can rename it and put another in its place. Only this
user and root are trusted. A world-writable folder above is accepted: /tmp protects its contents by the sticky bit, and
container volumes, which have none, are used by one user.
"""

import os
from pathlib import Path

from statebed.errors import SpillError

_ROOT = 0


def check_parents(folder: Path) -> None:
    """Refuse `folder` if a folder above it, or a link on the way to it, belongs to another user."""
    absolute = folder.absolute()
    for path in dict.fromkeys([*reversed(absolute.parents), *reversed(absolute.resolve().parents)]):
        try:
            owner = path.lstat().st_uid
        except FileNotFoundError:
            continue  # it does not exist yet, and we create it
        if owner not in {_ROOT, os.getuid()}:
            raise SpillError(
                f"a folder above {folder} belongs to another user (uid {owner}), who could replace what is below it",
                where=str(path),
                fix="choose a folder whose parents belong to this user or to root",
            )


def check_private(folder: Path, *, what: str) -> None:
    """Refuse `folder`, called `what` in the error, unless it belongs to this user and no one else has access."""
    status = folder.lstat()
    if not folder.is_dir() or folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise SpillError(
            f"{what} belongs to another user, or other users have access to it",
            where=str(folder),
            fix=f"restrict it: chmod 700 {folder}; or choose another folder",
        )
