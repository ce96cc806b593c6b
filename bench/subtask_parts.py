"""Processor time of the parts of a subtask's epoch: from the rows of its share to files and a report.

Functions of the engine are replaced by ones that measure the processor time of their thread. Each part is charged only
for what no part inside it takes: encoding, which belongs to a checkpoint, is charged to `encode`. Parts run on several
threads, as uploads do.
"""

import functools
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import subtask as epochs_of_subtasks
from bench.subtask import OPERATORS, ROWS, Job
from statebed.operators.updating.aggregate import UpdatingAggregate
from statebed.state import TableManager
from statebed.state.keyed import durable
from statebed.state.keyed.view import KeyedView
from statebed.storage import LocalStore
from statebed.subtasks import subtask

CASE = "updating aggregate"
REST = "the rest, and threads of Arrow"
_PARTS: tuple[tuple[str, object, str], ...] = (
    ("open the state", TableManager, "__init__"),
    ("fold", UpdatingAggregate, "_epoch"),
    ("look-up", KeyedView, "get"),
    ("merge, results", UpdatingAggregate, "_changed"),
    ("write into the state", KeyedView, "upsert"),
    ("checkpoint", TableManager, "checkpoint"),
    ("encode", durable, "encode_segment"),
    ("outbox", subtask, "_write_outbox"),
    ("put and sync", LocalStore, "put"),
    ("put and sync", LocalStore, "put_if_absent"),
)
"""Part, and the function that does it."""
_WHOLE = (epochs_of_subtasks, "run_subtask")
PARTS = (*dict.fromkeys(part for part, _, _ in _PARTS), REST)


class PartClock:
    """Adds up the processor time of parts while it is on; thread-safe."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._on = False
        self._lock = threading.Lock()
        self._thread = threading.local()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charge the processor time of this thread to a part, until its end or an inner part."""
        outer: list[str] = self._thread.__dict__.setdefault("parts", [])
        self._charge(outer)
        outer.append(name)
        try:
            yield
        finally:
            self._charge(outer)
            outer.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and is charged to a part."""

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*arguments, **options)

        return call

    def during(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same, with this clock on."""

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            self._on = True
            try:
                return function(*arguments, **options)
            finally:
                self._on = False

        return call

    def _charge(self, parts: list[str]) -> None:
        now = time.thread_time()
        if parts and self._on:
            with self._lock:
                self.seconds[parts[-1]] += now - self._thread.since
        self._thread.since = now


def parts_per_row(*, keys: int, epochs: int) -> dict[str, float]:
    """Return the microseconds of processor time per row that each part of a subtask takes, without compactions."""
    clock = PartClock()
    with tempfile.TemporaryDirectory(prefix="statebed-bench-") as folder:
        job = Job(OPERATORS[CASE], keys, Path(folder), cached=True)
        for _ in range(2):
            job.epoch()  # warms up
        with _watched(clock):
            seconds = sum(spent.processor for _ in range(epochs) for spent in job.epoch())
        job.check()
        job.close()
    parts = {part: clock.seconds[part] for part in PARTS if part != REST}
    parts[REST] = seconds - sum(parts.values())
    return {part: spent * 1e6 / (ROWS * epochs) for part, spent in parts.items()}


@contextmanager
def _watched(clock: PartClock) -> Iterator[None]:
    """Charge the functions of `_PARTS` to their parts while a subtask runs."""
    replaced = [(owner, name, clock.timed(part, getattr(owner, name))) for part, owner, name in _PARTS]
    replaced.append((*_WHOLE, clock.during(getattr(*_WHOLE))))
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, function in replaced:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)
