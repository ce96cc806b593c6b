"""Adds statebed's figures to Spark's own progress reports, as the observed metric `statebed`.

Spark creates a report after each batch and passes it to listeners on a separate thread. A listener of statebed adds the
figures of the batch's epoch to the report's map of observed metrics. They are then in `lastProgress`, in its JSON, and
visible to listeners added after the query. Errors here are logged and leave the report as Spark created it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from statebed.logs import id_logger
from statebed.spark.epoch.reports import EpochSummary
from statebed.spark.java_classes import java_class

NAME = "statebed"
"""Name of the observed metric."""
_STREAMING = "org.apache.spark.sql.streaming"
_JACKSON = "com.fasterxml.jackson.databind"
_logger = id_logger(__name__)


def observed(summary: EpochSummary) -> dict[str, int]:
    """Return the figures of an epoch as a flat mapping of numbers."""
    tables = [table for operator in summary.figures.operators for table in operator.tables]
    hosts = summary.figures.hosts
    numbers = {
        "epoch": summary.epoch,
        "rows_in": summary.rows_in,
        "rows_late": summary.rows_late,
        "rows_out": summary.rows_out,
        "state_rows": summary.state_rows,
        "state_bytes": summary.state_bytes,
        "state_files": summary.state_files,
        "memory_bytes": sum(table.memory_bytes for table in tables),
        "memory_peak_bytes": max((host.peak_bytes for host in hosts), default=0),
        "spilled_bytes": sum(host.spilled_bytes for host in hosts),
        "compaction_debt_bytes": sum(table.compaction_debt_bytes for table in tables),
        "duration_us": summary.duration_us,
    }
    return numbers | {f"{phase}_us": us for phase, us in summary.phases_us.items()}


class ProgressListener:
    """Called by Spark's JVM. `epoch_of` returns the summary of a batch or None; `take` gets each report."""

    def __init__(
        self,
        session: SparkSession,
        run_id: str,
        epoch_of: Callable[[int], EpochSummary | None],
        take: Callable[[Mapping[str, Any], Sequence[int]], None],
    ) -> None:
        self._take = take
        self._session = session
        self._run_id = run_id
        self._epoch_of = epoch_of
        self._streams: Any = session._jsparkSession.streams()  # noqa: SLF001 - no public way to Spark's own objects
        self._wrapper: Any = None
        self._rows = _JavaRows(session)

    def listen(self) -> None:
        """Listen until Spark reports the end of the query."""
        try:
            self._add()
        except Py4JError as error:
            _logger.warning("Spark's progress reports will lack the figures of statebed: %s", error)

    def _add(self) -> None:
        context = self._session.sparkContext
        ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]  # noqa: SLF001 - as pyspark does
        self._wrapper = java_class(context, f"{_STREAMING}.PythonStreamingQueryListenerWrapper")(self)
        self._streams.addListener(self._wrapper)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing: nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Add the figures to the report."""
        try:
            progress = event.progress()
            report = json.loads(progress.json())
            if report["runId"] == self._run_id:
                summary = self._epoch_of(int(report["batchId"]))
                self._take(report, () if summary is None else summary.scanned_rows)
                if summary is not None:
                    progress.observedMetrics().put(NAME, self._rows.row(observed(summary)))
        except Py4JError as error:
            _logger.warning("Spark's progress report lacks the figures of statebed: %s", error)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing: there is no report."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Remove the listener after the last report."""
        try:
            if str(event.runId()) == self._run_id:
                self._streams.removeListener(self._wrapper)
        except Py4JError as error:
            _logger.debug("the listener stays: %s", error)

    class Java:
        """Java interface that the JVM sees."""

        implements = (f"{_STREAMING}.PythonStreamingQueryListener",)


class _JavaRows:
    """Creates rows of numbers in the JVM.

    All numbers go there as one text.
    """

    def __init__(self, session: SparkSession) -> None:
        features = java_class(session, f"{_JACKSON}.DeserializationFeature")
        self._texts = java_class(session, f"{_JACKSON}.ObjectMapper")().enable(features.USE_LONG_FOR_INTS)
        self._array_class = java_class(session, "java.lang.Class").forName("[Ljava.lang.Object;")
        self._row_class = java_class(session, "org.apache.spark.sql.catalyst.expressions.GenericRowWithSchema")
        self._type_class = java_class(session, "org.apache.spark.sql.types.StructType")
        self._names: tuple[str, ...] = ()
        self._type: Any = None

    def row(self, numbers: Mapping[str, int]) -> Any:
        """Return a row with a column of longs for each number."""
        names = tuple(numbers)
        if names != self._names:
            self._type = self._type_class.fromDDL(", ".join(f"{name} bigint" for name in names))
            self._names = names
        values = self._texts.readValue(json.dumps(list(numbers.values())), self._array_class)
        return self._row_class(values, self._type)
