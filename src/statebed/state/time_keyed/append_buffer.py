"""Appended rows on their way to becoming segments: many tiny appends cost what one large append costs.

Small batches are gathered: copied together once there are many of them, and again until they make a segment, which is
sorted and sealed. So each row is copied a few times in all, and what lies around in small pieces is bounded, and leaves
memory under pressure as segments do. A batch larger than a segment is split into segments of its own. Rows can be read
from the moment they were appended.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from statebed.errors import SpillTimeoutError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.segment import SegmentSpec
from statebed.state.memory.controller import Hold, Offer, Purpose
from statebed.state.memory.sizes import WASTE_FACTOR, ArrowRows, copied, held_bytes, pieces, shown_bytes
from statebed.state.tiers.segments import Segment
from statebed.state.tiers.selection import conformed
from statebed.state.tiers.tier import spanned
from statebed.state.tiers.tiers import Tiers
from statebed.state.time_keyed.row_merge import ordered

MAX_PIECES = 128
"""So many small pieces are copied into one."""


@dataclass(frozen=True, eq=False)
class _Piece:
    rows: pa.Table
    entry: pb.FileEntry
    """What its rows span."""
    hold: Hold
    nbytes: int
    level: int
    """How often its rows were copied together."""


class AppendBuffer:
    """The rows of one table that this subtask appended. Thread-safe; rows carry the columns of `spec.schema`."""

    def __init__(self, tiers: Tiers, *, spec: SegmentSpec, owner: str, segment_bytes: int | None = None) -> None:
        self._tiers = tiers
        self._segment_bytes = segment_bytes or tiers.memory.segment_bytes
        self._lock = threading.Lock()
        self._gathering = threading.Lock()
        self._pieces: tuple[_Piece, ...] = ()
        self._loose_bytes = 0
        self._fresh = 0
        self._offer: Offer | None = None
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

    @property
    def loose_bytes(self) -> int:
        """Of rows that are in no segment yet."""
        return self._loose_bytes

    def spans(self) -> list[pb.FileEntry]:
        """What its rows span, as entries of files would say it."""
        with self._lock:
            return [*(one.entry for one in self._segments), *(one.entry for one in self._pieces)]

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Nobody makes one of several pieces or segments meanwhile; rows that are loose cannot leave memory.

        So whoever holds it still makes no room, and waits for nothing.
        """
        seconds = self._tiers.memory.wait_seconds
        if not self._gathering.acquire(timeout=seconds):
            raise SpillTimeoutError(
                f"another thread has been sorting appended rows of the table {self.spec.table!r} for {seconds:g} s",
                where=self.owner,
                fix="nothing has changed: repeat the call when the machine is less busy",
            )
        try:
            yield
        finally:
            self._gathering.release()

    def remove_where(self, is_gone: Callable[[pb.FileEntry], bool]) -> list[Segment]:
        """Forget, unread, what is wanted gone by its span; gives the segments among it, to be closed. While still."""
        with self._lock:
            gone = [one for one in self._segments if is_gone(one.entry)]
            loose = [one for one in self._pieces if is_gone(one.entry)]
            self._segments = tuple(one for one in self._segments if one not in gone)
            self._pieces = tuple(one for one in self._pieces if one not in loose)
            self._count_loose()
        for piece in loose:
            piece.hold.release()
        self._offer_loose()
        return gone

    def pinned(self) -> tuple[tuple[Segment, ...], tuple[pa.Table, ...]]:
        """Segments and loose rows as of now; who asks unpins each segment."""
        with self._lock:
            for segment in self._segments:
                segment.pin()
            return self._segments, tuple(one.rows for one in self._pieces)

    def append(self, batch: ArrowRows) -> None:
        """Take all rows of the batch, or none when it raises."""
        table = conformed(batch, spec=self.spec)
        if not table.num_rows:
            return
        nbytes = shown_bytes(table)
        if nbytes > self._segment_bytes:
            self.append_split(pieces(table, limit=self._segment_bytes))
            return
        rows = table if held_bytes(table) <= WASTE_FACTOR * nbytes else copied(table)
        hold = self._tiers.memory.hold(self.owner, Purpose.SEGMENTS, rows)
        piece = _Piece(rows, spanned(rows, self.spec), hold, nbytes, level=0)
        with self._lock:
            self._pieces = (*self._pieces, piece)
            self._loose_bytes += nbytes
            self._fresh += 1
            due = self._fresh >= MAX_PIECES or self._loose_bytes >= self._segment_bytes
        if due:
            self._gather()
        self._offer_loose()

    def append_split(self, parts: Iterable[pa.Table]) -> None:
        """Take a large batch that comes in parts, each a segment of its own. All of it, or nothing when it raises."""
        made: list[Segment] = []
        try:
            for part in parts:
                if part.num_rows:
                    rows = ordered(conformed(part, spec=self.spec), self.spec)
                    made.append(self._tiers.segment(rows, spec=self.spec, owner=self.owner))
        except BaseException:
            for segment in made:
                segment.close()
            raise
        with self._lock:
            self._segments = (*self._segments, *made)

    def seal(self) -> None:
        """Make a segment of what is not in one yet."""
        with self.still():
            self._seal()
        self._offer_loose()

    def close(self) -> None:
        """Forget all rows."""
        with self.still(), self._lock:
            segments, self._segments = self._segments, ()
            loose, self._pieces = self._pieces, ()
            self._count_loose()
        self._offer_loose()
        for segment in segments:
            segment.close()
        for piece in loose:
            piece.hold.release()

    def release(self, segments: Iterable[Segment]) -> None:
        """Forget sealed segments, which live on elsewhere."""
        gone = {id(segment) for segment in segments}
        with self._lock:
            self._segments = tuple(one for one in self._segments if id(one) not in gone)

    def put_back(self, segments: Iterable[Segment]) -> None:
        """Have sealed segments again, which are older than all others."""
        with self._lock:
            self._segments = (*segments, *self._segments)

    def _offer_loose(self) -> None:
        """Let loose rows leave memory under pressure, too."""
        memory = self._tiers.memory
        with self._lock:
            nbytes, offer = self._loose_bytes, self._offer
            if offer is None and nbytes:
                self._offer = memory.offer(self.owner, nbytes, self._spill_loose)
            elif offer is not None and not nbytes:
                self._offer = None
        if offer is not None and nbytes:
            offer.touch()
            memory.resize(offer, nbytes)
        elif offer is not None:
            memory.withdraw(offer)

    def _spill_loose(self) -> bool:
        """Seal what is loose, and move it to disk; False while another thread gathers."""
        if not self._gathering.acquire(blocking=False):
            return False
        try:
            segment = self._seal()
        finally:
            self._gathering.release()
        if segment is not None:
            segment.spill()
        with self._lock:
            self._offer = None
        return True

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
                piece = _Piece(rows, spanned(rows, self.spec), hold, shown_bytes(rows), level + 1)
                self._replace(same, (piece,), ())
                level += 1
        finally:
            self._gathering.release()

    def _seal(self) -> Segment | None:
        loose = list(self._pieces)
        if not loose:
            return None
        rows = ordered(pa.concat_tables([piece.rows for piece in loose]), self.spec)
        segment = Segment.in_memory(self._tiers, rows, spec=self.spec, owner=self.owner)
        self._replace(loose, (), (segment,))
        return segment

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
