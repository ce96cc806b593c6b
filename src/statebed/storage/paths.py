"""What a path may look like, the same for every store.

A path names one object: relative, '/'-separated, no empty, '.' or '..' part. A prefix names a folder: a path,
or "" for the root. One name is kept back: the folder in which the local store writes its temporary files.
"""

from statebed.errors import InputError, StorageError

TEMPORARY_FOLDER = ".statebed-tmp"
"""Never listed, never an object: holds half-written files of the local store, at its root."""

MAX_PART_LENGTH = 255
"""Bytes of one part of a path: what file systems allow."""

_FORBIDDEN = ("\\", "\x00", "\n", "\r")


def check_path(path: str) -> str:
    """Give back `path`, or say why it cannot name an object.

    >>> check_path("rides/checkpoints/000000000001/checkpoint.metadata")
    'rides/checkpoints/000000000001/checkpoint.metadata'
    """
    fix = "use a relative path such as 'checkpoints/000000000001/checkpoint.metadata'"
    if not path:
        raise InputError("the path of an object is empty", fix=fix)
    for part in path.split("/"):
        if part in {"", ".", ".."}:
            raise InputError(f"the path {path!r} has an empty, '.' or '..' part", fix=fix)
        if part == TEMPORARY_FOLDER:
            raise InputError(f"the path {path!r} has the reserved part {TEMPORARY_FOLDER!r}", fix=fix)
        if len(part.encode()) > MAX_PART_LENGTH:
            raise InputError(f"a part of the path {path[:80]!r}... is longer than {MAX_PART_LENGTH} bytes", fix=fix)
    if any(mark in path for mark in _FORBIDDEN):
        raise InputError(f"the path {path!r} holds a backslash, a line end or a zero byte", fix=fix)
    return path


def check_prefix(prefix: str) -> str:
    """Give back `prefix`, which names a folder; "" is the root."""
    return check_path(prefix) if prefix else ""


def check_range(start: int, length: int) -> None:
    """Refuse a range of bytes that cannot be."""
    if start < 0 or length < 0:
        raise InputError(f"the range start={start} length={length} is negative", fix="ask for start >= 0, length >= 0")


def join(folder: str, name: str) -> str:
    """`name` below `folder`, where either may be the root.

    >>> join("", "a"), join("a", "b"), join("a", "")
    ('a', 'a/b', 'a')
    """
    return f"{folder}/{name}" if folder and name else folder or name


def parents(path: str) -> tuple[str, ...]:
    """Every folder above the object, nearest first, without the root.

    >>> parents("a/b/c")
    ('a/b', 'a')
    """
    parts = path.split("/")[:-1]
    return tuple("/".join(parts[:count]) for count in range(len(parts), 0, -1))


def folder_conflict(store_url: str, path: str) -> StorageError:
    """The error of writing an object where a folder is, or below another object."""
    return StorageError(
        "an object and a folder cannot have the same name",
        where=join(store_url, path),
        fix="choose another name: a file system cannot hold both, so no store here accepts it",
    )
