"""Exit codes of processes for errors: a supervisor must not restart a run that was superseded."""

import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from statebed.errors import StatebedError
from statebed.spark.session import stop_spark

_SIGNALLED = 128
"""Base of exit codes for signals, to which the number of the signal is added."""


@contextmanager
def exit_codes() -> Iterator[None]:
    """End the process with the exit code of the error (86 for a superseded run). The last lines on stderr are the
    traceback of its cause and its text.

        with sb.exit_codes():
            job.start(processing_time="1 second").await_termination()

    SIGTERM and Ctrl-C inside the block stop the query after the epoch in progress, with exit codes 143 and 130.

    >>> try:
    ...     with sb.exit_codes():
    ...         raise sb.FencedError("a newer run has started")
    ... except SystemExit as end:
    ...     end.code
    86
    """
    try:
        with _sigterm_exits():
            yield
    except KeyboardInterrupt:
        raise SystemExit(_SIGNALLED + signal.SIGINT) from None
    except StatebedError as error:
        stop_spark()  # so that output of its processes precedes the error
        caused = [] if error.__cause__ is None else traceback.format_exception(error.__cause__)
        sys.stderr.write(f"{''.join(caused)}{error}\n")
        raise SystemExit(error.exit_code) from error


@contextmanager
def _sigterm_exits() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, unless the program has its own handler. Has no effect outside the main thread."""
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
