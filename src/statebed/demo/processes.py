"""A child process with everything that it starts, and its sudden death.

Spark's driver starts a JVM, and that starts Python workers in a process group of their own. What they share
is the session, which the child opens; so a kill goes to every process of that session.
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

_PROC = Path("/proc")
_SESSION_FIELD = 3  # of /proc/PID/stat, counted after the closing parenthesis of the program's name
_KILL_TIMEOUT_SECONDS = 30.0


class Child:
    """A process that leads a session of its own."""

    def __init__(self, command: list[str], *, output: IO[bytes]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - the caller's own program
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def members(self) -> list[int]:
        """Ids of all living processes of the session."""
        return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit() and self._is_member(entry)]

    def kill(self) -> int:
        """SIGKILL every process of the session; gives how many there were."""
        killed: set[int] = set()
        deadline = time.monotonic() + _KILL_TIMEOUT_SECONDS
        # The leader goes first: it would start workers again.
        alive = [self.pid]
        while alive and time.monotonic() < deadline:
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(alive)
            self._process.poll()
            time.sleep(0.005)
            alive = self.members()
        self._process.wait(timeout=_KILL_TIMEOUT_SECONDS)
        return len(killed)

    def _is_member(self, entry: Path) -> bool:
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False  # it ended while we looked
        return int(fields[_SESSION_FIELD]) == self.pid and fields[0] not in ("Z", "X")
