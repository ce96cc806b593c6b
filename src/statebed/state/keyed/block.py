"""A block: the rows of one range of hashes, either in memory, in mapped files, or only in the files of the store.

In memory, a block holds one large run and small runs of keys added since (`LooseRuns`). No key is in two of them, and
values are updated in place.

When a block is spilled, its rows are frozen runs in mapped files, newest first. Rows in memory take precedence over
them: a write to a row of a frozen run adds a new row in memory, with a mark that says whether the files of the store
hold the key. Spilling the block again freezes the rows in memory as one more run. A block knows nothing of memory
budgets and locks; `Blocks` takes care of both.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from statebed.arrays.key_hash import Hashes
from statebed.arrays.mutable import Mask, Rows
from statebed.format import checkpoint_pb2 as pb
from statebed.state.keyed.batch import KeyBatch
from statebed.state.keyed.batch_matches import BatchMatches
from statebed.state.keyed.cuts import cut_at, edges_of, merged_at, piece_end, ranges_between
from statebed.state.keyed.groups import Groups, GroupSpan
from statebed.state.keyed.mapped_run import FrozenRun, batch_of, merged_parts
from statebed.state.keyed.memory_runs import LooseRuns
from statebed.state.keyed.sorted_run import DELETED, DIRTY, STORED, Marks, SortedRun, Times
from statebed.state.keyed.table import KeyedTable
from statebed.state.keyed.written_values import WrittenValues
from statebed.state.live.row_set import ascending
from statebed.state.tiers.spill_folder import SpillFolder

BLOCK_BYTES = 64 << 20
MAX_FROZEN = 4

Pick = Callable[[Marks, Times | None], Mask]
"""Predicate that selects rows by their marks and times."""


class Block:
    """One range of hashes of a keyed table."""

    def __init__(
        self,
        owned: pb.HashRange,
        table: KeyedTable,
        *,
        main: SortedRun | None = None,
        frozen: tuple[FrozenRun, ...] = (),
        split_depth: int = 0,
    ) -> None:
        self.owned = owned
        self.split_depth = split_depth
        """Number of times it was split for lookups of a few keys before it was loaded."""
        self._table = table
        self._loose = LooseRuns(owned, main)
        """Rows in memory."""
        self._frozen = frozen
        self._opened: frozenset[str] | None = None
        """Files of the store whose rows it has, if there may be older ones whose rows it lacks."""
        self.asked = 0
        """Number of keys looked up since the block was spilled."""
        self._located: tuple[KeyBatch, int, int, list[BatchMatches], Rows] | None = None
        """Result of the last lookup, since keys that are read are often written next. Cleared when the runs change."""

    # ---- what it holds -----------------------------------------------------------------------------------

    @property
    def present(self) -> bool:
        """Whether its rows are on this host, in memory or in mapped files."""
        return bool(self._loose.runs) or bool(self._frozen)

    @property
    def opened(self) -> frozenset[str] | None:
        """Files of the store that it was loaded from, or None if it has the rows of all. Otherwise, rows of other files
        are older than those that it has.
        """
        return self._opened

    @property
    def spilled(self) -> bool:
        return bool(self._frozen)

    @property
    def frozen(self) -> tuple[FrozenRun, ...]:
        """Runs in mapped files, newest first."""
        return self._frozen

    @property
    def loose_runs(self) -> tuple[SortedRun, ...]:
        """Runs in memory."""
        return self._loose.runs

    @property
    def lent_bytes(self) -> int:
        """Bytes that writes to all rows would have to copy because a checkpoint is reading them."""
        return sum(run.lent_bytes for run in self._loose.runs)

    @property
    def held_bytes(self) -> int:
        """Bytes in memory."""
        return self._loose.held_bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of `held_bytes` that indexes take."""
        return self._loose.index_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of mapped files."""
        return sum(frozen_run.disk_bytes for frozen_run in self._frozen)

    @property
    def own_bytes(self) -> int:
        """Bytes of mapped files that no other process shares."""
        return sum(frozen_run.own_bytes for frozen_run in self._frozen)

    @property
    def rows(self) -> int:
        """Number of rows in all runs. Larger than the number of keys if rows of frozen runs were overwritten or
        deleted.
        """
        return sum(len(run) for run in self._runs())

    @property
    def dirty_rows(self) -> int:
        return sum(run.dirty_rows for run in self._runs())

    @property
    def dirty_bytes(self) -> int:
        """Approximate size of the changed rows in bytes."""
        return self.dirty_rows * (self.held_bytes + self.disk_bytes) // max(self.rows, 1)

    @property
    def damaged(self) -> bool:
        """Whether a file was read and found to be damaged."""
        return any(frozen_run.damaged for frozen_run in self._frozen)

    def check_sound(self) -> None:
        """Raise if a file was found to be damaged. Reads no file."""
        for frozen_run in self._frozen:
            frozen_run.check_sound()

    def _runs(self) -> Iterator[SortedRun | FrozenRun]:
        """Yield the runs in memory, then the frozen ones, newest first."""
        yield from self._loose.runs
        yield from self._frozen

    # ---- reading -----------------------------------------------------------------------------------------

    def locate(
        self, batch: KeyBatch, start: int, end: int, *, remember: bool = False
    ) -> tuple[list[BatchMatches], Rows]:
        """Look up the keys of rows `start` to `end` of a batch.

        Return the matches in each run, and the rows of the batch whose keys are in no run.
        """
        if self._located is not None and self.has_located(batch, start, end):
            return self._located[3], self._located[4]
        self.asked += end - start
        part = batch.slice(start, end)
        pieces, rows = self._loose.find(part, np.arange(start, end, dtype=np.int64))
        for frozen in self._frozen:
            if not len(rows):
                break
            at, held = frozen.run.find(part.select(rows - start))
            if held.any():
                pieces.append(BatchMatches(frozen.run, frozen, at.compress(held), rows.compress(held)))
                rows = rows.compress(~held)
        assert self._opened is None or not len(rows), "keys were looked up in a block before its older files were read"
        self._located = (batch, start, end, pieces, rows) if remember else None
        return pieces, rows

    def has_located(self, batch: KeyBatch, start: int, end: int) -> bool:
        """Return whether the last lookup was of these rows of a batch, and its result is remembered."""
        return self._located is not None and self._located[0] is batch and self._located[1:3] == (start, end)

    def missing(self, batch: KeyBatch, start: int, end: int) -> bool:
        """Return whether some keys of rows `start` to `end` of a batch are in no run."""
        part = batch.slice(start, end)
        _, rows = self._loose.find(part, np.arange(end - start, dtype=np.int64))
        return len(missing_in(self._frozen, part, rows)) > 0

    def elements(self, groups: Groups, span: GroupSpan, expired_until: int | None) -> list[BatchMatches]:
        """Return the live rows of some groups, run by run; `BatchMatches.rows` holds group numbers."""
        pieces: list[BatchMatches] = []
        newer: list[FrozenRun] = []
        for held_run in self._runs():
            run, frozen = _run_of(held_run), held_run if isinstance(held_run, FrozenRun) else None
            at, rows = groups.candidates(run, span)
            piece = BatchMatches(run, frozen, at, rows).where(run.alive(at, expired_until))
            if frozen is not None:
                newest_rows = self._newest_of(run, np.sort(piece.at), newer)
                piece = piece.where(np.isin(piece.at, newest_rows, assume_unique=True))
                newer.append(frozen)
            self.asked += len(piece.at)
            if len(piece.at):
                pieces.append(piece)
        return pieces

    def element_counts(self, span: GroupSpan) -> Rows:
        """Return an upper bound of the number of rows of each group in this block."""
        counts = np.zeros(len(span), dtype=np.int64)
        for run in self._runs():
            counts += span.counts(_run_of(run))
        return counts

    def rows_in(self, nbytes: int) -> int:
        """Return about how many rows take `nbytes` bytes, at least 1."""
        return int(max(nbytes * self.rows // max(self.held_bytes + self.disk_bytes, 1), 1))

    def forget_found(self) -> None:
        """Clear the remembered result of the last lookup."""
        self._located = None

    def current(self, first: int, last: int, pick: Pick | None) -> Iterator[tuple[SortedRun, Rows, Marks | None]]:
        """Yield the newest rows in a range of hashes that `pick` selects, run by run, with their marks (None if all are
        alive).

        If `pick` is None, select the rows that changed since the last checkpoint.
        """
        newer: list[FrozenRun] = []
        for held_run in self._runs():
            if pick is not None or held_run.dirty_rows:
                run = _run_of(held_run)
                start = int(np.searchsorted(run.hashes, np.uint64(first)))
                end = int(np.searchsorted(run.hashes, np.uint64(last), side="right"))
                if pick is None:
                    rows = run.dirty_between(start, end)
                else:
                    times = None if run.times is None else run.times[start:end]
                    rows = start + np.flatnonzero(pick(run.marks[start:end], times))
                if isinstance(held_run, FrozenRun):
                    rows = self._newest_of(run, rows, newer)
                if len(rows):
                    yield run, rows, held_run.marks_at(rows)
            if isinstance(held_run, FrozenRun):
                newer.append(held_run)

    def _newest_of(self, frozen: SortedRun, rows: Rows, newer: Sequence[FrozenRun]) -> Rows:
        """Return the given rows of a frozen run whose keys are neither in memory nor in a newer frozen run."""
        if len(rows):
            rows = self._loose.find(batch_of(frozen, rows), rows)[1]
        for newer_run in newer:
            if len(rows):
                rows = rows.compress(~newer_run.run.find(batch_of(frozen, rows))[1])
        return rows

    def changed(self, first: int, last: int) -> Iterator[tuple[SortedRun, Rows, Marks | None]]:
        """Yield the changed rows in a range of hashes that a checkpoint has to write.

        Keys that were added and deleted again between two checkpoints are left out.
        """
        for run, rows, marks in self.current(first, last, None):
            if marks is None:
                yield run, rows, marks
                continue
            known = (marks & (DELETED | STORED)) != DELETED
            if known.any():
                yield run, rows[known], marks[known]

    def edges_of_changes(self, *, parts: int) -> Hashes:
        """Return hashes that cut the changed rows into about `parts` equal parts: the first hash of each part but the
        first.
        """
        if parts == 1:
            return np.zeros(0, dtype=np.uint64)
        run = _run_of(max(self._runs(), key=lambda candidate: candidate.dirty_rows))
        return edges_of(run.hashes.take(run.dirty_between(0, len(run))), parts=parts)

    def cut(self, first: int, *, piece_bytes: int) -> int:
        """Return a hash such that the rows of all runs from `first` up to and including it take about `piece_bytes`."""
        end = piece_end([_run_of(run).hashes for run in self._runs()], first, rows=self.rows_in(piece_bytes))
        return self.owned.last if end is None else end

    # ---- writing -----------------------------------------------------------------------------------------

    def put(
        self,
        pieces: Sequence[BatchMatches],
        missing: Rows,
        batch: KeyBatch,
        values: WrittenValues,
        times: Times | None,
        *,
        kept: Mask | None = None,
    ) -> None:
        """Write the rows of a batch that has each key once, both keys that were found and `missing` ones.

        Rows that are not `kept` are deleted instead; they have no values.
        """
        over: list[tuple[Rows, Marks]] = []
        if kept is not None:
            missing = missing.compress(kept[missing])
            pieces = [part for piece in pieces for part in self._without_gone(piece, kept[piece.rows], over)]
        for piece in pieces:
            if piece.frozen is None:
                piece.run.put(piece.at, values.for_existing(piece), _at(times, piece.rows))
            else:
                over.append((piece.rows, (piece.frozen.marks_at(piece.at) & STORED) | DIRTY))
        at_once = values.at if over else values.new
        if len(missing):
            over.append((missing, np.full(len(missing), DIRTY, dtype=np.uint8)))
        if over:
            rows, marks = _by_row(over)
            run = SortedRun.of(batch.hashes[rows], batch.taken(rows), at_once(rows), _at(times, rows), marks)
            self._lay_over(run)
        self._located = None

    @staticmethod
    def _without_gone(piece: BatchMatches, kept: Mask, over: list[tuple[Rows, Marks]]) -> Sequence[BatchMatches]:
        """Delete the rows that are not kept, or add them to those to lay `over`, and return the others."""
        gone = piece.where(~kept)
        gone = gone.where(gone.run.alive(gone.at, None))
        if len(gone.rows) and piece.frozen is None:
            piece.run.delete(ascending(gone.at))
        elif len(gone.rows):
            assert piece.frozen is not None
            over.append((gone.rows, (piece.frozen.marks_at(gone.at) & STORED) | (DELETED | DIRTY)))
        stays = piece.where(kept)
        return [stays] if len(stays.rows) else []

    def delete(self, pieces: Sequence[BatchMatches]) -> None:
        """Delete rows that were found. A row may occur several times."""
        for piece in pieces:
            self._delete(piece.run, piece.frozen, ascending(piece.at))

    def delete_where(self, first: int, last: int, pick: Pick) -> int:
        """Delete the rows in a range of hashes that `pick` selects, and return their number."""
        wanted = {id(run): rows for run, rows, _ in self.current(first, last, pick)}
        for held_run in list(self._runs()):
            run = _run_of(held_run)
            if id(run) in wanted:
                self._delete(run, held_run if isinstance(held_run, FrozenRun) else None, wanted[id(run)])
        return sum(len(rows) for rows in wanted.values())

    def has_expired(self, until_us: int) -> None:
        """Record that all rows expired at `until_us` have been deleted."""
        for run in self._runs():
            run.has_expired(until_us)

    def may_expire(self, until_us: int) -> bool:
        """Return whether the block may hold expired rows."""
        return any(run.may_expire(until_us) for run in self._runs())

    def mark_written(self) -> None:
        """Mark all changes as written to files."""
        for run in self._runs():
            run.mark_written()

    def _delete(self, run: SortedRun, frozen: FrozenRun | None, rows: Rows) -> None:
        if not len(rows):
            return
        if frozen is None:
            run.delete(rows)
            return
        marks = (frozen.marks_at(rows) & STORED) | DELETED | DIRTY
        values = [pa.nulls(len(rows), field.type) for field in self._table.value_schema]
        times = None if run.times is None else np.zeros(len(rows), dtype=np.int64)
        self._lay_over(SortedRun.of(run.hashes[rows], [key.select(rows) for key in run.keys], values, times, marks))

    def _lay_over(self, run: SortedRun) -> None:
        """Add rows whose keys are not in memory."""
        self._loose.add(run, forget=self._forgetful)
        self._located = None

    @property
    def _forgetful(self) -> bool:
        """Whether deleted rows that are in no file can be dropped. If the block is spilled, they may hide rows of
        frozen runs.
        """
        return not self._frozen

    # ---- moving ------------------------------------------------------------------------------------------

    def install(self, rows: SortedRun | tuple[FrozenRun, ...], *, opened: frozenset[str] | None = None) -> None:
        """Install rows loaded from the files of the store, as a run in memory or as frozen runs, newest first. `opened`
        are these files if there are older ones.
        """
        self._located, self._opened = None, opened
        if isinstance(rows, tuple):
            self._frozen = rows
        else:
            self._have(rows)

    def complete(self, older: tuple[FrozenRun, ...]) -> None:
        """Add the rows of the files that were not opened before, newest first."""
        self._frozen = (*self._frozen, *older)
        self._located = self._opened = None

    @property
    def needs_merge(self) -> bool:
        """Whether the runs in memory should be merged into one."""
        return self._loose.worth_merging

    def loose(self) -> SortedRun | None:
        """Merge the rows in memory into one run and return it, or None if there are none."""
        return self._settle() if self._loose.runs else None

    def is_only_run(self, run: SortedRun) -> bool:
        """Return whether `run` is the only run in memory."""
        return len(self._loose.runs) == 1 and self._loose.runs[0] is run

    def freeze(self, frozen: FrozenRun) -> None:
        """Replace the rows in memory by the mapped file they were written to."""
        self._frozen = (frozen, *self._frozen)
        self._have(None)
        self.asked = 0

    def reload(self, rows: SortedRun) -> None:
        """Replace all runs by one run in memory, and remove the mapped files."""
        self._have(rows)
        self._drop_files()

    def forget(self) -> None:
        """Drop all rows; they are read from the files of the store again."""
        self._have(None)
        self._drop_files()

    def to_merge(self, *, max_bytes: int) -> int:
        """Return how many of the newest frozen runs to merge into one, 0 for none.

        The number is chosen so that no older run is small compared with the merged one. All runs of a block that has
        grown too large are merged, so that it can be split.
        """
        if len(self._frozen) > 1 and self.disk_bytes > max_bytes:
            return len(self._frozen)
        if len(self._frozen) <= MAX_FROZEN:
            return 0
        sizes = [frozen_run.disk_bytes for frozen_run in self._frozen]
        count = 2
        for index in range(2, len(sizes)):
            if sizes[index] <= sum(sizes[:index]):
                count = index + 1
        return max(count, len(sizes) - MAX_FROZEN + 1)

    def merge(self, folder: SpillFolder, *, max_bytes: int, piece_bytes: int) -> "list[Block]":
        """Merge frozen runs if `to_merge` says so. Return the block itself, or the smaller blocks that replace it."""
        count = self.to_merge(max_bytes=max_bytes)
        if not count:
            return [self]
        chosen, complete = self._frozen[:count], count == len(self._frozen)
        edges = np.zeros(0, dtype=np.uint64)
        if complete and self.disk_bytes > max_bytes:
            longest = max((frozen_run.run.hashes for frozen_run in chosen), key=len)
            edges = edges_of(longest, parts=-(-3 * self.disk_bytes // (2 * max_bytes)))
        merged = merged_parts(chosen, edges, self._table, folder, complete=complete, piece_bytes=piece_bytes)
        if not len(edges):
            for merged_run in chosen:
                merged_run.remove()
            self._frozen = (merged[0], *self._frozen[count:])
            self._located = None
            return [self]
        loose = self.loose()
        over = [None] * len(merged) if loose is None else cut_at(loose, edges)
        ranges = ranges_between(self.owned, edges)
        return [
            Block(owned, self._table, main=main, frozen=(run,))
            for owned, main, run in zip(ranges, over, merged, strict=True)
        ]

    @property
    def reload_bytes(self) -> int:
        """Approximate memory needed to bring the block back to memory."""
        return 3 * self.disk_bytes

    def split(self, *, block_bytes: int) -> "list[Block]":
        """Return the block itself, or several that replace it if it takes more than `block_bytes` of memory."""
        if self._frozen or self.held_bytes <= block_bytes:
            return [self]
        edges = edges_of(self._loose.runs[0].hashes, parts=max(-(-self.held_bytes // block_bytes), 2))
        if not len(edges):
            return [self]
        parts = zip(ranges_between(self.owned, edges), merged_at(self._loose.runs, edges), strict=True)
        return [Block(owned, self._table, main=part) for owned, part in parts]

    def _settle(self) -> SortedRun:
        """Merge the rows in memory into one run and return it."""
        self._located = None
        return self._loose.as_one(forget=self._forgetful)

    def _have(self, loose: SortedRun | None) -> None:
        """Replace the rows in memory by this run, or by nothing."""
        self._loose = LooseRuns(self.owned, loose)
        self._located = None

    def _drop_files(self) -> None:
        for frozen_run in self._frozen:
            frozen_run.remove()
        self._frozen = ()
        self._located = self._opened = None


def missing_in(frozen: Iterable[FrozenRun], part: KeyBatch, rows: Rows) -> Rows:
    """Return those rows of a batch whose keys are in none of the runs."""
    for frozen_run in frozen:
        if not len(rows):
            break
        rows = rows.compress(~frozen_run.run.find(part.select(rows))[1])
    return rows


def _run_of(held_run: SortedRun | FrozenRun) -> SortedRun:
    return held_run.run if isinstance(held_run, FrozenRun) else held_run


def _by_row(parts: Sequence[tuple[Rows, Marks]]) -> tuple[Rows, Marks]:
    if len(parts) == 1:
        return parts[0]
    # No row is in two parts, so they are merged without a sort.
    first = min(int(rows.min()) for rows, _ in parts)
    count = max(int(rows.max()) for rows, _ in parts) + 1 - first
    all_marks, is_there = np.empty(count, dtype=np.uint8), np.zeros(count, dtype=np.bool_)
    for rows, marks in parts:
        places = rows - first
        all_marks[places], is_there[places] = marks, True
    places = np.flatnonzero(is_there)
    return places + first, all_marks[places]


def _at(times: Times | None, rows: Rows) -> Times | None:
    return None if times is None else times[rows]
