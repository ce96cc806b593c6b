"""Hadoop's settings, which Spark sends to executors with each scan of each batch.

Hadoop remembers which file each of its 1,100 settings comes from, and compresses each of these names on its own. This
is three quarters of the processor time that sending them takes, and nothing reads the names.
"""

import contextlib
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from statebed.spark.java_classes import java_class

_SOURCES = "updatingResource"
"""Private field with the files that settings come from; it is empty for settings without one."""


def forget_sources(session: SparkSession) -> None:
    """Forget which files Hadoop's settings come from; the settings stay. Do nothing where Hadoop does not allow it."""
    context: Any = session.sparkContext._jsc  # noqa: SLF001 - no public way to these settings
    settings = context.hadoopConfiguration()
    settings.size()  # reads the files now, so that it is not done later
    with contextlib.suppress(Py4JError):
        field = java_class(session, "java.lang.Class").forName(settings.getClass().getName()).getDeclaredField(_SOURCES)
        field.setAccessible(True)
        field.get(settings).clear()
