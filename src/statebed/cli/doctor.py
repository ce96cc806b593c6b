"""`statebed doctor`: checks whether statebed runs here, and says what to do if not. Each check covers one thing."""

import enum
import importlib.metadata
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from statebed.cli import machine
from statebed.cli.extras import PACKAGES_OF_EXTRA, is_installed
from statebed.errors import StatebedError
from statebed.java import INSTALL, OLDEST, find_java
from statebed.present.units import size
from statebed.storage import get_storage_provider, probe_put_if_absent

CORE_PACKAGES = ("numpy", "pyarrow", "obstore", "protobuf", "msgspec", "google-crc32c")
OLDEST_PYTHON = (3, 11)
OLDEST_SPARK = (4, 1)
NEWEST_PANDAS_MAJOR = 2
GIGABYTE = 1_000_000_000
FEW_CORES = 2


class Verdict(enum.Enum):
    """Outcome of a check; only FAIL makes the command fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """Result of one check: its finding and the fix."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""


def examine(state: str) -> Iterator[Check]:
    """Run every check, the cheapest first."""
    yield _python()
    yield from _packages()
    yield _java()
    yield _cores()
    yield _memory()
    folder = machine.nearest_folder(local_folder(state) or Path.cwd())
    yield _guarded("disk space", lambda: _disk_space(folder))
    yield _guarded("disk speed", lambda: _disk_speed(folder))
    yield _guarded("put-if-absent", lambda: _put_if_absent(state))


def local_folder(state: str) -> Path | None:
    """Return the folder of a state location, or None for an object store."""
    parts = urlsplit(state)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in state else Path(state).expanduser()


def _python() -> Check:
    version = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < OLDEST_PYTHON:
        return Check("python", Verdict.FAIL, version, "use Python 3.11 or newer")
    return Check("python", Verdict.OK, version)


def _packages() -> Iterator[Check]:
    for name in CORE_PACKAGES:
        yield _package(name, Verdict.FAIL, "pip install statebed")
    for extra, names in PACKAGES_OF_EXTRA.items():
        for name in names:
            yield _package(name, Verdict.WARN, f"pip install 'statebed[{extra}]' if you want it")


def _package(name: str, if_missing: Verdict, fix: str) -> Check:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, if_missing, "not installed", fix)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if name == "pyspark" and numbers < OLDEST_SPARK:
        return Check(name, Verdict.FAIL, version, "statebed runs on Spark 4.1 or newer: pip install 'pyspark>=4.1'")
    if name == "pandas" and numbers[0] > NEWEST_PANDAS_MAJOR:
        return Check(name, Verdict.WARN, version, "Spark warns on every exchange: pip install 'pandas>=2.2,<3'")
    return Check(name, Verdict.OK, version)


def _java() -> Check:
    java = find_java()
    if java is None:
        # Only Spark needs Java.
        verdict = Verdict.FAIL if is_installed("pyspark") else Verdict.WARN
        return Check("java", verdict, f"no Java {OLDEST} or newer, which Spark needs", INSTALL)
    return Check("java", Verdict.OK, f"{java.text} ({java.home})")


def _cores() -> Check:
    count = machine.cores()
    if count < FEW_CORES:
        return Check("cores", Verdict.WARN, f"{count:g}", "subtasks share one core: jobs run, but slowly")
    return Check("cores", Verdict.OK, f"{count:g}")


def _memory() -> Check:
    available = machine.available_memory_bytes()
    amount = size(machine.memory_bytes())
    if available is None:
        return Check("memory", Verdict.OK, amount)
    amount = f"{amount}, {size(available)} of it free"
    if available < 2 * GIGABYTE:
        return Check(
            "memory", Verdict.WARN, amount, "local Spark needs about 2 GB: close other programs, or set memory="
        )
    return Check("memory", Verdict.OK, amount)


def _disk_space(folder: Path) -> Check:
    free = machine.free_disk_bytes(folder)
    space = f"{size(free)} free at {folder}"
    if free < GIGABYTE:
        return Check("disk space", Verdict.FAIL, space, "free at least 1 GB, or name another location with --state")
    if free < 5 * GIGABYTE:
        return Check("disk space", Verdict.WARN, space, "large state will not fit")
    return Check("disk space", Verdict.OK, space)


def _disk_speed(folder: Path) -> Check:
    speed = machine.disk_speed(folder)
    measured = (
        f"{size(int(speed.bytes_per_second))}/s written and synced, "
        f"{speed.small_write_seconds * 1000:.1f} ms for a small file at {folder}"
    )
    slow = speed.bytes_per_second < GIGABYTE / 20 or speed.small_write_seconds > 0.1  # noqa: PLR2004 - said below
    if slow:
        return Check("disk speed", Verdict.WARN, measured, "every epoch waits for some small files: use a faster disk")
    return Check("disk speed", Verdict.OK, measured)


def _put_if_absent(state: str) -> Check:
    folder = local_folder(state)
    was_there = folder is None or folder.exists()
    store = get_storage_provider(state)
    try:
        probe_put_if_absent(store)
    finally:
        if folder is not None and not was_there:
            _remove_empty(folder)
    return Check(
        "put-if-absent",
        Verdict.OK,
        f"{store.url} accepts exactly one of several concurrent writers, as commits require",
    )


def _remove_empty(folder: Path) -> None:
    """Remove the folders that the probe created; a folder that is not empty stays."""
    for path in (*folder.glob(".statebed-tmp"), folder):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except StatebedError as error:
        return Check(name, Verdict.FAIL, error.what if not error.where else f"{error.what}: {error.where}", error.fix)
    except OSError as error:
        return Check(name, Verdict.FAIL, str(error), "make the location writable, or pass another with --state")
