"""Live files, tombstones and the next sequence of one table of one subtask, as immutable values.

The functions decide on entries alone and read no file. A row is visible if its hash is in its file's owned range and no
tombstone hides it. A tombstone is kept while a file may hold rows that it hides. Rows that are not in a file yet are
passed as `fresh`: entries that describe what they span.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import intersection
from statebed.format.schema import merge_schema_lists
from statebed.state.live import tombstones as marks
from statebed.state.live.tombstones import DeletionKind

FIRST_SEQUENCE = 1
BEGINNING = -(1 << 63)
END = (1 << 63) - 1
"""Bounds of all valid times."""


@dataclass(frozen=True)
class LiveFiles:
    """Live files and tombstones of a table, clipped to the range that its subtask owns."""

    owned: pb.HashRange
    next_sequence: int = FIRST_SEQUENCE
    files: tuple[pb.FileEntry, ...] = ()
    tombstones: tuple[pb.Tombstone, ...] = ()
    schemas: tuple[pb.TableSchema, ...] = ()

    @classmethod
    def restore(cls, parts: Sequence[pb.TableSubtaskCheckpointMetadata], *, owned: pb.HashRange) -> "LiveFiles":
        """Build from the parts of one or more earlier subtasks, clipped to `owned`; nothing is read or rewritten."""
        files = [file for part in parts for file in clipped(part.files, owned)]
        tombstones = [
            mine
            for part in parts
            for tombstone in part.tombstones
            if (mine := marks.clipped(tombstone, owned)) is not None
        ]
        live = cls(
            owned=owned,
            next_sequence=max((part.next_sequence for part in parts), default=FIRST_SEQUENCE),
            files=_join_neighbours(files),
            tombstones=tuple(tombstones),
            schemas=merge_schema_lists(part.schemas for part in parts),
        )
        return live.without_idle_tombstones()

    def delete_range(self, start_us: int, end_us: int, *, fresh: Sequence[pb.FileEntry] = ()) -> "LiveFiles":
        """Delete all rows with start_us <= time < end_us; return the same object if no row is affected.

        Files that hold no other rows are removed unread, one tombstone hides the rest.
        """
        kept = tuple(file for file in self.files if file.min_time_us < start_us or file.max_time_us >= end_us)
        partly = [file for file in (*kept, *fresh) if file.min_time_us < end_us and start_us <= file.max_time_us]
        live = replace(self, files=kept)
        if not all(self._hides_range(file, start_us, end_us) for file in partly):
            start = max(start_us, min(file.min_time_us for file in partly))
            tombstone = marks.of_range(start, end_us, sequence=self.next_sequence, owned=self.owned)
            return live.with_tombstone(tombstone, fresh=fresh)
        return live.without_idle_tombstones(fresh=fresh)

    def delete_rows(self, kind: DeletionKind, rows: pa.Table, *, fresh: Sequence[pb.FileEntry] = ()) -> "LiveFiles":
        """Delete all rows equal to one of `rows` (`_key_hash`, keys, and `_time` or values) with one tombstone."""
        if not rows.num_rows:
            return self
        tombstone = marks.of_rows(kind, rows, sequence=self.next_sequence, owned=self.owned)
        return self.with_tombstone(tombstone, fresh=fresh)

    def with_tombstone(self, tombstone: pb.Tombstone, *, fresh: Sequence[pb.FileEntry] = ()) -> "LiveFiles":
        """Add a tombstone, which takes the next sequence; return the same object if it can hide nothing."""
        if not any(marks.may_hide(tombstone, file) for file in (*self.files, *fresh)):
            return self
        others = self._not_replaced_by(tombstone)
        every = (*others, tombstone)
        kept = self.files
        if marks.kind_of(tombstone) is None:
            kept = tuple(file for file in kept if not self._is_hidden(file, tombstone, every))
        live = replace(self, files=kept, tombstones=every, next_sequence=self.next_sequence + 1)
        return live.without_idle_tombstones(fresh=fresh)

    def append(self, file: pb.FileEntry) -> "LiveFiles":
        """Add a file, whose rows carry `next_sequence`."""
        return replace(self, files=(*self.files, file), next_sequence=self.next_sequence + 1)

    def hidden_until(self, file: pb.FileEntry) -> int | None:
        """Return a time before which every row of the file is known to be deleted, or None."""
        ranges = [
            tombstone
            for tombstone in self.tombstones
            if marks.hides_range(tombstone, file, BEGINNING, file.min_time_us + 1)
        ]
        return max((span.delete_time_range.end_us for span in ranges), default=None)

    def without_idle_tombstones(self, *, fresh: Sequence[pb.FileEntry] = ()) -> "LiveFiles":
        """Remove the tombstones that cannot hide a row of any live file or a fresh row."""
        held = (*self.files, *fresh)
        needed = tuple(
            tombstone for tombstone in self.tombstones if any(marks.may_hide(tombstone, file) for file in held)
        )
        return self if needed == self.tombstones else replace(self, tombstones=needed)

    def _hides_range(self, file: pb.FileEntry, start_us: int, end_us: int) -> bool:
        first, last = max(start_us, file.min_time_us), min(end_us, file.max_time_us + 1)
        around = self._ranges.around(first, last)
        return any(marks.hides_range(tombstone, file, start_us, end_us) for tombstone in around)

    def _not_replaced_by(self, tombstone: pb.Tombstone) -> tuple[pb.Tombstone, ...]:
        span = tombstone.delete_time_range
        is_range = marks.kind_of(tombstone) is None
        maybe = self._ranges.inside(span.start_us, span.end_us) if is_range else self.tombstones
        replaced = {id(other) for other in maybe if marks.replaces(tombstone, other)}
        return tuple(other for other in self.tombstones if id(other) not in replaced)

    def _is_hidden(self, file: pb.FileEntry, newest: pb.Tombstone, every: Sequence[pb.Tombstone]) -> bool:
        """Return whether `every` hides all of a file: these tombstones and the newest, which is a time range."""
        begin, span = file.min_time_us, newest.delete_time_range
        # Unless a range hides its first rows, the others need not be looked at.
        begins_hidden = span.start_us <= begin < span.end_us or self._ranges.around(begin, begin + 1)
        return bool(begins_hidden) and marks.hide_all(every, file)

    @cached_property
    def _ranges(self) -> "_TimeRanges":
        return _TimeRanges.of(self.tombstones)


@dataclass(frozen=True)
class _TimeRanges:
    """Tombstones of time ranges, found by their times: there may be thousands, and few of them matter at a time."""

    tombstones: tuple[pb.Tombstone, ...]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, tombstones: Iterable[pb.Tombstone]) -> "_TimeRanges":
        ranges = tuple(tombstone for tombstone in tombstones if marks.kind_of(tombstone) is None)
        spans = [tombstone.delete_time_range for tombstone in ranges]
        starts, ends = ([span.start_us for span in spans], [span.end_us for span in spans])
        return cls(ranges, np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))

    def around(self, start_us: int, end_us: int) -> list[pb.Tombstone]:
        """Return those that begin no later than start_us and end no earlier than end_us."""
        return self._at((self.starts <= start_us) & (end_us <= self.ends))

    def inside(self, start_us: int, end_us: int) -> list[pb.Tombstone]:
        """Return those that begin no earlier than start_us and end no later than end_us."""
        return self._at((start_us <= self.starts) & (self.ends <= end_us))

    def _at(self, chosen: npt.NDArray[np.bool_]) -> list[pb.Tombstone]:
        return [self.tombstones[place] for place in np.flatnonzero(chosen).tolist()]


def clipped(files: Iterable[pb.FileEntry], owned: pb.HashRange) -> list[pb.FileEntry]:
    """Return the entries that may have rows in the owned range, clipped to it."""
    return [
        _with_owned(file, part)
        for file in files
        if (part := intersection(file.owned, owned)) is not None and _may_hold(file, part)
    ]


def _may_hold(file: pb.FileEntry, owned: pb.HashRange) -> bool:
    return file.min_key_hash <= owned.last and owned.first <= file.max_key_hash


def _with_owned(file: pb.FileEntry, owned: pb.HashRange) -> pb.FileEntry:
    clipped = pb.FileEntry()
    clipped.CopyFrom(file)
    clipped.owned.CopyFrom(owned)
    return clipped


def _join_neighbours(files: Iterable[pb.FileEntry]) -> tuple[pb.FileEntry, ...]:
    """Join entries of one file with adjacent ranges, as after a decrease in parallelism."""
    joined: list[pb.FileEntry] = []
    for file in sorted(files, key=lambda entry: (entry.path, entry.owned.first)):
        last = joined[-1] if joined else None
        if last is not None and last.path == file.path and last.owned.last + 1 == file.owned.first:
            last.owned.last = file.owned.last
        else:
            joined.append(file)
    return tuple(joined)
