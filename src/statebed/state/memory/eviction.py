"""What leaves first: a pure decision, shared by the memory of a process and by its cache on local disk."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """Something that can leave."""

    number: int
    """Tells it apart."""
    owner: str
    nbytes: int
    last_used: int
    """A position in time; greater is later."""


def choose_victims(
    candidates: Iterable[Candidate],
    *,
    to_free: int,
    used: Mapping[str, int] | None = None,
    guarantees: Mapping[str, int] | None = None,
) -> list[Candidate]:
    """The coldest candidates over all owners that together free `to_free` bytes, or all that there are. Of equally cold
    ones the largest leaves first: fewer have to move.

    An owner that uses more than it was guaranteed is borrowing, and what is borrowed goes back first: the segments of
    an owner inside its guarantee are taken only once no borrower has any.

    >>> rides = Candidate(1, "rides", nbytes=10, last_used=3)
    >>> bids = Candidate(2, "bids", nbytes=10, last_used=7)
    >>> [victim.owner for victim in choose_victims([bids, rides], to_free=5)]
    ['rides']
    >>> guarantee = {"rides": 100}
    >>> [victim.owner for victim in choose_victims([bids, rides], to_free=5, guarantees=guarantee)]
    ['bids']
    """
    left = dict(used or {})
    waiting = sorted(candidates, key=lambda one: (one.last_used, -one.nbytes, one.number))
    chosen: list[Candidate] = []
    freed = 0
    while waiting and freed < to_free:
        victim = next((one for one in waiting if _borrows(one.owner, left, guarantees)), waiting[0])
        waiting.remove(victim)
        chosen.append(victim)
        freed += victim.nbytes
        left[victim.owner] = left.get(victim.owner, 0) - victim.nbytes
    return chosen


def borrowed(used: Mapping[str, int], guarantees: Mapping[str, int]) -> dict[str, int]:
    """How much each owner uses beyond its guarantee; those that borrow nothing are left out."""
    beyond = {owner: nbytes - guarantees.get(owner, 0) for owner, nbytes in used.items()}
    return {owner: nbytes for owner, nbytes in beyond.items() if nbytes > 0}


def _borrows(owner: str, used: Mapping[str, int], guarantees: Mapping[str, int] | None) -> bool:
    guarantee = (guarantees or {}).get(owner, 0)
    return guarantee == 0 or used.get(owner, 0) > guarantee
