"""The blocks of a keyed view and the memory they take: charged, offered for eviction, loaded, dropped.

One thread works on a view, and holds its lock while it does. Any other thread may make a block leave memory for a
mapped file, if the lock is free when it begins; else it is told that the block is in use. It writes the file without
the lock: rows are read and written meanwhile, and a block that was written stays. Room for what an operation adds is
made before it begins, with no lock held, so that a failing disk refuses an operation that has changed nothing.

Files of blocks whose rows are all in the store are copies: the cache counts them, and may drop them. It does so at
once or, while the view is in use, when the view's own thread comes to it.
"""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

import numpy as np

from statebed.arrays.key_hash import Hashes
from statebed.errors import InputError, SpillTimeoutError
from statebed.format import checkpoint_pb2 as pb
from statebed.state.keyed.block import BLOCK_BYTES, Block
from statebed.state.keyed.block_reload import Returning
from statebed.state.keyed.cuts import joined, ranges_between
from statebed.state.keyed.durable import DurableRows
from statebed.state.keyed.files import block_ranges, memory_in
from statebed.state.keyed.mapped_run import FrozenRun, newest
from statebed.state.keyed.slots import Charges, Counts, Slot, as_cold_as, give_back
from statebed.state.keyed.sorted_run import SortedRun
from statebed.state.keyed.table import KeyedTable
from statebed.state.memory.controller import Purpose
from statebed.state.memory.pages import give_back_pages
from statebed.state.tiers.shared_tiers import Tiers

BLOCKS_IN_BUDGET = 16
REMEMBERED_IN_BUDGET = 16
"""Keys asked for last are remembered where they take no more than this part of the budget, and half of it is free."""
MOST_SPILLED_BYTES = 256 << 20
"""Of mapped files of a block, which may be as large as the budget: each batch pays for every block that it touches."""
RESTORED_BLOCKS = 4
"""A block of restored state that cannot be in memory as a whole is so many times as large."""
SPLIT_PARTS = 16
"""A lookup of a few keys in a block that is not loaded loads parts of about this fraction of a block's size."""
LEAST_PART_BYTES = 64 << 10
SPLIT_SHARE = 4
"""Parts are loaded only if all of them together are at most this fraction of the block."""
MOST_SPLITS = 3
"""How often a block is split for a lookup; each part decodes its row groups, so many parts cost more than the whole."""
_PATIENCE_SECONDS = 1.0
"""A view that is in use for longer keeps its block: there may be others that can leave."""
_LOAN_SECONDS = 0.002
"""How often a write that waits for a checkpoint looks again."""
_COPIES = 3
"""How often rows are in memory while they are loaded or files are written: as they were read, merged, and as a run."""


class Blocks:
    """All blocks of a view, ordered by hash."""

    def __init__(
        self, table: KeyedTable, durable: DurableRows, tiers: Tiers, *, owner: str, block_bytes: int | None
    ) -> None:
        self._table = table
        self._durable = durable
        self._tiers = tiers
        self._memory = tiers.memory
        self._owner = owner
        self.block_bytes = block_bytes or max(1, min(BLOCK_BYTES, self._memory.budget // BLOCKS_IN_BUDGET))
        self._spilled_bytes = max(min(BLOCKS_IN_BUDGET * self.block_bytes, MOST_SPILLED_BYTES), self.block_bytes)
        self._charges = Charges(self._memory, tiers.cache, owner, evict=self._evict)
        self.counts = Counts()
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._operating = False
        self._lost = False
        self._leaving: set[Slot] = set()
        """On their way to files."""
        self._to_drop: list[Slot] = []
        self._to_merge: list[Slot] = []
        self._to_count: list[Slot] = []
        ranges = block_ranges(durable.files, durable.owned, block_bytes=self.block_bytes, row_bytes=table.row_bytes)
        sizes = [memory_in(durable.files, one, row_bytes=table.row_bytes) for one in ranges]
        if durable.mapped or sum(sizes) > self._memory.budget:
            ranges = joined(ranges, sizes, most=RESTORED_BLOCKS * self.block_bytes)
        self._slots = [self._charges.slot(Block(one, table)) for one in ranges]
        self._edges = self._edges_of_slots()
        self._remembered = self._memory.charge(owner, Purpose.READS, 0)
        end = weakref.finalize(self, give_back, self._slots, self._memory, tiers.cache, self._remembered)
        end.atexit = False  # the spill folder goes as a whole

    def __iter__(self) -> Iterator[Slot]:
        return iter(tuple(self._slots))

    # ---- finding -----------------------------------------------------------------------------------------

    def at(self, hash_value: int) -> Slot:
        """The block that a hash belongs to."""
        return self._slots[int(np.searchsorted(self._edges, np.uint64(hash_value), side="right"))]

    def of(self, hashes: Hashes) -> list[tuple[Slot, int, int]]:
        """The blocks of ascending hashes, each with the first of its hashes and the one after its last."""
        cuts = [0, *np.searchsorted(hashes, self._edges).tolist(), len(hashes)]
        return [(slot, cuts[n], cuts[n + 1]) for n, slot in enumerate(self._slots) if cuts[n] < cuts[n + 1]]

    def within(self, owned: pb.HashRange) -> list[Slot]:
        """The block of a range, or those that it was split into."""
        return [slot for slot in self._slots if owned.first <= slot.block.owned.first <= owned.last]

    # ---- operations --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def operation(self, growth: int) -> Iterator[None]:
        """An operation that adds at most about `growth` bytes; room is made first. Files stay until it is over."""
        if self._lost:
            raise InputError(
                f"the table {self._table.name!r} was given up with changes that no checkpoint has",
                fix="restore a new view from the last committed record",
            )
        self.tidy()
        with self._memory.reserve(self._owner, Purpose.WRITES, growth):
            with self.locked():  # who drops a file at the moment is done with it then
                self._operating = True
            try:
                yield
            finally:
                self._operating = False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nothing else happens to the blocks meanwhile."""
        if self._holder == threading.get_ident():
            raise InputError(
                f"the table {self._table.name!r} was used while it was being written",
                fix="do not use the view inside of a merge function",
            )
        if not self._lock.acquire(timeout=self._memory.wait_seconds):
            raise SpillTimeoutError(
                f"a block of the table {self._table.name!r} was not moved to disk within "
                f"{self._memory.wait_seconds:g} s",
                fix="look at the disk that holds the spill folder: it is slow, or hangs; then repeat the call",
            )
        self._holder = threading.get_ident()
        try:
            yield
        finally:
            self._holder = None
            self._lock.release()

    def available(self, hashes: Hashes) -> list[tuple[Slot, int, int]]:
        """As `of`, with the rows of all those blocks in memory or in mapped files. Without the lock."""
        found = self.of(hashes)
        moved = [slot for slot, start, end in found if self.fetch(slot, hashes[start:end])]
        return self.of(hashes) if moved else found

    def fetch(self, slot: Slot, hashes: Hashes | None = None) -> bool:
        """Have the rows of a block here; True when it may have been split for that.

        If only the rows of a few ascending `hashes` are wanted, the rest of the block may stay where it is.
        """
        block = slot.block
        if block.present:
            self.counts.hits += 1
            return block.spilled and block.asked > block.rows and self._thaw(slot)
        self.counts.misses += 1
        for part in [slot] if hashes is None else self._parts_around(slot, hashes):
            self.load(part)
        return True

    def _parts_around(self, slot: Slot, hashes: Hashes) -> list[Slot]:
        """Split a block that is not loaded so that a few hashes are in small blocks of their own, and return these.

        Return the block itself where loading all of it costs about as much. Without the lock.
        """
        changes, owned, depth = slot.changes, slot.block.owned, slot.block.split_depth
        if self._durable.has_copies or depth >= MOST_SPLITS or len(hashes) * SPLIT_SHARE > SPLIT_PARTS:
            return [slot]
        part_bytes = max(self.block_bytes // SPLIT_PARTS, LEAST_PART_BYTES)
        if memory_in(self._durable.files, owned, row_bytes=self._table.row_bytes) < SPLIT_SHARE * part_bytes:
            return [slot]
        parts = self._durable.reader_of(owned).parts(owned, part_bytes=part_bytes)
        firsts = np.array([part.first for part in parts[1:]], dtype=np.uint64)
        wanted = np.unique(np.searchsorted(firsts, hashes, side="right"))
        if len(wanted) * SPLIT_SHARE > len(parts):
            return [slot]
        edges = np.unique(np.concatenate([wanted, wanted + 1]))
        edges = firsts.take(edges[(edges > 0) & (edges < len(parts))] - 1)
        with self.locked():
            if slot.gone or slot.block.present or slot.changes != changes:
                return [slot]
            ranges = ranges_between(owned, edges)
            made = self._replaced(slot, [Block(one, self._table, split_depth=depth + 1) for one in ranges])
        return [made[at] for at in np.unique(np.searchsorted(edges, hashes, side="right")).tolist()]

    def await_loans(self, hashes: Hashes) -> None:
        """Before a write: while memory is short, wait for a checkpoint to be done with blocks that would be copied.

        Without the lock, and without room that was made for the write.
        """
        deadline = time.monotonic() + self._memory.wait_seconds
        while (nbytes := sum(slot.block.lent_bytes for slot, _, _ in self.of(hashes))) and self._durable.unwritten:
            if self._memory.used + nbytes <= self._memory.high_bytes or time.monotonic() > deadline:
                return
            time.sleep(_LOAN_SECONDS)

    def remember(self, nbytes: int) -> bool:
        """Charge the keys of the last operation instead of those before; False: they are too large to be kept."""
        for slot in self._slots if self._remembered.nbytes else ():
            slot.block.forget_found()
        self._remembered.set(0)
        budget = self._memory.budget
        kept = nbytes <= budget // REMEMBERED_IN_BUDGET and self._memory.used + nbytes <= budget // 2
        self._remembered.set(nbytes if kept else 0)
        return kept

    def settle(self, slots: Iterable[Slot]) -> None:
        """After blocks were read or changed: charge what they take now. With the lock."""
        moment = self._memory.moment()
        for slot in slots:
            if slot.block.dirty_rows:
                self._charges.uncount(slot)
            elif slot.cached is not None:
                self._tiers.cache.touch(slot.cached)
            blocks = slot.block.split(block_bytes=self.block_bytes)
            for one in self._replaced(slot, blocks):
                self._charges.account(one, moment)
            if slot.block.worth_settling or (slot.block.spilled and slot.block.held_bytes > self.block_bytes):
                self._to_merge.append(slot)

    # ---- moving ------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Do what other threads left to this one: merge frozen runs, drop and count files. Without the lock."""
        merging, self._to_merge = self._to_merge, []
        for slot in dict.fromkeys(merging):
            self._merge(slot)
        dropping, self._to_drop = self._to_drop, []
        for slot in dropping:
            self._drop(slot)
        if self._to_count and self._durable.all_stored:
            counted, self._to_count = self._to_count, []
            for slot in counted:
                self._count(slot)

    def saved(self) -> None:
        """All changes are in files: what lies in mapped files are copies, as soon as those are stored."""
        self._to_count = [slot for slot in self._slots if slot.block.spilled]

    def give_up(self) -> None:
        """Take no memory and no disk any more. What was not in files is lost, and nothing is answered without it."""
        with self.locked():
            self._lost = self._lost or any(slot.block.dirty_rows for slot in self._slots)
            for slot in self._slots:
                slot.block.forget()
                slot.changes += 1
                self._charges.release(slot)

    def release(self, slot: Slot) -> int:
        """Give up a block all of whose rows are in the store; gives the bytes of memory that are free now."""
        with self.locked():
            held = slot.block.held_bytes
            return held if self._forget(slot) else 0

    def load(self, slot: Slot) -> None:
        """Read a block from the files of the store: into memory if there is room, else to a mapped file. By any thread,
        without the lock.
        """
        changes, owned = slot.changes, slot.block.owned
        copies = self._durable.copies(owned)
        if copies and self._durable.mapped:
            self._install(slot, changes, copies)
            return
        reader, piece = self._durable.reader_of(owned), self._memory.segment_bytes
        loading = int(_COPIES * reader.memory_in(owned))
        large = loading > _COPIES * (self.block_bytes + piece)
        with self._memory.reserve(self._owner, Purpose.RESTORES, _COPIES * piece if large else loading):
            loaded: SortedRun | tuple[FrozenRun, ...]
            if copies and not large:
                loaded = newest(copies, None)
            elif large:
                pieces = self._durable.load_pieces(reader, owned, piece_bytes=piece)
                most_rows = self._durable.most_rows(owned)
                loaded = (FrozenRun.write(pieces, self._table, self._tiers.folder, most_rows=most_rows),)
            else:
                loaded = self._durable.load(reader, owned, piece_bytes=piece)
            self._install(slot, changes, loaded)
        if self._memory.used > self._memory.low_bytes and slot.block.held_bytes:
            self._evict(slot)

    def _install(self, slot: Slot, changes: int, loaded: SortedRun | tuple[FrozenRun, ...]) -> None:
        """Have rows here that were read when the block had changed so often; in vain when it has again."""
        with self.locked():
            if slot.gone or slot.block.present or slot.changes != changes:
                for one in loaded if isinstance(loaded, tuple) else ():
                    one.remove()
                return
            slot.block.install(loaded)
            slot.changes += 1
            self.counts.loads += 1
            self._charges.account(slot, self._memory.moment())
            self._to_count.append(slot)

    def soon(self, move: Callable[[Slot], object], slot: Slot) -> Future[bool]:
        """Run `load` or `come_back` on one of the threads for that, unless the block was given up or loaded by then."""
        changes = slot.changes
        return self._tiers.load_soon(lambda: slot.changes == changes and move(slot), owner=self._owner)

    def come_back(self, slot: Slot) -> bool:
        """Have the rows of mapped files in memory; colder ones leave for them. By any thread, without the lock; False:
        the block has changed meanwhile.
        """
        with self._memory.reserve(self._owner, Purpose.RESTORES, slot.block.thaw_bytes):
            with self.locked():
                returning = Returning(slot.block)
            rows = returning.copied(self.locked)
            with self.locked():
                if rows is None or slot.gone or not returning.holds:
                    return False
                self._charges.uncount(slot)
                slot.block.come_back(rows)
                self.counts.loads += 1
                self._charges.account(slot, self._memory.moment())
        return True

    def _thaw(self, slot: Slot) -> bool:
        """Come back to memory, if there is plenty."""
        if self._memory.used + slot.block.thaw_bytes > self._memory.low_bytes or not self.come_back(slot):
            return False
        with self.locked():
            self.settle([slot])
        return True

    def _evict(self, slot: Slot) -> bool:
        """Leave memory for a mapped file. By any thread; False while the view is in use.

        The file is written without the lock, so that rows are read meanwhile, and written: then the file is in vain.
        """
        if slot in self._leaving or not self._lock.acquire(blocking=False):
            return False
        try:
            slots = as_cold_as(slot, self._slots, most_bytes=self._memory.segment_bytes, but=self._leaving)
            group = [(one, run, run.writes) for one in slots if (run := one.block.loose()) is not None]
            self._leaving.update(slots)
        finally:
            self._lock.release()
        try:
            left = [self._leave(one, run, writes) for one, run, writes in group]
        finally:
            self._leaving.difference_update(slots)
        give_back_pages()
        return not left or left[0]

    def _leave(self, slot: Slot, run: SortedRun, writes: int) -> bool:
        """Write all that a block has in memory to a file; False: it has changed meanwhile."""
        with self._memory.charge(self._owner, Purpose.WRITES, run.held_bytes):
            try:
                frozen = FrozenRun.write([run], self._table, self._tiers.folder, most_rows=len(run))
            except (ArithmeticError, LookupError, ValueError):
                if run.writes == writes:
                    raise
                return False  # what was read was half written
        if not self._lock.acquire(timeout=_PATIENCE_SECONDS):
            frozen.remove()
            return False
        try:
            if not slot.block.is_just(run) or run.writes != writes:
                frozen.remove()
                return False
            slot.block.freeze(frozen)
            self._charges.account(slot, 0)
            if slot.block.to_merge(most_bytes=self._spilled_bytes):
                self._to_merge.append(slot)
            self._to_count.append(slot)
            self.counts.spills += 1
        finally:
            self._lock.release()
        return True

    def _merge(self, slot: Slot) -> None:
        """Merge runs of a block where that pays, and split it if it has become large."""
        if slot.block.worth_settling:
            with self._memory.reserve(self._owner, Purpose.MERGES, slot.block.held_bytes), self.locked():
                slot.block.loose()
                self._charges.account(slot, self._memory.moment())
        if slot.block.spilled and slot.block.held_bytes > self.block_bytes:
            self._evict(slot)
        if not slot.block.to_merge(most_bytes=self._spilled_bytes):
            return
        piece = self._memory.segment_bytes
        with self._memory.reserve(self._owner, Purpose.MERGES, _COPIES * piece), self.locked():
            blocks = slot.block.merge(self._tiers.folder, most_bytes=self._spilled_bytes, piece_bytes=piece)
            self._charges.uncount(slot)
            made = self._replaced(slot, blocks)
            for one in made:
                self._charges.account(one, self._memory.moment())
            self._to_count += made
        give_back_pages()

    def _replaced(self, slot: Slot, blocks: list[Block]) -> list[Slot]:
        """The slots of the blocks that take the place of a block, if it is not still itself."""
        if blocks == [slot.block]:
            return [slot]
        slot.block.forget()
        slot.gone = True
        self._charges.release(slot)
        index = self._slots.index(slot)
        made = [self._charges.slot(block) for block in blocks]
        self._slots[index : index + 1] = made
        self._edges = self._edges_of_slots()
        return made

    def _count(self, slot: Slot) -> None:
        """Let the cache count the files of a block that are copies."""
        block, files = slot.block, slot.block.frozen
        if block.own_bytes and not block.dirty_rows and slot.cached is None:
            cached = self._charges.count(slot, drop=self._drop)
            with self.locked():
                # They may have been dropped at once, or have come back to memory.
                slot.cached = cached if block.frozen is files else None
            if slot.cached is None:
                self._tiers.cache.remove(cached)

    def _drop(self, slot: Slot) -> None:
        """Drop the files of a block, or leave that to the view's own thread while it is in use."""
        if not self._lock.acquire(blocking=False):
            self._to_drop.append(slot)
            return
        try:
            if self._operating:
                self._to_drop.append(slot)
                return
            self._charges.uncount(slot)
            if slot.block.spilled and not self._forget(slot):
                self._to_count.append(slot)
        finally:
            self._lock.release()

    def _forget(self, slot: Slot) -> bool:
        if not slot.block.present or slot.block.dirty_rows or slot.block.damaged or not self._durable.all_stored:
            return False
        slot.block.forget()
        slot.changes += 1
        self._charges.release(slot)
        return True

    def _edges_of_slots(self) -> Hashes:
        return np.array([slot.block.owned.first for slot in self._slots[1:]], dtype=np.uint64)
