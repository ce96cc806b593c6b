"""Spark's log on the console: one line per event from loggers that repeat our error with Java stack traces.

A failed job logs its error up to three times before the program's own traceback: as a lost task, as a failed query, and
as their causes. In a session made by statebed, these loggers write one line to the console, and everything to a file
that the lines of errors name. A session of the user, or one with its own log4j configuration, is left alone.
"""

import atexit
import contextlib
import tempfile
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

LOGGERS = (
    "org.apache.spark.api.python",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.python",
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",  # its package since Spark 4.1
)
_DEFAULTS = "org/apache/spark/log4j2-defaults.properties"
_LEVEL = "spark.log.level"
_FILE_SIZE = "10 MB"
"""A larger file is renamed to `spark.log.1`, which replaces the one before."""
_HEAD = "%d{yy/MM/dd HH:mm:ss} %p %c{1}: "
_FIRST_LINE = r"%.-500replace{%m}{(?s)\R.*}{ ...}"
_IF_ERROR = "%replace{%replace{%p}{WARN|INFO|DEBUG|TRACE}{}}{ERROR|FATAL}"


def shorten_console_log(session: SparkSession) -> Path | None:
    """Write events of `LOGGERS` to a file, and their first line to the console. Return the file.

    Return None, and change nothing, if Spark does not use its default log4j configuration.
    """
    with contextlib.suppress(Py4JError):  # another logging framework: its output stays as it is
        log4j = session.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]  # noqa: SLF001 - no public way
        context = log4j.core.LoggerContext.getContext(False)
        configuration = context.getConfiguration()
        if _DEFAULTS not in (configuration.getConfigurationSource().getLocation() or ""):
            return None
        if session.conf.get(_LEVEL, None) is None:
            # The same level as before, but as that of the root logger, which the loggers below inherit.
            session.sparkContext.setLogLevel("WARN")
        folder = tempfile.mkdtemp(prefix="statebed-spark-")
        atexit.register(_remove_if_empty, folder)
        file = Path(folder) / "spark.log"
        appenders = [_console(log4j, configuration, file), _file(log4j, configuration, file)]
        for appender in appenders:
            appender.start()
            configuration.addAppender(appender)
        for name in LOGGERS:
            # Without its own level, a logger follows `setLogLevel`.
            logger = log4j.core.config.LoggerConfig(name, None, False)
            for appender in appenders:
                logger.addAppender(appender, None, None)
            configuration.addLogger(name, logger)
        context.updateLoggers()
        return file
    return None


def _console(log4j: Any, configuration: Any, file: Path) -> Any:
    pattern = f"{_HEAD}{_FIRST_LINE}{_IF_ERROR}{{ [stack trace: {file}]}}%n%ex{{none}}"
    builder = log4j.core.appender.ConsoleAppender.newBuilder()
    builder.setName("statebed-console")
    builder.setTarget(log4j.core.appender.ConsoleAppender.Target.SYSTEM_ERR)
    builder.setLayout(_layout(log4j, configuration, pattern))
    return builder.build()


def _file(log4j: Any, configuration: Any, file: Path) -> Any:
    rolling = log4j.core.appender.rolling
    builder = log4j.core.appender.RollingFileAppender.newBuilder()
    builder.setName("statebed-file")
    builder.withFileName(str(file))
    builder.withFilePattern(f"{file}.%i")
    builder.withPolicy(rolling.SizeBasedTriggeringPolicy.createPolicy(_FILE_SIZE))
    builder.withStrategy(rolling.DefaultRolloverStrategy.newBuilder().withMax("1").withConfig(configuration).build())
    builder.withCreateOnDemand(True)
    builder.setLayout(_layout(log4j, configuration, f"{_HEAD}%m%n%ex"))
    builder.setConfiguration(configuration)
    return builder.build()


def _layout(log4j: Any, configuration: Any, pattern: str) -> Any:
    return log4j.core.layout.PatternLayout.newBuilder().withPattern(pattern).withConfiguration(configuration).build()


def _remove_if_empty(folder: str) -> None:
    with contextlib.suppress(OSError):
        Path(folder).rmdir()
