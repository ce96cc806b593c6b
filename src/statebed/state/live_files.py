"""What is live in one table of one subtask: files, tombstones and the next sequence, as pure values.

Everything here decides on entries alone and reads no file. A row is visible when its hash lies in its file's owned
range and no tombstone hides it. A tombstone hides rows with a hash in its own owned range, a time in its range of time,
and a sequence that is not greater than its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from statebed.errors import CorruptObjectError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import overlaps
from statebed.format.schema import merge_schema_lists

FIRST_SEQUENCE = 1


@dataclass(frozen=True)
class LiveFiles:
    """The live part of a table, clipped to the range that its subtask owns."""

    owned: pb.HashRange
    next_sequence: int = FIRST_SEQUENCE
    files: tuple[pb.FileEntry, ...] = ()
    tombstones: tuple[pb.Tombstone, ...] = ()
    schemas: tuple[pb.TableSchema, ...] = ()

    @classmethod
    def restore(cls, parts: Sequence[pb.TableSubtaskCheckpointMetadata], *, owned: pb.HashRange) -> "LiveFiles":
        """The parts of one or more earlier subtasks, clipped to `owned`: nothing is read or rewritten."""
        files = [
            _with_owned(file, clipped)
            for part in parts
            for file in part.files
            if (clipped := _intersection(file.owned, owned)) is not None and _may_hold(file, clipped)
        ]
        tombstones = [
            _clip_tombstone(tombstone, clipped)
            for part in parts
            for tombstone in part.tombstones
            if (clipped := _intersection(tombstone.owned, owned)) is not None
        ]
        live = cls(
            owned=owned,
            next_sequence=max((part.next_sequence for part in parts), default=FIRST_SEQUENCE),
            files=_join_neighbours(files),
            tombstones=tuple(tombstones),
            schemas=merge_schema_lists(part.schemas for part in parts),
        )
        return live.without_idle_tombstones()

    def delete_before(self, end_us: int) -> "LiveFiles":
        """All rows with a time before `end_us` deleted: files that hold no others leave unread, one tombstone hides the
        rest. Unchanged when no row is affected.
        """
        kept = tuple(file for file in self.files if file.max_time_us >= end_us)
        partly = [file for file in kept if file.min_time_us < end_us]
        live = replace(self, files=kept)
        if any(not self._hidden_before(file, end_us) for file in partly):
            tombstone = pb.Tombstone(
                sequence=self.next_sequence,
                owned=self.owned,
                delete_time_range=pb.DeleteTimeRange(start_us=min(file.min_time_us for file in partly), end_us=end_us),
            )
            older = tuple(one for one in self.tombstones if one.delete_time_range.end_us > end_us)
            live = replace(live, tombstones=(*older, tombstone), next_sequence=self.next_sequence + 1)
        return live.without_idle_tombstones()

    def append(self, file: pb.FileEntry) -> "LiveFiles":
        """With one more file, whose rows carry `next_sequence`."""
        return replace(self, files=(*self.files, file), next_sequence=self.next_sequence + 1)

    def hidden_until(self, file: pb.FileEntry) -> int | None:
        """A time before which every row of the file is known to be deleted, or None."""
        ends = [one.delete_time_range.end_us for one in self.tombstones if _hides_start_of(one, file)]
        return max(ends, default=None)

    def visible(
        self,
        *,
        hashes: npt.NDArray[np.uint64],
        times: npt.NDArray[np.int64],
        sequences: npt.NDArray[np.uint64],
    ) -> npt.NDArray[np.bool_]:
        """Which rows no tombstone hides."""
        visible = np.ones(len(hashes), dtype=np.bool_)
        for one in self.tombstones:
            span = one.delete_time_range
            hidden = in_range(hashes, one.owned) & (sequences <= np.uint64(one.sequence))
            visible &= ~(hidden & (times >= span.start_us) & (times < span.end_us))
        return visible

    def _hidden_before(self, file: pb.FileEntry, end_us: int) -> bool:
        until = self.hidden_until(file)
        return until is not None and until >= end_us

    def without_idle_tombstones(self) -> "LiveFiles":
        """Without the tombstones that can hide no row of any live file."""
        needed = tuple(one for one in self.tombstones if any(_may_hide(one, file) for file in self.files))
        return replace(self, tombstones=needed)


def in_range(hashes: npt.NDArray[np.uint64], owned: pb.HashRange) -> npt.NDArray[np.bool_]:
    """Which hashes lie in the range."""
    return (hashes >= np.uint64(owned.first)) & (hashes <= np.uint64(owned.last))


def _intersection(one: pb.HashRange, other: pb.HashRange) -> pb.HashRange | None:
    if not overlaps(one, other):
        return None
    return pb.HashRange(first=max(one.first, other.first), last=min(one.last, other.last))


def _contains(outer: pb.HashRange, inner: pb.HashRange) -> bool:
    return outer.first <= inner.first and inner.last <= outer.last


def _may_hold(file: pb.FileEntry, owned: pb.HashRange) -> bool:
    return file.min_key_hash <= owned.last and owned.first <= file.max_key_hash


def _hides_start_of(tombstone: pb.Tombstone, file: pb.FileEntry) -> bool:
    return (
        _contains(tombstone.owned, file.owned)
        and tombstone.sequence >= file.max_sequence
        and tombstone.delete_time_range.start_us <= file.min_time_us
    )


def _may_hide(tombstone: pb.Tombstone, file: pb.FileEntry) -> bool:
    span = tombstone.delete_time_range
    return (
        overlaps(tombstone.owned, file.owned)
        and tombstone.sequence >= file.min_sequence
        and span.start_us <= file.max_time_us
        and file.min_time_us < span.end_us
    )


def _with_owned(file: pb.FileEntry, owned: pb.HashRange) -> pb.FileEntry:
    clipped = pb.FileEntry()
    clipped.CopyFrom(file)
    clipped.owned.CopyFrom(owned)
    return clipped


def _clip_tombstone(tombstone: pb.Tombstone, owned: pb.HashRange) -> pb.Tombstone:
    kind = tombstone.WhichOneof("operation")
    if kind != "delete_time_range":
        raise CorruptObjectError(
            f"a time-keyed table has a tombstone of the kind {kind}",
            fix="fork to an older intact epoch",
        )
    clipped = pb.Tombstone()
    clipped.CopyFrom(tombstone)
    clipped.owned.CopyFrom(owned)
    return clipped


def _join_neighbours(files: Iterable[pb.FileEntry]) -> tuple[pb.FileEntry, ...]:
    """Entries of one file whose ranges touch become one entry, as when ranges are joined again."""
    joined: list[pb.FileEntry] = []
    for file in sorted(files, key=lambda entry: (entry.path, entry.owned.first)):
        last = joined[-1] if joined else None
        if last is not None and last.path == file.path and last.owned.last + 1 == file.owned.first:
            last.owned.last = file.owned.last
        else:
            joined.append(file)
    return tuple(joined)
