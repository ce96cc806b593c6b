"""Upload of a data file to the store.

The bytes are requested when the upload starts, so a spilled file stays on disk until then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self


def _nothing() -> None:
    """Do nothing when the file is stored."""


@dataclass(frozen=True)
class Upload:
    """A data file to be stored under its name before the metadata that names it."""

    path: str
    size: int
    content: Callable[[], bytes]
    """Returns the bytes; may be called several times, on any thread, until the file is in the store."""
    resident: bool = False
    """Whether the bytes occupy memory before `content` is called."""
    on_stored: Callable[[], None] = _nothing
    """Called once, on any thread, when the file is in the store and a local copy may be removed."""

    @classmethod
    def of_bytes(cls, path: str, data: bytes) -> Self:
        """Return an upload of bytes that are in memory."""
        return cls(path=path, size=len(data), content=partial(bytes, data), resident=True)
