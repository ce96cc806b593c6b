"""The blocks of a keyed view and the memory they take: accounting, eviction, loading and removal.

One thread operates on a view, and holds its lock while it does. Any other thread may evict a block to a mapped file if
the lock is free; otherwise the eviction is refused. The file is written without holding the lock, so rows can be read
and written in the meantime. A block that was written stays in memory. Memory for an operation is reserved before it
begins, with no lock held, so that a failing disk makes the operation fail before it has changed anything.

If all rows of a block are in the store, its files are copies: they count towards the local cache, which may drop them.
They are dropped immediately or, if the view is in use, later by the view's own thread.
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
from statebed.state.keyed.batch import KeyBatch
from statebed.state.keyed.block import BLOCK_BYTES, Block, missing_in
from statebed.state.keyed.block_reload import BlockReload
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
REMEMBERED_IN_BUDGET = 8
"""The keys of the last operation are remembered if they take at most 1/n of the budget, and at most half of it is in
use.
"""
MAX_SPILLED_BYTES = 256 << 20
"""Maximum size of the mapped files of a block, since each batch pays for every block that it touches."""
RESTORED_BLOCKS = 4
"""Restored blocks that are mapped, or do not all fit into memory, are joined to at most this many times block size."""
SPLIT_PARTS = 16
"""A lookup of a few keys in a block that is not loaded loads parts of about 1/n of the block size."""
MIN_PART_BYTES = 64 << 10
SPLIT_SHARE = 4
"""Parts are loaded only if together they are at most 1/n of the block."""
MAX_SPLITS = 3
"""Maximum number of times that a block is split for lookups. Each part decodes its own row groups, which makes a
large number of parts more expensive than the whole.
"""
_PATIENCE_SECONDS = 1.0
"""Maximum time that an eviction waits for the lock of a view in use, since other blocks may be easier to evict."""
_LOAN_SECONDS = 0.002
"""Polling interval of a write that waits for a checkpoint."""
_COPIES = 3
"""Number of copies of the rows in memory while a block is loaded or files are written: as read, merged, and as a run.
"""


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
        self._spilled_bytes = max(min(BLOCKS_IN_BUDGET * self.block_bytes, MAX_SPILLED_BYTES), self.block_bytes)
        self._charges = Charges(self._memory, tiers.cache, owner, evict=self._evict)
        self.counts = Counts()
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._operating = False
        self._lost = False
        self._leaving: set[Slot] = set()
        """Blocks that are being evicted."""
        self._to_drop: list[Slot] = []
        self._to_merge: list[Slot] = []
        self._to_count: list[Slot] = []
        ranges = block_ranges(durable.files, durable.owned, block_bytes=self.block_bytes, row_bytes=table.row_bytes)
        sizes = [memory_in(durable.files, span, row_bytes=table.row_bytes) for span in ranges]
        if durable.mapped or sum(sizes) > self._memory.budget:
            ranges = joined(ranges, sizes, max_size=RESTORED_BLOCKS * self.block_bytes)
        self._slots = [self._charges.slot(Block(span, table)) for span in ranges]
        self._edges = self._edges_of_slots()
        self._remembered = self._memory.charge(owner, Purpose.READS, 0)
        end = weakref.finalize(self, give_back, self._slots, self._memory, tiers.cache, self._remembered)
        end.atexit = False  # at exit the spill folder is removed as a whole

    def __iter__(self) -> Iterator[Slot]:
        return iter(tuple(self._slots))

    # ---- finding -----------------------------------------------------------------------------------------

    def at(self, hash_value: int) -> Slot:
        """Return the block that owns a hash."""
        return self._slots[int(np.searchsorted(self._edges, np.uint64(hash_value), side="right"))]

    def of(self, hashes: Hashes) -> list[tuple[Slot, int, int]]:
        """Return the blocks that own some ascending hashes, each with the start and end of its slice of `hashes`."""
        cuts = [0, *np.searchsorted(hashes, self._edges).tolist(), len(hashes)]
        return [(slot, cuts[n], cuts[n + 1]) for n, slot in enumerate(self._slots) if cuts[n] < cuts[n + 1]]

    def within(self, owned: pb.HashRange) -> list[Slot]:
        """Return the block of a range, or the blocks that it was split into."""
        return [slot for slot in self._slots if owned.first <= slot.block.owned.first <= owned.last]

    # ---- operations --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def operation(self, growth: int) -> Iterator[None]:
        """Run an operation that adds at most about `growth` bytes, for which memory is reserved first. Files are kept
        until it ends.
        """
        if self._lost:
            raise InputError(
                f"the table {self._table.name!r} was given up with changes that no checkpoint contains",
                fix="restore a new view from the last committed record",
            )
        self.finish_deferred_work()
        with self._memory.reserve(self._owner, Purpose.WRITES, growth):
            with self.locked():  # waits for another thread that is dropping files
                self._operating = True
            try:
                yield
            finally:
                self._operating = False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the view: no other thread changes the blocks."""
        if self._holder == threading.get_ident():
            raise InputError(
                f"the table {self._table.name!r} was used by its own merge function",
                fix="do not call the view inside a merge function",
            )
        if not self._lock.acquire(timeout=self._memory.wait_seconds):
            raise SpillTimeoutError(
                f"a block of the table {self._table.name!r} was not written to disk within "
                f"{self._memory.wait_seconds:g} s",
                fix="check the disk that holds the spill folder, which is slow or hangs; then repeat the call",
            )
        self._holder = threading.get_ident()
        try:
            yield
        finally:
            self._holder = None
            self._lock.release()

    def available(self, batch: KeyBatch) -> list[tuple[Slot, int, int]]:
        """Return the same as `of`, after bringing the rows of a batch's keys to memory or mapped files. Call without
        the lock.
        """
        spans = self.of(batch.hashes)
        moved = [slot for slot, start, end in spans if self._fetch_keys(slot, batch, start, end)]
        return self.of(batch.hashes) if moved else spans

    def _fetch_keys(self, slot: Slot, batch: KeyBatch, start: int, end: int) -> bool:
        """Bring the rows of some keys to this host. Return True if the blocks may have been split.

        Files without a copy on this host are read from the newest on, until all keys are found.
        """
        block = slot.block
        if block.has_located(batch, start, end):
            self.counts.hits += 1
            return False
        if block.opened is not None:
            with self.locked():
                missing = block.missing(batch, start, end)
            if not missing:
                self.counts.hits += 1
                return False
        newest_first = None if block.present else self._durable.newest_first(block.owned)
        if newest_first is None:
            return self.fetch(slot, batch.hashes[start:end])
        self.counts.misses += 1
        self._load_newest(slot, newest_first, batch.slice(start, end))
        return True

    def _load_newest(self, slot: Slot, newest_first: Iterable[tuple[str, FrozenRun | None]], part: KeyBatch) -> None:
        """Load files of a block, the newest first, until all keys of a batch are found."""
        changes, rows = slot.changes, np.arange(len(part), dtype=np.int64)
        runs: list[FrozenRun] = []
        opened: set[str] = set()
        for path, run in newest_first:
            if run is None:
                break
            opened.add(path)
            if len(run.run):
                runs.append(run)
                rows = missing_in([run], part, rows)
            if not len(rows) and runs:
                self._install(slot, changes, tuple(runs), opened=frozenset(opened))
                return
        self.load(slot)

    def fetch(self, slot: Slot, hashes: Hashes | None = None) -> bool:
        """Bring the rows of a block to this host. Return True if the blocks may have been split.

        If only the rows of a few ascending `hashes` are needed, the rest of the block may be left in the store.
        """
        block = slot.block
        if block.present:
            self._load_older(slot)
            self.counts.hits += 1
            return block.spilled and block.asked > block.rows and self._thaw(slot)
        self.counts.misses += 1
        for part in [slot] if hashes is None else self._parts_around(slot, hashes):
            self.load(part)
        return True

    def _parts_around(self, slot: Slot, hashes: Hashes) -> list[Slot]:
        """Split a block that is not loaded so that a few hashes are in small blocks, and return these.

        Return the block itself if loading all of it costs about as much. Call without the lock.
        """
        changes, owned, depth = slot.changes, slot.block.owned, slot.block.split_depth
        if self._durable.has_copies or depth >= MAX_SPLITS or len(hashes) * SPLIT_SHARE > SPLIT_PARTS:
            return [slot]
        part_bytes = max(self.block_bytes // SPLIT_PARTS, MIN_PART_BYTES)
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
            slots = self._replaced(slot, [Block(span, self._table, split_depth=depth + 1) for span in ranges])
        return [slots[at] for at in np.unique(np.searchsorted(edges, hashes, side="right")).tolist()]

    def await_loans(self, hashes: Hashes) -> None:
        """Wait, while memory is short, until a checkpoint has returned the blocks that a write would have to copy.

        Call without the lock, and before memory is reserved for the write.
        """
        deadline = time.monotonic() + self._memory.wait_seconds
        while (nbytes := sum(slot.block.lent_bytes for slot, _, _ in self.of(hashes))) and self._durable.unwritten:
            if self._memory.used + nbytes <= self._memory.high_bytes or time.monotonic() > deadline:
                return
            time.sleep(_LOAN_SECONDS)

    def remember(self, nbytes: int) -> bool:
        """Charge `nbytes` for the keys of the last operation instead of those before. Return False if they are too
        large to keep.
        """
        for slot in self._slots if self._remembered.nbytes else ():
            slot.block.forget_found()
        self._remembered.set(0)
        budget = self._memory.budget
        kept = nbytes <= budget // REMEMBERED_IN_BUDGET and self._memory.used + nbytes <= budget // 2
        self._remembered.set(nbytes if kept else 0)
        return kept

    def settle(self, slots: Iterable[Slot]) -> None:
        """Split blocks that have grown, and update what is charged for them, after they were read or written. Call with
        the lock.
        """
        moment = self._memory.moment()
        for slot in slots:
            if slot.block.dirty_rows:
                self._charges.uncount(slot)
            elif slot.cached is not None:
                self._tiers.cache.touch(slot.cached)
            blocks = slot.block.split(block_bytes=self.block_bytes)
            for part in self._replaced(slot, blocks):
                self._charges.account(part, moment)
            if slot.block.needs_merge or self._is_large_overlay(slot):
                self._to_merge.append(slot)

    # ---- moving ------------------------------------------------------------------------------------------

    def finish_deferred_work(self) -> None:
        """Do work deferred while the lock was held: merge frozen runs, drop and count files. Call without the lock."""
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
        """Record that a checkpoint has taken all changes: mapped files become copies as soon as its files are
        stored.
        """
        self._to_count = [slot for slot in self._slots if slot.block.spilled]

    def give_up(self) -> None:
        """Release all memory and local disk. If that loses changes that are in no file, later operations are
        refused.
        """
        with self.locked():
            self._lost = self._lost or any(slot.block.dirty_rows for slot in self._slots)
            for slot in self._slots:
                slot.block.forget()
                slot.changes += 1
                self._charges.release(slot)

    def release(self, slot: Slot) -> int:
        """Release a block whose rows are all in the store, and return the number of bytes of memory freed."""
        with self.locked():
            held = slot.block.held_bytes
            return held if self._forget(slot) else 0

    def load(self, slot: Slot) -> bool:
        """Load a block from the files of the store, into memory if it fits, otherwise into a mapped file.

        Return False if the block has changed in the meantime. Any thread may call this, without the lock.
        """
        changes, owned = slot.changes, slot.block.owned
        copies = self._durable.copies(owned)
        if copies and self._durable.mapped:
            return self._install(slot, changes, copies)
        reader, piece = self._durable.reader_of(owned), self._memory.segment_bytes
        loading = int(_COPIES * reader.memory_in(owned))
        large = loading > _COPIES * (self.block_bytes + piece)
        with self._memory.reserve(self._owner, Purpose.RESTORES, _COPIES * piece if large else loading):
            loaded: SortedRun | tuple[FrozenRun, ...]
            if copies and not large:
                loaded = newest(copies, None)
            elif large:
                pieces = self._durable.load_pieces(reader, owned, piece_bytes=piece)
                max_rows = self._durable.max_rows(owned)
                loaded = (FrozenRun.write(pieces, self._table, self._tiers.folder, max_rows=max_rows),)
            else:
                loaded = self._durable.load(reader, owned, piece_bytes=piece)
            installed = self._install(slot, changes, loaded)
        if self._memory.used > self._memory.low_bytes and slot.block.held_bytes:
            self._evict(slot)
        return installed

    def _load_older(self, slot: Slot) -> None:
        """Load the older files of a block of which only the newest were needed. Call without the lock."""
        changes, owned, opened = slot.changes, slot.block.owned, slot.block.opened
        if opened is None:
            return
        older = self._durable.copies(owned, besides=opened)
        if not older:
            reader, piece = self._durable.reader_of(owned, besides=opened), self._memory.segment_bytes
            with self._memory.reserve(self._owner, Purpose.RESTORES, _COPIES * piece):
                pieces = self._durable.load_pieces(reader, owned, piece_bytes=piece)
                max_rows = self._durable.max_rows(owned)
                older = (FrozenRun.write(pieces, self._table, self._tiers.folder, max_rows=max_rows),)
        with self.locked():
            if slot.changes == changes and slot.block.opened is opened:
                slot.block.complete(older)
                self._charges.account(slot, self._memory.moment())
                return
        for unused in older:
            unused.remove()

    def _install(
        self,
        slot: Slot,
        changes: int,
        loaded: SortedRun | tuple[FrozenRun, ...],
        *,
        opened: frozenset[str] | None = None,
    ) -> bool:
        """Install rows that were loaded when the block was at version `changes`; discard them and return False if it
        has changed since. `opened` are the files that were loaded, if there are older ones.
        """
        with self.locked():
            if slot.gone or slot.block.present or slot.changes != changes:
                for unused in loaded if isinstance(loaded, tuple) else ():
                    unused.remove()
                return False
            slot.block.install(loaded, opened=opened)
            slot.changes += 1
            self.counts.loads += 1
            self._charges.account(slot, self._memory.moment())
            self._to_count.append(slot)
            return True

    def soon(self, move: Callable[[Slot], bool], slot: Slot) -> Future[bool]:
        """Schedule `load` or `reload` on a loader thread. It is skipped if the block was released or loaded before
        it starts; the future is False then.
        """
        changes = slot.changes
        return self._tiers.load_soon(lambda: slot.changes == changes and move(slot), owner=self._owner)

    def reload(self, slot: Slot) -> bool:
        """Bring the rows of mapped files back to memory, evicting colder ones if needed.

        Return False if the block has changed in the meantime. Any thread may call this, without the lock.
        """
        self._load_older(slot)
        with self._memory.reserve(self._owner, Purpose.RESTORES, slot.block.reload_bytes):
            with self.locked():
                returning = BlockReload(slot.block)
            rows = returning.copied(self.locked)
            with self.locked():
                if rows is None or slot.gone or not returning.holds:
                    return False
                self._charges.uncount(slot)
                slot.block.reload(rows)
                self.counts.loads += 1
                self._charges.account(slot, self._memory.moment())
        return True

    def _thaw(self, slot: Slot) -> bool:
        """Bring a spilled block back to memory if enough is free."""
        if self._memory.used + slot.block.reload_bytes > self._memory.low_bytes or not self.reload(slot):
            return False
        with self.locked():
            self.settle([slot])
        return True

    def _evict(self, slot: Slot) -> bool:
        """Evict a block to a mapped file. Return False if the view is in use. Any thread may call this.

        The file is written without holding the lock. A concurrent write makes it stale, and it is discarded.
        """
        if slot in self._leaving or not self._lock.acquire(blocking=False):
            return False
        try:
            slots = as_cold_as(slot, self._slots, max_bytes=self._memory.segment_bytes, but=self._leaving)
            group = [(member, run, run.writes) for member in slots if (run := member.block.loose()) is not None]
            self._leaving.update(slots)
        finally:
            self._lock.release()
        try:
            left = [self._leave(member, run, writes) for member, run, writes in group]
        finally:
            self._leaving.difference_update(slots)
        give_back_pages()
        return not left or left[0]

    def _leave(self, slot: Slot, run: SortedRun, writes: int) -> bool:
        """Write the rows that a block has in memory to a file. Return False if they have changed in the meantime."""
        with self._memory.charge(self._owner, Purpose.WRITES, run.held_bytes):
            try:
                frozen = FrozenRun.write([run], self._table, self._tiers.folder, max_rows=len(run))
            except (ArithmeticError, LookupError, ValueError):
                if run.writes == writes:
                    raise
                return False  # a concurrent write was read half-way
        if not self._lock.acquire(timeout=_PATIENCE_SECONDS):
            frozen.remove()
            return False
        try:
            if not slot.block.is_only_run(run) or run.writes != writes:
                frozen.remove()
                return False
            slot.block.freeze(frozen)
            self._charges.account(slot, 0)
            if slot.block.to_merge(max_bytes=self._spilled_bytes):
                self._to_merge.append(slot)
            self._to_count.append(slot)
            self.counts.spills += 1
        finally:
            self._lock.release()
        return True

    def _merge(self, slot: Slot) -> None:
        """Merge runs of a block where that pays, and split the block if it has grown too large."""
        if slot.block.needs_merge:
            with self._memory.reserve(self._owner, Purpose.MERGES, slot.block.held_bytes), self.locked():
                slot.block.loose()
                self._charges.account(slot, self._memory.moment())
        if self._is_large_overlay(slot):
            self._evict(slot)
        if not slot.block.to_merge(max_bytes=self._spilled_bytes):
            return
        self._load_older(slot)
        piece = self._memory.segment_bytes
        with self._memory.reserve(self._owner, Purpose.MERGES, _COPIES * piece), self.locked():
            blocks = slot.block.merge(self._tiers.folder, max_bytes=self._spilled_bytes, piece_bytes=piece)
            self._charges.uncount(slot)
            parts = self._replaced(slot, blocks)
            for part in parts:
                self._charges.account(part, self._memory.moment())
            self._to_count += parts
        give_back_pages()

    def _is_large_overlay(self, slot: Slot) -> bool:
        """Return whether the newer rows of a spilled block should leave memory: they are larger than a block, which
        cannot be split, and memory is not free or they are larger than a restored block.
        """
        held = slot.block.held_bytes if slot.block.spilled else 0
        if self._memory.used > self._memory.low_bytes:
            return held > self.block_bytes
        return held > RESTORED_BLOCKS * self.block_bytes

    def _replaced(self, slot: Slot, blocks: list[Block]) -> list[Slot]:
        """Replace a block by `blocks` and return their slots. Do nothing if `blocks` is the block itself."""
        if blocks == [slot.block]:
            return [slot]
        slot.block.forget()
        slot.gone = True
        self._charges.release(slot)
        index = self._slots.index(slot)
        slots = [self._charges.slot(block) for block in blocks]
        self._slots[index : index + 1] = slots
        self._edges = self._edges_of_slots()
        return slots

    def _count(self, slot: Slot) -> None:
        """Count the files of a block, if they are copies, towards the local cache."""
        block, files = slot.block, slot.block.frozen
        if block.own_bytes and not block.dirty_rows and slot.cached is None:
            cached = self._charges.count(slot, drop=self._drop)
            with self.locked():
                # The cache may have dropped them already, or the block may be back in memory.
                slot.cached = cached if block.frozen is files else None
            if slot.cached is None:
                self._tiers.cache.remove(cached)

    def _drop(self, slot: Slot) -> None:
        """Drop the files of a block, or leave that to the view's own thread if the view is in use."""
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
