"""One budget of memory for all tables of a process.

Whoever keeps state charges it here, by owner (a table) and purpose. Above the high watermark the coldest offered
segments, over all owners, are moved to disk until the low watermark is reached. The thread that grows does the moving:
it slows down, and is never refused for lack of memory. Only above the budget itself does it also wait for segments that
other threads are moving, with a deadline.

What a process takes beside the budget is one batch and one row group: what is being sorted, encoded or read. pyarrow's
default allocator also keeps freed pages for a while, up to half the budget as measured; jemalloc
(ARROW_DEFAULT_MEMORY_POOL=jemalloc) does not. tests/model/test_memory_measured.py holds both to it.

Growth that cannot be made room for, because the disk fails or the deadline passes, is taken back before the error is
raised: nothing was taken in, nothing is lost. Nothing is called and nothing is waited for while the lock is held. What
is in use at the moment says so when it is asked to move, and another segment moves in its place: its own thread makes
room before its next step.
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
"""A segment takes at most this part of the budget, so that moving one is a small step."""
MAX_SEGMENT_BYTES = 8 << 20
_NOTED_GROWTH = 1.05
"""Who holds the memory at its peak is noted when it has grown by this: a copy for every charge would cost."""


class Purpose(enum.Enum):
    """What memory is used for."""

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
    """Who holds what, at one moment."""

    budget: int
    used: int
    peak: int
    spilling: int
    """Bytes on their way to disk; they are part of `used` until they are there."""
    accounts: Mapping[Account, int]
    guarantees: Mapping[str, int]
    """Bytes that an operator or a table keeps whatever others want, by its name."""
    held: Mapping[str, int]
    """Bytes in use by each of those names; by other owners under their own names."""
    held_at_peak: Mapping[str, int]
    """The same when `peak` was reached."""
    borrowed: Mapping[str, int]
    """What they use beyond their guarantees."""
    at_peak: Mapping[Account, int]
    """Who held what when `peak` was reached, or a little before."""
    events: Mapping[str, int]
    """Counts since the start: spills, spilled_bytes, failed_spills, busy, waits, overcommits."""


Spill = Callable[[], bool | None]
"""Moves a segment to disk and releases its charges. False: it is in use and stays."""


@dataclass
class Offer:
    """A segment in memory that may be moved to disk."""

    number: int
    owner: str
    nbytes: int
    spill: Spill
    last_used: int
    clock: Iterator[int] = field(repr=False)
    moving: int | None = None
    """Its bytes when it began to move; None: it does not move."""

    @property
    def spilling(self) -> bool:
        return self.moving is not None

    def touch(self, at: int | None = None) -> None:
        """Say that it was just used, or at a moment of the controller's."""
        self.last_used = next(self.clock) if at is None else at


class Reservation:
    """Bytes charged by number: tombstones, indexes, buffers of reads, writes and merges."""

    def __init__(self, controller: "MemoryController", account: Account) -> None:
        self._controller = controller
        self._account = account
        self.nbytes = 0

    def resize(self, nbytes: int) -> None:
        """Charge `nbytes` instead of what was charged so far. When more cannot be had, nothing has changed."""
        before = self.nbytes
        self.set(nbytes)
        if nbytes > before:
            try:
                self._controller.make_room()
            except BaseException:
                self.set(before)
                raise

    def set(self, nbytes: int) -> None:
        """Charge `nbytes` instead without making room: for what room was made for already."""
        before, self.nbytes = self.nbytes, nbytes
        self._controller._add(self._account, nbytes - before)  # noqa: SLF001 - one class in two parts

    def release(self) -> None:
        self.set(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class Hold:
    """Arrow data charged by the allocations it keeps alive; one that others hold too is charged once."""

    def __init__(self, controller: "MemoryController", account: Account, data: Held) -> None:
        self._controller = controller
        self._account = account
        # The data is kept, so that no other allocation can get the same address while it is charged.
        self._data: Held | None = data
        self._roots = root_buffers(data)
        controller._pin(account, self._roots)  # noqa: SLF001 - one class in two parts

    def release(self) -> None:
        """The data is no longer kept here; a second call does nothing."""
        if self._data is not None:
            self._data = None
            self._controller._unpin(self._account, self._roots)  # noqa: SLF001 - one class in two parts


class MemoryController:
    """Thread-safe.

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
        """`guarantees` are bytes by owner: an operator ("joined"), one of its tables ("joined.left"), or an owner's
        whole name. A table with a guarantee of its own does not count in that of its operator.
        """
        checked_number(budget, "memory budget", where="MemoryController", fix="give bytes: 64 << 20")
        self._guarantees = dict(guarantees or {})
        self._groups: dict[str, str] = {}
        if budget <= 0 or not 0 < low <= high <= 1:
            raise InputError(
                f"a memory budget of {budget} bytes with watermarks {low} and {high} cannot work",
                fix="give a budget above 0, and watermarks 0 < low <= high <= 1",
            )
        if sum(self._guarantees.values()) > budget:
            raise InputError(
                f"the guarantees of {sorted(self._guarantees)} sum up to more than the budget of {budget} bytes",
                fix="lower the guarantees or raise the budget",
            )
        self.budget = budget
        self.high_bytes = int(budget * high)
        self.low_bytes = int(budget * low)
        self.wait_seconds = wait_seconds
        # What a view held is given back when garbage is collected: at any moment, with the lock held by this thread.
        self._changed = threading.Condition(threading.RLock())
        self._accounts: Counter[Account] = Counter()
        self._holders: dict[Root, list[Account]] = {}
        self._offers: dict[int, Offer] = {}
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
        """How large segments should be: large enough for the disk, small against the budget."""
        return max(1, min(MAX_SEGMENT_BYTES, self.budget // SEGMENTS_IN_BUDGET))

    def pin(self, owner: str, purpose: Purpose, data: Held) -> Hold:
        """Charge data without making room for it: for data that takes the place of other data."""
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
        """Charge a number of bytes without making room for them: for what makes room itself."""
        reservation = Reservation(self, (owner, purpose))
        reservation.set(nbytes)
        return reservation

    def reserve(self, owner: str, purpose: Purpose, nbytes: int = 0) -> Reservation:
        """Charge a number of bytes, and make room for them; ends with `release` or a `with` block."""
        reservation = Reservation(self, (owner, purpose))
        reservation.resize(nbytes)
        return reservation

    @contextlib.contextmanager
    def try_reserve(self, owner: str, purpose: Purpose, nbytes: int) -> Iterator[bool]:
        """Charge a number of bytes only if they fit below the low watermark; nothing leaves memory for them."""
        with self._changed:
            fits = not self._under_pressure and self._used + nbytes <= self.low_bytes
            reservation = self.charge(owner, purpose, nbytes if fits else 0)
        with reservation:
            yield fits

    def offer(self, owner: str, nbytes: int, spill: Spill) -> Offer:
        """Offer a segment for eviction. `spill` moves it and releases its charges, answers False because it is in use,
        or raises; it may be called by any thread. The offer has lapsed once it has moved, and stands until then.
        """
        offer = Offer(next(self._numbers), owner, nbytes, spill, next(self._clock), self._clock)
        with self._changed:
            self._offers[offer.number] = offer
        return offer

    def moment(self) -> int:
        """A position in time, for what is used together."""
        return next(self._clock)

    def resize(self, offer: Offer, nbytes: int) -> None:
        """The offered segment has grown or shrunk."""
        with self._changed:
            offer.nbytes = nbytes

    def withdraw(self, offer: Offer) -> None:
        """The segment is gone or is wanted in memory. It may be on its way already."""
        with self._changed:
            self._offers.pop(offer.number, None)
            self._changed.notify_all()

    def split(self, batch: R) -> Iterator[R]:
        """The rows in order, in pieces that fit into a segment, each in memory of its own, made one at a time."""
        return pieces(batch, limit=self.segment_bytes)

    def make_room(self) -> None:
        """Move segments to disk while there is pressure; wait for those that others move only above the budget."""
        if getattr(self._moving, "now", False):
            return  # what moving itself charges must not wait for moving
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
        """Count the peak from now on."""
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

    def _next_victim(self, busy: Container[int]) -> Offer | None:
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

    def _move(self, victim: Offer) -> bool:
        """Move one segment, on this thread, with no lock held; False when it is in use."""
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
            f"{self._spilling} bytes were not moved to disk within {self.wait_seconds:g} s, while {self._used} bytes "
            f"of a budget of {self.budget} are in use",
            where=f"segments of {', '.join(owners)}",
            fix="look at the disk that holds the spill folder: it is slow, or hangs; then repeat the call",
        )

    def _by_group(self, accounts: Mapping[Account, int]) -> Counter[str]:
        """Bytes by the name that a guarantee is given to, or by owner where there is none."""
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
                    # Who came next pays from now on.
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
