"""Retention: which epochs a new record keeps, expressed as one number, `min_epoch`.

Epochs are counted along the current lineage, from the new epoch back through `base`. Run_starts and abandoned epochs do
not count, so neither a crash loop nor a fork displaces history. The number never decreases, and never exceeds an epoch
that a sink has not got yet.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from statebed.errors import InputError
from statebed.quantities import Duration, duration_text, parse_duration

DEFAULT_EPOCHS = 10
DEFAULT_READER_GRACE_US = 10 * 60 * 1_000_000


@dataclass(frozen=True)
class Retention:
    """Epochs to keep: the last `epochs` ones, and those younger than `max_age` if it is given.

    Files remain for `reader_grace` after the record that dropped them, for readers that opened an earlier one. Both
    times are text such as "30 days" or a timedelta.

    >>> Retention(epochs=100, max_age="30 days").max_age_us
    2592000000000
    """

    epochs: int = DEFAULT_EPOCHS
    max_age: Duration | None = None
    reader_grace: Duration = dt.timedelta(microseconds=DEFAULT_READER_GRACE_US)

    def __post_init__(self) -> None:
        # Equal times are equal policies, however they were written.
        for name, value in (("max_age", self.max_age), ("reader_grace", self.reader_grace)):
            if value is not None:
                object.__setattr__(self, name, dt.timedelta(microseconds=parse_duration(value)))
        if self.epochs < 1:
            raise InputError(f"`epochs` must be at least 1, got {self.epochs}", fix="keep at least 1 epoch")
        if self.reader_grace_us < 0 or (self.max_age_us or 0) < 0:
            raise InputError(
                f"retention times cannot be negative, got max_age {duration_text(self.max_age_us or 0)!r} and "
                f"reader_grace {duration_text(self.reader_grace_us)!r}",
                fix="write max_age='30 days', reader_grace='10 minutes'",
            )

    @property
    def max_age_us(self) -> int | None:
        return None if self.max_age is None else parse_duration(self.max_age)

    @property
    def reader_grace_us(self) -> int:
        return parse_duration(self.reader_grace)


@dataclass(frozen=True)
class LineageEpoch:
    """One data epoch of the current lineage."""

    epoch: int
    finish_time_us: int


def settled_times(finish_times_us: Sequence[int], *, now_us: int) -> list[int]:
    """Return the finish times of records, ascending by number, with times in the future corrected.

    A record with a time in the future was written while the clock was ahead. It finished no later than the next record
    with a time in the past, or than now.

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
    chain: Sequence[LineageEpoch], *, policy: Retention, now_us: int, current: int, oldest_unpublished: int | None
) -> int:
    """Return `min_epoch` of the record about to be written. `chain` is ascending and ends with its epoch."""
    if len(chain) < policy.epochs:
        return current  # after a start from a savepoint or past a damaged record: keep everything until it suffices
    kept = list(chain[-policy.epochs :])
    if policy.max_age_us is not None:
        times = settled_times([link.finish_time_us for link in chain], now_us=now_us)
        kept += [link for link, time_us in zip(chain, times, strict=True) if time_us >= now_us - policy.max_age_us]
    wanted = min((link.epoch for link in kept), default=current)
    if oldest_unpublished is not None:
        wanted = min(wanted, oldest_unpublished)
    return max(current, wanted)
