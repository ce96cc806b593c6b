"""Files of keyed tables: rows of a range of hashes read from them, the newest of each key, and edits of what is live.

Files of level BASE hold blocks: their ranges do not overlap, and no file of theirs is older than what they replace.
All others are deltas; those of one sequence are parts of one delta. In memory and here, of two rows with the same key
the one with the greater sequence counts.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, uint64_values
from statebed.checkpoint.objects import fetch_range
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import in_range, intersection, overlaps
from statebed.format.schema import KEY_HASH, SEQUENCE
from statebed.format.segment_reader import SegmentReader
from statebed.state.keyed.batch import KeyBatch, take_rows
from statebed.state.keyed.extents import Extents, memory_of_row
from statebed.state.keyed.table import KeyedTable
from statebed.state.tiers.fetched_ranges import FetchedRanges
from statebed.storage import ObjectStore

DELTA = 0
MERGED_DELTAS = 1
BASE = 2

Delta = list[pb.FileEntry]
"""Entries of one sequence."""


class RangeReader:
    """Reads ranges of hashes from some files, each opened once. Not thread-safe.

    Where a file is read in parts, `ranges` keeps what was fetched of it for the parts that follow.
    """

    def __init__(
        self,
        table: KeyedTable,
        files: Iterable[pb.FileEntry],
        store: ObjectStore,
        *,
        ranges: FetchedRanges | None = None,
    ) -> None:
        self._table = table
        self._ranges = ranges
        self._keeps = False
        """Whether other parts of the file that is being read may be wanted later."""
        self._files = sorted(files, key=lambda entry: (entry.max_sequence, entry.path, entry.owned.first))
        self._store = store
        self._readers: dict[str, SegmentReader] = {}
        self._samples: dict[tuple[str, int], Extents] = {}

    @property
    def files(self) -> Sequence[pb.FileEntry]:
        return self._files

    def read(self, wanted: pb.HashRange) -> pa.Table:
        """All rows of a range, oldest first, with deletions and older versions; one row group is decoded at a time."""
        pieces = [self._table.file_schema.empty_table()]
        for file in self._files:
            clipped = intersection(file.owned, wanted)
            if clipped is None or file.max_key_hash < clipped.first or clipped.last < file.min_key_hash:
                continue
            self._keeps = file.min_key_hash < clipped.first or clipped.last < file.max_key_hash
            reader = self._reader(file)
            for group in reader.select_row_groups(owned=clipped):
                rows = self._table.history.read(reader, row_groups=[group])
                inside = in_range(uint64_values(rows[KEY_HASH]), clipped)
                kept = rows if inside.all() else take_rows(rows, np.flatnonzero(inside))
                pieces.append(pa.Table.from_arrays(kept.columns, schema=self._table.file_schema))
        rows = pa.concat_tables(pieces)
        sequences = uint64_values(rows[SEQUENCE])
        if (sequences[1:] < sequences[:-1]).any():
            rows = take_rows(rows, np.argsort(sequences, kind="stable"))
        return rows

    def newest(self, wanted: pb.HashRange, *, piece_bytes: int) -> Iterator[pa.Table]:
        """Of each key the newest row, deletions too, in the order of files; in pieces of about this many bytes."""
        for piece in self._extents(wanted).cut(wanted, piece_bytes=piece_bytes):
            yield newest_rows(self._table, self.read(piece))

    def parts(self, wanted: pb.HashRange, *, part_bytes: int) -> list[pb.HashRange]:
        """The range cut into neighbours whose rows take about `part_bytes` of memory each."""
        return self._extents(wanted).cut(wanted, piece_bytes=part_bytes)

    def memory_in(self, wanted: pb.HashRange) -> float:
        """About what the rows of a range take in memory."""
        return self._extents(wanted).bytes_in(wanted)

    def _extents(self, wanted: pb.HashRange) -> Extents:
        """Where the rows of a range lie: from the entries of files or, in a multiset table, from the hashes."""
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
    """The deltas, oldest first."""
    by_sequence: dict[int, Delta] = {}
    for file in files:
        if file.level != BASE:
            by_sequence.setdefault(file.max_sequence, []).append(file)
    return [by_sequence[sequence] for sequence in sorted(by_sequence)]


def newest_rows(table: KeyedTable, rows: pa.Table) -> pa.Table:
    """The last row of each key, in the order of files."""
    hashes = uint64_values(rows[KEY_HASH])
    if (hashes[1:] > hashes[:-1]).all():
        return rows.combine_chunks()
    batch = KeyBatch.of(rows.select(table.key_names), table.key_schema, lambda _: hashes, where=f"table {table.name!r}")
    return take_rows(rows, batch.order[batch.ends()])


def with_sequence(rows: pa.Table, sequence: int) -> pa.Table:
    """The rows, all with this sequence."""
    index = rows.schema.get_field_index(SEQUENCE)
    sequences = from_numpy(np.full(rows.num_rows, sequence, dtype=np.uint64), pa.uint64())
    return rows.set_column(index, rows.schema.field(index), sequences)


def to_merge(deltas: Sequence[Delta], *, most: int) -> Sequence[Delta]:
    """Which deltas to write again as one, or together with a new one, so that at most `most` are left: the youngest
    ones, as many as are not larger than all that is younger.
    """
    if len(deltas) < most:
        return []
    sizes = [bytes_of(delta) for delta in deltas]
    first = len(deltas) - 1
    for index in range(len(deltas)):
        if sizes[index] <= sum(sizes[index + 1 :]):
            first = index
            break
    first = min(first, most - 1)
    return deltas[first:]


def bytes_of(files: Iterable[pb.FileEntry]) -> int:
    """Bytes of the files, each counted once."""
    return sum({file.path: int(file.size) for file in files}.values())


def without_range(files: Iterable[pb.FileEntry], hole: pb.HashRange) -> tuple[pb.FileEntry, ...]:
    """The entries without a range of hashes: clipped, split in two, or gone."""
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
    """Whether the file may have rows in the range that its entry owns."""
    return file.min_key_hash <= file.owned.last and file.owned.first <= file.max_key_hash


def rows_in(files: Iterable[pb.FileEntry], owned: pb.HashRange) -> float:
    """About how many rows the files have in a range, hashes being spread evenly."""
    return sum(file.rows * share_in(file, owned) for file in files)


def bytes_in(files: Iterable[pb.FileEntry], owned: pb.HashRange) -> float:
    """About how many bytes the files have in a range."""
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
    """Ranges for blocks: those of the base's files and what lies between, cut by size."""
    whole = []
    start = owned.first
    for file in sorted((file for file in files if file.level == BASE), key=lambda entry: entry.owned.first):
        if start < file.owned.first:
            whole.append(pb.HashRange(first=start, last=file.owned.first - 1))
        whole.append(file.owned)
        start = file.owned.last + 1
    if start <= owned.last:
        whole.append(pb.HashRange(first=start, last=owned.last))
    return [one for range_ in whole for one in pieces_of(files, range_, piece_bytes=block_bytes, row_bytes=row_bytes)]


def pieces_of(
    files: Iterable[pb.FileEntry], whole: pb.HashRange, *, piece_bytes: int, row_bytes: int
) -> list[pb.HashRange]:
    """The range cut into parts whose rows take about this much memory, by the entries of files alone."""
    return Extents.of_files(files, row_bytes=row_bytes).cut(whole, piece_bytes=piece_bytes)


def memory_in(files: Iterable[pb.FileEntry], owned: pb.HashRange, *, row_bytes: int) -> float:
    """About what the rows of a range take in memory, by the entries of files alone."""
    return Extents.of_files(files, row_bytes=row_bytes).bytes_in(owned)


def _owning(file: pb.FileEntry, first: int, last: int) -> pb.FileEntry:
    clipped = pb.FileEntry()
    clipped.CopyFrom(file)
    clipped.owned.CopyFrom(pb.HashRange(first=first, last=last))
    return clipped
