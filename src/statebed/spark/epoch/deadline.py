"""A timeout for what one thread runs on Spark, because an action has none by itself."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark import SparkContext

from statebed.errors import EpochTimeoutError

_AGAIN_SECONDS = 1.0
"""Seconds between two cancellations: a job that is submitted after one of them is cancelled by the next."""


@dataclass
class Deadline:
    """Whether the timeout has expired."""

    expired: bool = False


@contextmanager
def deadline(context: SparkContext, seconds: float, *, what: str, where: str) -> Iterator[Deadline]:
    """Cancel the Spark jobs of the body after `seconds`, and raise its error as an EpochTimeoutError."""
    state, tag, ended = Deadline(), f"statebed-{uuid.uuid4().hex}", threading.Event()

    def cancel() -> None:
        wait = seconds
        with suppress(Py4JError, AttributeError):  # Spark was stopped in the meantime
            while not ended.wait(wait):
                state.expired, wait = True, _AGAIN_SECONDS
                context.cancelJobsWithTag(tag)

    context.addJobTag(tag)
    threading.Thread(target=cancel, name="statebed-timeout", daemon=True).start()
    try:
        yield state
    except Exception as error:
        if not state.expired:
            raise
        raise EpochTimeoutError(
            f"{what} was cancelled after {seconds:g} s",
            where=where,
            fix="set a longer epoch_timeout, or limit the rows per batch at the source "
            "(for files: maxFilesPerTrigger); on the next start the job continues from its last committed epoch",
        ) from error
    finally:
        ended.set()
        with suppress(Py4JError, AttributeError):  # Spark was stopped in the meantime
            context.removeJobTag(tag)
