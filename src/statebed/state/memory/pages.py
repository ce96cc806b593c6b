"""Freed memory goes back to the system, but not at once.

The C library keeps what was freed for later use, in pieces between what is still in use; numpy's arrays come from
there. pyarrow's allocator, where the columns of tables and the buffers of encoders come from, keeps pages of its own.
After a segment has left memory, or files were written, that would be most of what was taken. On the other hand pages
that are given back after each batch have to be had again for the next one, which can cost a third of its time.
"""

import ctypes
import os
from collections.abc import Callable

import pyarrow as pa


def _of_glibc(name: str) -> Callable[..., int] | None:
    """A function that glibc has; other C libraries have none of that name."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function


_malloc_trim = _of_glibc("malloc_trim")
_mallopt = _of_glibc("mallopt")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_CHOSEN_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_SMALL_BUDGET = 256 << 20
_PART = 64
_LEAST, _MOST = 256 << 10, 32 << 20


def give_back_pages() -> None:
    """Give whole pages that are free back to the system; takes a millisecond or two."""
    pa.default_memory_pool().release_unused()
    if _malloc_trim is not None:
        _malloc_trim(0)


def keep_pages(budget: int) -> None:
    """For a process whose state has this budget: how much of what was freed its allocators keep.

    The C library keeps a small part of the budget. Left alone it learns what to keep from the first large arrays that
    are freed, and may end up with giving everything back after each batch. Where the budget is small, pyarrow's memory
    comes from there too: its default allocator keeps about as much as was ever in use, which would be the greater part
    of what such a process takes. Without effect where the user has chosen, and with other C libraries.
    """
    if _mallopt is None or any(name in os.environ for name in _CHOSEN_BY_USER):
        return
    kept, small = min(max(_LEAST, budget // _PART), _MOST), budget < _SMALL_BUDGET
    _mallopt(_M_MMAP_THRESHOLD, kept)
    _mallopt(_M_TRIM_THRESHOLD, kept if small else 2 * kept)
    if small and "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
