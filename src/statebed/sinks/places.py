"""One spelling for one place, so that two sinks in the same place are found before anything is written."""

from pathlib import Path


def real_place(path: str) -> str:
    """Return a URL without a slash at its end, or the local path that symbolic links and relative parts lead to.

    >>> real_place("s3://bucket/out/")
    's3://bucket/out'
    """
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    return path.rstrip("/") if "://" in path else str(Path(path).resolve())
