"""Limits of a job: each limit, the value at the job's size, and the number of subtasks at which it is exceeded."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from bench.scale.estimate import Estimate
from bench.scale.s3 import GETS_PER_SECOND, PUTS_PER_SECOND

MAX_SUBTASKS = 1 << 20
RESTART_SECONDS = 60.0
"""Acceptable time to open a job after a restart; a choice of ours."""
COMPACTED_WITHIN = 100.0
"""Epochs within which every subtask should be compacted once; a choice of ours."""

_LIMITS: tuple[tuple[str, str, Callable[[Estimate], float], Callable[[Estimate], float]], ...] = (
    ("a subtask's epoch within the epoch", "s", lambda e: e.subtask_seconds, lambda e: e.target.epoch_seconds),
    ("commit within the epoch", "s", lambda e: e.commit_seconds, lambda e: e.target.epoch_seconds),
    ("clean-up within its interval", "s", lambda e: e.cleanup_seconds, lambda e: e.cleanup_interval),
    ("opening within a minute", "s", lambda e: e.open_seconds, lambda _: RESTART_SECONDS),
    ("PUT rate of one prefix", "1/s", lambda e: e.put_burst, lambda _: float(PUTS_PER_SECOND)),
    ("GET rate of one prefix", "1/s", lambda e: e.get_burst, lambda _: float(GETS_PER_SECOND)),
    ("all compacted within 100 epochs", "epochs", lambda e: e.compaction_cycle, lambda _: COMPACTED_WITHIN),
    ("compaction within a round per epoch", "bytes", lambda e: e.compaction_bytes, lambda e: e.round_bytes),
)


@dataclass(frozen=True)
class Limit:
    """A limit and how far away it is."""

    what: str
    unit: str
    value: float
    allowed: float
    subtasks: float
    """Smallest number of subtasks, with as much state and as many rows each, that exceeds it."""


def limits(result: Estimate, grown: Callable[[int], Estimate]) -> list[Limit]:
    """Return every limit; `grown` estimates the same job with another number of subtasks."""
    estimated = cache(grown)  # limits are looked for at the same numbers
    return [
        Limit(what, unit, value(result), allowed(result), _breaks_at(value, allowed, estimated))
        for what, unit, value, allowed in _LIMITS
    ]


def _breaks_at(
    value: Callable[[Estimate], float], allowed: Callable[[Estimate], float], grown: Callable[[int], Estimate]
) -> float:
    def exceeded(subtasks: int) -> bool:
        result = grown(subtasks)
        return value(result) > allowed(result)

    if exceeded(1):
        return 1
    low, high = 1, 2
    while not exceeded(high):
        low, high = high, 2 * high
        if high > MAX_SUBTASKS:
            return float("inf")
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if exceeded(middle) else (middle, high)
    return float(high)
