"""How much memory the state of a process may take when nobody says so.

`STATEBED_MEMORY` says it (bytes, or 512m, 2g); else it is a quarter of the machine's memory, or of what the control
group of the process allows, and at most 4 GiB.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from statebed.quantities import parse_bytes

VARIABLE = "STATEBED_MEMORY"
SHARE = 4
"""State takes one of so many parts of the memory that there is."""
MOST = 4 << 30

_GROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def budget_of(environment: Mapping[str, str] = os.environ) -> int:
    """The budget of this process in bytes."""
    given = environment.get(VARIABLE, "")
    return parse_bytes(given, where=VARIABLE) if given else min(MOST, available_memory() // SHARE)


def guarantees_of(shares: Mapping[str, float], budget: int) -> dict[str, int]:
    """Bytes of a budget that operators and tables keep, from their shares of it.

    >>> guarantees_of({"joined": 0.4}, 1 << 30) == {"joined": int(0.4 * (1 << 30))}
    True
    """
    return {name: int(part * budget) for name, part in shares.items()}


def available_memory(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The memory of the machine, or less where the control group of this process is allowed less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for name in _GROUP_LIMITS if (limit := _limit(groups / name)) is not None)])


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) else None
