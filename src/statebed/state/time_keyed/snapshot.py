"""Consistent snapshot of a time-keyed table, read with about one piece in memory.

A snapshot consists of immutable things: files, segments, loose rows and tombstones. It pins the segments: whatever
happens to the table (spill, checkpoint, compaction, deletion), the contents of the snapshot stay the same and can be
read to the end, on any thread. Scans, checkpoints and compactions all read through it.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import TIME
from statebed.format.segment import ROW_GROUP_BYTES, SegmentSpec
from statebed.state.live import tombstones
from statebed.state.live.deletions import Deletions
from statebed.state.live.files import BEGINNING, END, LiveFiles
from statebed.state.live.row_set import RowSet
from statebed.state.memory.controller import Purpose
from statebed.state.tiers.segments import Segment
from statebed.state.tiers.selection import Selection, row_schema
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.spill_files import write_mapped
from statebed.state.tiers.tier import Tier
from statebed.state.time_keyed.files import UNPACKED, file_bytes
from statebed.state.time_keyed.row_merge import SortedSource, merged, ordered
from statebed.state.time_keyed.row_runs import merged_runs

Adapt = Callable[[pb.FileEntry, pa.Table], pa.Table]
"""Converts rows of a file to the table's current schema."""

Settle = Callable[[Iterator[pa.Table]], Iterator[pa.Table]]
"""Replaces or combines rows with the same key and time in sorted pieces."""

CELLS_IN_FILE = 4
"""Number of cells that make up a file; they are sorted one after the other."""


@dataclass(frozen=True)
class WantedRows:
    """Selection of rows to read, by time and keys."""

    start_us: int = BEGINNING
    end_us: int = END
    keys: RowSet | None = None
    hashes: npt.NDArray[np.uint64] | None = field(default=None, compare=False)
    """Ascending hashes of the selected keys; ignored if `keys` is set."""

    @property
    def endless(self) -> bool:
        """Whether there is no upper bound, so that even the last valid time is selected."""
        return self.end_us == END

    @property
    def key_hashes(self) -> npt.NDArray[np.uint64] | None:
        """Ascending hashes of the selected keys, or None for all keys."""
        return self.hashes if self.keys is None else self.keys.key_hashes

    def may_be_in(self, file: pb.FileEntry) -> bool:
        """Return False if the file, or a segment that may become one, certainly has no selected row."""
        hashes = self.key_hashes
        if hashes is not None:
            ends = np.array([file.min_key_hash, file.max_key_hash], dtype=np.uint64)
            if np.searchsorted(hashes, ends[0]) == np.searchsorted(hashes, ends[1], side="right"):
                return False
        return bool((self.endless or file.min_time_us < self.end_us) and file.max_time_us >= self.start_us)

    def covers_half_of(self, file: pb.FileEntry) -> bool:
        """Return whether at least half of the file's time span is selected."""
        last = file.max_time_us if self.endless else min(file.max_time_us, self.end_us - 1)
        wanted = last - max(file.min_time_us, self.start_us) + 1
        return bool(2 * wanted >= file.max_time_us - file.min_time_us + 1)

    def files_of(self, live: LiveFiles) -> list[pb.FileEntry]:
        return [file for file in live.files if self.may_be_in(file)]


EVERYTHING = WantedRows()


@dataclass(frozen=True)
class Snapshot:
    """Rows of files, of segments that are not in a file yet, and loose rows. Made by `TimeKeyedState.snapshot`."""

    spec: SegmentSpec
    bin_us: int
    settle: Settle | None
    """Replaces or combines rows with the same key and time; None if all are kept."""
    live: LiveFiles
    """Tombstones that apply to all rows; of the live files, only those in `files` are read."""
    files: tuple[tuple[pb.FileEntry, Segment], ...]
    fresh: tuple[Segment, ...]
    loose: tuple[pa.Table, ...]
    deletions: Deletions
    adapt: Adapt
    tiers: Tiers
    owner: str

    def pin(self) -> Callable[[], None]:
        """Pin all segments; return a function that unpins them, also called when the snapshot is garbage-collected."""
        segments = [*(segment for _, segment in self.files), *self.fresh]
        for segment in segments:
            segment.pin()
        return weakref.finalize(self, _unpin, segments)

    def pieces(self, wanted: WantedRows = EVERYTHING) -> Iterator[pa.Table]:
        """Yield the visible rows with the columns of files, read one sorted piece at a time.

        Includes rows of older generations.
        """
        for source in self._sources(wanted):
            yield from source.pieces

    def in_order(self, wanted: WantedRows = EVERYTHING) -> Iterator[pa.Table]:
        """Yield the visible rows in the order of files; only the newest generation, and combined if the table combines
        rows.

        Holds one piece of every file that is open. If that takes too much memory, rows that are not in memory are first
        copied to mapped files and then sorted part by part.
        """
        limit = file_bytes(self.tiers)
        if self._held_at_once(wanted) > limit:
            rows = self._through_disk(wanted, max(1, limit // CELLS_IN_FILE))
        else:
            rows = merged(self._sources(wanted), self.spec)
        return rows if self.settle is None else self.settle(rows)

    def _sources(self, wanted: WantedRows) -> Iterable[SortedSource]:
        for file, segment in self.files:
            if wanted.may_be_in(file):
                yield SortedSource(self._bin(file.min_time_us), self._of_file(file, segment, wanted))
        for segment in self.fresh:
            if wanted.may_be_in(segment.entry):
                rows = segment.row_groups(self._selection(wanted))
                visible = self._visible(rows, segment.entry, wanted)
                yield SortedSource(self._bin(segment.entry.min_time_us), visible, segment.tier is Tier.MEMORY)
        if self.loose:
            rows = ordered(pa.concat_tables(self.loose), self.spec)
            first = int(int64_values(rows[TIME]).min())
            yield SortedSource(self._bin(first), self._visible(iter([rows]), None, wanted), in_memory=True)

    def _held_at_once(self, wanted: WantedRows) -> int:
        """Return the approximate maximum size of files and segments that are open during a merge."""
        spans = [(file, min(ROW_GROUP_BYTES, UNPACKED * int(file.size))) for file, _ in self.files]
        spans += [(fresh_rows.entry, fresh_rows.nbytes) for fresh_rows in self.fresh]
        spans = [(file, nbytes) for file, nbytes in spans if wanted.may_be_in(file)]
        return max(
            (
                sum(held for other, held in spans if self._bin(other.min_time_us) <= last <= other.max_time_us)
                for last in {file.max_time_us for file, _ in spans}
            ),
            default=0,
        )

    def _through_disk(self, wanted: WantedRows, cell_bytes: int) -> Iterator[pa.Table]:
        schema = row_schema(self.spec)
        runs: list[pa.Table] = []
        for source in self._sources(wanted):
            if source.in_memory:
                runs += [piece.combine_chunks() for piece in source.pieces if piece.num_rows]
                continue
            pieces = (pa.Table.from_arrays(piece.columns, schema=schema) for piece in source.pieces)
            file = write_mapped(pieces, schema, self.tiers.folder)
            rows = file.read()
            file.path.unlink()  # mapped, and unmapped with the last reference to its rows
            runs += [pa.Table.from_batches([batch]) for batch in rows.to_batches() if batch.num_rows]
        if runs:
            # A cell is gathered, sorted and handed on.
            with self.tiers.memory.reserve(self.owner, Purpose.MERGES, 3 * cell_bytes):
                yield from merged_runs(runs, self.spec, limit=cell_bytes)

    def _of_file(self, file: pb.FileEntry, segment: Segment, wanted: WantedRows) -> Iterator[pa.Table]:
        hidden = self.live.hidden_until(file)
        start = wanted.start_us if hidden is None else max(wanted.start_us, hidden)
        if start >= wanted.end_us and not wanted.endless:
            return
        groups = segment.row_groups(self._selection(replace(wanted, start_us=start), file.owned))
        yield from self._visible(map(partial(self.adapt, file), groups), file, wanted)

    def _selection(self, wanted: WantedRows, owned: pb.HashRange | None = None) -> Selection:
        # Row groups are selected by bin, and a bin may begin before the first selected time.
        first = None if wanted.start_us == BEGINNING else self._bin(wanted.start_us)
        end = None if wanted.endless else wanted.end_us
        return Selection(owned=owned, start_us=first, end_us=end, hashes=wanted.key_hashes)

    def _visible(self, pieces: Iterator[pa.Table], file: pb.FileEntry | None, wanted: WantedRows) -> Iterator[pa.Table]:
        hides = file is None or any(tombstones.may_hide(tombstone, file) for tombstone in self.live.tombstones)
        for rows in pieces:
            visible = self.deletions.visible(rows) if hides else np.ones(rows.num_rows, dtype=np.bool_)
            times = int64_values(rows[TIME])
            visible &= (times >= wanted.start_us) & ((times < wanted.end_us) | wanted.endless)
            if wanted.keys is not None:
                visible &= wanted.keys.contains(rows)
            if visible.any():
                yield filtered(rows, visible)
            del rows  # before the next ones are read

    def _bin(self, time_us: int) -> int:
        return max(time_us // self.bin_us * self.bin_us, BEGINNING)


def filtered(rows: pa.Table, wanted: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the rows for which `wanted` is true."""
    return rows if wanted.all() else rows.take(from_numpy(np.flatnonzero(wanted), pa.int64()))


def _unpin(segments: Sequence[Segment]) -> None:
    for segment in segments:
        segment.unpin()
