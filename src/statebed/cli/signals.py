"""Lets SIGTERM and SIGHUP end a command as Ctrl-C does: through its `finally` clauses."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP inside the block."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
