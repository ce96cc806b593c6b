"""Daemon of Spark's Python workers that has loaded statebed before it starts them.

PySpark forks its workers from a daemon, `spark.python.daemon.module`. Its own one has loaded nothing that a task needs:
each worker imports statebed, Arrow and numpy for itself, which takes more than a second of processor time, and again
when Spark has ended it after a minute without work. Workers of this daemon share the loaded modules and their memory.
"""

import gc

from pyspark.daemon import manager

import statebed.spark.epoch.level_task
import statebed.spark.scan.native_scan  # noqa: F401 - loaded for the workers


def main() -> None:
    """Fork workers until Spark ends."""
    gc.collect()
    gc.freeze()  # a worker's first collection would otherwise touch, and so copy, every page of the modules
    manager()


if __name__ == "__main__":
    main()
