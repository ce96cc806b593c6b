"""From an error to the exit code of a process: a supervisor must not restart a run that was superseded."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from statebed.errors import StatebedError


@contextmanager
def exit_codes() -> Iterator[None]:
    """End the process with the error's own exit code (86 for a superseded run) and its text on stderr.

    with sb.exit_codes():
        job.start(processing_time="1 second").await_termination()
    """
    try:
        yield
    except StatebedError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_code) from error
