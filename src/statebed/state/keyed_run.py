"""A run: rows of keyed state in memory, sorted by hash, values written in place.

Looking keys up: a directory of the hashes' upper bits says where in the run a hash begins (hashes are spread evenly, so
that place is a step or two away), then keys are compared. Rows carry marks: changed since the last checkpoint, deleted,
and stored, which means that files hold the key as alive.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.format.keyhash import Hashes
from statebed.state.keyed_batch import KeyBatch
from statebed.state.keyed_columns import Column, Mask, Places, Rows, column_of

DIRTY = np.uint8(1)
DELETED = np.uint8(2)
STORED = np.uint8(4)

Times = npt.NDArray[np.int64]

_SMALL_RUN = 4096
_WORTH_A_DIRECTORY = 4
"""Runs that are replaced before a fourth as many keys were looked up as they have rows do without one."""
_CROWDED = 16
"""More rows than this in one place of the directory, and a binary search is faster."""


@dataclass
class Run:
    """Rows sorted by hash, each key once."""

    hashes: Hashes
    keys: tuple[Column, ...]
    values: tuple[Column, ...]
    times: Times | None
    marks: npt.NDArray[np.uint8]
    dirty_rows: int = 0
    _directory: "_Directory | None" = field(default=None, repr=False)
    _looked_up: int = field(default=0, repr=False)

    @classmethod
    def of(
        cls,
        hashes: Hashes,
        keys: Sequence[pa.Array],
        values: Sequence[pa.Array],
        times: Times | None,
        mark: np.uint8,
    ) -> "Run":
        """A copy of rows that are sorted by hash, all with the same marks."""
        return cls(
            hashes=hashes.copy(),
            keys=tuple(column_of(key) for key in keys),
            values=tuple(column_of(value) for value in values),
            times=None if times is None else times.copy(),
            marks=np.full(len(hashes), mark, dtype=np.uint8),
            dirty_rows=len(hashes) if mark & DIRTY else 0,
        )

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def held_bytes(self) -> int:
        columns = sum(column.held_bytes for column in (*self.keys, *self.values))
        times = 0 if self.times is None else self.times.nbytes
        directory = 0 if self._directory is None else self._directory.starts.nbytes
        return columns + times + directory + self.hashes.nbytes + self.marks.nbytes

    def find(self, batch: KeyBatch) -> Rows:
        """The row of each key of the batch, -1 where it is not in the run."""
        found = np.full(len(batch), -1, dtype=np.int64)
        if not len(self):
            return found
        at = self._first_not_below(batch.hashes)
        waiting = np.flatnonzero(self._holds(at, batch.hashes))
        at = at[waiting]
        while len(waiting):
            whole = len(waiting) == len(batch)
            keys = batch if whole else batch.select(waiting)
            equal = np.ones(len(waiting), dtype=np.bool_)
            for column, key in zip(self.keys, keys.keys, strict=True):
                equal &= column.equals(at, key)
            found[waiting[equal]] = at[equal]
            # Another key with the same hash: the one that is looked for may stand behind it.
            waiting, at = waiting[~equal], at[~equal] + 1
            held = self._holds(at, batch.hashes[waiting])
            waiting, at = waiting[held], at[held]
        return found

    def alive(self, rows: Rows, expired_until: int | None) -> Mask:
        """Which of the rows are part of the state."""
        alive: Mask = (self.marks[rows] & DELETED) == 0
        if self.times is not None and expired_until is not None:
            alive &= self.times[rows] > expired_until
        return alive

    def put(self, rows: Rows, values: Sequence[pa.Array], times: Times | None) -> None:
        """Write rows in place."""
        for column, array in zip(self.values, values, strict=True):
            column.put(rows, array)
        if self.times is not None and times is not None:
            self.times[rows] = times
        self._mark(rows, (self.marks[rows] & STORED) | DIRTY)

    def delete(self, rows: Rows) -> None:
        self._mark(rows, self.marks[rows] | DELETED | DIRTY)

    def expired(self, expired_until: int) -> Rows:
        """Rows that are not deleted and whose time is over."""
        if self.times is None:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero((self.times <= expired_until) & ((self.marks & DELETED) == 0))

    def to_write(self) -> Rows:
        """Changed rows that files must learn of; a key that came and went between checkpoints is none."""
        changed = self._dirty()
        # Deleted and not stored.
        gone = (self.marks[changed] & (DELETED | STORED)) == DELETED
        known: Rows = changed[~gone]
        return known

    def mark_written(self) -> None:
        """All changes are in files now: what is alive is stored, what is deleted is not."""
        changed = self._dirty()
        self.marks[changed] = np.where(self.marks[changed] & DELETED, DELETED, STORED)
        self.dirty_rows = 0

    def _dirty(self) -> Rows:
        if not self.dirty_rows:
            return np.zeros(0, dtype=np.int64)
        # The mark is the lowest bit: what is left of it is a boolean already.
        return np.flatnonzero((self.marks & DIRTY).view(np.bool_))

    def merged(self, other: "Run") -> "Run":
        """Both runs as one, without the rows that are deleted and written."""
        places = Places(np.searchsorted(self.hashes, other.hashes), len(self))
        times = None
        if self.times is not None and other.times is not None:
            times = places.merge(self.times, other.times)
        run = Run(
            hashes=places.merge(self.hashes, other.hashes),
            keys=_merged_columns(self.keys, other.keys, places),
            values=_merged_columns(self.values, other.values, places),
            times=times,
            marks=places.merge(self.marks, other.marks),
            dirty_rows=self.dirty_rows + other.dirty_rows,
        )
        forgotten = run.marks == DELETED
        return run.select(np.flatnonzero(~forgotten)) if forgotten.any() else run

    def select(self, rows: Rows) -> "Run":
        marks = self.marks[rows]
        return Run(
            hashes=self.hashes[rows],
            keys=tuple(column.select(rows) for column in self.keys),
            values=tuple(column.select(rows) for column in self.values),
            times=None if self.times is None else self.times[rows],
            marks=marks,
            dirty_rows=int(np.count_nonzero(marks & DIRTY)),
        )

    def _mark(self, rows: Rows, marks: npt.NDArray[np.uint8]) -> None:
        self.dirty_rows += int(np.count_nonzero((self.marks[rows] & DIRTY) == 0))
        self.marks[rows] = marks

    def _holds(self, at: Rows, hashes: Hashes) -> Mask:
        inside = at < len(self)
        equal: Mask = self.hashes[np.minimum(at, len(self) - 1)] == hashes
        return equal & inside

    def _first_not_below(self, hashes: Hashes) -> Rows:
        self._looked_up += len(hashes)
        if len(self) < _SMALL_RUN or self._looked_up < len(self) // _WORTH_A_DIRECTORY:
            return np.searchsorted(self.hashes, hashes)
        if self._directory is None:
            self._directory = _Directory.of(self.hashes)
        return self._directory.first_not_below(self.hashes, hashes)


@dataclass(frozen=True)
class _Directory:
    """Where the rows begin whose hashes start with given bits, over the span of hashes that the run has."""

    starts: npt.NDArray[np.int64]
    lowest: np.uint64
    shift: np.uint64
    crowded: bool

    @classmethod
    def of(cls, hashes: Hashes) -> "_Directory":
        span = int(hashes[-1]) - int(hashes[0])
        shift = np.uint64(max(span.bit_length() - (len(hashes) - 1).bit_length(), 0))
        counts = np.bincount(((hashes - hashes[0]) >> shift).astype(np.int64))
        starts = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=starts[1:])
        return cls(starts, hashes[0], shift, bool(counts.max() > _CROWDED))

    def first_not_below(self, hashes: Hashes, wanted: Hashes) -> Rows:
        if self.crowded:
            return np.searchsorted(hashes, wanted)
        last = np.uint64(len(self.starts) - 2)
        place = np.minimum((np.maximum(wanted, self.lowest) - self.lowest) >> self.shift, last)
        at: Rows = self.starts[place.astype(np.int64)]
        below = np.flatnonzero(hashes[np.minimum(at, len(hashes) - 1)] < wanted)
        while len(below):
            at[below] += 1
            ahead = below[at[below] < len(hashes)]
            below = ahead[hashes[at[ahead]] < wanted[ahead]]
        return at


def _merged_columns(ours: Sequence[Column], theirs: Sequence[Column], places: Places) -> tuple[Column, ...]:
    return tuple(one.merged(other, places) for one, other in zip(ours, theirs, strict=True))  # type: ignore[arg-type]  # columns of one table have one kind
