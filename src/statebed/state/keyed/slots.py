"""Blocks with what they take: their charge, their offer, their files in the cache."""

from dataclasses import dataclass

from statebed.state.keyed.block import Block
from statebed.state.memory.controller import MemoryController, Offer, Reservation
from statebed.state.tiers.spill_cache import CachedFile, LocalCache


@dataclass(eq=False)
class Slot:
    """A block, and what it takes."""

    block: Block
    charge: Reservation
    offer: Offer | None = None
    cached: CachedFile | None = None
    changes: int = 0
    """Counts what was installed or given up, so that a copy read meanwhile is known to be old."""
    gone: bool = False
    """Others have taken its place."""


@dataclass
class Counts:
    """What happened to blocks, since the view was made."""

    spills: int = 0
    loads: int = 0
    hits: int = 0
    misses: int = 0


def give_back(slots: list[Slot], memory: MemoryController, cache: LocalCache, remembered: Reservation) -> None:
    """After the view is gone: nothing of it takes memory or disk."""
    remembered.release()
    for slot in slots:
        slot.charge.release()
        if slot.offer is not None:
            memory.withdraw(slot.offer)
        if slot.cached is not None:
            cache.remove(slot.cached)
        slot.block.forget()
