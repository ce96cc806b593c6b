"""Timeout of an epoch, without Spark: `tests/spark/test_job_settings.py` has it on Spark."""

import threading
import time
from typing import Any, cast

import pytest

from statebed.errors import EpochTimeoutError
from statebed.spark.epoch.deadline import deadline


class Jobs:
    """A Spark context whose one job can be cancelled while it runs."""

    def __init__(self) -> None:
        self.runs, self.cancelled = threading.Event(), threading.Event()
        self.tags: set[str] = set()

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.tags.add(tag)

    def removeJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.tags.remove(tag)

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        if self.runs.is_set() and tag in self.tags:
            self.cancelled.set()


def late_epoch(jobs: Jobs) -> None:
    """Submit a job after the timeout, and fail when it is cancelled or has run for 20 seconds."""
    with deadline(cast("Any", jobs), 0.01, what="epoch 7", where="job rides") as limit:
        while not limit.expired:
            time.sleep(0.01)
        time.sleep(0.05)  # the first cancellation finds no job
        jobs.runs.set()
        jobs.cancelled.wait(20)
        raise RuntimeError("the job has ended")


def test_a_job_that_is_submitted_after_the_timeout_is_cancelled_too() -> None:
    jobs = Jobs()
    with pytest.raises(EpochTimeoutError, match=r"epoch 7 was cancelled after 0\.01 s"):
        late_epoch(jobs)
    assert jobs.cancelled.is_set()
    assert not jobs.tags


def test_nothing_is_cancelled_once_the_epoch_has_ended() -> None:
    jobs = Jobs()
    jobs.runs.set()
    with deadline(cast("Any", jobs), 0.05, what="epoch 7", where="job rides") as limit:
        pass
    assert not jobs.cancelled.wait(0.3)
    assert not limit.expired
