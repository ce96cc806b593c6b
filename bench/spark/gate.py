"""The gate between batches: a side stops there after each, until the benchmark lets it continue.

The sides take turns, batch by batch, and the time from "go" to the next arrival is everything that one batch costs:
Spark's own logs, planning, the work, the commit, the output. Messages are lines of JSON.
"""

import json
import os
import select
import time
from collections.abc import Callable
from typing import Any

IDLE_SECONDS = 20.0
_IN = 0


class Gate:
    """The gate in the process of a side. What Java and others print goes to stderr; only messages stay on stdout."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.when_idle: Callable[[], object] = lambda: None
        """Called now and then while waiting."""
        self._left = 0  # until it is closed, everything passes
        self.waited: list[float] = []
        """Seconds spent at the gate, for each batch."""

    def close(self, batches: int) -> None:
        """Wait for the signal to begin; then stop at each of `batches` batches."""
        self.say(ready=True)
        self._await_word()
        self._left = batches

    def stop_here(self) -> None:
        """A batch is done and durable."""
        if self._left == 0:
            return
        self._left -= 1
        began = time.perf_counter()
        self.say(batch=len(self.waited))
        self._await_word()
        self.waited.append(time.perf_counter() - began)

    def _await_word(self) -> None:
        while not select.select([_IN], [], [], IDLE_SECONDS)[0]:
            self.when_idle()
        word = b""
        while not word.endswith(b"\n"):
            letter = os.read(_IN, 1)  # nothing is read ahead: select would not see it
            if not letter:
                os._exit(1)  # the process that would send it has ended
            word += letter

    def say(self, **what: Any) -> None:
        self._out.write(json.dumps(what) + "\n")
        self._out.flush()
