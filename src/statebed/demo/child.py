"""The demo job in a process of its own, watched from outside through its records.

`python -m statebed.demo.child FOLDER` is that process. It keeps Spark's chatter off the terminal, and can be
killed at any time.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from statebed.checkpoint.log import CheckpointLog
from statebed.demo.job import DemoFolder, run_to_end
from statebed.demo.processes import Child
from statebed.errors import DemoError, StatebedError

RUN_TIMEOUT_SECONDS = 600.0
_TAIL_LINES = 12


@dataclass(frozen=True)
class Ended:
    """How the process ended: by itself, or killed by us together with all that it had started."""

    killed: bool
    processes: int


def run_job(folder: DemoFolder, *, kill_when: Callable[[CheckpointLog], bool], poll_seconds: float) -> Ended:
    """Run the job to its end; asks `kill_when` again and again, and kills the job when it says so."""
    log = folder.log()
    output = folder.root / "job.log"
    deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
    with output.open("wb") as file:
        child = Child([sys.executable, "-m", "statebed.demo.child", str(folder.root)], output=file)
        try:
            while (code := child.exit_code()) is None and not kill_when(log):
                if time.monotonic() > deadline:
                    raise DemoError(f"the job did not end in {RUN_TIMEOUT_SECONDS:.0f} s", where=str(output))
                time.sleep(poll_seconds)
        finally:
            processes = child.kill()
    if code:
        raise DemoError(f"the job ended with exit code {code}:\n{_tail(output)}", where=str(output))
    return Ended(killed=code is None, processes=processes)


def _tail(output: Path) -> str:
    lines = output.read_text(errors="replace").strip().splitlines()
    return "\n".join(f"    {line}" for line in lines[-_TAIL_LINES:])


def _main(folder: str) -> int:
    try:
        run_to_end(DemoFolder.at(folder))
    except StatebedError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
