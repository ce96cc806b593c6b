"""What this machine is like: cores and memory (as a container limits them), free disk space and its speed."""

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
    """How fast a folder takes durable writes."""

    bytes_per_second: float
    """One large file, written and synced."""
    small_write_seconds: float
    """Median of small files, each written and synced, with their folder: what a commit waits for."""


def cores() -> float:
    """Cores that this process may use."""
    allowed = float(len(os.sched_getaffinity(0)))
    quota, _, period = _cgroup("cpu.max").partition(" ")
    if quota in ("", _UNLIMITED) or not period:
        return allowed
    return min(allowed, int(quota) / int(period))


def memory_bytes() -> int:
    """Memory that this process may use."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup("memory.max")
    return physical if limit in ("", _UNLIMITED) else min(physical, int(limit))


def available_memory_bytes() -> int | None:
    """Memory that is free now, caches counted as free; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    values = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min(values[0], memory_bytes()) if values else None


def free_disk_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def nearest_folder(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def disk_speed(folder: Path) -> DiskSpeed:
    """Measure durable writes in `folder`; leaves nothing behind."""
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
