"""The demo job in a separate process, watched from outside through its records.

`python -m statebed.demo.child FOLDER` is that process. It keeps Spark's output off the terminal and can be killed at
any time.

Spark's driver starts a JVM, which starts Python workers in a separate process group. They share the session that the
child opens, so a kill is sent to every process of that session.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from statebed.checkpoint.log import CheckpointLog
from statebed.demo.job import DemoFolder, run_to_end
from statebed.errors import FENCED_EXIT_CODE, DemoError, FencedError, StatebedError

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


RUN_TIMEOUT_SECONDS = 600.0
_TAIL_LINES = 12
_ERROR = re.compile(r"\[[A-Z_]+\] ")


@dataclass(frozen=True)
class ProcessOutcome:
    """End of the process: by itself, or killed by this program with all processes that it had started."""

    killed: bool
    processes: int


def run_job(folder: DemoFolder, *, kill_when: Callable[[CheckpointLog], bool], poll_seconds: float) -> ProcessOutcome:
    """Run the job to its end. Poll `kill_when`, and kill the job once it returns True."""
    log = folder.log()
    output = folder.root / "job.log"
    deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
    output.write_bytes(b"")
    # Another demo may run in the same folder: in append mode, the file contains whole lines of both.
    with output.open("ab") as file:
        child = Child([sys.executable, "-m", "statebed.demo.child", str(folder.root)], output=file)
        try:
            while (code := child.exit_code()) is None and not kill_when(log):
                if time.monotonic() > deadline:
                    raise DemoError(f"the job did not end within {RUN_TIMEOUT_SECONDS:.0f} s", where=str(output))
                time.sleep(poll_seconds)
        finally:
            processes = child.kill()
    if code == FENCED_EXIT_CODE:
        raise FencedError(
            "another demo was started in this folder and took over the job",
            where=str(folder.root),
            fix="nothing is lost: the newer demo processes these events, too. To run two demos, pass "
            "another folder with --state",
        )
    if code:
        raise DemoError(f"the job ended with exit code {code}:\n{reason_in(output)}", where=str(output))
    return ProcessOutcome(killed=code is None, processes=processes)


def reason_in(output: Path) -> str:
    """Return the error at the end of the job's output: one of statebed if there is one, else the last lines."""
    lines = output.read_text(errors="replace").strip().splitlines()
    ours = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    return "\n".join(f"    {line}" for line in lines[ours[-1] if ours else -_TAIL_LINES :])


def _main(folder: str) -> int:
    try:
        run_to_end(DemoFolder.at(folder))
    except StatebedError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
