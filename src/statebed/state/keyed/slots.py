"""Blocks with what they take: their charge, their offer, their files in the cache."""

import weakref
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import partial

from statebed.state.keyed.block import Block
from statebed.state.memory.controller import MemoryController, Offer, Purpose, Reservation
from statebed.state.tiers.spill_cache import CachedFile, LocalCache


@dataclass(eq=False)
class Slot:
    """A block, and what it takes."""

    block: Block
    charge: Reservation
    """Of its rows."""
    indexes: Reservation
    """Of what finds them."""
    offer: Offer | None = None
    cached: CachedFile | None = None
    changes: int = 0
    """Counts what was installed or given up, so that a copy read meanwhile is known to be old."""
    gone: bool = False
    """Others have taken its place."""


class Charges:
    """Has what blocks take charged, and offered for eviction."""

    def __init__(
        self, memory: MemoryController, cache: LocalCache, owner: str, *, evict: Callable[[Slot], bool]
    ) -> None:
        """`evict`: a method that makes a block leave memory; whoever it belongs to is not kept alive by offers."""
        self._memory = memory
        self._cache = cache
        self._owner = owner
        self._evict = weakref.WeakMethod(evict)

    def slot(self, block: Block) -> Slot:
        rows, indexes = (self._memory.charge(self._owner, one, 0) for one in (Purpose.SEGMENTS, Purpose.INDEXES))
        return Slot(block, rows, indexes)

    def account(self, slot: Slot, moment: int) -> None:
        """Charge what a block takes now, and offer it; it was used at this moment."""
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
        """It takes nothing any more."""
        slot.charge.release()
        slot.indexes.release()
        self._withdraw(slot)
        self.uncount(slot)

    def count(self, slot: Slot, *, drop: Callable[[Slot], None]) -> CachedFile:
        """Let the cache count its files, which are copies; `drop`: a method, whose object is not kept alive by that."""
        method = weakref.WeakMethod(drop)

        def dropped() -> None:
            alive = method()
            if alive is not None:
                alive(slot)

        return self._cache.add(slot.block.own_bytes, dropped)

    def uncount(self, slot: Slot) -> None:
        """Its files are no copies any more that the cache may drop."""
        if slot.cached is not None:
            self._cache.remove(slot.cached)
            slot.cached = None

    def _withdraw(self, slot: Slot) -> None:
        if slot.offer is not None:
            self._memory.withdraw(slot.offer)
            slot.offer = None


@dataclass
class Counts:
    """What happened to blocks, since the view was made."""

    spills: int = 0
    loads: int = 0
    hits: int = 0
    misses: int = 0


def _spill(evict: "weakref.WeakMethod[Callable[[Slot], bool]]", slot: Slot) -> bool:
    method = evict()
    return method is None or method(slot)


def as_cold_as(slot: Slot, slots: Iterable[Slot], *, most_bytes: int, but: Container[Slot]) -> list[Slot]:
    """The block, and others that are as cold, about so many bytes: together they are worth leaving memory."""
    group = [slot]
    if slot.offer is None:
        return group
    left = most_bytes - slot.offer.nbytes
    for one in slots:
        if one is slot or one in but or one.offer is None or one.offer.spilling:
            continue
        if one.offer.last_used <= slot.offer.last_used:
            left -= one.offer.nbytes
            if left < 0:
                break
            group.append(one)
    return group


def give_back(slots: list[Slot], memory: MemoryController, cache: LocalCache, remembered: Reservation) -> None:
    """After the view is gone: nothing of it takes memory or disk."""
    remembered.release()
    for slot in slots:
        slot.charge.release()
        slot.indexes.release()
        if slot.offer is not None:
            memory.withdraw(slot.offer)
        if slot.cached is not None:
            cache.remove(slot.cached)
        slot.block.forget()
