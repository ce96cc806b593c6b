"""Where hashes stand in a sorted run: the one index of segments, in memory and in mapped files alike.

A directory of the hashes' upper bits says where the rows begin that start with given bits. Hashes are spread evenly, so
that place is a step or two away. In memory it is built when a run has been asked often enough for that to pay; a run
that goes to a mapped file takes a directory along, which then takes no memory.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from statebed.format.keyhash import Hashes
from statebed.state.columns import Rows

Starts = npt.NDArray[np.int32]

_SMALL_RUN = 4096
_WORTH_A_DIRECTORY = 4
"""Runs that are replaced before a fourth as many keys were looked up as they have rows do without one."""
_CROWDED = 16
"""More rows than this in one place of the directory, and a binary search is faster."""


class HashIndex:
    """Finds hashes in a sorted array of them."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._directory: _Directory | None = None
        self._looked_up = 0
        self.held_bytes = 0
        """Bytes of memory beside the hashes."""

    @classmethod
    def stored(cls, hashes: Hashes, starts: Starts) -> "HashIndex":
        """With a directory that `starts_to_store` made."""
        index = cls(hashes)
        if len(hashes):
            lowest, shift = _span(hashes, places_per_row=0.5)
            # What has no directory is stored with places that are no rows.
            index._directory = _Directory(starts, lowest, shift, crowded=bool(starts[0] < 0))
        return index

    def first_not_below(self, wanted: Hashes) -> Rows:
        """For each wanted hash, in ascending order, the first row with it or a greater one."""
        if self._directory is None:
            # What was asked before counts: the overlay of new keys is another run with every batch.
            worth = self._looked_up >= len(self._hashes) // _WORTH_A_DIRECTORY
            self._looked_up += len(wanted)
            if not worth or len(self._hashes) < _SMALL_RUN:
                return np.searchsorted(self._hashes, wanted)
            self._directory = _Directory.of(self._hashes)
            self.held_bytes = self._directory.starts.nbytes
        return self._directory.first_not_below(self._hashes, wanted)


def starts_to_store(hashes: Hashes) -> Starts:
    """A directory with exactly as many places as there are hashes, to be stored beside them."""
    stored = np.full(len(hashes), -1, dtype=np.int32)
    if len(hashes) < _SMALL_RUN:
        return stored
    directory = _Directory.of(hashes, places_per_row=0.5)
    if not directory.crowded:
        stored[: len(directory.starts)] = directory.starts
    return stored


@dataclass(frozen=True)
class _Directory:
    """Where the rows begin whose hashes start with given bits, over the span of hashes that the run has."""

    starts: Starts
    lowest: np.uint64
    shift: np.uint64
    crowded: bool

    @classmethod
    def of(cls, hashes: Hashes, *, places_per_row: float = 1.0) -> "_Directory":
        lowest, shift = _span(hashes, places_per_row=places_per_row)
        places = hashes - lowest
        places >>= shift
        counts = np.bincount(places.view(np.int64))
        starts = np.zeros(len(counts) + 1, dtype=np.int32)
        np.cumsum(counts, out=starts[1:])
        return cls(starts, lowest, shift, crowded=bool(counts.max() > _CROWDED))

    def first_not_below(self, hashes: Hashes, wanted: Hashes) -> Rows:
        if self.crowded:
            return np.searchsorted(hashes, wanted)
        inside = wanted
        if len(wanted) and (wanted[0] < hashes[0] or wanted[-1] > hashes[-1]):
            inside = np.clip(wanted, hashes[0], hashes[-1])
        place = inside - self.lowest
        place >>= self.shift
        at: Rows = self.starts.take(place.view(np.int64)).astype(np.int64)
        below = np.flatnonzero(hashes.take(at, mode="clip") < wanted)
        while len(below):
            at[below] += 1
            there = at[below]
            below = below[(hashes.take(there, mode="clip") < wanted[below]) & (there < len(hashes))]
        return at


def _span(hashes: Hashes, *, places_per_row: float) -> tuple[np.uint64, np.uint64]:
    """The lowest hash, and by how much a distance from it is shifted to give a place."""
    bits = (len(hashes) - 1).bit_length() - (1 if places_per_row < 1 else 0)
    span = int(hashes[-1]) - int(hashes[0])
    return hashes[0], np.uint64(max(span.bit_length() - bits, 0))
