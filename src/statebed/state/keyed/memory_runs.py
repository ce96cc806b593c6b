"""Runs of a block in memory: one large run, and small ones of keys added since.

No key is in two of them. New keys form a run. Small runs of about the same size are merged a few at a time. All of them
are merged into the large one when they reach half its size, so each row is copied only a few times. Until then, hints
say which small runs may have a key, so their number hardly affects lookups, in particular those of new keys. When no
new keys are added, the small runs are merged into the large one as soon as searching them has cost as much as the
merge.
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
from statebed.state.memory.pages import count_processed

_ALIKE = 4
"""Number of small runs of about the same size that are merged into one."""
_MAX_SMALL = 8
"""Maximum number of small runs. A hint has one bit for each of them."""
_LARGEST = 2
"""The large run has at least this many times the rows of all others together: it is the most expensive to merge."""
_WORTH_MERGING = 2
"""Number of rows that can be merged and indexed in the time that one lookup in the small runs takes."""
_SMALL_BITS = 10
"""Runs of fewer than 2 to this power rows count as the same size."""
_PLACES_PER_ROW = 3
_FEW_ROWS = 1 << 12
"""Small runs with fewer rows in total have no hints: they are searched as fast without, and each small block would pay
for them.
"""


class LooseRuns:
    """Runs of a range of hashes in memory."""

    def __init__(self, owned: pb.HashRange, large: SortedRun | None = None) -> None:
        self._owned = owned
        self.runs: tuple[SortedRun, ...] = () if large is None else (large,)
        """The large run, then the small ones, oldest first."""
        self._hints: _Hints | None = None
        self._lookups = 0
        """Number of keys looked up in small runs since the last new key was added."""

    @property
    def held_bytes(self) -> int:
        return sum(run.held_bytes for run in self.runs) + self._hint_bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of `held_bytes` that indexes of runs and hints take."""
        return sum(run.index.held_bytes for run in self.runs) + self._hint_bytes

    @property
    def _hint_bytes(self) -> int:
        return 0 if self._hints is None else self._hints.places

    def find(self, batch: KeyBatch, rows: Rows) -> tuple[list[BatchMatches], Rows]:
        """Look up the keys of a batch; `rows` are their rows in a larger batch.

        Return the matches in each run, and the rows whose keys are in no run.
        """
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
        self._lookups += len(rows)
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
        """Add rows whose keys are in none of the runs. With `forget`, merging drops deleted rows that are in no
        file.
        """
        self._lookups = 0
        if not self.runs:
            self.runs = (run,)
            return
        small = [*self.runs[1:], run]
        if len(self.runs[0]) < _LARGEST * sum(len(small_run) for small_run in small):
            self._have_large(self.runs[0].merged(small, forget=forget))
            return
        count = runs_to_merge([len(small_run) for small_run in small])
        if count > 1:
            first, *others = small[-count:]
            small[-count:] = [first.merged(others, forget=forget)]
        self._have_small(small)

    @property
    def worth_merging(self) -> bool:
        """Whether searching the small runs, since the last new key, has cost as much as merging them into the large
        one.
        """
        return len(self.runs) > 1 and self._lookups * _WORTH_MERGING > sum(len(run) for run in self.runs)

    def as_one(self, *, forget: bool) -> SortedRun:
        """Merge all runs into one and return it."""
        if len(self.runs) > 1:
            large, *small = self.runs
            self._have_large(large.merged(small, forget=forget))
        return self.runs[0]

    def _have_large(self, run: SortedRun) -> None:
        run.index.succeeds(self.runs[0].index)
        self.runs = (run,)
        self._hints, self._lookups = None, 0
        count_processed(run.held_bytes)

    def _have_small(self, small: Sequence[SortedRun]) -> None:
        """Replace the small runs, of which only the last differs from before."""
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
    """Bit mask of the small runs that have rows in each of many equal parts of a range of hashes."""

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
        """Remove the hints of runs from this number on."""
        self._bits &= np.uint8((1 << number) - 1)

    def _place(self, hashes: Hashes) -> Rows:
        place = hashes - self._first
        place >>= self._shift
        return place.view(np.int64)


def runs_to_merge(sizes: Sequence[int]) -> int:
    """Return how many of the newest runs to merge, 1 for none; `sizes` are those of all small runs, oldest first."""
    count = 1
    while (alike := _alike(sizes, count, sum(sizes[-count:]))) - count + 1 >= _ALIKE:
        count = alike
    if len(sizes) - count < _MAX_SMALL:
        return count
    # Too many runs of different sizes: merge the smallest, which is cheapest.
    return alike if alike > count else _alike(sizes, count, sizes[-count - 1])


def _alike(sizes: Sequence[int], count: int, rows: int) -> int:
    """Return how many of the newest runs to merge: `count`, plus older ones of at most the size class of `rows`
    rows.
    """
    while count < len(sizes) and _size_class(sizes[-count - 1]) <= _size_class(rows):
        count += 1
    return count


def _size_class(rows: int) -> int:
    """Return a class that grows by one when the number of rows grows by a factor of _ALIKE."""
    return ((rows >> _SMALL_BITS).bit_length() + 1) // 2


def _bit(number: int) -> np.uint8:
    return np.uint8(1 << number)
