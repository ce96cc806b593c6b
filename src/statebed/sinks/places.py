"""Places of sinks, normalised, so that two sinks in the same place are detected before anything is written."""

import os
import posixpath
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from statebed.errors import InputError, SinkError
from statebed.storage.paths import file_url_path, local_path

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)")
_SAME_STORE = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb"}
"""Schemes by which another library or connection reaches the same objects."""


class Holding(Enum):
    """Kind of data that a sink has in its place."""

    TABLE = "table"
    """A folder that belongs to the sink alone."""
    DATABASE = "database"
    """A file with the tables of several sinks."""
    CATALOG = "catalog"
    """A folder with the tables of several sinks."""
    FILES = "files"
    """A folder to which several sinks may append."""
    OVERWRITTEN_FILES = "overwritten files"
    """A folder whose content is deleted before each epoch."""


@dataclass(frozen=True)
class Place:
    """Folder or file that a sink writes to."""

    url: str
    holding: Holding = Holding.TABLE

    def excludes(self, other: "Place") -> bool:
        """Whether the two places overlap, and sinks in them would damage each other's data."""
        mine, theirs = _comparable(self.url), _comparable(other.url)
        if not mine.startswith(theirs) and not theirs.startswith(mine):
            return False
        holdings = {self.holding, other.holding}
        if holdings <= {Holding.FILES, Holding.OVERWRITTEN_FILES}:
            pairs = ((self, mine, theirs), (other, theirs, mine))
            return any(
                place.holding is Holding.OVERWRITTEN_FILES and inner.startswith(outer) for place, outer, inner in pairs
            )
        return holdings not in ({Holding.DATABASE}, {Holding.CATALOG})


def _comparable(url: str) -> str:
    place = real_place(url)
    match = _SCHEME.match(place)
    if match is None:
        return f"{place.rstrip('/')}/"
    scheme = match[1].lower()
    folders = posixpath.normpath(f"/{place[match.end() :].lstrip('/')}").rstrip("/")
    return f"{_SAME_STORE.get(scheme, scheme)}://{match[2].lower()}{folders}/"


def real_place(path: str) -> str:
    """Return a URL without trailing slash, or a local path with symbolic links and relative parts resolved.

    >>> real_place("s3://bucket/out/")
    's3://bucket/out'
    """
    in_url = file_url_path(path)
    if in_url is not None:
        path = in_url
    return path.rstrip("/") if "://" in path else os.path.realpath(path)


def is_inside(path: str, folder: str) -> bool:
    """Return whether a path or URL is in a folder.

    >>> is_inside("file:///data/lake/rides", "/data/lake"), is_inside("/data/lake2", "/data/lake")
    (True, False)
    """
    return _comparable(path).startswith(_comparable(folder))


def check_local_path(path: str, refused: str, *, library: str) -> None:
    """Raise InputError if a local path has one of some characters, or one that cannot be printed: a library that treats
    paths as URLs would write to another folder.
    """
    real = real_place(path)
    wrong = next((letter for letter in real if letter in refused or not letter.isprintable()), None)
    if wrong is not None and "://" not in real:
        raise InputError(
            f"the path {real!r} contains {wrong!r}, with which {library} would use another folder",
            fix="rename the folder, or choose another path",
        )


def is_there(file: Path, *, where: str) -> bool:
    """Return whether a file exists; raise SinkError if this user cannot tell, or nothing can have that name."""
    try:
        return file.exists()
    except OSError as error:
        problem = SinkError(
            f"the file cannot be looked for: {error.strerror}",
            where=where,
            fix="choose another path, or let this user read the folder that it is in",
        )
        problem.is_of_target = True
        raise problem from error


def needed_local_path(path: str, *, where: str, fix: str) -> str:
    """Return a local path, also for a file URL; raise InputError for any other URL."""
    local = local_path(path)
    if _SCHEME.match(local):
        raise InputError(f"this sink needs a local path, got {path!r}", where=where, fix=fix)
    return local
