"""Freed memory goes back to the system.

The C library keeps what was freed for later use, in pieces between what is still in use; numpy's arrays come from
there. After a segment has left memory, that would be most of what it had taken.
"""

import ctypes
from collections.abc import Callable


def _trim() -> Callable[[int], int] | None:
    """The function of glibc that does it; other C libraries have none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


_malloc_trim = _trim()


def give_back_pages() -> None:
    """Give whole pages that are free back to the system; takes a millisecond or two."""
    if _malloc_trim is not None:
        _malloc_trim(0)
