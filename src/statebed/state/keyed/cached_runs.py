"""Data files of a keyed table as runs in the host cache: mapped, with an index, and searched without decoding them.

Files that a checkpoint writes are added to the cache immediately, so a process that restores the next epoch on this
host decodes nothing. Any other file is copied when it is first needed, one row group at a time: the whole file or, if
this subtask owns only a small part of it, that part.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import uint64_values
from statebed.checkpoint.objects import fetch_range
from statebed.format import checkpoint_pb2 as pb
from statebed.format.digest import digest
from statebed.format.ranges import in_range, intersection
from statebed.format.schema import KEY_HASH
from statebed.format.segment_reader import SegmentReader
from statebed.state.host_cache import HostCache
from statebed.state.host_cache.cache import is_address_space_limited
from statebed.state.keyed.batch import take_rows
from statebed.state.keyed.files import holds_some, share_in
from statebed.state.keyed.mapped_run import FrozenRun
from statebed.state.keyed.run_files import append_file_rows, append_index, kinds_of
from statebed.state.keyed.table import KeyedTable
from statebed.state.memory.controller import MemoryController, Purpose
from statebed.state.tiers.column_files import ColumnFile, ColumnFileWriter
from statebed.storage import ObjectStore

_LAYOUT = "keyed 2"
"""Version of the layout of copies. A change makes copies of older versions invisible."""
_SMALL_PART = 0.5
_UNPACKED = 4
"""Estimated size of decoded rows as a multiple of the size of their file."""
_COPIES = 3
"""Number of times a row group is in memory while it is copied: as fetched, decoded, and being written."""


class CachedRuns:
    """Copies of the files of one table that one subtask uses."""

    def __init__(
        self,
        cache: HostCache,
        table: KeyedTable,
        store: ObjectStore,
        *,
        owned: pb.HashRange,
        memory: MemoryController,
        owner: str,
    ) -> None:
        self._cache = cache
        self._table = table
        self._store = store
        self._owned = owned
        self._memory = memory
        self._owner = owner
        self._open: dict[str, FrozenRun] = {}

    @property
    def mapped(self) -> bool:
        """Whether copies take no memory. False if the address space is limited, because then files are not mapped."""
        return not is_address_space_limited()

    def add(self, file: pb.FileEntry, pieces: Sequence[pa.Table]) -> None:
        """Add the rows of a new file, in its order, to the cache."""

        def write(copy: ColumnFileWriter) -> None:
            for rows in pieces:
                append_file_rows(copy, self._table, rows)
            append_index(copy)

        count = sum(rows.num_rows for rows in pieces)
        nbytes = sum(rows.nbytes for rows in pieces) + count * _COPIES
        self._cache.add(self._label(file, None), kinds_of(self._table), write, max_rows=count, nbytes=nbytes)

    def runs(self, files: Iterable[pb.FileEntry], owned: pb.HashRange) -> tuple[FrozenRun, ...] | None:
        """Return the rows of files in a range, newest file first, or None if a file cannot be copied."""
        runs = []
        for _, run in self.newest_first(files, owned):
            if run is None:
                return None
            runs.append(run)
        return tuple(run for run in runs if len(run.run))

    def newest_first(
        self, files: Iterable[pb.FileEntry], owned: pb.HashRange
    ) -> Iterator[tuple[pb.FileEntry, FrozenRun | None]]:
        """Yield each file that may have rows in a range, with these rows, or None if it cannot be copied. A file is
        copied when it is reached.
        """
        for file in sorted(files, key=lambda entry: (entry.max_sequence, entry.path, entry.owned.first), reverse=True):
            wanted = _rows_wanted(file, owned)
            if wanted is not None:
                run = self._existing(file)
                if run is None:
                    run = self._new(file)
                yield file, None if run is None else run.part(wanted)

    def has_copies(self, files: Iterable[pb.FileEntry], owned: pb.HashRange) -> bool:
        """Return whether all files that may have rows in a range have copies already."""
        return all(self._existing(file) is not None for file in files if _rows_wanted(file, owned) is not None)

    def _existing(self, file: pb.FileEntry) -> FrozenRun | None:
        run = self._open.get(file.path)
        if run is not None:
            return run
        for label in (self._label(file, None), self._label(file, self._owned)):
            copy = self._cache.open(label)
            if copy is not None:
                return self._opened(file, copy)
        return None

    def _new(self, file: pb.FileEntry) -> FrozenRun | None:
        own = None if share_in(file, self._owned) >= _SMALL_PART else self._owned
        label = self._label(file, own)
        if not self._cache.writable or not self._copied(file, label, own):
            return None
        copy = self._cache.open(label)
        return None if copy is None else self._opened(file, copy)

    def _opened(self, file: pb.FileEntry, copy: ColumnFile) -> FrozenRun:
        self._open[file.path] = FrozenRun.shared(copy, self._table)
        return self._open[file.path]

    def _copied(self, file: pb.FileEntry, label: str, owned: pb.HashRange | None) -> bool:
        def write(copy: ColumnFileWriter) -> None:
            for rows in self._rows(file, owned):
                append_file_rows(copy, self._table, rows)
            append_index(copy)

        share = 1.0 if owned is None else share_in(file, owned)
        nbytes = int(share * max(_UNPACKED * file.size, file.rows * self._table.row_bytes))
        return self._cache.add(label, kinds_of(self._table), write, max_rows=int(file.rows), nbytes=nbytes)

    def _rows(self, file: pb.FileEntry, owned: pb.HashRange | None) -> Iterator[pa.Table]:
        reader = SegmentReader(file, partial(fetch_range, self._store))
        for group in reader.select_row_groups(owned=owned):
            nbytes = _COPIES * int(reader.metadata.row_group(group).total_byte_size)
            with self._memory.reserve(self._owner, Purpose.RESTORES, nbytes):
                rows = self._table.history.read(reader, row_groups=[group])
                if owned is not None:
                    rows = take_rows(rows, np.flatnonzero(in_range(uint64_values(rows[KEY_HASH]), owned)))
                yield rows

    def _label(self, file: pb.FileEntry, owned: pb.HashRange | None) -> str:
        part = "" if owned is None else f" {owned.first:016x}-{owned.last:016x}"
        return f"{_LAYOUT} {self._columns} {file.size} {file.crc32c:08x} {self._store.url}/{file.path}{part}"

    @cached_property
    def _columns(self) -> str:
        """Digest of everything besides the file that determines the columns of a copy."""
        keys = "\n".join(self._table.key_names).encode()
        schema = self._table.file_schema.serialize().to_pybytes()
        return digest(b"\0".join([schema, keys, self._table.config.keyed.defaults]))


def _rows_wanted(file: pb.FileEntry, owned: pb.HashRange) -> pb.HashRange | None:
    """Return the part of a range in which the file may have rows, or None if there is none."""
    return intersection(file.owned, owned) if holds_some(file) else None
