"""A started job: wait for it, watch it, stop it.

Spark's query feeds the controller; a separate thread watches both. It serves requests while no batch runs, closes
windows when the input is idle, and commits what remains to be closed after the input of an available-now query has
ended. The error that stopped the controller is raised to the caller unchanged, for example a FencedError.
"""

import enum
import hashlib
import threading
import time
from dataclasses import dataclass
from html import escape

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from statebed.errors import InputError, RequestTimeoutError, StatebedError
from statebed.flow.spark_names import SparkNames
from statebed.format import checkpoint_pb2 as pb
from statebed.present import notebook, units
from statebed.quantities import duration_text
from statebed.spark.compaction.rounds import CompactionCounts
from statebed.spark.epoch.controller import Controller
from statebed.spark.epoch.reports import EpochSummary
from statebed.spark.epoch.run_reporter import RunReporter
from statebed.spark.epoch.source_progress import SourceProgressBoard
from statebed.spark.epoch.spark_progress import ProgressListener
from statebed.spark.plan.job_plan import JobPlan
from statebed.spark.session import start_with_plain_checkpoint

_POLL_SECONDS = 0.1
_INTERRUPTED_SECONDS = 30.0
"""Seconds that an interrupted wait gives the query to stop."""
_TRIGGER_SECONDS = 10.0
"""Seconds that a stop waits for the end of Spark's trigger, which has nothing left to do."""
_EPOCHS_SHOWN = 10
"""Number of epochs of a query shown in a notebook."""


@dataclass(frozen=True)
class Trigger:
    """Trigger of Spark: once for all available input, or repeatedly."""

    available_now: bool
    every_us: int

    def __str__(self) -> str:
        if self.available_now:
            return "available now"
        return f"every {duration_text(self.every_us)}" if self.every_us else "as soon as there is input"


class QueryState(enum.Enum):
    """State of a query.

    >>> [state.value for state in sb.QueryState]
    ['running', 'finished', 'stopped', 'failed']
    """

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class QueryStatus:
    """Snapshot of the status of a query.

    >>> status = sb.QueryStatus(sb.QueryState.RUNNING, run=1, epoch=7, problem="")
    >>> status.epoch
    7
    """

    state: QueryState
    run: int
    epoch: int
    """Newest record of the run: its run_start, or the last epoch."""
    problem: str
    """Text of the error, with the fix; empty if the query has not failed."""


class Query(SparkNames):
    """A running or ended query, created by `Job.start`.

    >>> job = sb.Job("numbers", state="state")
    >>> numbers = job.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load()
    >>> even = job.source(numbers, name="numbers").where("value % 2 = 0").write("parquet", path="out")
    >>> query = job.start(available_now=True)
    >>> query.await_termination()
    True
    >>> query.status.state
    <QueryState.FINISHED: 'finished'>
    """

    def __init__(
        self,
        plan: JobPlan,
        controller: Controller,
        spark_query: StreamingQuery,
        trigger: Trigger,
        reporter: RunReporter,
    ) -> None:
        self._plan = plan
        self._reporter = reporter
        self._controller = controller
        self._spark_query = spark_query
        self._trigger = trigger
        self._state = QueryState.RUNNING
        self._failure: BaseException | None = None
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name=f"statebed-{plan.job_id}", daemon=True)

    @classmethod
    def start(
        cls,
        plan: JobPlan,
        controller: Controller,
        trigger: Trigger,
        *,
        checkpoint_location: str,
        reporter: RunReporter,
    ) -> "Query":
        """Start Spark's query on the checkpoint derived from the record."""
        writer = plan.prepared.writeStream.foreachBatch(controller.on_batch)
        # Names are unique among active queries: a superseded one may still exist, or one of the same name with other
        # state.
        place = hashlib.sha256(plan.state_url.encode()).hexdigest()[:6]
        writer = writer.queryName(f"{plan.job_id} run {controller.run_number} at {place}")
        writer = writer.option("checkpointLocation", checkpoint_location)
        if trigger.available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{trigger.every_us // 1_000} milliseconds")
        spark_query = start_with_plain_checkpoint(writer, plan.prepared.sparkSession)
        board = SourceProgressBoard(plan.spark_sources)
        reporter.follow(board.newest)
        ProgressListener(plan.session, str(spark_query.runId), controller.epoch_log.of_batch, board.take).listen()
        query = cls(plan, controller, spark_query, trigger, reporter)
        query._watcher.start()
        return query

    @property
    def spark_query(self) -> StreamingQuery:
        """Spark's own query, for its progress reports."""
        return self._spark_query

    @property
    def run(self) -> int:
        """Number of its run, as in records and `statebed ls`."""
        return self._controller.run_number

    @property
    def is_active(self) -> bool:
        """Whether the query is still reading, or committing what remains to be closed."""
        return not self._done.is_set()

    @property
    def status(self) -> QueryStatus:
        """Current state, newest epoch and error."""
        problem = "" if self._failure is None else str(self._failure)
        return QueryStatus(self._state, self.run, self._controller.epoch, problem)

    @property
    def last_progress(self) -> EpochSummary | None:
        """Summary of the newest epoch of this query, or None."""
        return self._controller.epoch_log.progress[-1] if self._controller.epoch_log.progress else None

    @property
    def recent_progress(self) -> list[EpochSummary]:
        """Summaries of the newest epochs of this query, oldest first."""
        return list(self._controller.epoch_log.progress)

    @property
    def compaction(self) -> CompactionCounts:
        """Compaction work alongside the epochs of this query."""
        return self._controller.compaction

    @property
    def metrics_url(self) -> str | None:
        """URL of the Prometheus metrics while the query runs, or None without the setting `metrics_port`."""
        return self._controller.epoch_log.observers.url

    @property
    def exception(self) -> BaseException | None:
        """Return the error of the query, or None."""
        return self._failure

    def __repr__(self) -> str:
        status = self.status
        return f"<Query of job {self._plan.job_id}: {status.state.value}, run {status.run}, epoch {status.epoch}>"

    def _repr_html_(self) -> str:
        status, recent = self.status, self.recent_progress[-_EPOCHS_SHOWN:]
        title = f"job {self._plan.job_id}, run {status.run}, epoch {status.epoch}: "
        rows = [
            (
                summary.epoch,
                units.NOTHING if summary.batch_id is None else summary.batch_id,
                summary.rows_in,
                summary.rows_late,
                summary.rows_out,
                notebook.moment(summary.watermark_us),
                summary.state_rows,
                units.size(summary.state_bytes),
                units.duration(summary.duration_us),
            )
            for summary in reversed(recent)
        ]
        columns = ["epoch", "batch", "rows in", "late", "out", "watermark", "state rows", "state", "took"]
        problem = f"<pre>{escape(status.problem)}</pre>" if status.problem else ""
        bar = notebook.phase_bar(recent[-1].phases_us) if recent else ""
        return notebook.block(
            title, notebook.state(status.state.value), problem, bar, notebook.table(columns, rows) if rows else ""
        )

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most `timeout` seconds. Return True if the query has ended; raise its error if it
        failed.

        Ctrl-C stops the query after the epoch in progress and is raised again. A second Ctrl-C does not wait for the
        epoch.
        """
        try:
            ended = self._done.wait(timeout)
        except (KeyboardInterrupt, SystemExit):
            # If the process ended in the middle of a batch, Spark's stack traces would follow.
            self._controller.request_stop(drain=False)
            self._done.wait(_INTERRUPTED_SECONDS)
            raise
        self._raise_failure()
        return ended

    def await_epoch(self, epoch: int, timeout: float | None = None) -> bool:
        """Wait until the record of `epoch` is committed and published. Return False if the timeout or the query ends
        first.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._controller.epoch < epoch:
            if self._done.is_set() or (deadline is not None and time.monotonic() >= deadline):
                break
            time.sleep(_POLL_SECONDS / 2)
        self._raise_failure()
        return self._controller.epoch >= epoch

    def _raise_failure(self) -> None:
        """Raise the error of the query; statebed's errors without the frames of Spark's callbacks."""
        if isinstance(self._failure, StatebedError):
            raise self._failure.with_traceback(None)
        if self._failure is not None:
            raise self._failure

    def stop(self, *, drain: bool = False, timeout: float = 60.0) -> None:
        """End the query after the epoch in progress, with a final record; `drain` closes all windows first.

        Return when everything has ended, or raise a TimeoutError. Rows for windows that a drain has closed are late
        afterwards. An `available_now` query first reads everything that was available when it started. Other queries
        are drained at once: rows not read yet are read after the next start.
        """
        if self._done.is_set() and not drain:
            return
        self._controller.request_stop(drain=drain)
        if not self._done.wait(timeout):
            raise RequestTimeoutError(
                f"the query did not end within {timeout:g} s",
                where=f"job {self._plan.job_id}",
                fix="wait longer, or end the process: committed epochs are safe",
            )
        if drain and not self._controller.drained:
            raise self._failure or InputError(
                "the query has ended, so there is nothing to drain",
                where=f"job {self._plan.job_id}",
                fix="start the job again and stop it with drain=True",
            )

    # ---- the watching thread ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            self._wait_for_spark()
            if not self._controller.halted:
                self._controller.finish(self._plan.session, close=self._trigger.available_now)
            self._state = QueryState.STOPPED if self._controller.stopped else QueryState.FINISHED
            self._reporter.end(self._outcome())
        except BaseException as failure:  # noqa: BLE001 - raised again where the query is awaited
            if self._controller.stopped and self._controller.failure is None:
                self._state = QueryState.STOPPED  # Spark reports the requested end as a failure
                self._reporter.end(self._outcome())
                return
            self._failure = self._controller.explain_failure(failure)
            self._state = QueryState.FAILED
            self._reporter.failed(self._failure)
            self._controller.epoch_log.failed(self._failure, self._controller.epoch + 1)
            self._stop_spark()
        finally:
            self._controller.close()
            self._done.set()

    def _outcome(self) -> pb.RunOutcome.ValueType:
        """Return how the run ended, if it did not fail."""
        if not self._controller.stopped:
            return pb.RUN_FINISHED
        return pb.RUN_DRAINED if self._controller.drained else pb.RUN_STOPPED

    def _wait_for_spark(self) -> None:
        tended, settings = time.monotonic(), self._plan.settings
        tend_seconds = min(settings.requests_every, settings.idle_after).total_seconds()
        while not self._spark_query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]  # seconds may be a fraction
            if self._controller.stop_wanted or time.monotonic() - tended >= tend_seconds:
                self._controller.on_idle(self._plan.session, close_when_idle=not self._trigger.available_now)
                tended = time.monotonic()
            if self._controller.stopped and not self._controller.halted:
                self._controller.halt()
                self._let_trigger_end()
                self._spark_query.stop()

    def _let_trigger_end(self) -> None:
        """Wait for Spark to return from the callback: a stop would interrupt it there, which is logged as a failure."""
        deadline = time.monotonic() + _TRIGGER_SECONDS
        while self._spark_query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS / 10)

    def _stop_spark(self) -> None:
        try:
            self._spark_query.stop()
        except (PySparkException, Py4JError) as error:
            self._controller.epoch_log.logger.warning("Spark's query did not stop: %s", error)
