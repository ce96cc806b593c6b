"""Properties of this machine: cores and memory (within container limits), free disk space and disk speed."""

import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = "max"
_LARGE_WRITE = 32 * 1024 * 1024
_SMALL_WRITES = 20


@dataclass(frozen=True)
class DiskSpeed:
    """Speed of durable writes to a folder."""

    bytes_per_second: float
    """Throughput of one large file, written and synced."""
    small_write_seconds: float
    """Median time to write and sync a small file and its folder, as a commit does."""


def cores() -> float:
    """Return the number of cores available to this process."""
    allowed = float(len(os.sched_getaffinity(0)))
    quota, _, period = _cgroup("cpu.max").partition(" ")
    if quota in ("", _UNLIMITED) or not period:
        return allowed
    return min(allowed, int(quota) / int(period))


def memory_bytes() -> int:
    """Return the memory available to this process."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup("memory.max")
    return physical if limit in ("", _UNLIMITED) else min(physical, int(limit))


def available_memory_bytes() -> int | None:
    """Return the memory that is free now, counting caches as free, or None if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    values = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min(values[0], memory_bytes()) if values else None


def free_disk_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def nearest_folder(path: Path) -> Path:
    """Return the folder itself, or its nearest parent that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def disk_speed(folder: Path) -> DiskSpeed:
    """Measure durable writes in `folder`, leaving nothing behind."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".statebed-doctor-") as scratch:
        payload = os.urandom(_LARGE_WRITE)
        large = _timed_write(Path(scratch, "large"), payload)
        small = [_timed_write(Path(scratch, f"small-{n}"), payload[:2048]) for n in range(_SMALL_WRITES)]
    return DiskSpeed(bytes_per_second=_LARGE_WRITE / large, small_write_seconds=statistics.median(small))


def _timed_write(path: Path, data: bytes) -> float:
    start = time.perf_counter()
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return time.perf_counter() - start


def _cgroup(name: str) -> str:
    try:
        return (_CGROUP / name).read_text().strip()
    except OSError:
        return ""
