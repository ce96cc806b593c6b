"""From an error to the exit code of a process: a supervisor must not restart a run that was superseded."""

import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from statebed.errors import StatebedError
from statebed.spark.session import stop_spark

_SIGNALLED = 128
"""Added to the number of the signal that ended a process."""


@contextmanager
def exit_codes() -> Iterator[None]:
    """End the process with the error's own exit code (86 for a superseded run); the traceback of its cause and its text
    are the last lines on stderr.

    with sb.exit_codes():
        job.start(processing_time="1 second").await_termination()

    SIGTERM and Ctrl-C inside it stop the query after the epoch in progress, with the exit codes 143 and 130.
    """
    try:
        with _sigterm_exits():
            yield
    except KeyboardInterrupt:
        raise SystemExit(_SIGNALLED + signal.SIGINT) from None
    except StatebedError as error:
        stop_spark()  # what its processes say comes before the error, and nothing after it
        caused = [] if error.__cause__ is None else traceback.format_exception(error.__cause__)
        sys.stderr.write(f"{''.join(caused)}{error}\n")
        raise SystemExit(error.exit_code) from error


@contextmanager
def _sigterm_exits() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, unless the program has a handler of its own; only the main thread can say so."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def exits(number: int, _frame: object) -> None:
        raise SystemExit(_SIGNALLED + number)

    signal.signal(signal.SIGTERM, exits)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
