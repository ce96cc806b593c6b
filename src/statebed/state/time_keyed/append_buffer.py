"""Buffer of appended rows until they become data files: many tiny appends cost as much as one large append.

Rows are collected in groups, each of which becomes one data file of the next checkpoint. The rows alone determine where
a group ends: it is complete with the batch that brings it to the size of a file. A batch larger than a segment is
sorted and split into separate groups. The files therefore depend neither on the order of rows inside a batch nor on
what was evicted under memory pressure, and a complete group that was spilled already is a data file.
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
    """Rows of one table that this subtask appended. Thread-safe; rows have the columns of `spec.schema`."""

    def __init__(self, tiers: Tiers, *, spec: SegmentSpec, owner: str, segment_bytes: int | None = None) -> None:
        self._tiers = tiers
        self._segment_bytes = segment_bytes or tiers.memory.segment_bytes
        self._group_bytes = max(_group_bytes(tiers), self._segment_bytes)
        # A group of the size of a segment becomes one run.
        self._max_loose = self._segment_bytes * (2 if self._group_bytes == self._segment_bytes else 1)
        self._lock = threading.Lock()
        self.spec = spec
        self.owner = owner
        self._complete: tuple[RowGroup, ...] = ()
        self._open = self._new_group()

    @property
    def groups(self) -> tuple[RowGroup, ...]:
        """All groups, oldest first; only the last one still accepts rows."""
        with self._lock:
            return (*self._complete, self._open)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Sorted runs of all groups."""
        return tuple(run for group in self.groups for run in group.runs)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(group.rows for group in self.groups)

    @property
    def loose_bytes(self) -> int:
        """Bytes of rows that are not in a run yet."""
        return sum(group.loose_bytes for group in self.groups)

    def spans(self) -> list[pb.FileEntry]:
        """Return the spans of its rows as file entries."""
        return [entry for group in self.groups for entry in group.spans()]

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Keep the pieces and runs of all groups unchanged, as `RowGroup.still` does for one."""
        with contextlib.ExitStack() as stack:
            for group in self.groups:
                stack.enter_context(group.still())
            yield

    def remove_where(self, is_gone: Callable[[pb.FileEntry], bool]) -> list[Segment]:
        """Remove rows by their span, unread; return the removed runs, which the caller closes. Call while `still`."""
        gone = [run for group in self.groups for run in group.remove_where(is_gone)]
        with self._lock:
            self._complete = tuple(group for group in self._complete if not group.is_empty)
        return gone

    def pinned(self) -> tuple[tuple[Segment, ...], tuple[pa.Table, ...]]:
        """Pin and return the current runs and the loose rows; the caller unpins each run."""
        runs: list[Segment] = []
        loose: list[pa.Table] = []
        with self._lock:
            for group in (*self._complete, self._open):
                group_runs, rows = group.pinned()
                runs += group_runs
                loose += rows
        return tuple(runs), tuple(loose)

    def append(self, batch: ArrowRows) -> None:
        """Append all rows of the batch, or none if it raises."""
        table = conformed(batch, spec=self.spec)
        if not table.num_rows:
            return
        nbytes = float(np.sum(row_bytes(table)))
        # Measure values only: buffer sizes depend on the history of an array. `row_bytes` counts lists as if they were
        # short, so nested columns are measured by `shown_bytes`, too.
        nested = any(pa.types.is_nested(kind) for kind in table.schema.types)
        if max(nbytes, shown_bytes(table) if nested else 0) > self._segment_bytes:
            self._append_large(table)
        else:
            self._append_piece(table, nbytes)

    def seal(self) -> None:
        """Sort all loose rows into runs; the last group still accepts rows."""
        for group in self.groups:
            group.seal()

    def spill(self) -> None:
        """Move all rows to local disk."""
        for group in self.groups:
            group.spill()

    def take(self) -> tuple[RowGroup, ...]:
        """Hand over all groups that have rows, and start a new one; nothing is copied or sorted."""
        with self._lock:
            groups = (*self._complete, self._open)
            self._open.complete = True
            self._complete, self._open = (), self._new_group()
        return tuple(group for group in groups if not group.is_empty)

    def put_back(self, groups: Iterable[RowGroup]) -> None:
        """Put back groups that are older than all others and accept no more rows."""
        with self._lock:
            self._complete = (*groups, *self._complete)

    def close(self) -> None:
        """Discard all rows."""
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
        if group.complete or group.loose_bytes >= self._max_loose:
            group.seal_unless_busy()
        elif sum(piece.level == 0 for piece in group.pieces) >= MAX_PIECES:
            group.gather()
        group.offer_loose()

    def _append_large(self, table: pa.Table) -> None:
        """Append a large batch as separate groups: all of it, or nothing if it raises."""
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
    """Return the maximum bytes of rows in a group: those of a file, or fewer if a row group is much of the budget.

    Moving a group to disk takes about two row groups of memory beyond the budget.
    """
    whole = file_bytes(tiers)
    return whole if whole >= 4 * ROW_GROUP_BYTES else min(whole, max(tiers.memory.segment_bytes, 1 << 20))
