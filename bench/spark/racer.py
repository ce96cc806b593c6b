"""One side as the benchmark sees it: a process that does one batch when told, its time, processor time and memory."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bench.spark.cases import Case, Side
from bench.spark.watch import MemoryWatch, ProcessorClock

_ROOT = Path(__file__).parents[2]
_TIMEOUT_SECONDS = 1800
_LAST_LINES = 25


@dataclass(frozen=True)
class Batch:
    """Measurements of one batch."""

    seconds: float
    processor_seconds: float


@dataclass
class Racer:
    """A running side."""

    side: Side
    folder: Path
    process: subprocess.Popen[str]
    errors: IO[str]
    clock: ProcessorClock
    messages: "queue.Queue[dict[str, Any]]" = field(default_factory=queue.Queue)
    batches: list[Batch] = field(default_factory=list)
    phases: list[dict[str, float]] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, case: Case, side: Side, inputs: Path, folder: Path) -> "Racer":
        """Start the process; it warms up by itself."""
        folder.mkdir(parents=True)
        errors = (folder / "errors.txt").open("w+")
        what = [side.name, case.kind.name, str(case.keys), str(inputs), str(folder)]
        process = subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, "-m", "bench.spark.child", *what],
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
        processor = self.clock.seconds()
        watch.look_at(pid)
        began = time.perf_counter()
        self._release()
        self._expect("batch")
        seconds = time.perf_counter() - began
        watch.look_at(None)
        self.batches.append(Batch(seconds, self.clock.seconds() - processor))

    def finish(self) -> None:
        """Let it pass the last gate and end."""
        self._release()
        last = self._expect("phases")
        self.phases, self.waited = last["phases"], last["waited"]
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
            raise SystemExit("\n".join([f"{self.side.value} ended, or said {message}, instead of {what!r}:", *last]))
        return message
