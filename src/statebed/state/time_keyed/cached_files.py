"""Copies of a time-keyed table's data files in the host cache: mapped rows, of which a read takes only what it needs.

Files that a checkpoint writes from memory enter the cache immediately. Any other file is copied on the first key
lookup, because lookups happen in every epoch. It is copied one row group at a time: all of it or, if this subtask owns
only a small part of it, that part. A read of whole time ranges usually happens once and is not worth a copy. If address
space is limited there are no copies: rows are decoded from Parquet and charged, as without a cache.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import int64_values
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import intersection
from statebed.format.schema import BIN
from statebed.state.host_cache import HostCache
from statebed.state.host_cache.cache import is_address_space_limited
from statebed.state.memory.controller import MemoryController, Purpose
from statebed.state.tiers.column_files import ColumnFileWriter
from statebed.state.tiers.selection import ALL_ROWS, Selection
from statebed.state.tiers.spill_files import RowGroups, StoredFile
from statebed.storage import ObjectStore

_LAYOUT = "time keyed 1"
"""Version of the layout; after a change, older copies are no longer found."""
_SMALL_PART = 0.5
_UNPACKED = 4
"""Approximate ratio of the size of rows in memory to the size of their file."""
_COPIES = 3
"""Number of times a row group is in memory while it is copied: fetched, decoded, and being written."""


class CachedFiles:
    """Copies of one table's files used by one subtask."""

    def __init__(
        self, cache: HostCache, store: ObjectStore, *, owned: pb.HashRange, memory: MemoryController, owner: str
    ) -> None:
        self._cache = cache
        self._store = store
        self._owned = owned
        self._memory = memory
        self._owner = owner

    def stored(self, file: pb.FileEntry) -> StoredFile:
        """Return the file, read from a copy if there is or can be one."""
        return _CopiedFile(file, self._store, self)

    def add(self, file: pb.FileEntry, rows: pa.Table) -> None:
        """Cache the rows that a new file will have."""
        self._write(self._label(file, None), iter([rows]), nbytes=int(rows.nbytes))

    def rows(self, file: pb.FileEntry, *, make: bool) -> list[pa.RecordBatch] | None:
        """Return the mapped rows of a file, at least those that this subtask owns, or None if there is no copy.

        With `make`, a missing copy is made if possible.
        """
        if is_address_space_limited():
            return None
        for label in (self._label(file, None), self._label(file, self._owned)):
            mapped = self._mapped(label)
            if mapped is not None:
                return mapped
        if not make:
            return None
        share = _share(file, self._owned)
        own = None if share >= _SMALL_PART else self._owned
        label = self._label(file, own)
        nbytes = int(share * _UNPACKED * file.size)
        if not self._cache.writable or not self._write(label, self._decoded(file, own), nbytes=nbytes):
            return None
        return self._mapped(label)

    def _mapped(self, label: str) -> list[pa.RecordBatch] | None:
        copy = self._cache.open(label)
        if copy is None:
            return None
        return [] if copy.others is None else copy.others.to_batches()

    def _write(self, label: str, pieces: Iterator[pa.Table], *, nbytes: int) -> bool:
        def write(copy: ColumnFileWriter) -> None:
            for rows in pieces:
                copy.append_others(rows)

        return self._cache.add(label, {}, write, max_rows=0, nbytes=nbytes)

    def _decoded(self, file: pb.FileEntry, owned: pb.HashRange | None) -> Iterator[pa.Table]:
        selection = ALL_ROWS if owned is None else Selection(owned=owned)
        for nbytes, read in StoredFile(file, self._store).row_groups(selection):
            with self._memory.reserve(self._owner, Purpose.RESTORES, _COPIES * nbytes):
                yield read()

    def _label(self, file: pb.FileEntry, owned: pb.HashRange | None) -> str:
        part = "" if owned is None else f" {owned.first:016x}-{owned.last:016x}"
        return f"{_LAYOUT} {file.size} {file.crc32c:08x} {self._store.url}/{file.path}{part}"


class _CopiedFile(StoredFile):
    """A data file in the store that is read from a copy if there is one."""

    def __init__(self, entry: pb.FileEntry, store: ObjectStore, images: CachedFiles) -> None:
        super().__init__(entry, store)
        self._images = images
        self._batches: list[pa.RecordBatch] | None = None

    @property
    def is_near(self) -> bool:
        if self._batches is None:
            self._batches = self._images.rows(self.entry, make=False)
        return self._batches is not None

    def read(self, selection: Selection) -> pa.Table:
        batches = self._copy(selection)
        if not batches:
            return super().read(selection)
        return pa.concat_tables([selection.apply(_wanted_bins(batch, selection)) for batch in batches])

    def row_groups(self, selection: Selection) -> RowGroups:
        batches = self._copy(selection)
        if batches is None:
            return super().row_groups(selection)
        pieces = (_wanted_bins(batch, selection) for batch in batches)
        # Mapped pages are not charged to the process.
        return ((0, partial(selection.apply, rows)) for rows in pieces if rows.num_rows)

    def _copy(self, selection: Selection) -> list[pa.RecordBatch] | None:
        # Two threads may both map it, which is harmless.
        if self._batches is None:
            self._batches = self._images.rows(self.entry, make=selection.hashes is not None)
        return self._batches


def _wanted_bins(batch: pa.RecordBatch, selection: Selection) -> pa.Table:
    """Return the rows in selected bins; rows are sorted by bin."""
    bins = int64_values(batch.column(BIN))
    start = 0 if selection.start_us is None else int(np.searchsorted(bins, selection.start_us))
    end = len(bins) if selection.end_us is None else int(np.searchsorted(bins, selection.end_us))
    return pa.Table.from_batches([batch.slice(start, max(end - start, 0))])


def _share(file: pb.FileEntry, owned: pb.HashRange) -> float:
    """Return the approximate share of the file's rows in a range, assuming evenly spread hashes."""
    held = pb.HashRange(first=file.min_key_hash, last=file.max_key_hash)
    mine = intersection(held, owned)
    return 0.0 if mine is None else (mine.last - mine.first + 1) / (held.last - held.first + 1)
