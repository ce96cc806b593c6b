"""Index of hashes in a sorted run, which segments of all tables use, in memory and in mapped files.

A directory of the upper bits of the hashes holds the first row for each value of these bits. Hashes are spread evenly,
so the wanted row is only a step or two further. In memory, the directory is built when a run has been searched often
enough for that to pay. A mapped file stores a directory, which then takes no memory.
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
"""A directory is built after the number of keys looked up reaches 1/n of the number of rows: a lookup without one costs
about as much more as a directory costs for n rows.
"""
_CROWDED = 16
"""If one entry of the directory has more rows than this, a binary search is faster."""
_AT_ONCE = 1 << 16
"""Number of rows counted at a time, so that building a directory takes little extra memory."""


class HashIndex:
    """Finds hashes in a sorted array."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._directory: _HashDirectory | None = None
        self._looked_up = 0
        self.held_bytes = 0
        """Bytes of memory besides the hashes."""

    @classmethod
    def stored(cls, hashes: Hashes, starts: Starts) -> "HashIndex":
        """Create an index with a stored directory, which `starts_to_store` built."""
        index = cls(hashes)
        if len(starts):
            lowest, shift = _span(hashes, places_per_row=0.5)
            index._directory = _HashDirectory(starts, lowest, shift, crowded=False)
        else:
            # No directory is ever built in memory.
            index._directory = _HashDirectory(starts, np.uint64(0), np.uint64(0), crowded=True)
        return index

    @classmethod
    def built(cls, hashes: Hashes) -> "HashIndex":
        """Create an index with a directory that is built immediately."""
        starts = starts_to_store(hashes)
        index = cls.stored(hashes, starts)
        index.held_bytes = starts.nbytes
        return index

    def succeeds(self, older: "HashIndex") -> None:
        """Take over the number of lookups from the index of an older run, so that a directory is built as early."""
        self._looked_up = max(self._looked_up, older._looked_up)  # noqa: SLF001 - of this class

    def between(self, start: int, end: int) -> "HashIndex":
        """Return the index of a range of rows, which takes no additional memory."""
        return _IndexPart(self, start, end)

    def find(self, wanted: Hashes) -> tuple[Rows, Mask]:
        """Return the first row with each wanted hash or a greater one, and a mask of exact matches. `wanted` is
        ascending.
        """
        if self._directory is None:
            # Earlier lookups count too, because the run of new keys is replaced with every batch.
            worth = self._looked_up >= len(self._hashes) // _WORTH_A_DIRECTORY
            self._looked_up += len(wanted)
            if not worth or len(self._hashes) < _SMALL_RUN:
                return _searched(self._hashes, wanted)
            self._directory = _HashDirectory.of(self._hashes)
            self.held_bytes = self._directory.starts.nbytes
        return self._directory.find(self._hashes, wanted)

    def spans(self, wanted: Hashes) -> tuple[Rows, Rows]:
        """Return the start and end of the rows of each wanted hash that is in the index. `wanted` is ascending."""
        at, equal = self.find(wanted)
        equal[1:] &= wanted[1:] != wanted[:-1]
        at, wanted = at.compress(equal), wanted.compress(equal)
        return at, ends_of(self._hashes, at, wanted)


class _IndexPart(HashIndex):
    """Index of a range of rows, backed by the index of all rows."""

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


def ends_of(hashes: Hashes, starts: Rows, lasts: Hashes) -> Rows:
    """Return the end of each range of sorted hashes, from its first row and its last hash. `lasts` is ascending."""
    if (loops := loops_for(len(starts))) is not None:
        ends: Rows = loops.ends(hashes, starts, lasts)
        return ends
    return np.searchsorted(hashes, lasts, side="right")


def starts_to_store(hashes: Hashes) -> Starts:
    """Build a directory to store beside the hashes, at most as long as they are. Return an empty one if it would not
    help.
    """
    if len(hashes) >= _SMALL_RUN:
        directory = _HashDirectory.of(hashes, places_per_row=0.5)
        if not directory.crowded:
            return directory.starts
    return np.zeros(0, dtype=np.int32)


@dataclass(frozen=True)
class _HashDirectory:
    """First row for each value of the leading bits of a hash, over the range of hashes in the run."""

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
            largest = loops.fill_directory(hashes, lowest, shift, counts)
            return cls(starts, lowest, shift, crowded=largest > _CROWDED)
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
            places_and_mask: tuple[Rows, Mask] = loops.find(self.starts, self.lowest, self.shift, hashes, wanted)
            return places_and_mask
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
            # Clipping to the last row is safe: its hash is smaller than all that are still searched.
            there = hashes.take(next_row, mode="clip")
            equal[below] = there == left
            still = np.flatnonzero((there < left) & (next_row < len(hashes)))
            below, next_row, left = below.take(still), next_row.take(still) + 1, left.take(still)
        return at, equal


def _searched(hashes: Hashes, wanted: Hashes) -> tuple[Rows, Mask]:
    if (loops := loops_for(len(wanted))) is not None:
        places_and_mask: tuple[Rows, Mask] = loops.search(hashes, wanted)
        return places_and_mask
    at = np.searchsorted(hashes, wanted)
    # A hash greater than all others is clipped to the last one, which it does not equal.
    return at, hashes.take(at, mode="clip") == wanted if len(hashes) else np.zeros(len(wanted), dtype=np.bool_)


def _span(hashes: Hashes, *, places_per_row: float) -> tuple[np.uint64, np.uint64]:
    """Return the lowest hash, and the shift that maps the distance from it to a directory entry."""
    bits = (len(hashes) - 1).bit_length() - (1 if places_per_row < 1 else 0)
    span = int(hashes[-1]) - int(hashes[0])
    # Shifting a 64-bit number by 64 is undefined.
    return hashes[0], np.uint64(min(max(span.bit_length() - bits, 0), 63))
