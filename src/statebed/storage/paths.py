"""Rules for paths, the same for every store.

A path names one object: relative, '/'-separated, no empty, '.' or '..' part. A prefix names a folder: a path, or "" for
the root. One name is reserved: the folder for temporary files of the local store.
"""

from urllib.parse import unquote

from statebed.errors import InputError, StorageError

TEMPORARY_FOLDER = ".statebed-tmp"
"""Folder for temporary files at the root of the local store. Never listed."""

MAX_PART_LENGTH = 255
"""Maximum length of a part of a path in bytes, as on file systems."""

_STORE_SCHEMES = frozenset(
    [
        "s3",
        "s3a",
        "s3n",
        "gs",
        "gcs",
        "az",
        "abfs",
        "abfss",
        "wasb",
        "wasbs",
        "adl",
        "hdfs",
        "dbfs",
        "memory",
        "http",
        "https",
    ]
)
"""Schemes of URLs that name no local folder, whether a store supports them or not."""

_FORBIDDEN = ("\\", "\x00", "\n", "\r")


def check_path(path: str) -> str:
    """Return `path`; raise InputError if it cannot name an object.

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
        raise InputError(f"the path {path!r} contains a backslash, a line end or a zero byte", fix=fix)
    return path


def file_url_path(url: str) -> str | None:
    """Return the path in a file URL as it is written, or None for anything else; raise InputError if it is relative.

    Spark writes `file:/folder` for `file:///folder`.

    >>> file_url_path("file:/folder"), file_url_path("file:///folder"), file_url_path("folder")
    ('/folder', '/folder', None)
    """
    scheme, colon, rest = url.partition(":")
    if not colon or scheme.lower() != "file":
        return None
    host, path = "", rest
    if rest.startswith("//"):
        host, slash, path = rest.removeprefix("//").partition("/")
        path = slash + path
    if host not in {"", "localhost"} or not path.startswith("/"):
        raise InputError(
            "a file URL must have no host and an absolute path",
            where=url,
            fix="write file:///folder/of/state",
        )
    return path


def check_prefix(prefix: str) -> str:
    """Return `prefix`, which names a folder ("" is the root); raise InputError if it is invalid."""
    return check_path(prefix) if prefix else ""


def check_range(start: int, length: int) -> None:
    """Raise InputError if start or length is negative."""
    if start < 0 or length < 0:
        raise InputError(f"the range start={start} length={length} is negative", fix="use start >= 0 and length >= 0")


def join(folder: str, name: str) -> str:
    """Return the path of `name` in `folder`; either may be "" for the root.

    >>> join("", "a"), join("a", "b"), join("a", "")
    ('a', 'a/b', 'a')
    """
    return f"{folder}/{name}" if folder and name else folder or name


def parents(path: str) -> tuple[str, ...]:
    """Return every folder above the object, nearest first, without the root.

    >>> parents("a/b/c")
    ('a/b', 'a')
    """
    parts = path.split("/")[:-1]
    return tuple("/".join(parts[:count]) for count in range(len(parts), 0, -1))


def folder_conflict(store_url: str, path: str) -> StorageError:
    """Return the error for writing an object where a folder is, or below another object."""
    return StorageError(
        "an object and a folder cannot have the same name",
        where=join(store_url, path),
        fix="choose another name: a file system cannot hold both, so no store here accepts it",
    )


def local_path(path: str) -> str:
    """Return the path in a file URL, decoded, or any other text unchanged. Raise InputError for a URL that lacks `//`.

    `s3:/bucket` would otherwise be a local folder called `s3:`, and the data would not be where it is believed to be.

    >>> local_path("file:///a%20folder"), local_path("a%20folder")
    ('/a folder', 'a%20folder')
    """
    if "\x00" in path:
        raise InputError(f"the path {path!r} contains a zero byte", fix="use the name of a folder, or a URL")
    scheme, colon, rest = path.partition(":")
    if colon and scheme.lower() in _STORE_SCHEMES and not rest.startswith("//"):
        folder = rest.lstrip("/")
        raise InputError(
            f"a URL of {scheme.lower()} begins with {scheme}://, got {path!r}",
            fix=f"write {scheme.lower()}://{folder}, or ./{path} for a local folder of this name",
        )
    in_url = file_url_path(path)
    return path if in_url is None else unquote(in_url)
