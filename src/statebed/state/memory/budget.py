"""How much memory the state of a process may take when nobody says so.

`STATEBED_MEMORY` says it (bytes, or 512m, 2g); else it is a quarter of the machine's memory, or of what the control
group of the process allows, and at most 4 GiB.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from statebed.errors import InputError

VARIABLE = "STATEBED_MEMORY"
SHARE = 4
"""State takes one of so many parts of the memory that there is."""
MOST = 4 << 30

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d+)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_GROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def budget_of(environment: Mapping[str, str] = os.environ) -> int:
    """The budget of this process in bytes."""
    given = environment.get(VARIABLE, "")
    return parse_bytes(given, where=VARIABLE) if given else min(MOST, available_memory() // SHARE)


def parse_bytes(text: str, *, where: str) -> int:
    """A number of bytes from text.

    >>> parse_bytes("512m", where="")
    536870912
    """
    found = _SIZE.fullmatch(text)
    nbytes = int(found[1]) * _UNITS[found[2].lower()] if found else 0
    if not nbytes:
        raise InputError(
            f"{text!r} is no amount of memory", where=where, fix="give bytes, or a number with k, m, g or t: 512m, 2g"
        )
    return nbytes


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
