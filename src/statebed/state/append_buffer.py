"""Appended rows on their way to becoming segments: many tiny appends cost what one large append costs.

Small batches are gathered: copied together once there are many of them, and again until they make a segment, which is
sorted and sealed. So each row is copied a few times in all, and what lies around in small pieces is bounded. A batch
larger than a segment is split into segments of its own. Rows can be read from the moment they were appended.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa

from statebed.format.segment import SegmentSpec, sort_segment
from statebed.state.memory import Hold, Purpose
from statebed.state.segments import Layout, Segment
from statebed.state.selection import ALL_ROWS, Selection, conformed
from statebed.state.sizes import WASTE_FACTOR, ArrowRows, copied, held_bytes, pieces, shown_bytes
from statebed.state.tiers import Tiers

MAX_PIECES = 128
"""So many small pieces are copied into one."""


@dataclass(frozen=True)
class _Piece:
    rows: pa.Table
    hold: Hold
    nbytes: int
    level: int
    """How often its rows were copied together."""


class AppendBuffer:
    """The rows of one table that this subtask appended. Thread-safe; rows carry the columns of `spec.schema`."""

    def __init__(
        self,
        tiers: Tiers,
        *,
        spec: SegmentSpec,
        owner: str,
        layout: Layout = Layout.PARQUET,
        segment_bytes: int | None = None,
    ) -> None:
        self._tiers = tiers
        self._layout = layout
        self._segment_bytes = segment_bytes or tiers.memory.segment_bytes
        self._lock = threading.Lock()
        self._gathering = threading.Lock()
        self._pieces: tuple[_Piece, ...] = ()
        self._loose_bytes = 0
        self._fresh = 0
        self._segments: tuple[Segment, ...] = ()
        self.spec = spec
        self.owner = owner

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The sealed ones, oldest first."""
        return self._segments

    @property
    def rows(self) -> int:
        with self._lock:
            return sum(int(one.rows.num_rows) for one in self._pieces) + sum(one.rows for one in self._segments)

    def append(self, batch: ArrowRows) -> None:
        """Take all rows of the batch, or none when it raises."""
        table = conformed(batch, spec=self.spec)
        if not table.num_rows:
            return
        nbytes = shown_bytes(table)
        if nbytes > self._segment_bytes:
            self._append_segments(table)
            return
        rows = table if held_bytes(table) <= WASTE_FACTOR * nbytes else copied(table)
        piece = _Piece(rows, self._tiers.memory.hold(self.owner, Purpose.SEGMENTS, rows), nbytes, level=0)
        with self._lock:
            self._pieces = (*self._pieces, piece)
            self._loose_bytes += nbytes
            self._fresh += 1
            due = self._fresh >= MAX_PIECES or self._loose_bytes >= self._segment_bytes
        if due:
            self._gather()

    def seal(self) -> None:
        """Make a segment of what is not in one yet."""
        with self._gathering:
            self._seal()

    def scan(self, selection: Selection = ALL_ROWS) -> Iterator[pa.Table]:
        """The wanted rows as of now, a table per segment or piece; one is loaded at a time."""
        with self._lock:
            segments, loose = self._segments, self._pieces
        for segment in segments:
            if segment.may_hold(selection):
                yield segment.read(selection)
        for piece in loose:
            yield selection.apply(piece.rows)

    def prefetch(self, selection: Selection) -> "list[Future[bool]]":
        """Load segments that may hold the wanted rows, in the background."""
        return [segment.prefetch() for segment in self._segments if segment.may_hold(selection)]

    def remove(self, segment: Segment) -> None:
        """Forget a sealed segment, unread: it was deleted, or merged into another."""
        with self._lock:
            self._segments = tuple(one for one in self._segments if one is not segment)
        segment.close()

    def close(self) -> None:
        """Forget all rows."""
        with self._gathering, self._lock:
            segments, self._segments = self._segments, ()
            loose, self._pieces = self._pieces, ()
            self._count_loose()
        for segment in segments:
            segment.close()
        for piece in loose:
            piece.hold.release()

    def _append_segments(self, table: pa.Table) -> None:
        """All pieces of a large batch become segments, which may leave memory again before the last one is made."""
        made: list[Segment] = []
        try:
            for piece in pieces(table, limit=self._segment_bytes):
                rows = sort_segment(piece, spec=self.spec)
                made.append(self._tiers.segment(rows, spec=self.spec, owner=self.owner, layout=self._layout))
        except BaseException:
            for segment in made:
                segment.close()
            raise
        with self._lock:
            self._segments = (*self._segments, *made)

    def _gather(self) -> None:
        """Copy small pieces together, or seal them. One thread does it; others go on appending."""
        if not self._gathering.acquire(blocking=False):
            return
        try:
            if self._loose_bytes >= self._segment_bytes:
                self._seal()
                return
            level = 0
            while (same := [piece for piece in self._pieces if piece.level == level]) and len(same) >= MAX_PIECES:
                rows = copied(pa.concat_tables([piece.rows for piece in same]))
                hold = self._tiers.memory.pin(self.owner, Purpose.SEGMENTS, rows)
                self._replace(same, (_Piece(rows, hold, shown_bytes(rows), level + 1),), ())
                level += 1
        finally:
            self._gathering.release()

    def _seal(self) -> None:
        loose = list(self._pieces)
        if not loose:
            return
        rows = sort_segment(pa.concat_tables([piece.rows for piece in loose]), spec=self.spec).combine_chunks()
        segment = Segment.in_memory(self._tiers, rows, spec=self.spec, owner=self.owner, layout=self._layout)
        self._replace(loose, (), (segment,))

    def _replace(self, old: list[_Piece], new: tuple[_Piece, ...], sealed: tuple[Segment, ...]) -> None:
        """In one step for readers."""
        gone = {id(piece) for piece in old}
        with self._lock:
            self._pieces = (*new, *(piece for piece in self._pieces if id(piece) not in gone))
            self._segments = (*self._segments, *sealed)
            self._count_loose()
        for piece in old:
            piece.hold.release()

    def _count_loose(self) -> None:
        self._loose_bytes = sum(piece.nbytes for piece in self._pieces)
        self._fresh = sum(piece.level == 0 for piece in self._pieces)
