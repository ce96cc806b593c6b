"""Resources of a process tree, measured from outside: memory (proportional set size) and processor time.

The proportional set size counts a page that several processes share once, so the tree of a JVM and its forked Python
workers can be added up. It includes pages of mapped files, which the kernel could reclaim; `anonymous` leaves them out.
"""

import os
import threading
from dataclasses import dataclass
from pathlib import Path

_LOOK_SECONDS = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Memory:
    """Memory in bytes: Java's part and that of its Python workers, the rest is the driver's Python."""

    total: int = 0
    anonymous: int = 0
    java: int = 0
    workers: int = 0


def tree_of(root: int) -> list[int]:
    """The process and everything that it started, as far as it lives."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and (stat := _stat(int(place.name))):
            children.setdefault(int(stat[1]), []).append(int(place.name))
    members, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        members.append(pid)
        waiting.extend(children.get(pid, []))
    return members


def memory_of(root: int) -> Memory:
    """Return the current memory of the whole tree."""
    total = anonymous = java = workers = 0
    for pid in tree_of(root):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it has just ended
        fields = {line.split()[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
        total += (taken := fields.get("Pss:", 0))
        if _name(pid) == "java":
            java += taken
        elif pid != root:
            workers += taken
        anonymous += fields.get("Pss_Anon:", 0) + fields.get("Pss_Shmem:", 0)
    return Memory(1024 * total, 1024 * anonymous, 1024 * java, 1024 * workers)


class ProcessorClock:
    """Processor time of a tree so far; what its processes had used when they were last seen stays counted."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._ticks: dict[int, int] = {}
        self._java: set[int] = set()

    def seconds(self) -> float:
        for pid in tree_of(self._root):
            if stat := _stat(pid):
                self._ticks[pid] = int(stat[11]) + int(stat[12])
                if _name(pid) == "java":
                    self._java.add(pid)
        return sum(self._ticks.values()) / _TICKS

    @property
    def java_seconds(self) -> float:
        """Processor time of Java when `seconds` was last called."""
        return sum(ticks for pid, ticks in self._ticks.items() if pid in self._java) / _TICKS


class MemoryWatch(threading.Thread):
    """The most that each tree took while it was looked at: one at a time, because looking costs time, too."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="memory-watch")
        self._root: int | None = None
        self._done = threading.Event()
        self.peaks: dict[int, Memory] = {}

    def look_at(self, root: int | None) -> None:
        """Watch this process tree from now on, or nothing if it is None."""
        self._root = root

    def run(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            root = self._root
            if root is not None:
                self.peaks[root] = max(memory_of(root), self.peaks.get(root, Memory()), key=lambda memory: memory.total)

    def stop(self) -> None:
        self._done.set()
        self.join(10)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/pid/stat from the state on; its name before them may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
