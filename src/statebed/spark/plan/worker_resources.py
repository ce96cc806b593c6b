"""Resources of tasks, and those shared by the tasks of a worker process: the memory budget, the folder for spilled
state, the host cache, the heap of Python objects.

The driver computes plain numbers, which are shipped with tasks. A worker creates the resources when a task first needs
them, and keeps them for later tasks.
"""

import functools
import gc
import itertools
import os

from pyspark.sql import SparkSession

from statebed.config import Settings
from statebed.spark.plan.host_memory import (
    HostBudget,
    TaskShare,
    executors_of,
    host_budget,
    host_memory,
    host_slots,
)
from statebed.spark.session import configuration
from statebed.state import Tiers
from statebed.state.host_cache import HostCache
from statebed.state.memory.budget import available_memory
from statebed.state.memory.pages import keep_pages

_KEPT = 4
"""Number of budgets kept; a worker serves few jobs with different ones."""
_OLD_OBJECTS = 20_000
"""Number of long-lived objects above which they are frozen."""
_MAX_FREEZES = 4
"""Bounds what a process can keep without need: garbage in cycles that becomes garbage after it was frozen."""
_freezes = itertools.count()


def job_budget(session: SparkSession, settings: Settings, *, available: int | None = None) -> HostBudget:
    """Divide the memory of a host for this job; `available` is that of the smallest host, if known."""
    slots = settings.task_slots or host_slots(executors_of(session), configuration(session))
    if available is None:
        available = available_memory()
        if not (session.sparkContext.master or "").startswith("local"):
            # Hosts may have more memory than the driver; they are probed later.
            available = max(available, settings.memory or 0)
    memory = host_memory(settings.memory, available=available, slots=slots)
    return host_budget(memory, slots, cache_share=settings.cache_share)


def resources(share: TaskShare) -> tuple[Tiers, HostCache]:
    """Return the resources of this process; a forked child creates its own."""
    return _made(os.getpid(), share)


@functools.lru_cache(maxsize=_KEPT)
def _made(_process: int, share: TaskShare) -> tuple[Tiers, HostCache]:
    keep_pages(share.memory_bytes)
    return Tiers(share.memory_controller()), share.open_cache()


def freeze_heap() -> None:
    """Exempt modules and other long-lived objects of this process from garbage collection.

    PySpark collects all garbage after each task. With the modules that a task needs, that takes about 80 ms of
    processor time, more than the rest of a small epoch, and the next task waits for it. Modules are imported while the
    first tasks run, so this is called after each task.
    """
    if len(gc.get_objects(generation=2)) > _OLD_OBJECTS and next(_freezes) < _MAX_FREEZES:
        gc.collect()
        gc.freeze()
