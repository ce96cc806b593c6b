"""Normalised targets, so that two sinks with the same target are detected before anything is written."""

import re
from pathlib import Path

from statebed.errors import InputError
from statebed.storage import local_path
from statebed.storage.paths import file_url_path

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def real_place(path: str) -> str:
    """Return a URL without trailing slash, or a local path with symbolic links and relative parts resolved.

    >>> real_place("s3://bucket/out/")
    's3://bucket/out'
    """
    in_url = file_url_path(path)
    if in_url is not None:
        path = in_url
    return path.rstrip("/") if "://" in path else str(Path(path).resolve())


def needed_local_path(path: str, *, where: str, fix: str) -> str:
    """Return a local path, also for a file URL; raise InputError for any other URL."""
    local = local_path(path)
    if _SCHEME.match(local):
        raise InputError(f"this sink needs a local path, got {path!r}", where=where, fix=fix)
    return local
