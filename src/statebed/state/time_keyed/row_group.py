"""Groups of appended rows, each of which becomes one data file of the next checkpoint.

Small batches are collected as pieces: copied together once there are many of them, and sorted into a run when they
reach the size of a segment. Each row is copied only a few times, and rows can be read as soon as they are appended.

Under memory pressure a complete group, which accepts no more rows, is evicted as a whole: its runs are merged into one
Parquet file, which already is the file of the checkpoint. A group that is not complete is evicted run by run, and the
checkpoint has to read the runs again. It is the last one to be chosen, because it was used last.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from statebed.errors import SpillTimeoutError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.segment import SegmentSpec
from statebed.state.memory.controller import Hold, Purpose, SpillOffer
from statebed.state.memory.sizes import WASTE_FACTOR, copied, held_bytes, shown_bytes
from statebed.state.tiers.segments import Segment
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.spill_files import ParquetSpill
from statebed.state.tiers.tier import Tier, spanned
from statebed.state.time_keyed.row_merge import ordered, repeats
from statebed.state.time_keyed.row_runs import merged_runs

MAX_PIECES = 128
"""Number of small pieces that are copied into one."""
PARTS_OF_SEGMENT = 4
"""Runs are merged in parts of a segment's bytes divided by this number."""


@dataclass(frozen=True, eq=False)
class GroupPiece:
    """Rows of a group that are not in a run yet."""

    rows: pa.Table
    entry: pb.FileEntry
    """Span of its rows."""
    hold: Hold
    nbytes: int
    level: int
    """Number of times its rows were copied together."""


class RowGroup:
    """Rows that become one file: loose pieces in memory, and sorted runs in any tier. Thread-safe."""

    def __init__(self, tiers: Tiers, *, spec: SegmentSpec, owner: str) -> None:
        self._tiers = tiers
        self._spec = spec
        self._owner = owner
        self._lock = threading.Lock()
        self._gathering = threading.Lock()
        self._pieces: tuple[GroupPiece, ...] = ()
        self._runs: tuple[Segment, ...] = ()
        self._offer: SpillOffer | None = None
        self._repeats = False
        self.complete = False
        """Whether it accepts no more rows."""
        self.appended_bytes = 0.0
        """Bytes of all appended rows, measured by their values; deletions do not lower it."""

    @property
    def runs(self) -> tuple[Segment, ...]:
        """Sorted runs, oldest first."""
        return self._runs

    @property
    def pieces(self) -> tuple[GroupPiece, ...]:
        """Rows that are not in a run yet."""
        return self._pieces

    @property
    def is_empty(self) -> bool:
        with self._lock:
            return not self._pieces and not self._runs

    @property
    def rows(self) -> int:
        """Number of rows."""
        with self._lock:
            return sum(int(piece.rows.num_rows) for piece in self._pieces) + sum(run.rows for run in self._runs)

    @property
    def loose_bytes(self) -> int:
        """Bytes of rows that are not in a run yet."""
        return sum(piece.nbytes for piece in self._pieces)

    @property
    def repeats(self) -> bool:
        """Whether some of its rows may have the same key and time."""
        return self._repeats or len(self._runs) > 1

    def spans(self) -> list[pb.FileEntry]:
        """Return the spans of its rows as file entries."""
        with self._lock:
            return [*(run.entry for run in self._runs), *(piece.entry for piece in self._pieces)]

    def pinned(self) -> tuple[tuple[Segment, ...], tuple[pa.Table, ...]]:
        """Pin and return the current runs and the loose rows; the caller unpins each run."""
        with self._lock:
            for run in self._runs:
                run.pin()
            return self._runs, tuple(piece.rows for piece in self._pieces)

    # ---- changes ---------------------------------------------------------------------------------------------

    def charged(self, rows: pa.Table) -> GroupPiece:
        """Charge rows that are about to be added, and make room for them."""
        nbytes = shown_bytes(rows)
        rows = rows if held_bytes(rows) <= WASTE_FACTOR * nbytes else copied(rows)
        hold = self._tiers.memory.hold(self._owner, Purpose.SEGMENTS, rows)
        return GroupPiece(rows, spanned(rows, self._spec), hold, nbytes, level=0)

    def add(self, piece: GroupPiece) -> None:
        """Add a piece to the loose rows."""
        with self._lock:
            self._pieces = (*self._pieces, piece)

    def add_run(self, rows: pa.Table) -> None:
        """Add rows that are already sorted. The caller makes room for them."""
        self._repeats |= repeats(rows, self._spec.key_columns)
        run = self._new_run(rows)
        with self._lock:
            self._runs = (*self._runs, run)

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Keep pieces and runs unchanged: no other thread can sort them, so loose rows cannot be evicted.

        The caller must not make room or wait for anything inside this context.
        """
        seconds = self._tiers.memory.wait_seconds
        if not self._gathering.acquire(timeout=seconds):
            raise SpillTimeoutError(
                f"another thread has been sorting appended rows of the table {self._spec.table!r} for {seconds:g} s",
                where=self._owner,
                fix="nothing has changed: repeat the call when the machine is less busy",
            )
        try:
            yield
        finally:
            self._gathering.release()

    def remove_where(self, is_gone: Callable[[pb.FileEntry], bool]) -> list[Segment]:
        """Remove pieces and runs by span, unread; return the runs, which the caller closes. Call while `still`."""
        with self._lock:
            gone = [run for run in self._runs if is_gone(run.entry)]
            loose = [piece for piece in self._pieces if is_gone(piece.entry)]
            self._runs = tuple(run for run in self._runs if run not in gone)
            self._pieces = tuple(piece for piece in self._pieces if piece not in loose)
        for piece in loose:
            piece.hold.release()
        self.offer_loose()
        return gone

    def take_runs(self) -> tuple[Segment, ...]:
        """Remove and return the runs, which the caller closes or uses otherwise. They are no longer merged."""
        with self._lock:
            runs, self._runs = self._runs, ()
            return runs

    def gather(self) -> None:
        """Copy many small pieces together; do nothing while another thread does."""
        if not self._gathering.acquire(blocking=False):
            return
        try:
            level = 0
            while (same := [piece for piece in self._pieces if piece.level == level]) and len(same) >= MAX_PIECES:
                rows = copied(pa.concat_tables([piece.rows for piece in same]))
                hold = self._tiers.memory.pin(self._owner, Purpose.SEGMENTS, rows)
                piece = GroupPiece(rows, spanned(rows, self._spec), hold, shown_bytes(rows), level + 1)
                self._replace(same, (piece,), ())
                level += 1
        finally:
            self._gathering.release()

    def seal(self) -> None:
        """Sort the loose rows into a run."""
        with self.still():
            self._seal()
        self.offer_loose()

    def spill(self) -> None:
        """Spill all rows to local disk, a complete group as one file."""
        with self.still():
            self._seal()
            for run in self._runs:
                self._move_to_disk(run)
        self.offer_loose()

    def seal_unless_busy(self) -> None:
        """Sort the loose rows into a run unless another thread is doing so."""
        if self._gathering.acquire(blocking=False):
            try:
                self._seal()
            finally:
                self._gathering.release()
            self.offer_loose()

    def offer_loose(self) -> None:
        """Let loose rows be evicted under memory pressure, too."""
        memory = self._tiers.memory
        with self._lock:
            nbytes, offer = self.loose_bytes, self._offer
            if offer is None and nbytes:
                self._offer = memory.offer(self._owner, nbytes, self._spill_loose)
            elif offer is not None and not nbytes:
                self._offer = None
        if offer is not None and nbytes:
            offer.touch()
            memory.resize(offer, nbytes)
        elif offer is not None:
            memory.withdraw(offer)

    def close(self) -> None:
        """Discard all rows; pinned runs are closed with their last pin."""
        with self.still():
            runs = self._emptied()
        for run in runs:
            run.close()

    def abandon(self) -> None:
        """Discard all rows immediately; reads in progress fail."""
        with self.still():
            runs = self._emptied()
        for run in runs:
            run.abandon()

    def _emptied(self) -> tuple[Segment, ...]:
        with self._lock:
            runs, self._runs = self._runs, ()
            loose, self._pieces = self._pieces, ()
        for piece in loose:
            piece.hold.release()
        self.offer_loose()
        return runs

    def _new_run(self, rows: pa.Table) -> Segment:
        run = Segment.in_memory(self._tiers, rows, spec=self._spec, owner=self._owner)
        run.leave = partial(self._spill_run, run)
        return run

    def _spill_loose(self) -> bool:
        """Sort the loose rows into a run and spill it; return False if another thread is sorting."""
        if not self._gathering.acquire(blocking=False):
            return False
        try:
            run = self._seal()
            if run is not None:
                self._move_to_disk(run)
        finally:
            self._gathering.release()
        with self._lock:
            self._offer = None
        return True

    def _spill_run(self, run: Segment) -> bool:
        """Spill a run, or the whole group if it is complete; return False if another thread is sorting."""
        if not self._gathering.acquire(blocking=False):
            return False
        try:
            self._move_to_disk(run)
        finally:
            self._gathering.release()
        return True

    def _move_to_disk(self, run: Segment) -> None:
        runs = self._runs
        together = len(runs) > 1 and not self._pieces and all(sorted_run.tier is Tier.MEMORY for sorted_run in runs)
        if not (self.complete and together and run in runs):
            run.spill()
            return
        whole = self._merged(runs)
        with self._lock:
            taken = self._runs != runs
            if not taken:
                self._runs = (whole,)
        if taken:  # meanwhile, the runs were replaced by the file of a checkpoint
            whole.close()
            run.spill()
            return
        for moved_run in runs:
            whole.uses.add(moved_run.uses)
            moved_run.close()

    def _merged(self, runs: tuple[Segment, ...]) -> Segment:
        """Merge all runs, which are in memory, into one file on local disk."""
        limit = max(1, self._tiers.memory.segment_bytes // PARTS_OF_SEGMENT)
        previous: pa.Table | None = None
        with ParquetSpill(self._spec, self._tiers.folder, owned=WHOLE_SPACE) as spill:
            for rows in merged_runs([run.read() for run in runs], self._spec, limit=limit):
                with self._tiers.memory.charge(self._owner, Purpose.WRITES, shown_bytes(rows)):
                    spill.write(rows)
                beside = rows if previous is None else pa.concat_tables([previous, rows])
                self._repeats = self._repeats or repeats(beside, self._spec.key_columns)
                previous = rows.slice(rows.num_rows - 1)
            whole = Segment.on_disk(self._tiers, spill.finish(), spec=self._spec, owner=self._owner)
        whole.uses.spills += 1
        whole.nbytes = sum(run.nbytes for run in runs)
        return whole

    def _seal(self) -> Segment | None:
        loose = list(self._pieces)
        if not loose:
            return None
        rows = ordered(pa.concat_tables([piece.rows for piece in loose]), self._spec)
        run = self._new_run(rows)
        self._repeats = self._repeats or repeats(rows, self._spec.key_columns)
        self._replace(loose, (), (run,))
        return run

    def _replace(self, old: list[GroupPiece], new: tuple[GroupPiece, ...], runs: tuple[Segment, ...]) -> None:
        """Replace pieces by others, or by runs, atomically for readers."""
        gone = {id(piece) for piece in old}
        with self._lock:
            self._pieces = (*new, *(piece for piece in self._pieces if id(piece) not in gone))
            self._runs = (*self._runs, *runs)
        for piece in old:
            piece.hold.release()
