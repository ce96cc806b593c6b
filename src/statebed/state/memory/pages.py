"""Return of freed memory to the system.

The C library, which numpy allocates from, keeps freed memory for later use, in fragments between memory that is still
in use. pyarrow's allocators, which serve columns of tables and buffers of encoders, keep pages of their own: Parquet
files are decoded with Arrow's default allocator whatever memory pool pyarrow uses, and it keeps them by thread. After a
segment was evicted, or files were read or written, that would be several times the memory that is in use. On the other
hand, pages that are returned after each batch have to be requested again for the next one, which can cost a third of
its time. Pages are therefore returned each time a fixed part of the budget was decoded, encoded or copied.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa


def _of_c_library(name: str) -> Callable[..., int] | None:
    """Return a function of the C library, or None if it has none of that name."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function


_malloc_trim = _of_c_library("malloc_trim")
_mallopt = _of_c_library("mallopt")
_prctl = _of_c_library("prctl")

_PR_SET_THP_DISABLE = 41
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_CHOSEN_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_SMALL_BUDGET = 2 << 30
_TIGHT_BUDGET = 256 << 20
_PART = 64
_LEAST, _MOST = 256 << 10, 32 << 20
_PROCESSED_PART, _TIGHT_PROCESSED_PART = 8, 32
_MIN_PROCESSED, _MAX_PROCESSED = 1 << 20, 64 << 20


class _Processed:
    """Bytes that were decoded, encoded or copied since pages were last returned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nbytes = 0
        self.limit = _MAX_PROCESSED

    def add(self, nbytes: int) -> bool:
        """Add bytes; return whether they exceed the limit, and begin again if they do."""
        with self._lock:
            self._nbytes += nbytes
            exceeded = self._nbytes >= self.limit
            if exceeded:
                self._nbytes = 0
            return exceeded


_processed = _Processed()


def _release_of_default_pool() -> Callable[[], None]:
    """Return what releases unused pages of Arrow's default allocator, which `pa.set_memory_pool` does not replace."""
    pools = {"mimalloc": pa.mimalloc_memory_pool, "jemalloc": pa.jemalloc_memory_pool}
    backend = pa.default_memory_pool().backend_name
    # The system's allocator is trimmed by `give_back_pages` itself.
    return pools[backend]().release_unused if backend in pools else lambda: None


_release_default_pool = _release_of_default_pool()


def give_back_pages() -> None:
    """Return unused whole pages to the system. Takes a millisecond or two."""
    _release_default_pool()
    if _malloc_trim is not None:
        _malloc_trim(0)


class IdlePages:
    """Returns unused pages to the system once a process has been idle for a while. The next task would request them
    again: each page takes two microseconds, and a task needs thousands.
    """

    def __init__(self, idle_seconds: float, *, by_thread: bool) -> None:
        """Set `by_thread` if the allocator returns only pages of the calling thread, so that it cannot wait."""
        self._idle_seconds = idle_seconds
        self._by_thread = by_thread
        self._lock = threading.Lock()
        self._working = 0
        self._timer: threading.Timer | None = None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Run a task. The pages that it leaves unused are returned later, unless another task follows."""
        with self._lock:
            self._working += 1
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        try:
            yield
        finally:
            with self._lock:
                self._working -= 1
                if self._by_thread:
                    give_back_pages()
                elif not self._working:
                    self._timer = threading.Timer(self._idle_seconds, give_back_pages)
                    self._timer.daemon = True
                    self._timer.start()


IDLE_SECONDS = 1.0
idle_pages = IdlePages(IDLE_SECONDS, by_thread=pa.default_memory_pool().backend_name != "system")
"""Pages of the tasks of this process."""


def count_processed(nbytes: int) -> None:
    """Count bytes of rows that were decoded, encoded or copied, and return unused pages each time they add up to a part
    of the budget (`keep_pages`).

    The thread that did the work has to call this, because Arrow's default allocator returns pages by thread.
    """
    if _processed.add(nbytes):
        give_back_pages()


def keep_pages(budget: int) -> None:
    """Limit how much freed memory the allocators of a process keep, given the budget of its state.

    The C library keeps a small part of the budget. By default it adapts to the first large arrays that are freed, and
    may end up returning everything after each batch. Below 2 GiB, pyarrow uses the C library too: its default allocator
    keeps about as much as was ever in use, which would be most of the memory of such a process. All threads then share
    one arena, and memory is backed by small pages: Parquet files are still decoded with the default
    allocator, which asks for huge ones, and takes 20 MB of them for 1 MB of rows. Has no effect if the user has
    configured the allocator, or with other C libraries.
    """
    part = _TIGHT_PROCESSED_PART if budget < _TIGHT_BUDGET else _PROCESSED_PART
    _processed.limit = min(max(_MIN_PROCESSED, budget // part), _MAX_PROCESSED)
    if _mallopt is None or any(name in os.environ for name in _CHOSEN_BY_USER):
        return
    kept, small = min(max(_LEAST, budget // _PART), _MOST), budget < _SMALL_BUDGET
    _mallopt(_M_MMAP_THRESHOLD, kept)
    _mallopt(_M_TRIM_THRESHOLD, kept if budget < _TIGHT_BUDGET else 2 * kept)
    if small and "MALLOC_ARENA_MAX" not in os.environ:
        # Otherwise each thread that loads, writes or compacts keeps freed memory of its own.
        _mallopt(_M_ARENA_MAX, 1)
    if small and _prctl is not None:
        _prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    if small and "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
