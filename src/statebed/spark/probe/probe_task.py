"""The task of the probe, for an executor that may lack statebed, have another version, or not reach the state.

This module is pickled by value and loaded where statebed may be missing: its top level imports only the standard
library, and its functions return plain dicts.
"""

import contextlib
import hashlib
import importlib
import importlib.metadata
import os
import pathlib
import platform
import socket
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any

PACKAGES = ("pyarrow", "pandas", "numpy")
"""Packages whose versions are compared or reported; importing statebed detects all others that are missing."""


def answers(_: Iterable[Any], *, wanted: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one answer per task: the executor's identity, versions and problems."""
    yield answer(wanted)


def answer(wanted: dict[str, Any]) -> dict[str, Any]:
    """Examine this process and its host. `problems` are texts by topic."""
    findings: dict[str, Any] = {
        "executor_id": executor_id(),
        "host": socket.gethostname(),
        "user": _user(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "time_us": time.time_ns() // 1000,
        "problems": {},
    }
    problems = findings["problems"]
    try:
        findings |= identity()
        findings["memory"] = importlib.import_module("statebed.state.memory.budget").available_memory()
    except Exception as error:  # noqa: BLE001 - whatever an import can raise is the answer
        problems["import"] = f"{type(error).__name__}: {error}"
        return findings
    if wanted["state_url"]:
        with _noted(problems, "state"):
            findings["written"] = _try_state(wanted["state_url"], wanted["marker"])
    with _noted(problems, "cache"):
        findings["cache"] = try_cache(wanted["cache_folder"], firm=wanted["cache_folder_is_firm"])
    time.sleep(wanted["linger_seconds"])
    return findings


def identity() -> dict[str, Any]:
    """Return the version and code digest of statebed in this process, and the versions that results depend on."""
    package = importlib.import_module("statebed.spark.epoch.level_task")  # everything that a subtask needs
    return {
        "statebed": _version("statebed"),
        "code": code_digest(importlib.import_module(package.__name__.partition(".")[0])),
        **{name: _version(name) for name in PACKAGES},
    }


def code_digest(package: Any) -> str:
    """Return a digest of all Python files of a package, in a folder or an archive: the same version may have different
    code.
    """
    folder = package.__path__[0]
    total = hashlib.sha256()
    for name, data in sorted(_files(package, folder)):
        total.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
    return total.hexdigest()[:12]


def _files(package: Any, folder: str) -> Iterator[tuple[str, bytes]]:
    root = pathlib.Path(folder)
    if root.is_dir():
        yield from ((path.relative_to(root).as_posix(), path.read_bytes()) for path in root.rglob("*.py"))
        return
    with zipfile.ZipFile(package.__loader__.archive) as archive:
        prefix = f"{package.__name__}/"
        for name in archive.namelist():
            if name.startswith(prefix) and name.endswith(".py"):
                yield name.removeprefix(prefix), archive.read(name)


def executor_id() -> str:
    """Return Spark's id of this executor, from the environment or its command line, or an empty string."""
    named = os.environ.get("SPARK_EXECUTOR_ID", "")
    process = os.getpid()
    for _ in range(4):  # a worker, its daemon, perhaps a shell, the executor
        if named or process <= 1:
            break
        try:
            words = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
            process = int(pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        if "--executor-id" in words[:-1]:
            named = words[words.index("--executor-id") + 1]
    return named


def try_cache(folder: str | None, *, firm: bool) -> str:
    """Try to use the folder of the host cache and return its path."""
    path: pathlib.Path = importlib.import_module("statebed.spark.plan.host_memory").cache_path(folder, firm=firm)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path, prefix=".probe-") as file:
        file.write(b"statebed")
    return str(path)


def _try_state(url: str, marker: str) -> str:
    """Read what the driver wrote, write an object for it to read, and return its name."""
    storage = importlib.import_module("statebed.storage")
    store = storage.get_storage_provider(url)
    if store.head(marker) is None:
        errors = importlib.import_module("statebed.errors")
        raise errors.ObjectMissingError("what the driver wrote there cannot be seen from here")
    written = f"{marker}-{socket.gethostname()}-{os.getpid()}"
    store.put_if_absent(written, b"statebed")
    return written


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _user() -> str:
    return os.environ.get("USER") or str(os.getuid())


@contextlib.contextmanager
def _noted(problems: dict[str, str], about: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is the answer
        problems[about] = getattr(error, "what", "") or f"{type(error).__name__}: {error}"
