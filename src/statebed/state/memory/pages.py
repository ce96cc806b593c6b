"""Freed memory goes back to the system.

The C library keeps what was freed for later use, in pieces between what is still in use; numpy's arrays come from
there. pyarrow's allocator, where the columns of tables and the buffers of encoders come from, keeps pages of its own.
After a segment has left memory, or files were written, that would be most of what was taken.
"""

import ctypes
import os
from collections.abc import Callable

import pyarrow as pa


def _trim() -> Callable[[int], int] | None:
    """The function of glibc that does it; other C libraries have none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


_malloc_trim = _trim()

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_SMALL_BUDGET = 256 << 20
_PART = 64
_LEAST = 256 << 10


def give_back_pages() -> None:
    """Give whole pages that are free back to the system; takes a millisecond or two."""
    pa.default_memory_pool().release_unused()
    if _malloc_trim is not None:
        _malloc_trim(0)


def keep_few_pages(budget: int) -> None:
    """For a process whose state has a small budget: allocators keep little of what was freed, and are slower for it.

    pyarrow's default one keeps about as much as was ever in use, whatever that was, which is the greater part of what
    such a process takes; and the C library learns to keep large arrays. Without effect where the budget is larger than
    what they keep, where the user has chosen pyarrow's allocator, and with other C libraries.
    """
    if budget >= _SMALL_BUDGET or "ARROW_DEFAULT_MEMORY_POOL" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for threshold in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        mallopt(threshold, max(_LEAST, budget // _PART))
    pa.set_memory_pool(pa.system_memory_pool())
