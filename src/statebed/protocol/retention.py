"""Retention: which epochs a new record keeps, as one number, `min_epoch`.

Counted along the present lineage, from the new epoch back over `base`: run_starts and abandoned epochs do not count,
so neither a crash loop nor a fork pushes history out. The number never falls, and never passes an epoch that some sink
still waits for.
"""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass

from statebed.errors import InputError
from statebed.quantities import Duration, parse_duration

DEFAULT_EPOCHS = 10
DEFAULT_READER_GRACE_US = 10 * 60 * 1_000_000


@dataclass(frozen=True)
class Retention:
    """Epochs to keep: the last `epochs` ones, and those younger than `max_age` if it is given.

    Files remain for `reader_grace` after the record that dropped them, for readers that opened an earlier one. Both
    times are text such as "30 days" or a timedelta; the fields hold microseconds and can be given as such, too.

    >>> Retention(epochs=100, max_age="30 days").max_age_us
    2592000000000
    """

    epochs: int = DEFAULT_EPOCHS
    max_age_us: int | None = None
    reader_grace_us: int = DEFAULT_READER_GRACE_US
    max_age: InitVar[Duration | None] = None
    reader_grace: InitVar[Duration | None] = None

    def __post_init__(self, max_age: Duration | None, reader_grace: Duration | None) -> None:
        if max_age is not None:
            object.__setattr__(self, "max_age_us", parse_duration(max_age))
        if reader_grace is not None:
            object.__setattr__(self, "reader_grace_us", parse_duration(reader_grace))
        if self.epochs < 1:
            raise InputError(f"`epochs` must be at least 1, got {self.epochs}", fix="keep at least 1 epoch")
        if self.reader_grace_us < 0 or (self.max_age_us is not None and self.max_age_us < 0):
            raise InputError(
                f"retention times cannot be negative, got max_age_us={self.max_age_us}, "
                f"reader_grace_us={self.reader_grace_us}",
                fix="write max_age='30 days', reader_grace='10 minutes'",
            )


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
