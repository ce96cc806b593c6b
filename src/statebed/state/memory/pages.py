"""Freed memory goes back to the system.

The C library keeps what was freed for later use, in pieces between what is still in use; numpy's arrays come from
there. pyarrow's allocator, where the columns of tables and the buffers of encoders come from, keeps pages of its own.
After a segment has left memory, or files were written, that would be most of what was taken.
"""

import ctypes
from collections.abc import Callable

import pyarrow as pa


def _trim() -> Callable[[int], int] | None:
    """The function of glibc that does it; other C libraries have none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


_malloc_trim = _trim()


def give_back_pages() -> None:
    """Give whole pages that are free back to the system; takes a millisecond or two."""
    pa.default_memory_pool().release_unused()
    if _malloc_trim is not None:
        _malloc_trim(0)
