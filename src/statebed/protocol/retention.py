"""Retention: which epochs a new record keeps, as one number, `min_epoch`.

Counted along the present lineage, from the new epoch back over `base`: run_starts and abandoned epochs do not count,
so neither a crash loop nor a fork pushes history out. The number never falls, and never passes an epoch that some sink
still waits for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from statebed.errors import InputError

DEFAULT_EPOCHS = 10
DEFAULT_READER_GRACE_US = 10 * 60 * 1_000_000


@dataclass(frozen=True)
class Retention:
    """Keep the last `epochs` data epochs, and every one younger than `max_age_us` if that is given.

    Files stay `reader_grace_us` longer than the record that dropped them, for readers that opened it before.
    """

    epochs: int = DEFAULT_EPOCHS
    max_age_us: int | None = None
    reader_grace_us: int = DEFAULT_READER_GRACE_US

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise InputError(f"retention of {self.epochs} epochs would keep nothing", fix="keep at least 1 epoch")
        if self.reader_grace_us < 0 or (self.max_age_us is not None and self.max_age_us < 0):
            raise InputError("retention times cannot be negative", fix="use microseconds, 0 or more")


@dataclass(frozen=True)
class Link:
    """One data epoch of the present lineage."""

    epoch: int
    finish_time_us: int


def settled_times(finish_times_us: Sequence[int], *, now_us: int) -> list[int]:
    """When records ended, ascending by number, with times from the future corrected.

    A record from the future was written while the clock was ahead. It ended no later than the next one that is not
    from the future, or than now.

    >>> settled_times([10, 999, 20], now_us=30)
    [10, 20, 20]
    """
    settled: list[int] = []
    latest = now_us
    for time_us in reversed(finish_times_us):
        latest = time_us if time_us <= now_us else latest
        settled.append(latest)
    return settled[::-1]


def next_min_epoch(
    chain: Sequence[Link], *, policy: Retention, now_us: int, current: int, oldest_unpublished: int | None
) -> int:
    """`min_epoch` of the record about to be written; `chain` is ascending and ends with its epoch."""
    if len(chain) < policy.epochs:
        return current  # begun at a savepoint, or behind a damaged record: what is there stays until there are enough
    kept = list(chain[-policy.epochs :])
    if policy.max_age_us is not None:
        times = settled_times([link.finish_time_us for link in chain], now_us=now_us)
        kept += [link for link, time_us in zip(chain, times, strict=True) if time_us >= now_us - policy.max_age_us]
    wanted = min((link.epoch for link in kept), default=current)
    if oldest_unpublished is not None:
        wanted = min(wanted, oldest_unpublished)
    return max(current, wanted)
