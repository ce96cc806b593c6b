"""Data files of a time-keyed table as copies in the host's cache: mapped rows, of which a read takes what it wants.

What a checkpoint writes from memory goes into the cache at once. Any other file is copied when keys are first looked up
in it, which is done in every epoch, a row group at a time: all of it or, where this subtask owns only a small part of
it, that part. A read of whole ranges of time is most often the only one, and not worth a copy. Where address space is
limited there are no copies: rows are decoded from Parquet, and charged, as without a cache.
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
"""Another one means that copies lie differently: old ones are not found any more."""
_SMALL_PART = 0.5
_UNPACKED = 4
"""Rows take about so many times the bytes of their file."""
_COPIES = 3
"""How often a row group is in memory while it is copied: as it was fetched, decoded, and on its way."""


class CachedFiles:
    """The copies of one table's files that one subtask uses."""

    def __init__(
        self, cache: HostCache, store: ObjectStore, *, owned: pb.HashRange, memory: MemoryController, owner: str
    ) -> None:
        self._cache = cache
        self._store = store
        self._owned = owned
        self._memory = memory
        self._owner = owner

    def stored(self, file: pb.FileEntry) -> StoredFile:
        """The file, read from a copy where there is or can be one."""
        return _CopiedFile(file, self._store, self)

    def add(self, file: pb.FileEntry, rows: pa.Table) -> None:
        """Keep rows that a new file will have."""
        self._write(self._label(file, None), iter([rows]), nbytes=int(rows.nbytes))

    def rows(self, file: pb.FileEntry, *, make: bool) -> list[pa.RecordBatch] | None:
        """The rows of a file, mapped, those that this subtask owns at least; None: there is no copy, even where one
        should be made.
        """
        if is_address_space_limited():
            return None
        for label in (self._label(file, None), self._label(file, self._owned)):
            found = self._mapped(label)
            if found is not None:
                return found
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

        return self._cache.add(label, {}, write, most=0, nbytes=nbytes)

    def _decoded(self, file: pb.FileEntry, owned: pb.HashRange | None) -> Iterator[pa.Table]:
        selection = ALL_ROWS if owned is None else Selection(owned=owned)
        for nbytes, read in StoredFile(file, self._store).row_groups(selection):
            with self._memory.reserve(self._owner, Purpose.RESTORES, _COPIES * nbytes):
                yield read()

    def _label(self, file: pb.FileEntry, owned: pb.HashRange | None) -> str:
        part = "" if owned is None else f" {owned.first:016x}-{owned.last:016x}"
        return f"{_LAYOUT} {file.size} {file.crc32c:08x} {self._store.url}/{file.path}{part}"


class _CopiedFile(StoredFile):
    """A data file in the store that is read from a copy, if one can be had."""

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
        # Mapped pages are no memory of the process.
        return ((0, partial(selection.apply, rows)) for rows in pieces if rows.num_rows)

    def _copy(self, selection: Selection) -> list[pa.RecordBatch] | None:
        # Two threads may both map it, which is harmless.
        if self._batches is None:
            self._batches = self._images.rows(self.entry, make=selection.hashes is not None)
        return self._batches


def _wanted_bins(batch: pa.RecordBatch, selection: Selection) -> pa.Table:
    """The rows whose bins are wanted: rows are sorted by them."""
    bins = int64_values(batch.column(BIN))
    start = 0 if selection.start_us is None else int(np.searchsorted(bins, selection.start_us))
    end = len(bins) if selection.end_us is None else int(np.searchsorted(bins, selection.end_us))
    return pa.Table.from_batches([batch.slice(start, max(end - start, 0))])


def _share(file: pb.FileEntry, owned: pb.HashRange) -> float:
    """About which part of the file's rows are in a range, hashes being spread evenly."""
    held = pb.HashRange(first=file.min_key_hash, last=file.max_key_hash)
    mine = intersection(held, owned)
    return 0.0 if mine is None else (mine.last - mine.first + 1) / (held.last - held.first + 1)
