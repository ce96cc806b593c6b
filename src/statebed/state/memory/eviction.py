"""Choice of what to evict first: a pure function, used for the memory of a process and for its cache on local disk."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """An item that can be evicted."""

    number: int
    """Number that identifies the candidate."""
    owner: str
    nbytes: int
    last_used: int
    """Position in time; greater is later."""


def choose_victims(
    candidates: Iterable[Candidate],
    *,
    to_free: int,
    used: Mapping[str, int] | None = None,
    guarantees: Mapping[str, int] | None = None,
) -> list[Candidate]:
    """Choose the coldest candidates that together free `to_free` bytes, or all that may be evicted.

    Among equally cold candidates the largest comes first, so that fewer have to move. Owners above their guarantee are
    evicted first, then owners without a guarantee. An owner within its guarantee keeps what it has.

    >>> rides = Candidate(1, "rides", nbytes=10, last_used=3)
    >>> bids = Candidate(2, "bids", nbytes=10, last_used=7)
    >>> [victim.owner for victim in choose_victims([bids, rides], to_free=5)]
    ['rides']
    >>> guarantee = {"rides": 100}
    >>> [victim.owner for victim in choose_victims([bids, rides], to_free=5, guarantees=guarantee)]
    ['bids']
    """
    left = dict(used or {})
    waiting = sorted(candidates, key=lambda candidate: (candidate.last_used, -candidate.nbytes, candidate.number))
    chosen: list[Candidate] = []
    freed = 0
    while waiting and freed < to_free:
        victim = _next_victim(waiting, left, guarantees or {})
        if victim is None:
            break
        waiting.remove(victim)
        chosen.append(victim)
        freed += victim.nbytes
        left[victim.owner] = left.get(victim.owner, 0) - victim.nbytes
    return chosen


def borrowed(used: Mapping[str, int], guarantees: Mapping[str, int]) -> dict[str, int]:
    """Return how much each owner uses beyond its guarantee, leaving out owners that use no more."""
    beyond = {owner: nbytes - guarantees.get(owner, 0) for owner, nbytes in used.items()}
    return {owner: nbytes for owner, nbytes in beyond.items() if nbytes > 0}


def _next_victim(
    coldest_first: Sequence[Candidate], used: Mapping[str, int], guarantees: Mapping[str, int]
) -> Candidate | None:
    above = (
        candidate
        for candidate in coldest_first
        if 0 < guarantees.get(candidate.owner, 0) < used.get(candidate.owner, 0)
    )
    without = (candidate for candidate in coldest_first if not guarantees.get(candidate.owner, 0))
    return next(itertools.chain(above, without), None)
