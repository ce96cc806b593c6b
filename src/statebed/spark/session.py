"""The Spark session: creates one if the user has none, and refuses what cannot work before anything is written."""

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark import __version__ as spark_version
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from statebed.errors import InputError
from statebed.java import use_java
from statebed.spark.console_log import shorten_console_log
from statebed.spark.hadoop_settings import forget_sources
from statebed.spark.java_classes import java_class, remember_classes

MINIMUM_SPARK = (4, 1)
WORKER_DAEMON = "statebed.spark.epoch.worker_daemon"
"""Module of the daemon that starts Python workers."""
_LOOPBACK = "127.0.0.1"
_NO_CONNECT = "a job runs inside the driver and calls its JVM, which Connect does not allow"
_BETWEEN = "\u0001"
_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_PLAIN_FILES = {
    _MANAGER: "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
_OPENING = "Initializing"
_OPENING_SECONDS = 5.0
_LOOK_SECONDS = 0.01


def default_session(name: str) -> SparkSession:
    """Return the active classic session, else a local one on all cores that listens on loopback only."""
    _refuse_remote(os.environ)
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    # Workers must use this interpreter: another one lacks pyarrow and statebed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    use_java()
    # If only the JVM ended, idle Python workers would print tracebacks below the error that a program ends with.
    atexit.register(stop_spark)
    is_first = SparkContext._active_spark_context is None  # noqa: SLF001 - no public way to ask without making one
    session = (
        SparkSession.builder.master("local[*]")
        .appName(f"statebed {name}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", _LOOPBACK)
        .config("spark.driver.bindAddress", _LOOPBACK)
        .config("spark.sql.shuffle.partitions", str(os.cpu_count() or 2))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.python.daemon.module", WORKER_DAEMON)
        .getOrCreate()
    )
    if is_first:
        shorten_console_log(session)
        forget_sources(session)
    return session


def stop_spark() -> None:
    """Stop the Spark of this process at the end of a program, if there is one."""
    context = SparkContext._active_spark_context  # noqa: SLF001 - no public way to ask without making one
    if context is not None:
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            context.stop()


def active_session() -> SparkSession | None:
    """Return the active classic session of this thread, or None."""
    active: Any = SparkSession.getActiveSession()
    return None if active is None or _is_connect(active) else active


def configuration(session: SparkSession) -> dict[str, str]:
    """Return the configuration of this session with one call to the JVM; `session.conf.getAll` makes thousands."""
    joined = session._jsparkSession.conf().getAll().mkString(_BETWEEN)  # noqa: SLF001 - no public way as fast
    pairs = (entry.partition(" -> ") for entry in str(joined).split(_BETWEEN) if entry)
    return {key: value for key, _, value in pairs}


def plan_once(session: SparkSession, *, partitions: int) -> None:
    """Configure the session of a query so that a batch is one job, planned once. Only statebed shuffles its rows.

    Adaptive execution would run each stage as a separate job and plan again in between, for pieces that are already
    where they belong. Its benefit, fewer partitions of groups, is set in advance.
    """
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))


def start_with_plain_checkpoint(writer: DataStreamWriter, session: SparkSession) -> StreamingQuery:
    """Start a query that writes its checkpoint folder as plain local files.

    The folder is derived from the record and read by no later run. Spark's usual manager would start a process of the
    operating system for every step of writing a file, and write a checksum file beside it. The settings of the user's
    session are as before when this returns, and what the user has set remains.
    """
    known = bool(java_class(session, "org.apache.spark.util.Utils").classIsLoadable(_PLAIN_FILES[_MANAGER]))
    added = (_PLAIN_FILES.keys() if known else set()) - configuration(session).keys()
    for name in added:
        session.conf.set(name, _PLAIN_FILES[name])
    try:
        query = writer.start()
        # Sources open their logs with the settings of the user's session, after the start has returned.
        end = time.monotonic() + _OPENING_SECONDS
        while query.status["message"].startswith(_OPENING) and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
    finally:
        for name in added:
            session.conf.unset(name)
    return query


def check_version(version: str = spark_version) -> None:
    """Raise InputError for a Spark that lacks `repartitionById`."""
    parts = version.split(".")
    if tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts[:2]) < MINIMUM_SPARK:
        raise InputError(
            f"Spark {version} is older than {'.'.join(map(str, MINIMUM_SPARK))}",
            fix="pip install --upgrade 'pyspark>=4.1'",
        )


def _refuse_remote(environ: Mapping[str, str]) -> None:
    set_here = [name for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED") if environ.get(name)]
    if set_here:
        raise InputError(
            f"{' and '.join(set_here)} turns every new session into a Spark Connect session; {_NO_CONNECT}",
            where="environment",
            fix=f"unset {' and '.join(set_here)}, or pass a classic session as spark=",
        )


def check_session(session: Any) -> SparkSession:
    """Return the session. Raise InputError unless it is a classic one of a supported Spark."""
    if _is_connect(session):
        raise InputError(
            f"this is a Spark Connect session; {_NO_CONNECT}",
            fix="run the program where the driver runs (spark-submit, or a job of the platform), with a classic "
            "session: SparkSession.builder.master(...)",
        )
    if not isinstance(session, SparkSession):
        raise InputError(
            f"spark= must be a SparkSession, got a {type(session).__name__}", fix="pass a SparkSession, or leave it out"
        )
    if is_stopped(session):
        raise InputError(
            "the Spark of this session was stopped",
            fix="create a new session and its streaming DataFrames, then the job",
        )
    check_version(session.version)
    remember_classes(session)
    return session


def is_stopped(session: SparkSession) -> bool:
    """Return whether the Spark of this session was stopped."""
    context = session.sparkContext._jsc  # noqa: SLF001 - no public way to ask
    return context is None or bool(context.sc().isStopped())


def check_streaming(df: Any, *, source: str) -> DataFrame:
    """Return the DataFrame. Raise InputError unless it is a streaming one of a classic session."""
    if _is_connect(df):
        check_session(df.sparkSession)
    if not isinstance(df, DataFrame):
        raise InputError(
            f"source {source!r} must be a DataFrame, got a {type(df).__name__}",
            fix="pass what spark.readStream...load() returns",
        )
    if not df.isStreaming:
        raise InputError(
            f"the DataFrame of source {source!r} is not a streaming DataFrame",
            fix="read it with spark.readStream instead of spark.read",
        )
    return df


def _is_connect(value: Any) -> bool:
    return type(value).__module__.startswith("pyspark.sql.connect")
