"""A query that `sb.write_stream(df)` has started, with the names of Spark's StreamingQuery.

A program that was written for Spark calls `awaitTermination`, `processAllAvailable` or `lastProgress` afterwards. The
names of statebed's own queries work as well: `await_termination`, `last_progress`, `run` and others.
"""

import shutil
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException

from statebed.spark.api.query import Query


class StartedQuery:
    """A running or ended query: everything that Spark's StreamingQuery has, and what `sb.Query` has."""

    def __init__(self, query: Query, *, name: str | None, plan: Callable[[], str], temporary: str | None) -> None:
        self._query = query
        self._name = name
        self._plan = plan
        self._temporary = temporary
        """Folder of the state, which is removed when the query ends; None if the caller chose one."""

    @property
    def name(self) -> str | None:
        """Name given by `queryName`, or None."""
        return self._name

    @property
    def id(self) -> str:
        """Id of Spark's query that reads the input."""
        return str(self._query.spark_query.id)

    @property
    def runId(self) -> str:  # noqa: N802 - Spark's name
        """Id of this start of Spark's query."""
        return str(self._query.spark_query.runId)

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Whether the query is still running."""
        return self._query.is_active

    @property
    def status(self) -> dict[str, Any]:
        """Status as Spark reports it: `message`, `isDataAvailable`, `isTriggerActive`."""
        return dict(self._query.spark_query.status)

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        """Spark's report of the newest batch; `last_progress` also has watermarks, state and phases."""
        report = self._query.spark_query.lastProgress
        return None if report is None else self._with_scanned_rows(report)

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802 - Spark's name
        """Spark's reports of the newest batches."""
        return [self._with_scanned_rows(report) for report in self._query.spark_query.recentProgress]

    def exception(self) -> BaseException | None:
        """Return the error of the query, or None."""
        return self._query.exception

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait for the end. Return whether it has ended if `timeout` is given; raise the error of the query."""
        try:
            ended = self._query.await_termination(timeout)
        finally:
            if not self._query.is_active:
                self._remove_temporary()
        return None if timeout is None else ended

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Wait until all input that is available now has been read, and its results are written."""
        try:
            self._query.spark_query.processAllAvailable()
        except PySparkException:
            self._query.await_termination()  # raises the error that stopped the query, if it is one of ours
            raise

    def stop(self, **options: Any) -> None:
        """End the query after the epoch in progress; options are those of `sb.Query.stop`."""
        self._query.stop(**options)
        self._remove_temporary()

    def explain(self, extended: bool = False) -> None:  # noqa: ARG002 - Spark's argument
        """Print the zones and operators of the query."""
        print(self._plan())  # noqa: T201 - as Spark does

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    def __repr__(self) -> str:
        return repr(self._query)

    def _repr_html_(self) -> str:
        return self._query._repr_html_()

    def _with_scanned_rows(self, report: Any) -> Any:
        """Add the rows that tasks have read without Spark, which it does not count."""
        summaries = (epoch for epoch in self._query.recent_progress if epoch.batch_id == report["batchId"])
        rows = next((epoch.scanned_rows for epoch in summaries), ())
        if rows:
            seconds = report["batchDuration"] / 1_000
            report["numInputRows"] = sum(rows)
            report["processedRowsPerSecond"] = sum(rows) / seconds if seconds else 0.0
            if len(report["sources"]) == len(rows):
                for source, count in zip(report["sources"], rows, strict=True):
                    source["numInputRows"] = count
        return report

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
