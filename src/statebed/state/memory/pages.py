"""Return of freed memory to the system.

The C library, which numpy allocates from, keeps freed memory for later use, in fragments between memory that is still
in use. pyarrow's allocator, which serves columns of tables and buffers of encoders, keeps its own pages. After a
segment was evicted or files were written, that would be most of the memory they took. On the other hand, pages that are
returned after each batch have to be requested again for the next one, which can cost a third of its time.
"""

import ctypes
import os
from collections.abc import Callable

import pyarrow as pa


def _of_glibc(name: str) -> Callable[..., int] | None:
    """Return a function of glibc, or None if the C library has none of that name."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function


_malloc_trim = _of_glibc("malloc_trim")
_mallopt = _of_glibc("mallopt")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_CHOSEN_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_SMALL_BUDGET = 256 << 20
_PART = 64
_LEAST, _MOST = 256 << 10, 32 << 20


def give_back_pages() -> None:
    """Return unused whole pages to the system. Takes a millisecond or two."""
    pa.default_memory_pool().release_unused()
    if _malloc_trim is not None:
        _malloc_trim(0)


def keep_pages(budget: int) -> None:
    """Limit how much freed memory the allocators of a process keep, given the budget of its state.

    The C library keeps a small part of the budget. By default it adapts to the first large arrays that are freed, and
    may end up returning everything after each batch. If the budget is small, pyarrow uses the C library too: its
    default allocator keeps about as much as was ever in use, which would be most of the memory of such a process. All
    threads then share one arena. Has no effect if the user has configured the allocator, or with other C libraries.
    """
    if _mallopt is None or any(name in os.environ for name in _CHOSEN_BY_USER):
        return
    kept, small = min(max(_LEAST, budget // _PART), _MOST), budget < _SMALL_BUDGET
    _mallopt(_M_MMAP_THRESHOLD, kept)
    _mallopt(_M_TRIM_THRESHOLD, kept if small else 2 * kept)
    if small and "MALLOC_ARENA_MAX" not in os.environ:
        # Otherwise each thread that loads, writes or compacts keeps freed memory of its own.
        _mallopt(_M_ARENA_MAX, 1)
    if small and "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
