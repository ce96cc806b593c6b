"""Appended rows on their way to data files: many tiny appends cost what one large append costs.

Rows are collected in groups, each of which becomes one data file of the next checkpoint. Where a group ends depends on
the rows alone: it is full after the batch with which its rows reach the size of a segment. A batch larger than a
segment is sorted and cut into groups of its own. So neither the order of rows inside a batch nor what left memory under
pressure shows in the files, and a full group that was moved to local disk is a data file already.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.format.segment import SegmentSpec
from statebed.format.segment_writer import row_bytes
from statebed.state.memory.sizes import ArrowRows, pieces, shown_bytes
from statebed.state.tiers.segments import Segment
from statebed.state.tiers.selection import conformed
from statebed.state.tiers.tiers import Tiers
from statebed.state.time_keyed.row_group import MAX_PIECES, RowGroup
from statebed.state.time_keyed.row_merge import ordered, ordered_parts, repeats

MOST_LOOSE = 2
"""Number of times the size of a segment that loose rows may take in memory before they are sorted into a run."""


class AppendBuffer:
    """The rows of one table that this subtask appended. Thread-safe; rows carry the columns of `spec.schema`."""

    def __init__(self, tiers: Tiers, *, spec: SegmentSpec, owner: str, segment_bytes: int | None = None) -> None:
        self._tiers = tiers
        self._segment_bytes = segment_bytes or tiers.memory.segment_bytes
        self._lock = threading.Lock()
        self.spec = spec
        self.owner = owner
        self._full: tuple[RowGroup, ...] = ()
        self._open = self._new_group()

    @property
    def groups(self) -> tuple[RowGroup, ...]:
        """All groups, oldest first; the last one takes more rows."""
        with self._lock:
            return (*self._full, self._open)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The sorted runs of all groups."""
        return tuple(run for group in self.groups for run in group.runs)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(group.rows for group in self.groups)

    @property
    def loose_bytes(self) -> int:
        """Bytes of rows that are in no run yet."""
        return sum(group.loose_bytes for group in self.groups)

    def spans(self) -> list[pb.FileEntry]:
        """What its rows span, as entries of files would say it."""
        return [entry for group in self.groups for entry in group.spans()]

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Keep pieces and runs as they are, as `RowGroup.still` does, in all groups."""
        with contextlib.ExitStack() as stack:
            for group in self.groups:
                stack.enter_context(group.still())
            yield

    def remove_where(self, is_gone: Callable[[pb.FileEntry], bool]) -> list[Segment]:
        """Forget, unread, rows by what they span; returns runs among them, which the caller closes. While still."""
        gone = [run for group in self.groups for run in group.remove_where(is_gone)]
        with self._lock:
            self._full = tuple(group for group in self._full if not group.is_empty)
        return gone

    def pinned(self) -> tuple[tuple[Segment, ...], tuple[pa.Table, ...]]:
        """Runs and loose rows as of now; the caller unpins each run."""
        runs: list[Segment] = []
        loose: list[pa.Table] = []
        with self._lock:
            for group in (*self._full, self._open):
                some, rows = group.pinned()
                runs += some
                loose += rows
        return tuple(runs), tuple(loose)

    def append(self, batch: ArrowRows) -> None:
        """Take all rows of the batch, or none when it raises."""
        table = conformed(batch, spec=self.spec)
        if not table.num_rows:
            return
        nbytes = float(np.sum(row_bytes(table)))
        if nbytes > self._segment_bytes:
            self._append_large(table)
        elif shown_bytes(table) > MOST_LOOSE * self._segment_bytes:
            self._append_runs(table, nbytes)
        else:
            self._append_piece(table, nbytes)

    def seal(self) -> None:
        """Sort all loose rows into runs; the last group goes on taking rows."""
        for group in self.groups:
            group.seal()

    def take(self) -> tuple[RowGroup, ...]:
        """Hand over all groups that have rows, and begin a new one; nothing is copied or sorted."""
        with self._lock:
            groups = (*self._full, self._open)
            self._full, self._open = (), self._new_group()
        return tuple(group for group in groups if not group.is_empty)

    def put_back(self, groups: Iterable[RowGroup]) -> None:
        """Take groups back that are older than all others; none of them takes more rows."""
        with self._lock:
            self._full = (*groups, *self._full)

    def close(self) -> None:
        """Forget all rows."""
        for group in self.take():
            group.close()

    def _new_group(self) -> RowGroup:
        return RowGroup(self._tiers, spec=self.spec, owner=self.owner)

    def _append_piece(self, table: pa.Table, nbytes: float) -> None:
        piece = self._open.charged(table)
        with self._lock:
            group = self._open
            group.add(piece)
            full = self._count(nbytes)
        if full or group.loose_bytes > MOST_LOOSE * self._segment_bytes:
            group.seal_unless_busy()
        elif sum(piece.level == 0 for piece in group.pieces) >= MAX_PIECES:
            group.gather()
        group.offer_loose()

    def _count(self, nbytes: float) -> bool:
        """Count bytes of the open group, which have been added to it; returns whether it is full by that."""
        group = self._open
        group.appended_bytes += nbytes
        full = group.appended_bytes >= self._segment_bytes
        if full:
            self._full, self._open = (*self._full, group), self._new_group()
        return full

    def _append_large(self, table: pa.Table) -> None:
        """Take a batch as groups of its own."""
        groups = []
        for run, repeating in self._runs(ordered_parts(table, self.spec, limit=self._segment_bytes)):
            group = self._new_group()
            group.add_run(run, repeats=repeating)
            groups.append(group)
        with self._lock:
            self._full = (*self._full, *groups)

    def _append_runs(self, table: pa.Table, nbytes: float) -> None:
        """Take a batch whose rows take far more memory than their values tell, as runs of one group."""
        limit = self._segment_bytes
        runs = self._runs(ordered(part, self.spec) for part in pieces(table, limit=limit))
        with self._lock:
            for run, repeating in runs:
                self._open.add_run(run, repeats=repeating)
            self._count(nbytes)

    def _runs(self, parts: Iterable[pa.Table]) -> list[tuple[Segment, bool]]:
        """Sorted parts as runs, and whether rows of each have the same key and time. All of them, or none."""
        made: list[tuple[Segment, bool]] = []
        try:
            for rows in parts:
                run = self._tiers.segment(rows, spec=self.spec, owner=self.owner)
                made.append((run, repeats(rows, self.spec.key_columns)))
        except BaseException:
            for run, _ in made:
                run.close()
            raise
        return made
