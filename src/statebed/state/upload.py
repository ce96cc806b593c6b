"""A data file on its way to the store.

Its bytes are asked for when they are uploaded: those of a file that was spilled stay on disk until then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self


def _nothing() -> None:
    """Nothing is to be done once it is stored."""


@dataclass(frozen=True)
class Upload:
    """A data file to be put under its name before the metadata that names it."""

    path: str
    size: int
    content: Callable[[], bytes]
    """The bytes; may be asked for several times, by any thread, until the file is in the store."""
    resident: bool = False
    """Whether the bytes take memory before they are asked for."""
    on_stored: Callable[[], None] = _nothing
    """Called once, by any thread, when the store has it: a local file may leave then."""

    @classmethod
    def of_bytes(cls, path: str, data: bytes) -> Self:
        """One whose bytes are in memory."""
        return cls(path=path, size=len(data), content=partial(bytes, data), resident=True)
