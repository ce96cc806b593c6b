"""One memory budget for all tables of a process.

All state is charged here, by owner (a table) and purpose. Above the high watermark, the coldest offered segments of all
owners are moved to disk until the low watermark is reached. The thread that adds data does the moving: it slows down,
but is never refused for lack of memory. Only above the budget itself does it also wait for segments that other threads
are moving, with a deadline.

Beyond the budget, a process takes one batch and one row group: the data being sorted, encoded or read. pyarrow's
default allocator also keeps freed pages for a while, up to half the budget as measured; jemalloc
(ARROW_DEFAULT_MEMORY_POOL=jemalloc) does not. tests/model/test_memory_measured.py checks both.

If no room can be made for a charge, because the disk fails or the deadline passes, the charge is undone before the
error is raised: nothing was added, and nothing is lost. While the lock is held, nothing is called and nothing waits. A
segment that is in use refuses to move, and another one moves instead; the thread that uses it makes room before its
next step.
"""

import contextlib
import enum
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

import pyarrow as pa

from statebed.errors import InputError, SpillTimeoutError
from statebed.state.arguments import checked_number
from statebed.state.memory.eviction import Candidate, borrowed, choose_victims
from statebed.state.memory.sizes import Held, Root, pieces, root_buffers

R = TypeVar("R", pa.RecordBatch, pa.Table)
SEGMENTS_IN_BUDGET = 16
"""A segment takes at most 1/n of the budget, so that moving one is a small step."""
MAX_SEGMENT_BYTES = 8 << 20
_NOTED_GROWTH = 1.05
"""The accounts at the peak are recorded when the peak has grown by this factor, because copying them for every charge
would be slow.
"""


class Purpose(enum.Enum):
    """Purpose for which memory is charged."""

    SEGMENTS = "segments"
    TOMBSTONES = "tombstones"
    INDEXES = "indexes"
    WRITES = "in-flight writes"
    READS = "reads"
    RESTORES = "restores"
    MERGES = "merges"


Account = tuple[str, Purpose]


@dataclass(frozen=True)
class MemorySnapshot:
    """State of the accounts at one moment."""

    budget: int
    used: int
    peak: int
    spilling: int
    """Bytes being moved to disk. They are part of `used` until they are there."""
    accounts: Mapping[Account, int]
    guarantees: Mapping[str, int]
    """Bytes guaranteed to an operator or a table, by name."""
    held: Mapping[str, int]
    """Bytes in use by each name that has a guarantee, and by each other owner."""
    held_at_peak: Mapping[str, int]
    """The value of `held` when `peak` was reached."""
    borrowed: Mapping[str, int]
    """Bytes in use beyond the guarantee, by name."""
    at_peak: Mapping[Account, int]
    """Bytes in use by account when `peak` was reached, or slightly before."""
    events: Mapping[str, int]
    """Counts since the start: spills, spilled_bytes, failed_spills, busy, waits, overcommits."""


Spill = Callable[[], bool | None]
"""Moves a segment to disk and releases its charges. Returns False if it is in use and stays."""


@dataclass
class SpillOffer:
    """A segment in memory that may be moved to disk."""

    number: int
    owner: str
    nbytes: int
    spill: Spill
    last_used: int
    clock: Iterator[int] = field(repr=False)
    moving: int | None = None
    """Bytes of the segment when it began to move, or None if it is not moving."""

    @property
    def spilling(self) -> bool:
        return self.moving is not None

    def touch(self, at: int | None = None) -> None:
        """Mark the segment as used now, or at a moment returned by `MemoryController.moment`."""
        self.last_used = next(self.clock) if at is None else at


class Reservation:
    """A charge of a number of bytes: tombstones, indexes, buffers of reads, writes and compactions."""

    def __init__(self, controller: "MemoryController", account: Account) -> None:
        self._controller = controller
        self._account = account
        self.nbytes = 0

    def resize(self, nbytes: int) -> None:
        """Charge `nbytes` instead of the current amount, making room if it grows. If that fails, nothing has
        changed.
        """
        before = self.nbytes
        self.set(nbytes)
        if nbytes > before:
            try:
                self._controller.make_room()
            except BaseException:
                self.set(before)
                raise

    def set(self, nbytes: int) -> None:
        """Charge `nbytes` instead of the current amount without making room, which the caller has already done."""
        before, self.nbytes = self.nbytes, nbytes
        self._controller._add(self._account, nbytes - before)  # noqa: SLF001 - one class in two parts

    def release(self) -> None:
        self.set(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class Hold:
    """A charge of Arrow data by the allocations it keeps alive. An allocation with several holders is charged once."""

    def __init__(self, controller: "MemoryController", account: Account, data: Held) -> None:
        self._controller = controller
        self._account = account
        # Keeping the data prevents another allocation from getting the same address while this one is charged.
        self._data: Held | None = data
        self._roots = root_buffers(data)
        controller._pin(account, self._roots)  # noqa: SLF001 - one class in two parts

    def release(self) -> None:
        """Release the data and its charge. A second call does nothing."""
        if self._data is not None:
            self._data = None
            self._controller._unpin(self._account, self._roots)  # noqa: SLF001 - one class in two parts


class MemoryController:
    """Accounts and limits the memory of all tables of a process. Thread-safe.

    >>> memory = MemoryController(64 << 20)
    >>> with memory.reserve("rides", Purpose.MERGES, 1 << 20):
    ...     memory.snapshot().used
    1048576
    >>> memory.used
    0
    """

    def __init__(
        self,
        budget: int,
        *,
        high: float = 0.9,
        low: float = 0.7,
        guarantees: Mapping[str, int] | None = None,
        wait_seconds: float = 60.0,
    ) -> None:
        """Set the budget in bytes, and the watermarks as fractions of it.

        `guarantees` are bytes by owner: an operator ("joined"), one of its tables ("joined.left"), or the full name of
        an owner. A table with its own guarantee does not count towards that of its operator.
        """
        checked_number(
            budget, "memory budget", where="MemoryController", fix="pass a number of bytes, for example 64 << 20"
        )
        self._guarantees = dict(guarantees or {})
        self._groups: dict[str, str] = {}
        if budget <= 0 or not 0 < low <= high <= 1:
            raise InputError(
                f"the memory budget must be positive and its watermarks 0 < low <= high <= 1, got {budget} bytes, "
                f"low={low} and high={high}",
                fix="pass a number of bytes, for example 64 << 20",
            )
        if sum(self._guarantees.values()) > budget:
            raise InputError(
                f"the guarantees of {sorted(self._guarantees)} add up to more than the budget of {budget} bytes",
                fix="lower the guarantees or raise the budget",
            )
        self.budget = budget
        self.high_bytes = int(budget * high)
        self.low_bytes = int(budget * low)
        self.wait_seconds = wait_seconds
        # Garbage collection of a view may release charges at any moment, while this thread holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._accounts: Counter[Account] = Counter()
        self._holders: dict[Root, list[Account]] = {}
        self._offers: dict[int, SpillOffer] = {}
        self._numbers, self._clock = itertools.count(1), itertools.count(1)
        self._under_pressure = False
        self._spilling = self._used = self._peak = self._noted = 0
        self._at_peak: dict[Account, int] = {}
        self._events, self._moving = Counter[str](), threading.local()

    @property
    def used(self) -> int:
        return self._used

    @property
    def segment_bytes(self) -> int:
        """Target size of segments: large enough for efficient disk access, small compared with the budget."""
        return max(1, min(MAX_SEGMENT_BYTES, self.budget // SEGMENTS_IN_BUDGET))

    def pin(self, owner: str, purpose: Purpose, data: Held) -> Hold:
        """Charge data without making room, because it replaces other data."""
        return Hold(self, (owner, purpose), data)

    def hold(self, owner: str, purpose: Purpose, data: Held) -> Hold:
        """Charge Arrow data (or a numpy array) that the owner keeps, and make room for it."""
        hold = self.pin(owner, purpose, data)
        try:
            self.make_room()
        except BaseException:
            hold.release()
            raise
        return hold

    def charge(self, owner: str, purpose: Purpose, nbytes: int) -> Reservation:
        """Charge a number of bytes without making room, which the caller does if needed."""
        reservation = Reservation(self, (owner, purpose))
        reservation.set(nbytes)
        return reservation

    def reserve(self, owner: str, purpose: Purpose, nbytes: int = 0) -> Reservation:
        """Charge a number of bytes and make room for them. Ends with `release` or a `with` block."""
        reservation = Reservation(self, (owner, purpose))
        reservation.resize(nbytes)
        return reservation

    @contextlib.contextmanager
    def try_reserve(self, owner: str, purpose: Purpose, nbytes: int) -> Iterator[bool]:
        """Charge a number of bytes only if they fit below the low watermark, without evicting anything."""
        with self._changed:
            fits = not self._under_pressure and self._used + nbytes <= self.low_bytes
            reservation = self.charge(owner, purpose, nbytes if fits else 0)
        with reservation:
            yield fits

    def offer(self, owner: str, nbytes: int, spill: Spill) -> SpillOffer:
        """Offer a segment for eviction.

        `spill` moves the segment and releases its charges, returns False if the segment is in use, or raises. Any
        thread may call it. The offer ends when the segment has been moved.
        """
        offer = SpillOffer(next(self._numbers), owner, nbytes, spill, next(self._clock), self._clock)
        with self._changed:
            self._offers[offer.number] = offer
        return offer

    def moment(self) -> int:
        """Return a position in time, to mark several segments as used together."""
        return next(self._clock)

    def resize(self, offer: SpillOffer, nbytes: int) -> None:
        """Update the size of an offered segment."""
        with self._changed:
            offer.nbytes = nbytes

    def withdraw(self, offer: SpillOffer) -> None:
        """Withdraw an offer, because the segment is gone or wanted in memory. It may already be moving."""
        with self._changed:
            self._offers.pop(offer.number, None)
            self._changed.notify_all()

    def split(self, batch: R) -> Iterator[R]:
        """Yield the rows in order, in pieces that fit into a segment, each copied if needed, one at a time."""
        return pieces(batch, limit=self.segment_bytes)

    def make_room(self) -> None:
        """Move segments to disk while there is pressure. Wait for segments that other threads move only above the
        budget.
        """
        if getattr(self._moving, "now", False):
            return  # charges made by a move must not wait for moves
        deadline = time.monotonic() + self.wait_seconds
        busy: set[int] = set()
        while True:
            with self._changed:
                victim = self._next_victim(busy)
                if victim is None:
                    if not self._must_wait():
                        return
                    remaining = deadline - time.monotonic()
                    if remaining <= 0:
                        raise self._late()
                    self._events["waits"] += 1
                    self._changed.wait(remaining)
            if victim is not None and not self._move(victim):
                busy.add(victim.number)

    def restart_peak(self) -> None:
        """Measure the peak from now on."""
        with self._changed:
            self._peak = self._noted = self._used
            self._at_peak = dict(self._accounts)

    def snapshot(self) -> MemorySnapshot:
        with self._changed:
            return MemorySnapshot(
                budget=self.budget,
                used=self._used,
                peak=self._peak,
                spilling=self._spilling,
                accounts={account: nbytes for account, nbytes in self._accounts.items() if nbytes},
                guarantees=dict(self._guarantees),
                held={name: nbytes for name, nbytes in self._by_group(self._accounts).items() if nbytes},
                held_at_peak={name: nbytes for name, nbytes in self._by_group(self._at_peak).items() if nbytes},
                borrowed=borrowed(self._by_group(self._accounts), self._guarantees),
                at_peak={account: nbytes for account, nbytes in self._at_peak.items() if nbytes},
                events=dict(self._events),
            )

    def _next_victim(self, busy: Container[int]) -> SpillOffer | None:
        staying = self._used - self._spilling
        if self._used > self.high_bytes:
            self._under_pressure = True
        if staying <= self.low_bytes:
            self._under_pressure = False
        if not self._under_pressure:
            return None
        offers = self._offers.copy()
        candidates = [
            Candidate(offer.number, self._group(offer.owner), offer.nbytes, offer.last_used)
            for offer in offers.values()
            if not offer.spilling and offer.number not in busy
        ]
        chosen = choose_victims(candidates, to_free=1, used=self._by_group(self._accounts), guarantees=self._guarantees)
        if not chosen:
            if self._used > self.budget and not self._spilling:
                self._events["overcommits"] += 1
            return None
        victim = offers[chosen[0].number]
        victim.moving = victim.nbytes
        self._spilling += victim.moving
        return victim

    def _must_wait(self) -> bool:
        return self._used > self.budget and self._spilling > 0

    def _move(self, victim: SpillOffer) -> bool:
        """Move one segment, on this thread and with no lock held. Return False if it is in use."""
        self._moving.now = True
        outcome = "failed_spills"
        try:
            outcome = "busy" if victim.spill() is False else "spills"
        finally:
            self._moving.now = False
            with self._changed:
                nbytes, victim.moving = victim.moving or 0, None
                self._spilling -= nbytes
                if outcome == "spills":
                    self._offers.pop(victim.number, None)
                    self._events["spilled_bytes"] += nbytes
                self._events[outcome] += 1
                self._changed.notify_all()
        return outcome == "spills"

    def _late(self) -> SpillTimeoutError:
        owners = sorted({offer.owner for offer in self._offers.copy().values() if offer.spilling})
        return SpillTimeoutError(
            f"{self._spilling} bytes were not written to disk within {self.wait_seconds:g} s, while {self._used} bytes "
            f"of a budget of {self.budget} are in use",
            where=f"segments of {', '.join(owners)}",
            fix="check the disk that holds the spill folder, which is slow or hangs; then repeat the call",
        )

    def _by_group(self, accounts: Mapping[Account, int]) -> Counter[str]:
        """Return the bytes by name of the guarantee, or by owner if there is none."""
        used: Counter[str] = Counter()
        for (owner, _), nbytes in accounts.items():
            used[self._group(owner)] += nbytes
        return used

    def _group(self, owner: str) -> str:
        if not self._guarantees:
            return owner
        if owner not in self._groups:
            # The memory of a table is charged to "operator-table-subtask".
            operator, _, rest = owner.partition("-")
            names = (owner, f"{operator}.{rest.partition('-')[0]}", operator)
            self._groups[owner] = next((name for name in names if name in self._guarantees), owner)
        return self._groups[owner]

    def _add(self, account: Account, nbytes: int) -> None:
        with self._changed:
            self._charge(account, nbytes)

    def _pin(self, account: Account, roots: frozenset[Root]) -> None:
        with self._changed:
            added = 0
            for root in roots:
                holders = self._holders.setdefault(root, [])
                added += 0 if holders else root[1]
                holders.append(account)
            self._charge(account, added)

    def _unpin(self, account: Account, roots: frozenset[Root]) -> None:
        with self._changed:
            freed = 0
            for root in roots:
                holders = self._holders[root]
                paid = holders[0] == account
                holders.remove(account)
                if not holders:
                    del self._holders[root]
                    freed += root[1]
                elif paid:
                    # The charge passes to the next holder.
                    self._charge(holders[0], root[1])
                    freed += root[1]
            self._charge(account, -freed)

    def _charge(self, account: Account, nbytes: int) -> None:
        self._accounts[account] += nbytes
        self._used += nbytes
        if self._used > self._peak:
            self._peak = self._used
            if self._peak > self._noted * _NOTED_GROWTH:
                self._noted, self._at_peak = self._peak, dict(self._accounts)
        if nbytes < 0 and self._spilling:
            self._changed.notify_all()
