"""The Spark session: make one where the user has none, and refuse what cannot work before anything is written."""

import os
import sys
from typing import Any

from pyspark import __version__ as spark_version
from pyspark.sql import DataFrame, SparkSession

from statebed.errors import InputError
from statebed.java import use_java

MINIMUM_SPARK = (4, 1)
_LOOPBACK = "127.0.0.1"


def default_session(name: str) -> SparkSession:
    """The active classic session, else a local one on all cores that listens on loopback only."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    # Workers must be this interpreter: another one lacks pyarrow and statebed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    use_java()
    return (
        SparkSession.builder.master("local[*]")
        .appName(f"statebed {name}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", _LOOPBACK)
        .config("spark.driver.bindAddress", _LOOPBACK)
        .config("spark.sql.shuffle.partitions", str(os.cpu_count() or 2))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )


def check_version(version: str = spark_version) -> None:
    """Refuse a Spark that lacks `repartitionById`."""
    parts = version.split(".")
    if tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts[:2]) < MINIMUM_SPARK:
        raise InputError(
            f"Spark {version} is older than {'.'.join(map(str, MINIMUM_SPARK))}",
            fix="pip install --upgrade 'pyspark>=4.1'",
        )


def check_session(session: Any) -> SparkSession:
    """A classic session of a Spark that is new enough."""
    if _is_connect(session):
        raise InputError(
            "this is a Spark Connect session; the controller runs inside the driver",
            fix="run the job in the driver's process with a classic session: SparkSession.builder.master(...)",
        )
    if not isinstance(session, SparkSession):
        raise InputError(
            f"spark= is a {type(session).__name__}, not a SparkSession", fix="give a SparkSession, or leave it out"
        )
    check_version(session.version)
    return session


def is_stopped(session: SparkSession) -> bool:
    """Whether somebody stopped the Spark of this session."""
    context = session.sparkContext._jsc  # noqa: SLF001 - no public way to ask
    return context is None or bool(context.sc().isStopped())


def check_streaming(df: Any, *, source: str) -> DataFrame:
    """A streaming DataFrame of a classic session."""
    if _is_connect(df):
        check_session(df.sparkSession)
    if not isinstance(df, DataFrame):
        raise InputError(
            f"source {source!r} is a {type(df).__name__}, not a DataFrame",
            fix="give what spark.readStream...load() returns",
        )
    if not df.isStreaming:
        raise InputError(
            f"the DataFrame of source {source!r} is not a streaming one",
            fix="read it with spark.readStream instead of spark.read",
        )
    return df


def check_state_reachable(session: SparkSession, *, local_state: bool, state: str) -> None:
    """A state in a local folder is seen by every executor only if they run on this machine."""
    master = session.sparkContext.master or ""
    if local_state and not master.startswith("local"):
        raise InputError(
            f"the state is a local folder, but Spark runs on {master}, whose executors may be on other machines",
            where=state,
            fix="put the state on shared storage, for example state='s3://bucket/state'",
        )


def _is_connect(value: Any) -> bool:
    return type(value).__module__.startswith("pyspark.sql.connect")
