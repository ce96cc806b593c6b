"""Daemon of Spark's Python workers that has loaded statebed before it starts them.

PySpark forks its workers from a daemon, `spark.python.daemon.module`. PySpark's daemon loads nothing that a task needs,
so each worker imports statebed, Arrow and numpy, which takes more than a second of processor time. Spark ends a worker
after a minute without work, and the next one imports them again. Workers of this daemon share the loaded modules and
their memory.

PySpark's own part of a worker counts, too: the first exchange of Arrow data imports pandas, and Spark puts an archive
of PySpark's sources first on the path, which every process compiles again.
"""

import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

from statebed.spark.installed_pyspark import prefer_installed

Worker: TypeAlias = Callable[[Any, bool], int]
"""Function that runs tasks of a connection and returns an exit code."""
LOADED = (
    "pandas",
    "pyspark.worker",
    "statebed.spark.epoch.level_task",
    "statebed.spark.scan.native_scan",
)
"""Modules that a task needs."""


def main() -> None:
    """Fork workers until Spark ends."""
    prefer_installed(sys.path)
    # Other allocators of Arrow return pages by thread, so that a worker cannot return them while it waits for a task.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    for name in LOADED:
        import_module(name)
    gc.collect()
    gc.freeze()  # a worker's first collection would otherwise touch, and so copy, every page of the modules
    daemon: Any = import_module("pyspark.daemon")
    daemon.worker = until_closed(daemon.worker)
    daemon.manager()


def until_closed(worker: Worker) -> Worker:
    """Return a worker that ends without a traceback when Spark has closed its connection, as it does when it stops."""

    def work(connection: Any, authenticated: bool) -> int:
        try:
            return worker(connection, authenticated)
        except BrokenPipeError:
            return 1

    return work


if __name__ == "__main__":
    main()
