"""Retries: a pure decision, and the loop that follows it.

Delays double from attempt to attempt, up to a limit, with random jitter, so that many clients do not return at once.
There is no retry after the deadline. Clock, sleep and random numbers are passed in, so tests need no time.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """Limits of retries, in seconds."""

    deadline: float = 30.0
    """Time since the start of the first attempt after which no attempt starts."""

    first_delay: float = 0.1
    longest_delay: float = 5.0


def next_delay(policy: RetryPolicy, *, failures: int, elapsed: float, draw: float) -> float | None:
    """Return the seconds to wait after `failures` failures, or None to give up; `draw` is random, from 0 to 1.

    >>> next_delay(RetryPolicy(), failures=3, elapsed=1.0, draw=1.0)
    0.4
    >>> next_delay(RetryPolicy(deadline=1.0), failures=3, elapsed=0.9, draw=1.0) is None
    True
    """
    # 2.0**64 is far above any limit, and a larger power would overflow after a thousand failures.
    full: float = min(policy.longest_delay, policy.first_delay * 2.0 ** min(failures - 1, 64))
    delay = full / 2 + full / 2 * draw
    return delay if elapsed + delay < policy.deadline else None


@dataclass(frozen=True)
class Retrier:
    """Repeats an attempt according to its policy."""

    policy: RetryPolicy = RetryPolicy()
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random

    def call(self, attempt: Callable[[], T], *, retryable: Callable[[Exception], bool]) -> T:
        """Return the attempt's result, or raise its last error: one that is not retryable, or the last before giving
        up.
        """
        start = self.clock()
        failures = 0
        while True:
            try:
                return attempt()
            except Exception as error:
                failures += 1
                delay = (
                    next_delay(self.policy, failures=failures, elapsed=self.clock() - start, draw=self.draw())
                    if retryable(error)
                    else None
                )
                if delay is None:
                    raise
            self.sleep(delay)
