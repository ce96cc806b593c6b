"""Division of a host's `memory=` between its cache and its tasks.

The driver computes it once from Spark's list of executors. A share is for the cache that all tasks of a host map; the
rest is divided by the number of tasks that may run there at the same time. A task gets plain numbers. Executors on one
host are added up, and the host with the most task slots determines the division, so that no host uses more than its
limit.
"""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from statebed.config import Settings, SettingSource, variable_of
from statebed.errors import InputError
from statebed.operators import Operator
from statebed.present.units import binary_size
from statebed.state.host_cache import HostCache
from statebed.state.memory.budget import MOST, SHARE, guarantees_of
from statebed.state.memory.controller import MemoryController

MIN_PER_TASK = 16 << 20
"""Minimum memory of a task; with less it would mostly move state to disk and back."""
_DEFAULT_PER_SLOT = 512 << 20
_PART_OF_DISK = 4
_IN_MEMORY = {"tmpfs", "ramfs"}
_FOLDER = "host-cache"


@dataclass(frozen=True)
class HostBudget:
    """Memory of one host for the state of one job."""

    memory_bytes: int
    slots: int
    cache_bytes: int
    """Maximum memory of the host cache."""
    per_task_bytes: int
    """Memory budget of each task's state."""

    def described(self) -> str:
        """Description for `explain()`."""
        slots = "the only task slot" if self.slots == 1 else f"each of {self.slots} task slots"
        return (
            f"{binary_size(self.memory_bytes)} per host: {binary_size(self.cache_bytes)} for the host cache, "
            f"{binary_size(self.per_task_bytes)} for {slots}"
        )


def host_budget(memory_bytes: int, slots: int, *, cache_share: float = 0.5) -> HostBudget:
    """Divide the memory of a host. Raise InputError if a task would get too little.

    >>> host_budget(2 << 30, 2).per_task_bytes >> 20
    512
    """
    cache_bytes = int(memory_bytes * cache_share)
    budget = HostBudget(memory_bytes, slots, cache_bytes, (memory_bytes - cache_bytes) // slots)
    if budget.per_task_bytes < MIN_PER_TASK:
        min_mebibytes = -(-MIN_PER_TASK * slots // (1 - cache_share) // (1 << 20))
        raise InputError(
            f"memory={binary_size(memory_bytes)} leaves {binary_size(budget.per_task_bytes)} for each of {slots} task "
            f"slots of a host; the minimum is {binary_size(MIN_PER_TASK)}",
            where="memory",
            fix=f"set memory='{int(min_mebibytes)}m' or more, fewer task slots per host, or a smaller cache_share",
        )
    return budget


def host_memory(wanted: int | None, *, available: int, slots: int) -> int:
    """Return the memory of a host to use: the requested amount if a host has it, else a part of what it has."""
    if wanted is None:
        return min(available // SHARE, max(MOST, _DEFAULT_PER_SLOT * slots))
    if wanted > available:
        raise InputError(
            f"memory={binary_size(wanted)} is more than a host has: {binary_size(available)}",
            where="memory",
            fix=f"set at most half of that, for example memory='{available // 4 >> 20}m', or leave it out",
        )
    return wanted


def check_shares(settings: Settings, operators: Iterable[Operator], *, where: str) -> None:
    """Raise InputError for a share of an operator or table that the job does not have."""
    tables = {operator.operator_id: tuple(operator.tables) for operator in operators}
    known = sorted({*tables, *(f"{name}.{table}" for name, names in tables.items() for table in names)})
    for name in settings.memory_shares or {}:
        if name not in known:
            raise InputError(
                f"memory_shares names {name!r}, which is not an operator or table of the job",
                where=f"{where}, {settings.place_of('memory_shares').text}",
                fix=f"use one of {', '.join(known)}",
            )


@dataclass(frozen=True)
class Executor:
    """An executor as reported by Spark."""

    executor_id: str
    host: str
    slots: int


def host_slots(executors: Iterable[Executor], conf: Mapping[str, str]) -> int:
    """Return the number of tasks that may run at the same time on the host with the most slots, or of one executor if
    there are none yet.
    """
    slots: Counter[str] = Counter()
    for executor in executors:
        slots[executor.host] += executor.slots
    if slots:
        return max(slots.values())
    cores, cpus = (_number(conf, f"spark.{name}") for name in ("executor.cores", "task.cpus"))
    return max(1, cores // cpus)


def executors_of(session: SparkSession) -> list[Executor]:
    """Return the executors that run tasks now; for local Spark, the driver."""
    listed = session.sparkContext._jsc.sc().statusStore().executorList(True)  # noqa: SLF001 - the JVM's own
    summaries = [listed.apply(number) for number in range(listed.size())]
    return [
        Executor(str(summary.id()), str(summary.hostPort()).rpartition(":")[0], int(summary.maxTasks()))
        for summary in summaries
        if summary.maxTasks() > 0
    ]


def _number(conf: Mapping[str, str], key: str) -> int:
    text = conf.get(key, "1")
    return max(1, int(text)) if text.isdigit() else 1


# ---- what a task gets ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskShare:
    """Share of a task in its host: plain values, shipped with the task."""

    memory_bytes: int
    cache_bytes: int
    cache_limit: int
    cache_folder: str | None
    cache_folder_is_firm: bool
    """Whether it was set by keyword or in Spark's configuration, which take precedence over the host's environment."""
    memory_shares: tuple[tuple[str, float], ...] = ()
    """Parts of `memory_bytes` by operator or table."""

    @classmethod
    def of(cls, budget: HostBudget, settings: Settings) -> "TaskShare":
        firm = settings.place_of("cache_folder").source in (SettingSource.KEYWORD, SettingSource.SPARK_CONF)
        return cls(
            budget.per_task_bytes,
            budget.cache_bytes,
            settings.cache_limit,
            settings.cache_folder,
            firm,
            tuple(sorted((settings.memory_shares or {}).items())),
        )

    def memory_controller(self) -> MemoryController:
        """Create the memory budget of a task's process, with the shares guaranteed to operators and tables."""
        guarantees = guarantees_of(dict(self.memory_shares), self.memory_bytes)
        return MemoryController(self.memory_bytes, guarantees=guarantees)

    def open_cache(self) -> HostCache:
        """Open the cache of this host."""
        folder = cache_path(self.cache_folder, firm=self.cache_folder_is_firm)
        return HostCache(folder, self.cache_limit_at(folder))

    def cache_limit_at(self, folder: Path, mounts: Path = Path("/proc/mounts")) -> int:
        """Return the size limit of the cache in `folder`: a part of the disk, or in memory the share of `memory=` for
        the cache.
        """
        if in_memory(folder, mounts):
            return min(self.cache_limit, self.cache_bytes)
        return min(self.cache_limit, shutil.disk_usage(_nearest(folder)).total // _PART_OF_DISK)


def cache_path(folder: str | None, *, firm: bool, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the cache on this host. Disks differ, so the host's own environment is used."""
    own = environ.get(variable_of("cache_folder"), "").strip()
    chosen = folder if firm or not own else own
    if chosen is not None:
        return Path(chosen).expanduser()
    home = environ.get("XDG_CACHE_HOME", "").strip()
    usual = (Path(home) if home else Path.home() / ".cache") / "statebed"
    there = _nearest(usual)
    if not (there.is_dir() and os.access(there, os.W_OK)):
        # On many clusters the user of the executors has no home folder.
        usual = Path(tempfile.gettempdir(), f"statebed-{os.getuid()}")
    return usual / _FOLDER


def _nearest(folder: Path) -> Path:
    """Return the folder itself, or its nearest parent that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def in_memory(folder: Path, mounts: Path = Path("/proc/mounts")) -> bool:
    """Return whether a folder is in memory, such as /dev/shm; unknown counts as disk."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return False
    where = folder.absolute()
    kinds = {Path(mount): kind for _, mount, kind, *_ in (line.split() for line in lines)}
    nearest = next((path for path in (where, *where.parents) if path in kinds), None)
    return nearest is not None and kinds[nearest] in _IN_MEMORY
