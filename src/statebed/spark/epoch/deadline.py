"""A timeout for what one thread runs on Spark, because an action has none by itself."""

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
    """Whether the timeout has expired."""

    expired: bool = False


@contextmanager
def deadline(context: SparkContext, seconds: float, *, what: str, where: str) -> Iterator[Deadline]:
    """Cancel the Spark jobs of the body after `seconds`, and raise its error as an EpochTimeoutError."""
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
            fix="set a longer epoch_timeout, or limit the rows per batch at the source "
            "(for files: maxFilesPerTrigger); on the next start the job continues from its last committed epoch",
        ) from error
    finally:
        timer.cancel()
        with suppress(Py4JError, AttributeError):  # Spark was stopped in the meantime
            context.removeJobTag(tag)
