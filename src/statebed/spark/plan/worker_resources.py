"""What the tasks of a job may use of their hosts, and what those of one worker process share: the budget of memory, the
folder for spilled state, the host's cache.

The driver computes plain numbers, which travel with tasks. A worker makes what they say when a task first asks, and
keeps it for those that follow.
"""

import functools
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
"""A worker serves few jobs with different budgets."""


def job_budget(session: SparkSession, settings: Settings, *, available: int | None = None) -> HostBudget:
    """How the memory of a host is divided for this job; `available` is what the smallest host has, if that is known."""
    slots = settings.task_slots or host_slots(executors_of(session), configuration(session))
    if available is None:
        available = available_memory()
        if not (session.sparkContext.master or "").startswith("local"):
            # Hosts may have more than the driver; they are asked later.
            available = max(available, settings.memory or 0)
    memory = host_memory(settings.memory, available=available, slots=slots)
    return host_budget(memory, slots, cache_share=settings.cache_share)


def resources(share: TaskShare) -> tuple[Tiers, HostCache]:
    """Those of this process; a forked child makes its own."""
    return _made(os.getpid(), share)


@functools.lru_cache(maxsize=_KEPT)
def _made(_process: int, share: TaskShare) -> tuple[Tiers, HostCache]:
    keep_pages(share.memory_bytes)
    return Tiers(share.memory_controller()), share.open_cache()
