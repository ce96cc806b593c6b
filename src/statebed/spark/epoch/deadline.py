"""A time-out for what one thread runs on Spark: an action waits for ever by itself."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark import SparkContext

from statebed.errors import EpochTimeoutError


@dataclass
class Deadline:
    """Whether the time is over."""

    expired: bool = False


@contextmanager
def deadline(context: SparkContext, seconds: float, *, what: str, where: str) -> Iterator[Deadline]:
    """Cancel the jobs that the body runs after `seconds`; the body's error then becomes an EpochTimeoutError."""
    state, tag = Deadline(), f"statebed-{uuid.uuid4().hex}"

    def cancel() -> None:
        state.expired = True
        context.cancelJobsWithTag(tag)

    timer = threading.Timer(seconds, cancel)
    timer.daemon = True
    context.addJobTag(tag)
    timer.start()
    try:
        yield state
    except Exception as error:
        if not state.expired:
            raise
        raise EpochTimeoutError(
            f"{what} was cancelled after {seconds:g} s",
            where=where,
            fix="give epoch_timeout a longer time, or let the source give fewer rows per batch "
            "(for files: maxFilesPerTrigger); after a start the job goes on from its last committed epoch",
        ) from error
    finally:
        timer.cancel()
        with suppress(Py4JError, AttributeError):  # Spark was stopped meanwhile
            context.removeJobTag(tag)
