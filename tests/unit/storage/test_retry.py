"""Retries: how long to wait, when to give up, and what is never tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.storage.retry import Retrier, RetryPolicy, next_delay


@given(failures=st.integers(1, 5000), elapsed=st.floats(0, 1000), draw=st.floats(0, 1))
def test_a_delay_is_bounded_and_never_passes_the_deadline(failures: int, elapsed: float, draw: float) -> None:
    policy = RetryPolicy(deadline=30, first_delay=0.1, longest_delay=5)
    delay = next_delay(policy, failures=failures, elapsed=elapsed, draw=draw)
    if delay is not None:
        assert 0.05 <= delay <= 5
        assert elapsed + delay < 30
    else:
        assert elapsed + 5 >= 30


def test_delays_double_up_to_the_limit_and_chance_takes_up_to_half() -> None:
    policy = RetryPolicy(deadline=1000, first_delay=1, longest_delay=10)
    assert [next_delay(policy, failures=n, elapsed=0, draw=1) for n in range(1, 6)] == [1, 2, 4, 8, 10]
    assert [next_delay(policy, failures=n, elapsed=0, draw=0) for n in range(1, 6)] == [0.5, 1, 2, 4, 5]


class FakeTime:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def retrier(self, deadline: float) -> Retrier:
        policy = RetryPolicy(deadline=deadline, first_delay=1, longest_delay=4)
        return Retrier(policy, clock=lambda: self.now, sleep=self.sleep, draw=lambda: 1.0)


def test_what_fails_twice_and_then_works_is_a_success() -> None:
    time, answers = FakeTime(), iter([OSError("1"), OSError("2"), "answer"])

    def attempt() -> str:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return str(answer)

    assert time.retrier(60).call(attempt, retryable=lambda _: True) == "answer"
    assert time.slept == [1, 2]


def test_what_keeps_failing_ends_at_the_deadline_with_its_last_error() -> None:
    time, tries = FakeTime(), []

    def attempt() -> None:
        tries.append(time.now)
        raise OSError(f"try {len(tries)}")

    with pytest.raises(OSError, match="try 4"):
        time.retrier(10).call(attempt, retryable=lambda _: True)
    assert tries == [100, 101, 103, 107]


def test_what_is_not_retryable_fails_at_once() -> None:
    time = FakeTime()

    def attempt() -> None:
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        time.retrier(60).call(attempt, retryable=lambda error: not isinstance(error, PermissionError))
    assert time.slept == []
