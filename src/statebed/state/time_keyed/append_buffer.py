"""Appended rows on their way to data files: many tiny appends cost what one large append costs.

Rows are collected in groups, each of which becomes one data file of the next checkpoint. Where a group ends depends on
the rows alone: it is complete with the batch by which its rows reach the size of a file. A batch larger than a segment
is sorted, and makes groups of its own. So neither the order of rows inside a batch nor what left memory under pressure
shows in the files, and a complete group that was moved to local disk is a data file already.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.format.segment import SegmentSpec
from statebed.format.segment_writer import ROW_GROUP_BYTES, row_bytes
from statebed.state.memory.sizes import ArrowRows, shown_bytes
from statebed.state.tiers.segments import Segment
from statebed.state.tiers.selection import conformed
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.time_keyed.files import file_bytes
from statebed.state.time_keyed.row_group import MAX_PIECES, RowGroup
from statebed.state.time_keyed.row_merge import ordered_parts


class AppendBuffer:
    """The rows of one table that this subtask appended. Thread-safe; rows carry the columns of `spec.schema`."""

    def __init__(self, tiers: Tiers, *, spec: SegmentSpec, owner: str, segment_bytes: int | None = None) -> None:
        self._tiers = tiers
        self._segment_bytes = segment_bytes or tiers.memory.segment_bytes
        self._group_bytes = max(_group_bytes(tiers), self._segment_bytes)
        # A group of the size of a segment becomes one run.
        self._most_loose = self._segment_bytes * (2 if self._group_bytes == self._segment_bytes else 1)
        self._lock = threading.Lock()
        self.spec = spec
        self.owner = owner
        self._complete: tuple[RowGroup, ...] = ()
        self._open = self._new_group()

    @property
    def groups(self) -> tuple[RowGroup, ...]:
        """All groups, oldest first; the last one takes more rows."""
        with self._lock:
            return (*self._complete, self._open)

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
            self._complete = tuple(group for group in self._complete if not group.is_empty)
        return gone

    def pinned(self) -> tuple[tuple[Segment, ...], tuple[pa.Table, ...]]:
        """Runs and loose rows as of now; the caller unpins each run."""
        runs: list[Segment] = []
        loose: list[pa.Table] = []
        with self._lock:
            for group in (*self._complete, self._open):
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
        # By their values alone: the bytes of buffers differ with the history of an array. Lists count as if they were
        # short, so those of nested columns are looked at, too.
        nested = any(pa.types.is_nested(kind) for kind in table.schema.types)
        if max(nbytes, shown_bytes(table) if nested else 0) > self._segment_bytes:
            self._append_large(table)
        else:
            self._append_piece(table, nbytes)

    def seal(self) -> None:
        """Sort all loose rows into runs; the last group goes on taking rows."""
        for group in self.groups:
            group.seal()

    def spill(self) -> None:
        """Move all rows to local disk."""
        for group in self.groups:
            group.spill()

    def take(self) -> tuple[RowGroup, ...]:
        """Hand over all groups that have rows, and begin a new one; nothing is copied or sorted."""
        with self._lock:
            groups = (*self._complete, self._open)
            self._open.complete = True
            self._complete, self._open = (), self._new_group()
        return tuple(group for group in groups if not group.is_empty)

    def put_back(self, groups: Iterable[RowGroup]) -> None:
        """Take groups back that are older than all others; none of them takes more rows."""
        with self._lock:
            self._complete = (*groups, *self._complete)

    def close(self) -> None:
        """Forget all rows."""
        for group in self.groups:
            group.close()

    def _new_group(self) -> RowGroup:
        return RowGroup(self._tiers, spec=self.spec, owner=self.owner)

    def _append_piece(self, table: pa.Table, nbytes: float) -> None:
        piece = self._open.charged(table)
        with self._lock:
            group = self._open
            group.add(piece)
            group.appended_bytes += nbytes
            if group.appended_bytes >= self._group_bytes:
                group.complete = True
                self._complete, self._open = (*self._complete, group), self._new_group()
        if group.complete or group.loose_bytes >= self._most_loose:
            group.seal_unless_busy()
        elif sum(piece.level == 0 for piece in group.pieces) >= MAX_PIECES:
            group.gather()
        group.offer_loose()

    def _append_large(self, table: pa.Table) -> None:
        """Take a batch as groups of its own. All of it, or nothing when it raises."""
        groups: list[RowGroup] = []
        try:
            for rows in ordered_parts(table, self.spec, limit=self._segment_bytes):
                if not groups or groups[-1].complete:
                    groups.append(self._new_group())
                group = groups[-1]
                group.add_run(rows)
                group.appended_bytes += float(np.sum(row_bytes(rows)))
                group.complete = group.appended_bytes >= self._group_bytes
                self._tiers.memory.make_room()
        except BaseException:
            for group in groups:
                group.close()
            raise
        for group in groups:
            group.complete = True
        with self._lock:
            self._complete = (*self._complete, *groups)


def _group_bytes(tiers: Tiers) -> int:
    """How many bytes of rows a group gets: as many as a file, or fewer where one row group is much of the budget.

    Moving a group to disk takes about two row groups of memory beside the budget.
    """
    whole = file_bytes(tiers)
    return whole if whole >= 4 * ROW_GROUP_BYTES else min(whole, max(tiers.memory.segment_bytes, 1 << 20))
