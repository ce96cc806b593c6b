"""A segment: an immutable sorted run of rows of one table, in any tier.

It may be in several tiers at once, and is read from the nearest. Reads continue while it moves, because the old copy is
released only after the new one is installed. Its file is kept when it is loaded back, so that evicting it a second time
costs nothing. A reader that reads it in parts pins it: a pinned segment that is closed is released with the last pin.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from statebed.errors import InputError, MissingFileError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.segment import SegmentSpec, encode_segment
from statebed.state.memory.controller import Hold, Purpose, SpillOffer
from statebed.state.memory.pages import count_processed
from statebed.state.memory.sizes import compacted, held_bytes
from statebed.state.tiers.row_index import IndexedRows
from statebed.state.tiers.selection import ALL_ROWS, Selection, row_schema, with_row_schema
from statebed.state.tiers.spill_cache import CachedFile
from statebed.state.tiers.spill_files import ParquetFile, RowGroups, StoredFile, write_copy, write_parquet
from statebed.state.tiers.tier import Tier, UseCounts, spanned
from statebed.state.upload import Upload
from statebed.storage import ObjectStore, put_verified

UNPACKED = 4
"""Estimated size of a segment in memory, as a multiple of its Parquet file."""

if TYPE_CHECKING:
    from statebed.state.tiers.shared_tiers import Tiers


class Segment:
    """Immutable sorted rows in any tier, created by `Tiers`. Thread-safe."""

    def __init__(self, tiers: "Tiers", entry: pb.FileEntry, *, spec: SegmentSpec, owner: str) -> None:
        self._tiers = tiers
        self._schema = row_schema(spec)
        # Garbage collection of a snapshot may release the segment at any moment, while this thread holds the lock.
        self._lock = threading.RLock()
        self._resident: IndexedRows | None = None
        self._hold: Hold | None = None
        self._offer: SpillOffer | None = None
        self._local: ParquetFile | None = None
        self._counted: ParquetFile | None = None
        self._cached: CachedFile | None = None
        self._stored: StoredFile | None = None
        self._loading: Future[bool] | None = None
        self._prefetched = False
        self._pins = 0
        self._closing = False
        self._closed = False
        self.spec = spec
        self.owner = owner
        self.entry = entry
        """Entry of its data file, with the bounds of its rows. Its path may be unset."""
        self.rows = int(entry.rows)
        self.nbytes = int(entry.size)
        """Bytes of the rows in memory, or the size of the file if they have never been in memory."""
        self.uses = UseCounts()
        self.leave: Callable[[], bool] = self.spill
        """Called under memory pressure to move the rows to disk. Returns False if they are in use and stay."""

    @classmethod
    def in_memory(cls, tiers: "Tiers", rows: pa.Table, *, spec: SegmentSpec, owner: str) -> "Segment":
        """Create a segment like `Tiers.segment`, from rows that are known to be valid and replace others in memory."""
        rows = compacted(rows)
        segment = cls(tiers, spanned(rows, spec), spec=spec, owner=owner)
        segment._install(rows, tiers.memory.pin(owner, Purpose.SEGMENTS, rows))
        return segment

    @classmethod
    def on_disk(cls, tiers: "Tiers", file: ParquetFile, *, spec: SegmentSpec, owner: str) -> "Segment":
        """Create a segment like `Tiers.on_disk`."""
        segment = cls(tiers, file.entry, spec=spec, owner=owner)
        segment._local = file
        return segment

    @property
    def tier(self) -> Tier:
        """Nearest tier that has the segment."""
        with self._lock:
            if self._resident is not None:
                return Tier.MEMORY
            return Tier.DISK if self._local is not None else Tier.STORE

    def bytes_by_tier(self) -> dict[Tier, int]:
        """Return the bytes that it takes in memory and on local disk."""
        with self._lock:
            return {
                Tier.MEMORY: 0 if self._resident is None else self.nbytes + self._resident.index_bytes,
                Tier.DISK: 0 if self._local is None else self._local.size,
            }

    def read(self, selection: Selection = ALL_ROWS) -> pa.Table:
        """Return the selected rows, in order, from the nearest tier."""
        self._join_prefetch()
        return self._read(selection)

    def _read(self, selection: Selection) -> pa.Table:
        while True:
            with self._lock:
                resident, local, stored = self._resident, self._local, self._stored
                if self._offer is not None:
                    self._offer.touch()
                if self._cached is not None:
                    self._tiers.cache.touch(self._cached)
            self._count_read(in_memory=resident is not None)
            if resident is not None:
                return resident.read(selection)
            if local is None:
                return self._read_stored(stored, selection)
            try:
                return self._read_local(local, selection)
            except MissingFileError:
                # The cache has just dropped the copy, or someone else has removed it.
                if not self._forget(local):
                    raise

    def row_groups(self, selection: Selection = ALL_ROWS) -> Iterator[pa.Table]:
        """Yield the same rows as `read`, about one row group at a time, each charged until the next is requested.

        The caller has to pin the segment.
        """
        for nbytes, read in self._nearest_row_groups(selection):
            with self._tiers.memory.reserve(self.owner, Purpose.READS, nbytes):
                yield with_row_schema(read(), self._schema)

    @property
    def closed(self) -> bool:
        """Whether all memory and files have been released."""
        return self._closed

    def pin(self) -> None:
        """Postpone `close` until `unpin`."""
        with self._lock:
            self._pins += 1

    def unpin(self) -> None:
        with self._lock:
            self._pins -= 1
            closing = self._closing and not self._pins
        if closing:
            self.close()

    def spill(self) -> bool:
        """Move the rows from memory to local disk. They stay readable throughout; if the disk fails, they stay in
        memory.
        """
        with self._lock:
            resident = self._resident
            given_up = self._take_out_of_memory() if self._local is not None else None
        if given_up is not None:
            self._release(*given_up)
        elif resident is not None:
            with self._tiers.memory.charge(self.owner, Purpose.WRITES, self.nbytes):
                local = self._write(resident.table)
            self._keep_local(local)
            with self._lock:
                given_up = self._take_out_of_memory()
                self.uses.spills += 1
            self._release(*given_up)
        return True

    def load(self) -> None:
        """Load the rows into memory, evicting colder segments if needed. The file is kept."""
        if self.tier is Tier.MEMORY:
            return
        rows = self._read(ALL_ROWS)
        hold = self._tiers.memory.hold(self.owner, Purpose.SEGMENTS, rows)
        self._install(rows, hold)

    def prefetch(self, *, spare: bool = False) -> "Future[bool]":
        """Bring the segment nearer in the background: from the store to local disk, and to memory.

        With `spare`, load it to memory only, and only if memory is free, so that nothing is evicted. A read in the
        meantime waits for such a load instead of reading the file a second time, or cancels it if it has not begun.
        """
        self.pin()
        loading = self._tiers.load_soon(self._use_spare_memory if spare else self._come_nearer, owner=self.owner)
        if spare:
            self._loading = loading
        loading.add_done_callback(lambda _: self.unpin())
        return loading

    def upload(self, store: ObjectStore, *, name_of: Callable[[str], str], owned: pb.HashRange) -> pb.FileEntry:
        """Upload the segment's data file to the store, named by its digest."""
        entry, upload = self.staged(store, name_of=name_of, owned=owned)
        with self._tiers.memory.charge(self.owner, Purpose.WRITES, upload.size):
            put_verified(store, upload.path, upload.content())
        upload.on_stored()
        return entry

    def staged(
        self, store: ObjectStore, *, name_of: Callable[[str], str], owned: pb.HashRange, applied_sequence: int = 0
    ) -> tuple[pb.FileEntry, Upload]:
        """Prepare the upload of the segment as a data file. A spilled Parquet file is uploaded unchanged.

        The segment is pinned until the upload reports that the store has it.
        """
        data, entry = self._data_file(owned)
        entry.path = name_of(entry.path)
        entry.applied_sequence = applied_sequence
        self.pin()

        def on_stored() -> None:
            self.attach(StoredFile(entry, store, self._tiers.ranges))
            self.unpin()

        resident = isinstance(data, bytes)
        content = partial(bytes, data) if isinstance(data, bytes) else data.content
        return entry, Upload(entry.path, int(entry.size), content, resident=resident, on_stored=on_stored)

    def attach(self, stored: StoredFile) -> None:
        """Record that the store has the segment too, so that the cache may drop its local file."""
        with self._lock:
            if self._closed:
                return
            self._stored = stored
            local = self._local
        if local is not None:
            self._count_local(local)

    def close(self) -> None:
        """Release memory and local files once no pin is left. The store keeps its copy."""
        with self._lock:
            self._closing = True
            if self._pins:
                return
        self.abandon()

    def abandon(self) -> None:
        """Release memory and local files immediately. Reads in progress may fail."""
        with self._lock:
            self._closing = self._closed = True
            self._stored = None
            given_up = self._take_out_of_memory()
        self._release(*given_up)
        self._drop_local()

    def _data_file(self, owned: pb.HashRange) -> tuple[bytes | ParquetFile, pb.FileEntry]:
        """Return the data file, and its entry with the digest in place of the path."""
        with self._lock:
            local, stored = self._local, self._stored
        # The cache may drop the local file at any time if the store has the segment.
        if local is not None and local.digest and stored is None:
            entry = pb.FileEntry()
            entry.CopyFrom(local.entry)
            entry.path = local.digest
            entry.owned.CopyFrom(owned)
            return local, entry
        rows = self.read()
        encoded = encode_segment(rows, spec=self.spec)
        count_processed(rows.nbytes)
        return encoded.data, encoded.file_entry(encoded.digest, owned=owned)

    def _nearest_row_groups(self, selection: Selection) -> RowGroups:
        self._join_prefetch()
        while True:
            with self._lock:
                resident, local, stored = self._resident, self._local, self._stored
                if self._offer is not None:
                    self._offer.touch()
                if self._cached is not None:
                    self._tiers.cache.touch(self._cached)
            self._count_read(in_memory=resident is not None)
            if resident is not None:
                return iter([(0, partial(resident.read, selection))])
            if local is None:
                return self._checked(stored).row_groups(selection)
            try:
                return local.row_groups(selection)
            except MissingFileError:
                if not self._forget(local):
                    raise

    def _checked(self, stored: StoredFile | None) -> StoredFile:
        if stored is None:
            raise InputError(f"a segment of the table {self.spec.table!r} was read after it was closed")
        return stored

    def _come_nearer(self) -> bool:
        with self._lock:
            stored = self._stored
        if stored is not None and self.tier is Tier.STORE:
            self._fetch(stored)
        self.load()
        return True

    def _use_spare_memory(self) -> bool:
        """Load the rows if they fit below the low watermark of the budget, unless reading them from where they are is
        cheap. Return whether they were loaded.
        """
        with self._lock:
            local, stored = self._local, self._stored
            resident = self._resident is not None
        if resident or self._closing or (local is None and stored is not None and stored.is_near):
            return False
        nbytes = UNPACKED * (self.nbytes if local is None else local.size)
        with self._tiers.memory.try_reserve(self.owner, Purpose.READS, nbytes) as reserved:
            if not reserved:
                return False
            # The reservation covers the rows while they are read.
            source = local or self._checked(stored)
            rows = with_row_schema(source.read(ALL_ROWS), self._schema)
        self._install(rows, self._tiers.memory.pin(self.owner, Purpose.SEGMENTS, rows))
        self.uses.prefetches += 1
        self._prefetched = True
        return True

    def _join_prefetch(self) -> None:
        """Wait for a prefetch that has begun, and cancel one that has not."""
        loading, self._loading = self._loading, None
        if loading is not None and not loading.cancel():
            wait([loading], timeout=self._tiers.memory.wait_seconds)

    def _count_read(self, *, in_memory: bool) -> None:
        self.uses.count(in_memory=in_memory)
        if self._prefetched:
            self._prefetched = False
            self.uses.prefetch_hits += in_memory

    def _fetch(self, stored: StoredFile) -> None:
        """Copy the stored file to local disk, unless it is too large for the cache."""
        if not self._tiers.cache.fits(stored.size):
            return
        with self._tiers.memory.reserve(self.owner, Purpose.RESTORES, stored.size):
            self._keep_local(write_copy(stored, self._tiers.folder))

    def _read_stored(self, stored: StoredFile | None, selection: Selection) -> pa.Table:
        stored = self._checked(stored)
        with self._tiers.memory.reserve(self.owner, Purpose.READS, self.nbytes):
            return with_row_schema(stored.read(selection), self._schema)

    def _read_local(self, local: ParquetFile, selection: Selection) -> pa.Table:
        with self._tiers.memory.reserve(self.owner, Purpose.READS, self.nbytes):
            return with_row_schema(local.read(selection), self._schema)

    def _write(self, table: pa.Table) -> ParquetFile:
        return write_parquet(table, self.spec, self._tiers.folder, owned=WHOLE_SPACE)

    def _install(self, rows: pa.Table, hold: Hold) -> None:
        with self._lock:
            late = self._closed or self._resident is not None
            if not late:
                self._hold, self.nbytes = hold, held_bytes(rows)
                self._offer = self._tiers.memory.offer(self.owner, self.nbytes, self._leave)
                self._resident = IndexedRows(rows, self._tiers.memory, owner=self.owner, offer=self._offer)
        if late:
            hold.release()

    def _leave(self) -> bool:
        return self.leave()

    def _take_out_of_memory(self) -> tuple[Hold | None, SpillOffer | None, IndexedRows | None]:
        given_up = self._hold, self._offer, self._resident
        self._resident = self._hold = self._offer = None
        return given_up

    def _release(self, hold: Hold | None, offer: SpillOffer | None, resident: IndexedRows | None) -> None:
        if offer is not None:
            self._tiers.memory.withdraw(offer)
        if resident is not None:
            resident.release()
        if hold is not None:
            hold.release()

    def _keep_local(self, local: ParquetFile) -> None:
        """Install a local file, or remove it if there is one already or the segment was closed."""
        with self._lock:
            redundant = self._closed or self._local is not None
            if not redundant:
                self._local = local
            stored = self._stored
        if redundant:
            local.path.unlink(missing_ok=True)
        elif stored is not None:
            self._count_local(local)

    def _count_local(self, local: ParquetFile) -> None:
        """Count the file towards the cache, once. The cache may drop it immediately."""
        with self._lock:
            if self._local is not local or self._counted is local:
                return
            self._counted = local
        cached = self._tiers.cache.add(local.size, self._drop_local)
        with self._lock:
            gone = self._local is not local
            if not gone:
                self._cached = cached
        if gone:
            self._tiers.cache.remove(cached)

    def _forget(self, local: ParquetFile) -> bool:
        """Drop a local file that was not found, and return whether the rows are available elsewhere."""
        with self._lock:
            changed = self._local is not local
            elsewhere = self._resident is not None or self._stored is not None
        if not changed and elsewhere:
            self._drop_local()
        return changed or elsewhere

    def _drop_local(self) -> None:
        with self._lock:
            local, cached = self._local, self._cached
            self._local = self._cached = self._counted = None
        if cached is not None:
            self._tiers.cache.remove(cached)
        if local is not None:
            local.path.unlink(missing_ok=True)
