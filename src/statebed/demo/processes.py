"""A child process that can be killed together with all its descendants.

Spark's driver starts a JVM, which starts Python workers in a separate process group. They share the session that the
child opens, so a kill is sent to every process of that session.
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

_PROC = Path("/proc")
_SESSION_FIELD = 3  # index in /proc/PID/stat, counted after the closing parenthesis of the program's name
_KILL_TIMEOUT_SECONDS = 30.0


class Child:
    """A process that leads its own session."""

    def __init__(self, command: list[str], *, output: IO[bytes]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - the caller's own program
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._process.poll()

    def members(self) -> list[int]:
        """Return the ids of all living processes of the session."""
        return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit() and self._is_member(entry)]

    def kill(self) -> int:
        """Send SIGKILL to every process of the session. Return their number."""
        killed: set[int] = set()
        deadline = time.monotonic() + _KILL_TIMEOUT_SECONDS
        # Kill the leader first, because it would restart workers.
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
            return False  # it ended in the meantime
        return int(fields[_SESSION_FIELD]) == self.pid and fields[0] not in ("Z", "X")
