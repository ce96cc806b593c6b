"""A run: rows of keyed state sorted by hash. In memory, values are written in place.

A lookup uses the run's index to find where a hash begins, then compares keys. Rows carry marks: changed since the last
checkpoint, deleted, and stored, which means that the files of the store hold a live row of the key.

A checkpoint reads a run while the operator keeps writing to it: the run lends its values (`SortedRun.lend`), and the
first write after that copies them. Keys and hashes never change, and marks are copied when the checkpoint takes them.
"""

import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.compiled import loops_for
from statebed.arrays.key_hash import Hashes
from statebed.arrays.mutable import Column, Mask, Places, Rows, column_of
from statebed.state.keyed.batch import KeyBatch
from statebed.state.live.row_set import ascending
from statebed.state.memory.controller import Reservation
from statebed.state.tiers.hash_index import HashIndex

DIRTY = np.uint8(1)
DELETED = np.uint8(2)
STORED = np.uint8(4)

Times = npt.NDArray[np.int64]
Marks = npt.NDArray[np.uint8]

FOR_EVER = (1 << 63) - 1
"""A time later than that of any row."""
_MANY_CHANGES = 16
"""If more than one row in this many has changed, scanning all marks is faster than a list of the changed rows."""


class Loan:
    """Arrays of a run that a checkpoint reads while the run is in use.

    Shared arrays are charged to the run's block. Arrays that the run has replaced, or that outlive it, are held by the
    checkpoint alone, and are charged here until the loan ends.
    """

    def __init__(self, run: "SortedRun", charge: Reservation) -> None:
        self._charge = charge
        # Garbage collection may call `keep` at any moment, while this thread holds the lock.
        self._lock = threading.RLock()
        self._gone = weakref.finalize(run, self.keep, run.shared_bytes + run.value_bytes)
        self._gone.atexit = False
        self.ended = False

    def keep(self, nbytes: int) -> None:
        """Charge the arrays that the run no longer shares."""
        with self._lock:
            if not self.ended:
                self._charge.set(max(nbytes, self._charge.nbytes))

    def end(self) -> None:
        """End the loan, once the checkpoint has read the arrays. A second call does nothing."""
        with self._lock:
            self.ended = True
            self._gone.detach()
            self._charge.release()


@dataclass
class SortedRun:
    """Rows sorted by hash, each key once."""

    hashes: Hashes
    keys: tuple[Column, ...]
    values: tuple[Column, ...]
    times: Times | None
    marks: Marks
    dirty_rows: int = 0
    all_alive: bool = False
    """Whether no row is deleted. False if some may be."""
    writes: int = field(default=0, init=False, repr=False)
    """Number of writes, by which a concurrent copy of the run detects that it is stale."""
    index: HashIndex = field(init=False, repr=False)
    _oldest: int | None = field(default=None, init=False, repr=False)
    _changed: list[Rows] | None = field(default=None, init=False, repr=False)
    """Rows that changed, so that a checkpoint need not scan all marks, or None if they are unknown or too many."""
    _changes: int = field(default=0, init=False, repr=False)
    _loans: list[Loan] = field(default_factory=list, init=False, repr=False)
    """Checkpoints that read the values, some of which may have ended."""

    def __post_init__(self) -> None:
        self.index = HashIndex(self.hashes)
        self._changed = None if self.dirty_rows else []

    @classmethod
    def of(
        cls,
        hashes: Hashes,
        keys: Sequence[Column],
        values: Sequence[pa.Array],
        times: Times | None,
        marks: Marks | np.uint8,
    ) -> "SortedRun":
        """Build a run of rows sorted by hash. Everything is copied but the keys, which must not be changed later."""
        return cls(
            hashes=hashes.copy(),
            keys=tuple(keys),
            values=tuple(column_of(value) for value in values),
            times=None if times is None else times.copy(),
            marks=np.full(len(hashes), marks, dtype=np.uint8),
            dirty_rows=int(np.count_nonzero(np.broadcast_to(marks & DIRTY, len(hashes)))),
            all_alive=not np.any(marks & DELETED),
        )

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def held_bytes(self) -> int:
        columns = sum(column.held_bytes for column in (*self.keys, *self.values))
        times = 0 if self.times is None else self.times.nbytes
        return columns + times + self.index.held_bytes + self.hashes.nbytes + self.marks.nbytes + 8 * self._changes

    @property
    def value_bytes(self) -> int:
        """Bytes of values and times, which a write has to copy while they are lent."""
        times = 0 if self.times is None else self.times.nbytes
        return times + sum(column.held_bytes for column in self.values)

    @property
    def shared_bytes(self) -> int:
        """Bytes of hashes and keys, which never change."""
        return self.hashes.nbytes + sum(column.held_bytes for column in self.keys)

    @property
    def lent_bytes(self) -> int:
        """Bytes that the next write has to copy."""
        return self.value_bytes if any(not loan.ended for loan in self._loans) else 0

    def lend(self, charge: Reservation) -> "tuple[SortedRun, Loan]":
        """Return the run as it is now, for another thread to read. It shares the arrays until they are written."""
        values = tuple(column.slice(0, len(self)) for column in self.values)
        taken, loan = replace(self, values=values, marks=self.marks.copy()), Loan(self, charge)
        taken.index = self.index
        self._loans = [*(earlier for earlier in self._loans if not earlier.ended), loan]
        return taken, loan

    def _call_in_loans(self) -> None:
        """Copy the values, if they are lent, before they are written."""
        loans, self._loans = [loan for loan in self._loans if not loan.ended], []
        if not loans:
            return
        nbytes = self.value_bytes
        self.values = tuple(column.copied() for column in self.values)
        self.times = None if self.times is None else self.times.copy()
        for loan in loans:
            loan.keep(nbytes)

    def find(self, batch: KeyBatch) -> tuple[Rows, Mask]:
        """Return the row of each key of the batch, and a mask of the keys that are here. Rows of other keys are
        meaningless.
        """
        at, same_hash = self.index.find(batch.hashes)
        if not same_hash.any():
            return at, same_hash
        if at[-1] == len(self):
            np.minimum(at, len(self) - 1, out=at)
        held = self._equal(at, batch, batch.every_place, same_hash)
        waiting = np.flatnonzero(held != same_hash)
        while len(waiting):
            # Another key has the same hash: the wanted one may be in the next row.
            behind = at.take(waiting) + 1
            there = (behind < len(self)) & (self.hashes.take(behind, mode="clip") == batch.hashes.take(waiting))
            waiting, behind = waiting.compress(there), behind.compress(there)
            at[waiting] = behind
            equal = self._equal(behind, batch, batch.place(waiting), np.ones(len(waiting), dtype=np.bool_))
            held[waiting] = equal
            waiting = waiting.compress(~equal)
        return at, held

    def _equal(self, at: Rows, batch: KeyBatch, places: Rows, maybe: Mask) -> Mask:
        """Return whether the keys of rows `at` equal those at `places` of a batch. Only rows in `maybe` are
        compared.
        """
        for column, key in zip(self.keys, batch.columns, strict=True):
            maybe = column.matches(at, key, places, maybe)
        return maybe

    def alive(self, rows: Rows, expired_until: int | None) -> Mask | None:
        """Return a mask of the rows that are neither deleted nor expired, or None if all are alive."""
        alive: Mask | None = None if self.all_alive else (self.marks.take(rows) & DELETED) == 0
        if self.times is None or expired_until is None:
            return alive
        later: Mask = self.times.take(rows) > expired_until
        return later if alive is None else later & alive

    def marks_at(self, rows: Rows) -> Marks | None:
        """Return the marks of some rows, or None if all rows are alive."""
        return None if self.all_alive else self.marks[rows]

    def put(self, rows: Rows, values: Sequence[pa.Array], times: Times | None) -> None:
        """Write rows in place."""
        self.writes += 1
        self._call_in_loans()
        self.values = tuple(column.put(rows, array) for column, array in zip(self.values, values, strict=True))
        if self.times is not None and times is not None:
            self.times[rows] = times
            # A deleted row can be written again with any time.
            self._oldest = None if self._oldest is None else min(self._oldest, int(times.min(initial=FOR_EVER)))
        self._mark(rows, keep=STORED, add=DIRTY)

    def delete(self, rows: Rows) -> None:
        self.writes += 1
        self.all_alive = False
        self._mark(rows, keep=STORED, add=DELETED | DIRTY)

    def may_expire(self, until_us: int) -> bool:
        """Return whether rows may have expired at `until_us`."""
        return self.times is not None and (self._oldest is None or self._oldest <= until_us)

    def has_expired(self, until_us: int) -> None:
        """Record that no live row has expired at `until_us`."""
        if self.times is not None and self.may_expire(until_us):
            later = self.times > until_us
            later &= (self.marks & DELETED) == 0
            self._oldest = int(self.times.min(where=later, initial=FOR_EVER))

    def mark_written(self) -> None:
        """Record that all changes are in files: live rows are stored, and deleted ones are not."""
        if self.dirty_rows:
            self.writes += 1
            changed = self.dirty_between(0, len(self))
            self.marks[changed] = STORED if self.all_alive else as_written(self.marks[changed])
            self.dirty_rows = 0
        self._changed, self._changes = [], 0

    def dirty_between(self, start: int, end: int) -> Rows:
        """Return the rows between `start` and `end` that changed since the last checkpoint, in order."""
        if self._changed is None:
            # The mark is the lowest bit, so the masked bytes are valid booleans.
            return start + np.flatnonzero((self.marks[start:end] & DIRTY).view(np.bool_))
        if len(self._changed) > 1:
            self._changed = [ascending(np.concatenate(self._changed))]
            self._changes = len(self._changed[0])
        changed = self._changed[0] if self._changed else np.zeros(0, dtype=np.int64)
        return changed[slice(*np.searchsorted(changed, [start, end]).tolist())]

    def merged(self, others: "Sequence[SortedRun]", *, forget: bool = True) -> "SortedRun":
        """Merge this run with others that share no key. Deleted rows that are in no file are dropped unless `forget` is
        False.
        """
        runs = [self, *others]
        places = Places([run.hashes for run in runs])
        times = [run.times for run in runs if run.times is not None]
        run = SortedRun(
            hashes=places.merge([run.hashes for run in runs]),
            keys=merged_columns([run.keys for run in runs], places),
            values=merged_columns([run.values for run in runs], places),
            times=places.merge(times) if times else None,
            marks=places.merge([run.marks for run in runs]),
            dirty_rows=sum(run.dirty_rows for run in runs),
            all_alive=all(run.all_alive for run in runs),
        )
        return run.without_forgotten() if forget else run

    def without_forgotten(self) -> "SortedRun":
        """Return the run without deleted rows of which no file holds a live version."""
        if self.all_alive:
            return self
        forgotten = (self.marks & (DELETED | STORED)) == DELETED
        return self.select(np.flatnonzero(~forgotten)) if forgotten.any() else self

    def select(self, rows: Rows, marks: Marks | None = None) -> "SortedRun":
        """Return a copy of some rows, with other marks if they are given."""
        all_alive = self.all_alive if marks is None else not np.any(marks & DELETED)
        marks = self.marks.take(rows) if marks is None else marks
        return SortedRun(
            hashes=self.hashes.take(rows),
            keys=tuple(column.select(rows) for column in self.keys),
            values=tuple(column.select(rows) for column in self.values),
            times=None if self.times is None else self.times[rows],
            marks=marks,
            dirty_rows=int(np.count_nonzero(marks & DIRTY)),
            all_alive=all_alive,
        )

    def between(self, first: int, last: int) -> "SortedRun":
        """Return the rows in a range of hashes without copying them. The result must not be written, and only hashes of
        the range may be looked up.
        """
        start = int(np.searchsorted(self.hashes, np.uint64(first)))
        return self.slice(start, int(np.searchsorted(self.hashes, np.uint64(last), side="right")))

    def slice(self, start: int, end: int) -> "SortedRun":
        """Return neighbouring rows without copying them. The result must not be written."""
        if (start, end) == (0, len(self)):
            return self
        part = SortedRun(
            hashes=self.hashes[start:end],
            keys=tuple(column.slice(start, end) for column in self.keys),
            values=tuple(column.slice(start, end) for column in self.values),
            times=None if self.times is None else self.times[start:end],
            marks=self.marks[start:end],
            dirty_rows=int(np.count_nonzero(self.marks[start:end] & DIRTY)) if self.dirty_rows else 0,
            all_alive=self.all_alive,
        )
        part.index = self.index.between(start, end)
        return part

    def _mark(self, rows: Rows, *, keep: np.uint8, add: np.uint8) -> None:
        """Set the marks of `rows`, which are distinct: keep the bits in `keep` and add those in `add`."""
        if (loops := loops_for(len(rows))) is not None:
            changed, clean = loops.mark(self.marks, rows, keep, add, DIRTY)
        else:
            before = self.marks.take(rows)
            marks = (before & keep) | add
            changed, clean = not np.array_equal(marks, before), len(rows) - int(np.count_nonzero(before & DIRTY))
            self.marks[rows] = marks
        if not changed:
            return
        self.dirty_rows += clean
        if self._changed is not None:
            self._changes += len(rows)
            self._changed.append(rows)
            if self._changes > len(self) // _MANY_CHANGES:
                self._changed, self._changes = None, 0


def as_written(marks: Marks) -> Marks:
    """Return the marks of rows after a checkpoint has taken their changes."""
    return np.where(marks & DELETED, DELETED, STORED)


def merged_columns(runs: Iterable[Iterable[Column]], places: Places) -> tuple[Column, ...]:
    """Merge the columns of several runs."""
    return tuple(first.merged(others, places) for first, *others in zip(*runs, strict=True))
