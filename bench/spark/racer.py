"""One side as the benchmark sees it: a process that does one batch when told, its time, processor time and memory."""

import contextlib
import enum
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from bench.spark.watch import MemoryWatch, ProcessorClock

SideT = TypeVar("SideT", bound=enum.Enum)
_ROOT = Path(__file__).parents[2]
_TIMEOUT_SECONDS = 1800
_LAST_LINES = 25


@dataclass(frozen=True)
class Batch:
    """Measurements of one batch."""

    seconds: float
    processor_seconds: float
    java_seconds: float = 0.0
    """Processor time of Java, a part of `processor_seconds`."""


@dataclass
class Racer(Generic[SideT]):
    """A running side."""

    side: SideT
    folder: Path
    process: subprocess.Popen[str]
    errors: IO[str]
    clock: ProcessorClock
    messages: "queue.Queue[dict[str, Any]]" = field(default_factory=queue.Queue)
    batches: list[Batch] = field(default_factory=list)
    phases: list[dict[str, float]] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    checkpoint_bytes: list[int] = field(default_factory=list)
    """Bytes of state written for each batch, the last of them at the end; only of the race on Spark."""

    @classmethod
    def start(cls, side: SideT, program: Sequence[str], folder: Path) -> "Racer[SideT]":
        """Start a Python program, a module and its arguments, as the process of a side; it warms up by itself."""
        folder.mkdir(parents=True)
        errors = (folder / "errors.txt").open("w+")
        process = subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, "-m", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=_ROOT,
            process_group=0,
            env={**os.environ, "TZ": "UTC", "XDG_CACHE_HOME": str(folder / "cache")},  # not the user's own cache
        )
        racer = cls(side, folder, process, errors, ProcessorClock(process.pid))
        threading.Thread(target=racer._listen, name=f"listen-{side.name}", daemon=True).start()
        return racer

    def await_ready(self) -> None:
        self._expect("ready")

    def go(self, watch: MemoryWatch) -> None:
        """Do one batch, and wait for its end."""
        pid = self.process.pid
        processor, java = self.clock.seconds(), self.clock.java_seconds
        watch.look_at(pid)
        began = time.perf_counter()
        self._release()
        self._expect("batch")
        seconds = time.perf_counter() - began
        watch.look_at(None)
        processor = self.clock.seconds() - processor
        self.batches.append(Batch(seconds, processor, self.clock.java_seconds - java))

    def finish(self) -> None:
        """Let it pass the last gate and end."""
        self._release()
        last = self._expect("phases")
        self.phases, self.waited = last["phases"], last["waited"]
        self.checkpoint_bytes = last.get("checkpoint_bytes", [])
        self.process.wait(_TIMEOUT_SECONDS)
        self.errors.close()

    def kill(self) -> None:
        """End it and what it started, whatever that does: a Java that only collects garbage would not see it go."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(_TIMEOUT_SECONDS)

    def _release(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.messages.put(json.loads(line))
        self.messages.put({})

    def _expect(self, what: str) -> dict[str, Any]:
        message = self.messages.get(timeout=_TIMEOUT_SECONDS)
        if what not in message:
            self.errors.flush()
            last = (self.folder / "errors.txt").read_text().splitlines()[-_LAST_LINES:]
            said = f"said {message}" if message else f"ended with exit code {self.process.wait(_TIMEOUT_SECONDS)}"
            raise SystemExit("\n".join([f"{self.side.value} {said} instead of {what!r}:", *last]))
        return message


def take_turns(racers: Sequence[Racer[SideT]], batches: int, watch: MemoryWatch) -> None:
    """Wait until all are ready, then do batch after batch; each time another side begins."""
    for racer in racers:
        racer.await_ready()
    for number in range(batches):
        turn = number % len(racers)
        for racer in (*racers[turn:], *racers[:turn]):
            racer.go(watch)
