"""Normalised targets, so that two sinks with the same target are detected before anything is written."""

from pathlib import Path


def real_place(path: str) -> str:
    """Return a URL without trailing slash, or a local path with symbolic links and relative parts resolved.

    >>> real_place("s3://bucket/out/")
    's3://bucket/out'
    """
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    return path.rstrip("/") if "://" in path else str(Path(path).resolve())
