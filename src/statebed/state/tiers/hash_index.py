"""Where hashes stand in a sorted run: the one index of all tables' segments, in memory and in mapped files alike.

A directory of the hashes' upper bits says where the rows begin that start with given bits. Hashes are spread evenly, so
that place is a step or two away. In memory it is built when a run has been asked often enough for that to pay; a run
that goes to a mapped file takes a directory along, which then takes no memory.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from statebed.arrays.compiled import loops_for
from statebed.arrays.key_hash import Hashes
from statebed.arrays.mutable import Mask, Rows

Starts = npt.NDArray[np.int32]

_SMALL_RUN = 4096
_WORTH_A_DIRECTORY = 16
"""Runs that are replaced before a sixteenth as many keys were looked up as they have rows do without one: what a search
takes longer is what a directory takes for sixteen rows.
"""
_CROWDED = 16
"""More rows than this in one place of the directory, and a binary search is faster."""
_AT_ONCE = 1 << 16
"""Rows that are counted at a time, so that building a directory takes little memory beside it."""


class HashIndex:
    """Finds hashes in a sorted array of them."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._directory: _HashDirectory | None = None
        self._looked_up = 0
        self.held_bytes = 0
        """Bytes of memory beside the hashes."""

    @classmethod
    def stored(cls, hashes: Hashes, starts: Starts) -> "HashIndex":
        """With a directory that `starts_to_store` made."""
        index = cls(hashes)
        if len(starts):
            lowest, shift = _span(hashes, places_per_row=0.5)
            index._directory = _HashDirectory(starts, lowest, shift, crowded=False)
        else:
            # Never one in memory.
            index._directory = _HashDirectory(starts, np.uint64(0), np.uint64(0), crowded=True)
        return index

    @classmethod
    def built(cls, hashes: Hashes) -> "HashIndex":
        """With its directory from the beginning; it never changes."""
        starts = starts_to_store(hashes)
        index = cls.stored(hashes, starts)
        index.held_bytes = starts.nbytes
        return index

    def succeeds(self, older: "HashIndex") -> None:
        """Be asked as often as an index of fewer of these hashes was."""
        self._looked_up = max(self._looked_up, older._looked_up)  # noqa: SLF001 - of this class

    def between(self, start: int, end: int) -> "HashIndex":
        """The index of some neighbouring rows; it takes no memory beside this one."""
        return _IndexPart(self, start, end)

    def find(self, wanted: Hashes) -> tuple[Rows, Mask]:
        """For each wanted hash, in ascending order, the first row with it or a greater one, and whether it has it."""
        if self._directory is None:
            # What was asked before counts: the overlay of new keys is another run with every batch.
            worth = self._looked_up >= len(self._hashes) // _WORTH_A_DIRECTORY
            self._looked_up += len(wanted)
            if not worth or len(self._hashes) < _SMALL_RUN:
                return _searched(self._hashes, wanted)
            self._directory = _HashDirectory.of(self._hashes)
            self.held_bytes = self._directory.starts.nbytes
        return self._directory.find(self._hashes, wanted)

    def spans(self, wanted: Hashes) -> tuple[Rows, Rows]:
        """For each wanted hash that is here, in ascending order, its first row, and the one behind its last."""
        at, equal = self.find(wanted)
        equal[1:] &= wanted[1:] != wanted[:-1]
        return at.compress(equal), np.searchsorted(self._hashes, wanted.compress(equal), side="right")


class _IndexPart(HashIndex):
    """The index of neighbouring rows, by that of all of them."""

    def __init__(self, whole: HashIndex, start: int, end: int) -> None:
        super().__init__(whole._hashes[start:end])  # noqa: SLF001 - of this class
        self._whole = whole
        self._start = start

    def find(self, wanted: Hashes) -> tuple[Rows, Mask]:
        at, equal = self._whole.find(wanted)
        at = at - self._start
        if len(at) and (at[0] < 0 or at[-1] > len(self._hashes)):
            equal = equal & (at >= 0) & (at < len(self._hashes))
            at = np.clip(at, 0, len(self._hashes))
        return at, equal


def starts_to_store(hashes: Hashes) -> Starts:
    """A directory to be stored beside the hashes, not longer than they are; empty when there is no good one."""
    if len(hashes) >= _SMALL_RUN:
        directory = _HashDirectory.of(hashes, places_per_row=0.5)
        if not directory.crowded:
            return directory.starts
    return np.zeros(0, dtype=np.int32)


@dataclass(frozen=True)
class _HashDirectory:
    """Where the rows begin whose hashes start with given bits, over the span of hashes that the run has."""

    starts: Starts
    lowest: np.uint64
    shift: np.uint64
    crowded: bool

    @classmethod
    def of(cls, hashes: Hashes, *, places_per_row: float = 1.0) -> "_HashDirectory":
        lowest, shift = _span(hashes, places_per_row=places_per_row)
        starts = np.zeros((int(hashes[-1] - lowest) >> int(shift)) + 2, dtype=np.int32)
        counts = starts[1:]
        if (loops := loops_for(len(hashes))) is not None:
            most = loops.fill_directory(hashes, lowest, shift, counts)
            return cls(starts, lowest, shift, crowded=most > _CROWDED)
        for first in range(0, len(hashes), _AT_ONCE):
            places = hashes[first : first + _AT_ONCE] - lowest
            places >>= shift
            start = int(places[0])
            places -= places[0]
            counted = np.bincount(places.view(np.int64))
            counts[start : start + len(counted)] += counted.astype(np.int32)
        crowded = bool(counts.max() > _CROWDED)
        np.cumsum(counts, out=counts)
        return cls(starts, lowest, shift, crowded=crowded)

    def find(self, hashes: Hashes, wanted: Hashes) -> tuple[Rows, Mask]:
        if self.crowded:
            return _searched(hashes, wanted)
        if (loops := loops_for(len(wanted))) is not None:
            found: tuple[Rows, Mask] = loops.find(self.starts, self.lowest, self.shift, hashes, wanted)
            return found
        inside = wanted
        if len(wanted) and (wanted[0] < hashes[0] or wanted[-1] > hashes[-1]):
            inside = np.clip(wanted, hashes[0], hashes[-1])
        place = inside - self.lowest
        place >>= self.shift
        at: Rows = self.starts.take(place.view(np.int64)).astype(np.int64)
        there = hashes.take(at)
        equal: Mask = there == wanted
        below = np.flatnonzero(there < wanted)
        next_row, left = at.take(below) + 1, wanted.take(below)
        while len(below):
            at[below] = next_row
            # Behind the last row stands what is smaller than all that got there.
            there = hashes.take(next_row, mode="clip")
            equal[below] = there == left
            still = np.flatnonzero((there < left) & (next_row < len(hashes)))
            below, next_row, left = below.take(still), next_row.take(still) + 1, left.take(still)
        return at, equal


def _searched(hashes: Hashes, wanted: Hashes) -> tuple[Rows, Mask]:
    if (loops := loops_for(len(wanted))) is not None:
        found: tuple[Rows, Mask] = loops.search(hashes, wanted)
        return found
    at = np.searchsorted(hashes, wanted)
    # A hash that is greater than all of them is not equal to the last one.
    return at, hashes.take(at, mode="clip") == wanted if len(hashes) else np.zeros(len(wanted), dtype=np.bool_)


def _span(hashes: Hashes, *, places_per_row: float) -> tuple[np.uint64, np.uint64]:
    """The lowest hash, and by how much a distance from it is shifted to give a place."""
    bits = (len(hashes) - 1).bit_length() - (1 if places_per_row < 1 else 0)
    span = int(hashes[-1]) - int(hashes[0])
    # A processor knows no shift by 64.
    return hashes[0], np.uint64(min(max(span.bit_length() - bits, 0), 63))
