"""A block: the rows of one range of hashes, in memory, in mapped files, or in the files of the store alone.

In memory a block holds a large run, and small ones with the keys that came since (`LooseRuns`); no key is in two of
them. Values change in place in each.

Spilled, its rows are frozen runs in mapped files, newest first, and what is in memory wins over them: a write to a row
of a frozen run lays a new row over it, with the mark that says whether files hold the key. Spilling again freezes what
is in memory into one more run. A block does not know about memory budgets and locks; `Blocks` does.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from statebed.arrays.key_hash import Hashes
from statebed.arrays.mutable import Mask, Rows
from statebed.format import checkpoint_pb2 as pb
from statebed.state.keyed.batch import KeyBatch
from statebed.state.keyed.batch_matches import BatchMatches
from statebed.state.keyed.cuts import cut_at, edges_of, merged_at, ranges_between
from statebed.state.keyed.groups import Groups, GroupSpan
from statebed.state.keyed.mapped_run import FrozenRun, batch_of, merged_parts
from statebed.state.keyed.memory_runs import LooseRuns
from statebed.state.keyed.sorted_run import DELETED, DIRTY, STORED, Marks, SortedRun, Times
from statebed.state.keyed.table import KeyedTable
from statebed.state.keyed.written_values import Written
from statebed.state.live.row_set import ascending
from statebed.state.tiers.spill_folder import SpillFolder

BLOCK_BYTES = 64 << 20
MAX_FROZEN = 4

Pick = Callable[[Marks, Times | None], Mask]
"""Which rows are wanted, by their marks and times."""


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
        """How often it was split before it was loaded, for lookups of a few keys."""
        self._table = table
        self._loose = LooseRuns(owned, main)
        """What is in memory."""
        self._frozen = frozen
        self.asked = 0
        """Keys looked up since it was spilled."""
        self._located: tuple[KeyBatch, int, int, list[BatchMatches], Rows] | None = None
        """What was looked up last: who reads keys often writes them next. Given up when its runs change."""

    # ---- what it holds -----------------------------------------------------------------------------------

    @property
    def present(self) -> bool:
        """Whether its rows are here, in memory or in mapped files."""
        return bool(self._loose.runs) or bool(self._frozen)

    @property
    def spilled(self) -> bool:
        return bool(self._frozen)

    @property
    def frozen(self) -> tuple[FrozenRun, ...]:
        """Its runs in mapped files, newest first."""
        return self._frozen

    @property
    def loose_runs(self) -> tuple[SortedRun, ...]:
        """Its runs in memory."""
        return self._loose.runs

    @property
    def lent_bytes(self) -> int:
        """Bytes that writes to all of its rows would have to copy, because a checkpoint reads them."""
        return sum(run.lent_bytes for run in self._loose.runs)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory."""
        return self._loose.held_bytes

    @property
    def index_bytes(self) -> int:
        """Those of them that find rows."""
        return self._loose.index_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of mapped files."""
        return sum(one.disk_bytes for one in self._frozen)

    @property
    def own_bytes(self) -> int:
        """Bytes of those that no other process uses."""
        return sum(one.own_bytes for one in self._frozen)

    @property
    def rows(self) -> int:
        """Rows of all runs: more than there are keys where some were written or deleted again."""
        return sum(len(one) for one in self._runs())

    @property
    def dirty_rows(self) -> int:
        return sum(one.dirty_rows for one in self._runs())

    @property
    def dirty_bytes(self) -> int:
        """About what the changed rows take."""
        return self.dirty_rows * (self.held_bytes + self.disk_bytes) // max(self.rows, 1)

    @property
    def damaged(self) -> bool:
        """Whether a file was read and found to be damaged."""
        return any(one.damaged for one in self._frozen)

    def check_sound(self) -> None:
        """Raise if a file was found to be damaged; none is read for that."""
        for one in self._frozen:
            one.check_sound()

    def _runs(self) -> Iterator[SortedRun | FrozenRun]:
        """Its runs: those of memory, then frozen ones, newest first."""
        yield from self._loose.runs
        yield from self._frozen

    # ---- reading -----------------------------------------------------------------------------------------

    def locate(
        self, batch: KeyBatch, start: int, end: int, *, remember: bool = False
    ) -> tuple[list[BatchMatches], Rows]:
        """Where the keys of a part of a batch are, and which rows of the batch are nowhere."""
        self.asked += end - start
        if self._located is not None and self._located[0] is batch and self._located[1:3] == (start, end):
            return self._located[3], self._located[4]
        part = batch.slice(start, end)
        pieces, rows = self._loose.find(part, np.arange(start, end, dtype=np.int64))
        for frozen in self._frozen:
            if not len(rows):
                break
            at, held = frozen.run.find(part.select(rows - start))
            if held.any():
                pieces.append(BatchMatches(frozen.run, frozen, at.compress(held), rows.compress(held)))
                rows = rows.compress(~held)
        self._located = (batch, start, end, pieces, rows) if remember else None
        return pieces, rows

    def elements(self, groups: Groups, span: GroupSpan, expired_until: int | None) -> list[BatchMatches]:
        """Return the stored rows of some groups, run by run; `BatchMatches.rows` are the numbers of the groups."""
        pieces: list[BatchMatches] = []
        newer: list[FrozenRun] = []
        for one in self._runs():
            run, frozen = _run_of(one), one if isinstance(one, FrozenRun) else None
            at, rows = groups.candidates(run, span)
            piece = BatchMatches(run, frozen, at, rows).where(run.alive(at, expired_until))
            if frozen is not None:
                piece = piece.where(np.isin(piece.at, self._newest_of(run, piece.at, newer), assume_unique=True))
                newer.append(frozen)
            self.asked += len(piece.at)
            if len(piece.at):
                pieces.append(piece)
        return pieces

    def element_counts(self, span: GroupSpan) -> Rows:
        """At most how many rows each of some groups has here."""
        counts = np.zeros(len(span), dtype=np.int64)
        for one in self._runs():
            counts += span.counts(_run_of(one))
        return counts

    def rows_in(self, nbytes: int) -> int:
        """About how many rows take this many bytes, at least 1."""
        return int(max(nbytes * self.rows // max(self.held_bytes + self.disk_bytes, 1), 1))

    def forget_found(self) -> None:
        """Remember no keys that were looked up."""
        self._located = None

    def current(self, first: int, last: int, pick: Pick | None) -> Iterator[tuple[SortedRun, Rows, Marks | None]]:
        """The newest rows of keys in a range of hashes that `pick` wants, run by run, with their marks, or None where
        all are alive.

        None wants those that changed since the last checkpoint.
        """
        newer: list[FrozenRun] = []
        for one in self._runs():
            if pick is not None or one.dirty_rows:
                run = _run_of(one)
                start = int(np.searchsorted(run.hashes, np.uint64(first)))
                end = int(np.searchsorted(run.hashes, np.uint64(last), side="right"))
                if pick is None:
                    rows = run.dirty_between(start, end)
                else:
                    times = None if run.times is None else run.times[start:end]
                    rows = start + np.flatnonzero(pick(run.marks[start:end], times))
                if isinstance(one, FrozenRun):
                    rows = self._newest_of(run, rows, newer)
                if len(rows):
                    yield run, rows, one.marks_at(rows)
            if isinstance(one, FrozenRun):
                newer.append(one)

    def _newest_of(self, frozen: SortedRun, rows: Rows, newer: Sequence[FrozenRun]) -> Rows:
        """Those rows of a frozen run whose keys are neither in memory nor in newer frozen ones."""
        if len(rows):
            rows = self._loose.find(batch_of(frozen, rows), rows)[1]
        for one in newer:
            if len(rows):
                rows = rows.compress(~one.run.find(batch_of(frozen, rows))[1])
        return rows

    def changed(self, first: int, last: int) -> Iterator[tuple[SortedRun, Rows, Marks | None]]:
        """Rows in a range of hashes that files must learn of; a key that came and went between checkpoints is none."""
        for run, rows, marks in self.current(first, last, None):
            if marks is None:
                yield run, rows, marks
                continue
            known = (marks & (DELETED | STORED)) != DELETED
            if known.any():
                yield run, rows[known], marks[known]

    def edges_of_changes(self, *, parts: int) -> Hashes:
        """Hashes that cut the changed rows into about this many parts: first hashes of all but the first part."""
        if parts == 1:
            return np.zeros(0, dtype=np.uint64)
        run = _run_of(max(self._runs(), key=lambda one: one.dirty_rows))
        return edges_of(run.hashes.take(run.dirty_between(0, len(run))), parts=parts)

    def cut(self, first: int, *, piece_bytes: int) -> int:
        """A hash of the block so that the rows from `first` up to and with it take about as many bytes."""
        hashes = _run_of(max(self._runs(), key=len)).hashes
        end = int(np.searchsorted(hashes, np.uint64(first))) + self.rows_in(piece_bytes)
        return self.owned.last if end >= len(hashes) else int(hashes[end])

    # ---- writing -----------------------------------------------------------------------------------------

    def put(
        self, pieces: Sequence[BatchMatches], missing: Rows, batch: KeyBatch, values: Written, times: Times | None
    ) -> None:
        """Write rows of a batch, each key once: those that were found, and those that were not."""
        over: list[tuple[Rows, Marks]] = []
        for piece in pieces:
            if piece.frozen is None:
                piece.run.put(piece.at, values.found(piece), _at(times, piece.rows))
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

    def delete(self, pieces: Sequence[BatchMatches]) -> None:
        """Delete rows that were found; they may have been found several times."""
        for piece in pieces:
            self._delete(piece.run, piece.frozen, ascending(piece.at))

    def delete_where(self, first: int, last: int, pick: Pick) -> int:
        """Delete the rows in a range of hashes that are wanted and alive, and give their number."""
        wanted = {id(run): rows for run, rows, _ in self.current(first, last, pick)}
        for one in list(self._runs()):
            run = _run_of(one)
            if id(run) in wanted:
                self._delete(run, one if isinstance(one, FrozenRun) else None, wanted[id(run)])
        return sum(len(rows) for rows in wanted.values())

    def has_expired(self, until_us: int) -> None:
        """Rows whose time is over have all been deleted."""
        for one in self._runs():
            one.has_expired(until_us)

    def may_expire(self, until_us: int) -> bool:
        """Whether it is worth looking for rows whose time is over."""
        return any(one.may_expire(until_us) for one in self._runs())

    def mark_written(self) -> None:
        """All changes are in files now."""
        for one in self._runs():
            one.mark_written()

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
        """Add rows whose keys are in no run of memory."""
        self._loose.add(run, forget=self._forgetful)
        self._located = None

    @property
    def _forgetful(self) -> bool:
        """Whether what is deleted and in no file can be forgotten: it may hide rows of frozen runs."""
        return not self._frozen

    # ---- moving ------------------------------------------------------------------------------------------

    def install(self, rows: SortedRun | tuple[FrozenRun, ...]) -> None:
        """Have its rows here, as files of the store have them; frozen runs newest first."""
        self._located = None
        if isinstance(rows, tuple):
            self._frozen = rows
        else:
            self._have(rows)

    @property
    def worth_settling(self) -> bool:
        """Whether what lies in memory should become one run."""
        return self._loose.worth_merging

    def loose(self) -> SortedRun | None:
        """What lies in memory, as one run; None: nothing."""
        return self._settle() if self._loose.runs else None

    def is_just(self, run: SortedRun) -> bool:
        """Whether this run is all that lies in memory."""
        return len(self._loose.runs) == 1 and self._loose.runs[0] is run

    def freeze(self, frozen: FrozenRun) -> None:
        """Leave memory: what was loose is in a mapped file now."""
        self._frozen = (frozen, *self._frozen)
        self._have(None)
        self.asked = 0

    def come_back(self, rows: SortedRun) -> None:
        """Have all of its rows in memory, and no files."""
        self._have(rows)
        self._drop_files()

    def forget(self) -> None:
        """Give everything up, to be read from the files of the store again."""
        self._have(None)
        self._drop_files()

    def to_merge(self, *, most_bytes: int) -> int:
        """How many of the newest frozen runs should become one: none, or as many as no older one is small against; all
        of a block that has become large, so that it can be split.
        """
        if len(self._frozen) > 1 and self.disk_bytes > most_bytes:
            return len(self._frozen)
        if len(self._frozen) <= MAX_FROZEN:
            return 0
        sizes = [one.disk_bytes for one in self._frozen]
        count = 2
        for index in range(2, len(sizes)):
            if sizes[index] <= sum(sizes[:index]):
                count = index + 1
        return max(count, len(sizes) - MAX_FROZEN + 1)

    def merge(self, folder: SpillFolder, *, most_bytes: int, piece_bytes: int) -> "list[Block]":
        """Make the frozen runs one that should be; gives the block or, in its place, several that are not so large."""
        count = self.to_merge(most_bytes=most_bytes)
        if not count:
            return [self]
        chosen, complete = self._frozen[:count], count == len(self._frozen)
        edges = np.zeros(0, dtype=np.uint64)
        if complete and self.disk_bytes > most_bytes:
            longest = max((one.run.hashes for one in chosen), key=len)
            edges = edges_of(longest, parts=-(-3 * self.disk_bytes // (2 * most_bytes)))
        made = merged_parts(chosen, edges, self._table, folder, complete=complete, piece_bytes=piece_bytes)
        if not len(edges):
            for one in chosen:
                one.remove()
            self._frozen = (made[0], *self._frozen[count:])
            self._located = None
            return [self]
        loose = self.loose()
        over = [None] * len(made) if loose is None else cut_at(loose, edges)
        ranges = ranges_between(self.owned, edges)
        return [
            Block(owned, self._table, main=main, frozen=(run,))
            for owned, main, run in zip(ranges, over, made, strict=True)
        ]

    @property
    def thaw_bytes(self) -> int:
        """About the memory that coming back to memory takes."""
        return 3 * self.disk_bytes

    def split(self, *, block_bytes: int) -> "list[Block]":
        """The block or, in its place, several that do not take too much memory."""
        if self._frozen or self.held_bytes <= block_bytes:
            return [self]
        edges = edges_of(self._loose.runs[0].hashes, parts=max(-(-self.held_bytes // block_bytes), 2))
        if not len(edges):
            return [self]
        parts = zip(ranges_between(self.owned, edges), merged_at(self._loose.runs, edges), strict=True)
        return [Block(owned, self._table, main=part) for owned, part in parts]

    def _settle(self) -> SortedRun:
        """All rows of memory as one run."""
        self._located = None
        return self._loose.as_one(forget=self._forgetful)

    def _have(self, loose: SortedRun | None) -> None:
        """Have this run in memory, or none."""
        self._loose = LooseRuns(self.owned, loose)
        self._located = None

    def _drop_files(self) -> None:
        for one in self._frozen:
            one.remove()
        self._frozen = ()
        self._located = None


def _run_of(one: SortedRun | FrozenRun) -> SortedRun:
    return one.run if isinstance(one, FrozenRun) else one


def _by_row(parts: Sequence[tuple[Rows, Marks]]) -> tuple[Rows, Marks]:
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part[0] for part in parts])
    marks = np.concatenate([part[1] for part in parts])
    order = np.argsort(rows, kind="stable")
    return rows[order], marks[order]


def _at(times: Times | None, rows: Rows) -> Times | None:
    return None if times is None else times[rows]
