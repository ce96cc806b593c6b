"""Memory accounting of blocks: what is charged for them, their offers for eviction, and their files in the
local cache.
"""

import weakref
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import partial

from statebed.state.keyed.block import Block
from statebed.state.memory.controller import MemoryController, Purpose, Reservation, SpillOffer
from statebed.state.tiers.spill_cache import CachedFile, LocalCache


@dataclass(eq=False)
class Slot:
    """A block and the resources it takes."""

    block: Block
    charge: Reservation
    """Memory charged for rows."""
    indexes: Reservation
    """Memory charged for indexes."""
    offer: SpillOffer | None = None
    cached: CachedFile | None = None
    changes: int = 0
    """Version of the block, incremented when rows are installed or released, so that a copy read before is known to be
    stale.
    """
    gone: bool = False
    """Whether other blocks have replaced it."""


class Charges:
    """Charges memory for blocks, and offers them for eviction."""

    def __init__(
        self, memory: MemoryController, cache: LocalCache, owner: str, *, evict: Callable[[Slot], bool]
    ) -> None:
        """Create the accounts of a view's blocks. `evict` is a bound method that evicts a block; only a weak reference
        to it is kept.
        """
        self._memory = memory
        self._cache = cache
        self._owner = owner
        self._evict = weakref.WeakMethod(evict)

    def slot(self, block: Block) -> Slot:
        rows, indexes = (
            self._memory.charge(self._owner, purpose, 0) for purpose in (Purpose.SEGMENTS, Purpose.INDEXES)
        )
        return Slot(block, rows, indexes)

    def account(self, slot: Slot, moment: int) -> None:
        """Charge what a block takes now, and offer it for eviction as last used at `moment`."""
        held, indexes = slot.block.held_bytes, slot.block.index_bytes
        slot.charge.set(held - indexes)
        if slot.indexes.nbytes != indexes:
            slot.indexes.set(indexes)
        if not held:
            self._withdraw(slot)
            return
        if slot.offer is None:
            slot.offer = self._memory.offer(self._owner, held, partial(_spill, self._evict, slot))
        else:
            self._memory.resize(slot.offer, held)
        slot.offer.touch(moment)

    def release(self, slot: Slot) -> None:
        """Release all resources of a block."""
        slot.charge.release()
        slot.indexes.release()
        self._withdraw(slot)
        self.uncount(slot)

    def count(self, slot: Slot, *, drop: Callable[[Slot], None]) -> CachedFile:
        """Count the files of a block, which are copies, towards the cache. `drop` is a bound method; only a weak
        reference to it is kept.
        """
        method = weakref.WeakMethod(drop)

        def dropped() -> None:
            alive = method()
            if alive is not None:
                alive(slot)

        return self._cache.add(slot.block.own_bytes, dropped)

    def uncount(self, slot: Slot) -> None:
        """Remove the files of a block from the cache, because they are gone or no longer copies."""
        if slot.cached is not None:
            self._cache.remove(slot.cached)
            slot.cached = None

    def _withdraw(self, slot: Slot) -> None:
        if slot.offer is not None:
            self._memory.withdraw(slot.offer)
            slot.offer = None


@dataclass
class Counts:
    """Number of events since the view was created."""

    spills: int = 0
    loads: int = 0
    hits: int = 0
    misses: int = 0


def _spill(evict: "weakref.WeakMethod[Callable[[Slot], bool]]", slot: Slot) -> bool:
    method = evict()
    return method is None or method(slot)


def as_cold_as(slot: Slot, slots: Iterable[Slot], *, max_bytes: int, but: Container[Slot]) -> list[Slot]:
    """Return the block and others that are at least as cold, about `max_bytes` together, to be evicted at once."""
    group = [slot]
    if slot.offer is None:
        return group
    left = max_bytes - slot.offer.nbytes
    for candidate in slots:
        if candidate is slot or candidate in but or candidate.offer is None or candidate.offer.spilling:
            continue
        if candidate.offer.last_used <= slot.offer.last_used:
            left -= candidate.offer.nbytes
            if left < 0:
                break
            group.append(candidate)
    return group


def give_back(slots: list[Slot], memory: MemoryController, cache: LocalCache, remembered: Reservation) -> None:
    """Release the resources of all blocks after the view is gone."""
    remembered.release()
    for slot in slots:
        slot.charge.release()
        slot.indexes.release()
        if slot.offer is not None:
            memory.withdraw(slot.offer)
        if slot.cached is not None:
            cache.remove(slot.cached)
        slot.block.forget()
