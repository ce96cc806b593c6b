"""Identity of a process on its machine, so that another process there can tell at once that it has ended.

A process that is killed cannot record its end. Where Linux shows its processes, a reader on the same machine need not
wait until heartbeats are missing: it looks for the process. The identity has the boot of the machine, the namespace
of process ids, which containers have of their own, and the start of the process, as ids are used again.
"""

import os
from pathlib import Path

_PROC = Path("/proc")
_START_FIELD = 18
"""Position of the start time among the fields of /proc/{id}/stat after name and state."""


def own_identity() -> str:
    """Return the identity of this process; empty if the system does not show it."""
    start = _start(os.getpid())
    return f"{_machine()}/{start}" if start else ""


def has_ended(process_id: int, identity: str) -> bool:
    """Return whether a process is known to have ended. False if it may run on another machine or in a container."""
    machine, _, start = identity.rpartition("/")
    if not start or machine != _machine():
        return False
    try:
        os.kill(process_id, 0)  # sends nothing
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it exists, and belongs to another user
    now = _start(process_id)
    return now is not None and now != start


def _start(process_id: int) -> str | None:
    """Return the start time of a process, empty if it has ended but was not waited for; None if it is not shown."""
    try:
        status = (_PROC / str(process_id) / "stat").read_text()
    except OSError:
        return None
    # The name of a program, in parentheses, may contain spaces and parentheses.
    state, *fields = status.rpartition(")")[2].split()
    return "" if state in {"Z", "X"} else fields[_START_FIELD]


def _machine() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""
