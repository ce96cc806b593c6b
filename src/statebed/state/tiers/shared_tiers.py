"""Resources that the segments of a process share: the budget, a folder on local disk, a cache of the store, loader
threads.

One `Tiers` serves all tables of a process (`Tiers.shared`), so there is a single budget for all of them.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from statebed.arrays.canonical_order import first_disorder
from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.segment import SegmentSpec
from statebed.state.arguments import check_kind
from statebed.state.deadlines import wait_until_ended
from statebed.state.memory.budget import budget_of
from statebed.state.memory.controller import MemoryController
from statebed.state.memory.pages import keep_pages
from statebed.state.tiers.fetched_ranges import FetchedRanges
from statebed.state.tiers.segments import Segment
from statebed.state.tiers.selection import conformed
from statebed.state.tiers.spill_cache import LocalCache
from statebed.state.tiers.spill_files import ParquetFile, StoredFile
from statebed.state.tiers.spill_folder import SpillFolder
from statebed.storage import ObjectStore

DEFAULT_CACHE_BYTES = 1 << 30
LOADING_THREADS = 2
LOADS_AT_ONCE = 64


class Tiers:
    """Resources that the segments of a process share: the budget, a folder on local disk, a cache, loader threads."""

    _sharing: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar["tuple[int, Tiers] | None"] = None

    def __init__(
        self,
        memory: MemoryController,
        *,
        folder: SpillFolder | Path | str | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        check_kind(
            memory,
            MemoryController,
            "memory",
            where="Tiers",
            fix="pass a MemoryController, for example MemoryController(64 << 20)",
        )
        self.memory = memory
        self.folder = folder if isinstance(folder, SpillFolder) else SpillFolder(folder)
        self.cache = LocalCache(cache_bytes)
        self.ranges = FetchedRanges(self.folder, self.cache)
        self._loaders = ThreadPoolExecutor(LOADING_THREADS, thread_name_prefix="statebed-load")
        self._loading: dict[Future[bool], str] = {}
        self._places = threading.BoundedSemaphore(LOADS_AT_ONCE)
        self.compacting = threading.Lock()
        """Held by the thread that compacts files in the background: one at a time, so that compactions take little of
        the budget.

        The holder may wait for memory, because no reader, writer or evicting thread ever waits for this lock, and
        compactions wait for it with a deadline.
        """

    @classmethod
    def shared(cls) -> "Tiers":
        """Return the instance of this process, created on first use. Its budget is STATEBED_MEMORY, or a default."""
        with cls._sharing:
            # A forked child has none of its parent's threads, and must not use its folder.
            if cls._shared is None or cls._shared[0] != os.getpid():
                budget = budget_of()
                keep_pages(budget)
                cls._shared = (os.getpid(), cls(MemoryController(budget)))
            return cls._shared[1]

    def segment(self, rows: pa.Table, *, spec: SegmentSpec, owner: str) -> Segment:
        """Create a segment of rows sorted as `spec` says. If no memory can be freed for it, raise and keep nothing."""
        rows = conformed(rows, spec=spec)
        disorder = first_disorder(rows, spec.sort_columns)
        if not rows.num_rows or disorder is not None:
            raise InputError(
                "a segment has no rows" if disorder is None else f"row {disorder} of a segment is out of order",
                where=f"table {spec.table!r}",
                fix=f"pass at least one row, sorted by {', '.join(spec.sort_columns)} (sort_segment)",
            )
        segment = Segment.in_memory(self, rows, spec=spec, owner=owner)
        try:
            self.memory.make_room()
        except BaseException:
            segment.close()
            raise
        return segment

    def stored(
        self, entry: pb.FileEntry, store: ObjectStore, *, spec: SegmentSpec, owner: str, file: StoredFile | None = None
    ) -> Segment:
        """Create the segment of a data file in the store. Reads nothing yet; `file` overrides how it is read."""
        segment = Segment(self, entry, spec=spec, owner=owner)
        segment.attach(file or StoredFile(entry, store, self.ranges))
        return segment

    def on_disk(self, file: ParquetFile, *, spec: SegmentSpec, owner: str) -> Segment:
        """Create the segment of a data file that exists only on local disk. The segment takes ownership of the file."""
        return Segment.on_disk(self, file, spec=spec, owner=owner)

    def load_soon(self, load: Callable[[], bool], *, owner: str) -> "Future[bool]":
        """Run `load`, which returns whether it has loaded anything, on a loader thread. This is only a hint: if too
        many loads are waiting, or after `close`, the future is False.
        """
        refused: Future[bool] = Future()
        refused.set_result(False)
        if not self._places.acquire(blocking=False):
            return refused

        def run() -> bool:
            try:
                return load()
            finally:
                self._places.release()

        def ended(loading: "Future[bool]") -> None:
            self._loading.pop(loading, None)
            if loading.cancelled():
                self._places.release()  # it never ran

        try:
            loading = self._loaders.submit(run)
        except RuntimeError:  # `close` was called
            self._places.release()
            return refused
        self._loading[loading] = f"a load of rows of {owner}"
        loading.add_done_callback(ended)
        return loading

    def close(self) -> None:
        """End the loader threads and remove the local files. Segments cannot be used afterwards.

        If a load does not end in time, the files are kept; call `close` again later.
        """
        self._loaders.shutdown(wait=False, cancel_futures=True)
        running = [(what, loading) for loading, what in self._loading.copy().items()]
        seconds, where = self.memory.wait_seconds, str(self.folder.path)
        wait_until_ended(running, seconds=seconds, where=where, left="the local files")
        self.folder.close()
