"""A segment: an immutable, sorted run of rows of one table, wherever it is.

It may be in several tiers at once, and is read from the nearest: reads go on while it moves, because the old place is
given up only once the new one is installed. Its file is kept when it is loaded back, so that leaving memory a second
time costs nothing. Who reads it in parts pins it: a pinned segment that is closed goes when the last pin does.
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
from statebed.state.memory.controller import Hold, Offer, Purpose
from statebed.state.memory.sizes import compacted, held_bytes
from statebed.state.tiers.row_index import IndexedRows
from statebed.state.tiers.selection import ALL_ROWS, Selection, row_schema, with_row_schema
from statebed.state.tiers.spill_cache import CachedFile
from statebed.state.tiers.spill_files import ParquetFile, RowGroups, StoredFile, write_copy, write_parquet
from statebed.state.tiers.tier import Tier, Uses, spanned
from statebed.state.upload import Upload
from statebed.storage import ObjectStore, put_verified

UNPACKED = 4
"""About how many times the bytes of its Parquet file a segment takes in memory."""

if TYPE_CHECKING:
    from statebed.state.tiers.shared_tiers import Tiers


class Segment:
    """Sorted rows that do not change, wherever they are. Thread-safe. `Tiers` makes them."""

    def __init__(self, tiers: "Tiers", entry: pb.FileEntry, *, spec: SegmentSpec, owner: str) -> None:
        self._tiers = tiers
        self._schema = row_schema(spec)
        # A snapshot lets go of it when garbage is collected: at any moment, with the lock held by this thread.
        self._lock = threading.RLock()
        self._resident: IndexedRows | None = None
        self._hold: Hold | None = None
        self._offer: Offer | None = None
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
        """What its rows span, as the entry of its file says it, or would."""
        self.rows = int(entry.rows)
        self.nbytes = int(entry.size)
        """What the rows take in memory; for one that never was there, the size of its file."""
        self.uses = Uses()
        self.leave: Callable[[], bool] = self.spill
        """What memory pressure calls to have the rows moved to disk; False: they are in use and stay."""

    @classmethod
    def in_memory(cls, tiers: "Tiers", rows: pa.Table, *, spec: SegmentSpec, owner: str) -> "Segment":
        """As `Tiers.segment`, for rows that are known to be right and that take the place of others."""
        rows = compacted(rows)
        segment = cls(tiers, spanned(rows, spec), spec=spec, owner=owner)
        segment._install(rows, tiers.memory.pin(owner, Purpose.SEGMENTS, rows))
        return segment

    @classmethod
    def on_disk(cls, tiers: "Tiers", file: ParquetFile, *, spec: SegmentSpec, owner: str) -> "Segment":
        """As `Tiers.on_disk`."""
        segment = cls(tiers, file.entry, spec=spec, owner=owner)
        segment._local = file
        return segment

    @property
    def tier(self) -> Tier:
        """The nearest tier that has it."""
        with self._lock:
            if self._resident is not None:
                return Tier.MEMORY
            return Tier.DISK if self._local is not None else Tier.STORE

    def bytes_by_tier(self) -> dict[Tier, int]:
        """What it takes in memory and on local disk."""
        with self._lock:
            return {
                Tier.MEMORY: 0 if self._resident is None else self.nbytes + self._resident.index_bytes,
                Tier.DISK: 0 if self._local is None else self._local.size,
            }

    def read(self, selection: Selection = ALL_ROWS) -> pa.Table:
        """The wanted rows, in order, from the nearest tier."""
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
                # The cache dropped the copy a moment ago, or somebody else removed it.
                if not self._forget(local):
                    raise

    def row_groups(self, selection: Selection = ALL_ROWS) -> Iterator[pa.Table]:
        """As `read`, about a row group at a time, which is charged until the next one is asked for. For who pins it."""
        for nbytes, read in self._nearest_row_groups(selection):
            with self._tiers.memory.reserve(self.owner, Purpose.READS, nbytes):
                yield with_row_schema(read(), self._schema)

    @property
    def closed(self) -> bool:
        """Whether it has given everything up."""
        return self._closed

    def pin(self) -> None:
        """Put off `close` until `unpin`."""
        with self._lock:
            self._pins += 1

    def unpin(self) -> None:
        with self._lock:
            self._pins -= 1
            closing = self._closing and not self._pins
        if closing:
            self.close()

    def spill(self) -> bool:
        """Leave memory for local disk. Readable throughout; when the disk fails, it is where it was."""
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
        """Be in memory; colder segments leave for it. Its file stays."""
        if self.tier is Tier.MEMORY:
            return
        rows = self._read(ALL_ROWS)
        hold = self._tiers.memory.hold(self.owner, Purpose.SEGMENTS, rows)
        self._install(rows, hold)

    def prefetch(self, *, spare: bool = False) -> "Future[bool]":
        """Come nearer in the background: from the store to local disk, and to memory.

        `spare`: to memory only, and only if that is free, so that nothing else leaves it. A read that comes meanwhile
        waits for such a load instead of reading the file a second time, or cancels it if it has not begun.
        """
        self.pin()
        loading = self._tiers.load_soon(self._use_spare_memory if spare else self._come_nearer, owner=self.owner)
        if spare:
            self._loading = loading
        loading.add_done_callback(lambda _: self.unpin())
        return loading

    def upload(self, store: ObjectStore, *, name_of: Callable[[str], str], owned: pb.HashRange) -> pb.FileEntry:
        """Put the segment's data file into the store, named by its digest."""
        entry, upload = self.staged(store, name_of=name_of, owned=owned)
        with self._tiers.memory.charge(self.owner, Purpose.WRITES, upload.size):
            put_verified(store, upload.path, upload.content())
        upload.on_stored()
        return entry

    def staged(
        self, store: ObjectStore, *, name_of: Callable[[str], str], owned: pb.HashRange, applied_sequence: int = 0
    ) -> tuple[pb.FileEntry, Upload]:
        """The segment as a data file that is to be uploaded. A spilled Parquet file goes as it is, from where it is.

        Until the upload tells that the store has it, the segment is pinned.
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
        """The store has it too: its local file may be dropped when the cache is full."""
        with self._lock:
            if self._closed:
                return
            self._stored = stored
            local = self._local
        if local is not None:
            self._count_local(local)

    def close(self) -> None:
        """Give up memory and local files, once nobody pins it; the store keeps its copy."""
        with self._lock:
            self._closing = True
            if self._pins:
                return
        self.abandon()

    def abandon(self) -> None:
        """Give up memory and local files at once; whoever still reads it fails."""
        with self._lock:
            self._closing = self._closed = True
            self._stored = None
            given_up = self._take_out_of_memory()
        self._release(*given_up)
        self._drop_local()

    def _data_file(self, owned: pb.HashRange) -> tuple[bytes | ParquetFile, pb.FileEntry]:
        """The data file, and its entry with the digest in place of a path."""
        with self._lock:
            local, stored = self._local, self._stored
        # What the store has, too, the cache may drop at any time.
        if local is not None and local.digest and stored is None:
            entry = pb.FileEntry()
            entry.CopyFrom(local.entry)
            entry.path = local.digest
            entry.owned.CopyFrom(owned)
            return local, entry
        encoded = encode_segment(self.read(), spec=self.spec)
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
            raise InputError(f"a segment of table {self.spec.table!r} was read after it was closed")
        return stored

    def _come_nearer(self) -> None:
        with self._lock:
            stored = self._stored
        if stored is not None and self.tier is Tier.STORE:
            self._fetch(stored)
        self.load()

    def _use_spare_memory(self) -> None:
        """Load the rows if they fit below the low watermark of the budget and are no cheap read where they are."""
        with self._lock:
            local, stored = self._local, self._stored
            resident = self._resident is not None
        if resident or self._closing or (local is None and stored is not None and stored.is_near):
            return
        nbytes = UNPACKED * (self.nbytes if local is None else local.size)
        with self._tiers.memory.try_reserve(self.owner, Purpose.READS, nbytes) as reserved:
            if not reserved:
                return
            # The reservation stands for the rows while they are read.
            source = local or self._checked(stored)
            rows = with_row_schema(source.read(ALL_ROWS), self._schema)
        self._install(rows, self._tiers.memory.pin(self.owner, Purpose.SEGMENTS, rows))
        self.uses.prefetches += 1
        self._prefetched = True

    def _join_prefetch(self) -> None:
        """Wait for a load that has begun; cancel one that has not."""
        loading, self._loading = self._loading, None
        if loading is not None and not loading.cancel():
            wait([loading], timeout=self._tiers.memory.wait_seconds)

    def _count_read(self, *, in_memory: bool) -> None:
        self.uses.count(in_memory=in_memory)
        if self._prefetched:
            self._prefetched = False
            self.uses.prefetch_hits += in_memory

    def _fetch(self, stored: StoredFile) -> None:
        """Have a local copy of the stored file, unless the cache is too small for it."""
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

    def _take_out_of_memory(self) -> tuple[Hold | None, Offer | None, IndexedRows | None]:
        given_up = self._hold, self._offer, self._resident
        self._resident = self._hold = self._offer = None
        return given_up

    def _release(self, hold: Hold | None, offer: Offer | None, resident: IndexedRows | None) -> None:
        if offer is not None:
            self._tiers.memory.withdraw(offer)
        if resident is not None:
            resident.release()
        if hold is not None:
            hold.release()

    def _keep_local(self, local: ParquetFile) -> None:
        """Install a file; it is removed again where there is one already, or where the segment was closed."""
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
        """Let the cache count the file, once; it may drop it at once."""
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
        """After its file was not found: whether the rows can be had elsewhere."""
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
