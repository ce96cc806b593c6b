"""Files of keyed tables: reading the newest row of each key in a range of hashes, and arithmetic on live file entries.

Files of level BASE hold blocks: their ranges do not overlap, and they are never older than the files they replace. All
other files are deltas; those of one sequence are parts of one delta. Of two rows with the same key, the one with the
greater sequence wins.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, uint64_values
from statebed.checkpoint.objects import fetch_range
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import intersection, overlaps
from statebed.format.schema import KEY_HASH, SEQUENCE
from statebed.format.segment_reader import SegmentReader
from statebed.state.keyed.batch import KeyBatch, take_rows
from statebed.state.keyed.extents import Extents, memory_of_row
from statebed.state.keyed.table import KeyedTable
from statebed.state.memory.pages import count_processed
from statebed.state.tiers.fetched_ranges import FetchedRanges
from statebed.storage import ObjectStore

DELTA = 0
MERGED_DELTAS = 1
BASE = 2

Delta = list[pb.FileEntry]
"""File entries that share one sequence."""


class RangeReader:
    """Reads ranges of hashes from some files, each opened once. Not thread-safe.

    If a file is read in parts, `ranges` keeps the bytes fetched from it for later parts, and up to `max_held` bytes of
    decoded row groups stay in memory until the next part is read.
    """

    def __init__(
        self,
        table: KeyedTable,
        files: Iterable[pb.FileEntry],
        store: ObjectStore,
        *,
        ranges: FetchedRanges | None = None,
        max_held: int = 0,
    ) -> None:
        self._table = table
        self._ranges = ranges
        self._room = max_held
        self._held: dict[tuple[str, int], pa.Table] = {}
        """Row groups that reach beyond the part that was read last, by file and number."""
        self._keeps = False
        """Whether other parts of the file being read may be needed later."""
        self._files = sorted(files, key=lambda entry: (entry.max_sequence, entry.path, entry.owned.first))
        self._store = store
        self._readers: dict[str, SegmentReader] = {}
        self._samples: dict[tuple[str, int], Extents] = {}

    @property
    def files(self) -> Sequence[pb.FileEntry]:
        return self._files

    def read(self, wanted: pb.HashRange) -> pa.Table:
        """Return all rows of a range, oldest first, including deletions and older versions. Decodes one row group at a
        time.
        """
        pieces = [self._table.file_schema.empty_table()]
        for file in self._files:
            clipped = intersection(file.owned, wanted)
            if clipped is None or file.max_key_hash < clipped.first or clipped.last < file.min_key_hash:
                continue
            self._keeps = file.min_key_hash < clipped.first or clipped.last < file.max_key_hash
            reader = self._reader(file)
            groups = reader.select_row_groups(owned=clipped)
            pieces += [self._inside(reader, group, clipped) for group in groups]
        rows = pa.concat_tables(pieces)
        sequences = uint64_values(rows[SEQUENCE])
        if (sequences[1:] < sequences[:-1]).any():
            rows = take_rows(rows, np.argsort(sequences, kind="stable"))
        return rows

    def _inside(self, reader: SegmentReader, group: int, clipped: pb.HashRange) -> pa.Table:
        """Return the rows of a row group that are in a range."""
        place = (reader.entry.path, group)
        rows = self._held.pop(place, None)
        if rows is None:
            rows = self._table.history.read(reader, row_groups=[group])
            rows = pa.Table.from_arrays(rows.columns, schema=self._table.file_schema)
        else:
            self._room += rows.nbytes
        hashes = uint64_values(rows[KEY_HASH])
        start = int(np.searchsorted(hashes, np.uint64(clipped.first)))
        end = int(np.searchsorted(hashes, np.uint64(clipped.last), side="right"))
        if end < rows.num_rows and rows.nbytes <= self._room:
            self._room -= rows.nbytes
            self._held[place] = rows
            return rows.slice(start, end - start)
        if 2 * (end - start) > rows.num_rows:
            return rows.slice(start, end - start)
        # A slice would keep the whole row group in memory until the rows of all files are read.
        return take_rows(rows, np.arange(start, end))

    def newest(self, wanted: pb.HashRange, *, piece_bytes: int) -> Iterator[pa.Table]:
        """Yield the newest row of each key, including deletions, in the order of files and in pieces of about
        `piece_bytes`.
        """
        for piece in self.extents(wanted).cut(wanted, piece_bytes=piece_bytes):
            yield newest_rows(self._table, self.read(piece))

    def parts(self, wanted: pb.HashRange, *, part_bytes: int) -> list[pb.HashRange]:
        """Cut a range into adjacent parts whose rows take about `part_bytes` of memory each."""
        return self.extents(wanted).cut(wanted, piece_bytes=part_bytes)

    def memory_in(self, wanted: pb.HashRange) -> float:
        """Return the approximate size of the rows of a range in memory."""
        return self.extents(wanted).bytes_in(wanted)

    def extents(self, wanted: pb.HashRange) -> Extents:
        """Return the distribution of the rows of a range, from file entries or, in a multiset table, from the
        hashes.
        """
        row_bytes = self._table.row_bytes
        if not self._table.prefix_columns:
            return Extents.of_files(self._files, row_bytes=row_bytes)
        return Extents.concatenated(
            self._sampled(file, group)
            for file in self._files
            if (clipped := intersection(file.owned, wanted)) is not None
            for group in self._reader(file).select_row_groups(owned=clipped)
        )

    def _sampled(self, file: pb.FileEntry, group: int) -> Extents:
        if (file.path, group) not in self._samples:
            hashes = uint64_values(self._reader(file).read(row_groups=[group], columns=[KEY_HASH])[KEY_HASH])
            count_processed(hashes.nbytes)
            row_bytes = memory_of_row(file, row_bytes=self._table.row_bytes)
            self._samples[file.path, group] = Extents.of_hashes(hashes, row_bytes=row_bytes)
        return self._samples[file.path, group]

    def _reader(self, file: pb.FileEntry) -> SegmentReader:
        if file.path not in self._readers:
            self._readers[file.path] = SegmentReader(file, self._fetch, forget=self._forget)
        return self._readers[file.path]

    def _forget(self, path: str, start: int, length: int) -> None:
        if self._ranges is not None:
            self._ranges.forget(self._store, path, start, length)

    def _fetch(self, path: str, start: int, length: int) -> bytes:
        if self._ranges is None or not self._keeps:
            return fetch_range(self._store, path, start, length)
        return self._ranges.fetch(self._store, path, start, length)


def deltas_of(files: Iterable[pb.FileEntry]) -> list[Delta]:
    """Return the deltas among the files, oldest first."""
    by_sequence: dict[int, Delta] = {}
    for file in files:
        if file.level != BASE:
            by_sequence.setdefault(file.max_sequence, []).append(file)
    return [by_sequence[sequence] for sequence in sorted(by_sequence)]


def newest_rows(table: KeyedTable, rows: pa.Table) -> pa.Table:
    """Return the last row of each key, in the order of files."""
    rows = _without_empty_chunks(rows)
    hashes = uint64_values(rows[KEY_HASH])
    if (hashes[1:] > hashes[:-1]).all():
        return rows.combine_chunks()
    batch = KeyBatch.of(rows.select(table.key_names), table.key_schema, lambda _: hashes, where=f"table {table.name!r}")
    return take_rows(rows, batch.order[batch.ends()])


def _without_empty_chunks(rows: pa.Table) -> pa.Table:
    """Return the same rows; combining chunks copies all of them even if all but one are empty."""
    columns = [
        pa.chunked_array([chunk for chunk in column.chunks if len(chunk)], column.type) for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def with_sequence(rows: pa.Table, sequence: int) -> pa.Table:
    """Return the rows with this sequence in all of them."""
    index = rows.schema.get_field_index(SEQUENCE)
    sequences = from_numpy(np.full(rows.num_rows, sequence, dtype=np.uint64), pa.uint64())
    return rows.set_column(index, rows.schema.field(index), sequences)


def to_compact(deltas: Sequence[Delta], *, limit: int) -> Sequence[Delta]:
    """Return the deltas to rewrite as one, alone or with a new one, if there are at least `limit`.

    These are the youngest ones, beginning with the oldest delta that is no larger than all younger ones together. After
    the rewrite at most `limit` deltas are left.
    """
    if len(deltas) < limit:
        return []
    sizes = [bytes_of(delta) for delta in deltas]
    first = len(deltas) - 1
    for index in range(len(deltas)):
        if sizes[index] <= sum(sizes[index + 1 :]):
            first = index
            break
    first = min(first, limit - 1)
    return deltas[first:]


def bytes_of(files: Iterable[pb.FileEntry]) -> int:
    """Return the total size of the files, counting each path once."""
    return sum({file.path: int(file.size) for file in files}.values())


def without_range(files: Iterable[pb.FileEntry], hole: pb.HashRange) -> tuple[pb.FileEntry, ...]:
    """Return the entries without a range of hashes: unchanged, clipped, split in two, or left out."""
    kept = []
    for file in files:
        if not overlaps(file.owned, hole):
            kept.append(file)
            continue
        if file.owned.first < hole.first:
            kept.append(_owning(file, file.owned.first, hole.first - 1))
        if hole.last < file.owned.last:
            kept.append(_owning(file, hole.last + 1, file.owned.last))
    return tuple(file for file in kept if holds_some(file))


def holds_some(file: pb.FileEntry) -> bool:
    """Return whether the file may have rows in the range that its entry owns."""
    return file.min_key_hash <= file.owned.last and file.owned.first <= file.max_key_hash


def rows_in(files: Iterable[pb.FileEntry], owned: pb.HashRange) -> float:
    """Return the approximate number of rows in a range, assuming evenly spread hashes."""
    return sum(file.rows * share_in(file, owned) for file in files)


def bytes_in(files: Iterable[pb.FileEntry], owned: pb.HashRange) -> float:
    """Return the approximate number of bytes of the files in a range."""
    return sum(file.size * share_in(file, owned) for file in files)


def share_in(file: pb.FileEntry, owned: pb.HashRange) -> float:
    clipped = intersection(file.owned, owned)
    if clipped is None:
        return 0.0
    held = file.max_key_hash - file.min_key_hash + 1
    width = min(clipped.last, file.max_key_hash) - max(clipped.first, file.min_key_hash) + 1
    return max(width, 0) / held


def block_ranges(
    files: Sequence[pb.FileEntry], owned: pb.HashRange, *, block_bytes: int, row_bytes: int
) -> list[pb.HashRange]:
    """Return the ranges for blocks: those of base files and the gaps between them, cut by size."""
    whole = []
    start = owned.first
    for file in sorted((file for file in files if file.level == BASE), key=lambda entry: entry.owned.first):
        if start < file.owned.first:
            whole.append(pb.HashRange(first=start, last=file.owned.first - 1))
        whole.append(file.owned)
        start = file.owned.last + 1
    if start <= owned.last:
        whole.append(pb.HashRange(first=start, last=owned.last))
    return [
        piece for range_ in whole for piece in pieces_of(files, range_, piece_bytes=block_bytes, row_bytes=row_bytes)
    ]


def pieces_of(
    files: Iterable[pb.FileEntry], whole: pb.HashRange, *, piece_bytes: int, row_bytes: int
) -> list[pb.HashRange]:
    """Cut a range into parts whose rows take about `piece_bytes` of memory, by the file entries alone."""
    return Extents.of_files(files, row_bytes=row_bytes).cut(whole, piece_bytes=piece_bytes)


def memory_in(files: Iterable[pb.FileEntry], owned: pb.HashRange, *, row_bytes: int) -> float:
    """Return the approximate size of the rows of a range in memory, by the file entries alone."""
    return Extents.of_files(files, row_bytes=row_bytes).bytes_in(owned)


def _owning(file: pb.FileEntry, first: int, last: int) -> pb.FileEntry:
    clipped = pb.FileEntry()
    clipped.CopyFrom(file)
    clipped.owned.CopyFrom(pb.HashRange(first=first, last=last))
    return clipped
