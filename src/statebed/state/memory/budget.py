"""Default memory budget for the state of a process.

The variable `STATEBED_MEMORY` sets it (bytes, or 512m, 2g). Otherwise it is a quarter of the memory of the machine, or
of the limit of the process's control group, and at most 4 GiB.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from statebed.quantities import parse_bytes

VARIABLE = "STATEBED_MEMORY"
SHARE = 4
"""State takes 1/n of the available memory."""
MOST = 4 << 30

_GROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def budget_of(environment: Mapping[str, str] = os.environ) -> int:
    """Return the budget of this process in bytes."""
    setting = environment.get(VARIABLE, "")
    return parse_bytes(setting, where=VARIABLE) if setting else min(MOST, available_memory() // SHARE)


def guarantees_of(shares: Mapping[str, float], budget: int) -> dict[str, int]:
    """Convert guaranteed shares of a budget, by operator or table, to bytes.

    >>> guarantees_of({"joined": 0.4}, 1 << 30) == {"joined": int(0.4 * (1 << 30))}
    True
    """
    return {name: int(part * budget) for name, part in shares.items()}


def available_memory(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory of the machine, or the limit of this process's control group if that is lower."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for name in _GROUP_LIMITS if (limit := _limit(groups / name)) is not None)])


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) else None
