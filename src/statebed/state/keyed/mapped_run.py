"""Runs of keyed state in mapped files, which are searched like runs in memory but never change.

A frozen run is a file, or part of a file that the processes of a host share. Its own file is verified once, when its
rows are first read; a file that is dropped unread is not verified. Rows keep the marks they had when the file was
written. A checkpoint saves all changes, so a single flag for the whole run suffices afterwards: live rows are stored,
and deleted ones are not.

Files are written piece by piece, so the memory needed to merge runs, or to load one from the store, does not depend on
their size.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from statebed.arrays.key_hash import Hashes
from statebed.arrays.mutable import Places, Rows, cuts_at
from statebed.format import checkpoint_pb2 as pb
from statebed.state.keyed.batch import KeyBatch
from statebed.state.keyed.run_files import append_index, append_run, kinds_of, run_over
from statebed.state.keyed.sorted_run import DELETED, DIRTY, Marks, SortedRun, as_written, merged_columns
from statebed.state.keyed.table import KeyedTable
from statebed.state.tiers.column_files import ColumnFile, ColumnFileWriter, SpilledColumns
from statebed.state.tiers.spill_folder import SpillFolder

__all__ = ["FrozenRun", "batch_of", "merged_parts", "newest"]

_SAMPLES = 4
"""Number of hashes sampled per run for each piece, to find where to cut."""


class FrozenRun:
    """A run in a mapped file."""

    def __init__(
        self, table: KeyedTable, rows: SortedRun | SpilledColumns, *, count: int, disk_bytes: int, dirty_rows: int = 0
    ) -> None:
        """Create a run of `count` rows.

        `rows` is either its own file, which is removed with the run, or a run in a shared file, which is left alone.
        """
        self._table = table
        self._file = rows if isinstance(rows, SpilledColumns) else None
        self._run = rows if isinstance(rows, SortedRun) else None
        self._count = count
        self._dirty_rows = dirty_rows
        self._saved = dirty_rows == 0
        self.disk_bytes = disk_bytes

    @classmethod
    def shared(cls, file: ColumnFile, table: KeyedTable) -> "FrozenRun":
        """Create a run over a file that others use too."""
        run = run_over(file, table)
        return cls(table, run, count=len(run), disk_bytes=file.size)

    def part(self, owned: pb.HashRange) -> "FrozenRun":
        """Return the rows in a range of hashes. Only for runs in shared files."""
        run = self.run.between(owned.first, owned.last)
        disk_bytes = self.disk_bytes * len(run) // max(len(self), 1)
        return FrozenRun(self._table, run, count=len(run), disk_bytes=disk_bytes)

    def __len__(self) -> int:
        return self._count

    @property
    def run(self) -> SortedRun:
        """Rows of the run. The first access verifies the file."""
        if self._run is None:
            assert self._file is not None
            self._run = run_over(self._file.read(), self._table, dirty_rows=self._dirty_rows)
        return self._run

    @property
    def damaged(self) -> bool:
        """Whether the file was read and found to be damaged."""
        return self._file is not None and self._file.damaged

    def check_sound(self) -> None:
        """Raise if the file was found to be damaged. Does not read it."""
        if self._file is not None:
            self._file.check_sound()

    @property
    def own_bytes(self) -> int:
        """Bytes of disk that removing the run frees."""
        return 0 if self._file is None else self.disk_bytes

    @classmethod
    def write(
        cls, pieces: Iterable[SortedRun], table: KeyedTable, folder: SpillFolder, *, max_rows: int
    ) -> "FrozenRun":
        """Write rows that come in pieces, in the order of hashes, to a file. Leaves nothing behind if the disk
        fails.
        """
        label = f"the table {table.name!r}"
        with ColumnFileWriter.in_folder(folder, kinds_of(table), max_rows=max_rows, label=label) as file:
            count = dirty = 0
            for piece in pieces:
                append_run(file, piece)
                count += len(piece)
                dirty += piece.dirty_rows
            append_index(file)
            written = file.finish()
        return cls(table, written, count=count, disk_bytes=written.size, dirty_rows=dirty)

    @property
    def dirty_rows(self) -> int:
        return 0 if self._saved else self._dirty_rows

    def mark_written(self) -> None:
        """Record that a checkpoint has taken the changes."""
        self._saved = True

    def may_expire(self, until_us: int) -> bool:
        """Return whether rows may have expired at `until_us`. Does not read the file."""
        return self._table.expires if self._run is None else self._run.may_expire(until_us)

    def has_expired(self, until_us: int) -> None:
        """Record that no live row has expired at `until_us`."""
        self.run.has_expired(until_us)

    def marks_at(self, rows: Rows) -> Marks:
        marks = self.run.marks[rows]
        if not self._saved or not self._dirty_rows:
            return marks
        return as_written(marks)

    def below(self, newer: SortedRun | None, start: int, end: int) -> SortedRun:
        """Return rows `start` to `end` merged with newer ones, which replace rows of the same keys, as a run in
        memory.
        """
        if newer is None:
            rows = np.arange(start, end, dtype=np.int64)
            return self.run.select(rows, self.marks_at(rows))
        kept = np.ones(end - start, dtype=np.bool_)
        at, held = self.run.find(batch_of(newer, np.arange(len(newer), dtype=np.int64)))
        kept[at.compress(held) - start] = False
        rows = start + np.flatnonzero(kept)
        # Merge one column at a time, to avoid an intermediate copy of all of them.
        hashes = self.run.hashes[rows]
        places = Places([hashes, newer.hashes])
        times = None
        if self.run.times is not None and newer.times is not None:
            times = places.merge([self.run.times[rows], newer.times])
        marks = places.merge([self.marks_at(rows), newer.marks])
        return SortedRun(
            places.merge([hashes, newer.hashes]),
            merged_columns([(key.select(rows) for key in self.run.keys), newer.keys], places),
            merged_columns([(value.select(rows) for value in self.run.values), newer.values], places),
            times,
            marks,
            dirty_rows=int(np.count_nonzero(marks & DIRTY)),
            all_alive=not np.any(marks & DELETED),
        )

    def remove(self) -> None:
        """Remove the file. Readers that have it open can continue."""
        if self._file is not None:
            self._file.remove()


def newest(frozen: Sequence[FrozenRun], overlay: SortedRun | None) -> SortedRun:
    """Merge all frozen runs (newest first) and the `overlay` of newer rows into one run with the newest row of each
    key.

    Deleted rows that are in no file are left out.
    """
    result = overlay
    for frozen_run in frozen:
        result = frozen_run.below(result, 0, len(frozen_run))
    assert result is not None
    return result.without_forgotten()


def merged_parts(
    frozen: Sequence[FrozenRun],
    edges: Hashes,
    table: KeyedTable,
    folder: SpillFolder,
    *,
    complete: bool,
    piece_bytes: int,
) -> list[FrozenRun]:
    """Merge frozen runs (newest first) into one, or into several that begin at `edges`, with the newest row of each
    key.

    `complete` says that there are no older runs, so deleted rows that are in no file can be dropped.
    """
    parts: list[FrozenRun] = []
    cuts = [cuts_at(frozen_run.run.hashes, edges) for frozen_run in frozen]
    try:
        for part in range(len(edges) + 1):
            bounds = [(cut[part], cut[part + 1]) for cut in cuts]
            max_rows = sum(end - start for start, end in bounds)
            pieces = _merged_pieces(frozen, bounds, complete=complete, piece_bytes=piece_bytes)
            parts.append(FrozenRun.write(pieces, table, folder, max_rows=max_rows))
    except BaseException:
        for written_part in parts:
            written_part.remove()
        raise
    return parts


def _merged_pieces(
    frozen: Sequence[FrozenRun], bounds: Sequence[tuple[int, int]], *, complete: bool, piece_bytes: int
) -> Iterator[SortedRun]:
    """Yield the merged rows between the bounds of each run, about `piece_bytes` at a time, at least one piece."""
    at = [start for start, _ in bounds]
    for to in _steps(frozen, bounds, piece_bytes=piece_bytes):
        result: SortedRun | None = None
        for frozen_run, start, end in zip(frozen, at, to, strict=True):
            # If many runs cover different ranges, few of them have rows here.
            if start < end:
                result = frozen_run.below(result, start, end)
        if result is None:
            result = frozen[0].below(None, at[0], at[0])
        yield result.without_forgotten() if complete else result
        at = to


def _steps(frozen: Sequence[FrozenRun], bounds: Sequence[tuple[int, int]], *, piece_bytes: int) -> Iterator[list[int]]:
    """Yield the end of each piece of about `piece_bytes` in each run."""
    row_bytes = max(frozen_run.disk_bytes / max(len(frozen_run), 1) for frozen_run in frozen)
    step = max(int(piece_bytes / max(row_bytes, 1)), 1)
    # Sample the same fraction of hashes of each run, because runs may cover the same or different ranges.
    every = max(step // (_SAMPLES * len(frozen)), 1)
    seen = np.sort(
        np.concatenate(
            [frozen_run.run.hashes[start:end:every] for frozen_run, (start, end) in zip(frozen, bounds, strict=True)]
        )
    )
    # All rows of a hash stay in one piece.
    for first in np.unique(seen[step // every :: step // every]):
        yield [
            start + int(np.searchsorted(frozen_run.run.hashes[start:end], first))
            for frozen_run, (start, end) in zip(frozen, bounds, strict=True)
        ]
    yield [end for _, end in bounds]


def batch_of(run: SortedRun, rows: Rows) -> KeyBatch:
    """Return the keys of some rows of a run, in its order."""
    return KeyBatch(run.hashes[rows], run.keys, places=rows)
