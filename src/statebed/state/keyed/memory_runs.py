"""The runs of a block that are in memory: a large one, and small ones with the keys that came since.

No key is in two of them. New keys make a run; small runs of about one size become one, a few at a time, and all of
them go into the large one when they are half as large, so that a row is copied a few times at most. Meanwhile hints say
which small runs may have a key, so that their number hardly matters to who looks for it, least of all for new keys.
When no new keys come any more, small runs go into the large one as soon as looking into them has cost as much.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from statebed.arrays.key_hash import Hashes
from statebed.arrays.mutable import Rows
from statebed.format import checkpoint_pb2 as pb
from statebed.state.keyed.batch import KeyBatch
from statebed.state.keyed.batch_matches import BatchMatches
from statebed.state.keyed.sorted_run import SortedRun

_ALIKE = 4
"""So many small runs of about one size become one."""
_MOST_SMALL = 8
"""There is a bit for each of them in a hint."""
_LARGEST = 2
"""The large run is so many times as large as all others together: it is merged seldom, at most cost."""
_WORTH_MERGING = 16
"""Merging so many rows, and a new directory of them, takes no longer than a key takes that is in a small run."""
_SMALL_BITS = 10
"""Runs of fewer bits of rows are all of one size."""
_PLACES_PER_ROW = 3
_FEW_ROWS = 1 << 12
"""Of all small runs: so few are searched as fast without hints, and hints take memory in each of many small blocks."""


class LooseRuns:
    """The runs of a range of hashes that are in memory."""

    def __init__(self, owned: pb.HashRange, large: SortedRun | None = None) -> None:
        self._owned = owned
        self.runs: tuple[SortedRun, ...] = () if large is None else (large,)
        """The large one, then the small ones, the oldest first."""
        self._hints: _Hints | None = None
        self._asked = 0
        """Keys that were looked for in small runs, since the last new one came."""

    @property
    def held_bytes(self) -> int:
        return sum(run.held_bytes for run in self.runs) + self._hint_bytes

    @property
    def index_bytes(self) -> int:
        """Of these, what the indexes of runs and the hints take."""
        return sum(run.index.held_bytes for run in self.runs) + self._hint_bytes

    @property
    def _hint_bytes(self) -> int:
        return 0 if self._hints is None else self._hints.places

    def find(self, batch: KeyBatch, rows: Rows) -> tuple[list[BatchMatches], Rows]:
        """Where keys are, which stand in these rows of a larger batch, and which of them are nowhere here."""
        pieces: list[BatchMatches] = []
        if not self.runs or not len(rows):
            return pieces, rows
        large, *small = self.runs
        at, held = large.find(batch)
        if held.all():
            return [BatchMatches(large, None, at, rows)], rows[:0]
        there = np.flatnonzero(held)
        if len(there):
            pieces.append(BatchMatches(large, None, at.take(there), rows.take(there)))
            missing = np.flatnonzero(~held)
            batch, rows = batch.select(missing), rows.take(missing)
        if not small:
            return pieces, rows
        self._asked += len(rows)
        hints = None if self._hints is None else self._hints.of(batch.hashes)
        left = np.ones(len(rows), dtype=np.bool_)
        for number, run in enumerate(small):
            likely = np.flatnonzero(left if hints is None else hints & _bit(number))
            if not len(likely):
                continue
            at, held = run.find(batch.select(likely))
            there = likely.compress(held)
            if len(there):
                pieces.append(BatchMatches(run, None, at.compress(held), rows.take(there)))
                left[there] = False
        return pieces, rows.compress(left)

    def add(self, run: SortedRun, *, forget: bool) -> None:
        """Have rows whose keys are in none of these runs; `forget` what is deleted and in no file when merging."""
        self._asked = 0
        if not self.runs:
            self.runs = (run,)
            return
        small = [*self.runs[1:], run]
        if len(self.runs[0]) < _LARGEST * sum(len(one) for one in small):
            self._have_large(self.runs[0].merged(small, forget=forget))
            return
        count = how_many_become_one([len(one) for one in small])
        if count > 1:
            first, *others = small[-count:]
            small[-count:] = [first.merged(others, forget=forget)]
        self._have_small(small)

    @property
    def worth_merging(self) -> bool:
        """Whether looking into small runs, while no new keys came, has cost as much as making them part of the large
        one.
        """
        return len(self.runs) > 1 and self._asked * _WORTH_MERGING > sum(len(run) for run in self.runs)

    def as_one(self, *, forget: bool) -> SortedRun:
        """All rows as one run, which these become."""
        if len(self.runs) > 1:
            large, *small = self.runs
            self._have_large(large.merged(small, forget=forget))
        return self.runs[0]

    def _have_large(self, run: SortedRun) -> None:
        run.index.succeeds(self.runs[0].index)
        self.runs = (run,)
        self._hints, self._asked = None, 0

    def _have_small(self, small: Sequence[SortedRun]) -> None:
        """Have these small runs, the last of which is another one than before."""
        before, changed = len(self.runs) - 1, len(small) - 1
        self.runs = (self.runs[0], *small)
        rows = sum(len(run) for run in small)
        if rows < _FEW_ROWS:
            self._hints = None
            return
        if self._hints is None or rows * _PLACES_PER_ROW > self._hints.places:
            self._hints, changed = _Hints(self._owned, places=2 * rows * _PLACES_PER_ROW), 0
        elif changed < before:
            self._hints.forget_from(changed)
        for number in range(changed, len(small)):
            self._hints.add(number, small[number].hashes)


class _Hints:
    """For each of many places of a range of hashes, which small runs have rows there: one bit for each run."""

    def __init__(self, owned: pb.HashRange, *, places: int) -> None:
        span = (owned.last - owned.first).bit_length()
        bits = min(places.bit_length(), span)
        self.places = 1 << bits
        self._bits: npt.NDArray[np.uint8] = np.zeros(self.places, dtype=np.uint8)
        self._first = np.uint64(owned.first)
        self._shift = np.uint64(span - bits)

    def of(self, hashes: Hashes) -> npt.NDArray[np.uint8]:
        return self._bits.take(self._place(hashes))

    def add(self, number: int, hashes: Hashes) -> None:
        places = self._place(hashes)
        self._bits[places] = self._bits.take(places) | _bit(number)

    def forget_from(self, number: int) -> None:
        """No run of this number or a greater one is there any more."""
        self._bits &= np.uint8((1 << number) - 1)

    def _place(self, hashes: Hashes) -> Rows:
        place = hashes - self._first
        place >>= self._shift
        return place.view(np.int64)


def how_many_become_one(sizes: Sequence[int]) -> int:
    """How many of the newest runs should be merged, by the sizes of all small runs, the oldest first; 1: none."""
    count = 1
    while (alike := _alike(sizes, count, sum(sizes[-count:]))) - count + 1 >= _ALIKE:
        count = alike
    if len(sizes) - count < _MOST_SMALL:
        return count
    # Too many of different sizes: the smallest ones, which cost least.
    return alike if alike > count else _alike(sizes, count, sizes[-count - 1])


def _alike(sizes: Sequence[int], count: int, rows: int) -> int:
    """So many of the newest runs, and those before them that are not larger than runs of so many rows."""
    while count < len(sizes) and _size_class(sizes[-count - 1]) <= _size_class(rows):
        count += 1
    return count


def _size_class(rows: int) -> int:
    """Grows by one when the number of rows grows by a factor of _ALIKE."""
    return ((rows >> _SMALL_BITS).bit_length() + 1) // 2


def _bit(number: int) -> np.uint8:
    return np.uint8(1 << number)
