"""Reports the state of a run: a heartbeat while its driver is alive, and how the run ended.

Both are small objects for people, see `statebed.checkpoint.run_status`. Errors while writing them are logged and never
stop the job.
"""

import atexit
import os
import platform
import threading
import traceback
from collections.abc import Callable, Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from statebed.checkpoint import Run
from statebed.checkpoint.process_identity import own_identity
from statebed.checkpoint.run_status import MAX_TEXT, MAX_TRACEBACK, RunStatus, put_end, put_heartbeat, shortened
from statebed.config import DECLARATIONS, Settings
from statebed.errors import FencedError, StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.run_states import judge_run
from statebed.logs import id_logger
from statebed.metrics.job_metrics import JobMetrics
from statebed.spark.causes import traceback_in
from statebed.spark.plan.job_plan import JobPlan

_END_SECONDS = 15.0
"""Seconds that the end of a query waits for a store that does not accept the end of its run."""
_logger = id_logger(__name__)


class RunReporter:
    """Reports on one run from its start to its end. `end` may be called more than once; the first call counts."""

    def __init__(self, run: Run, plan: JobPlan, *, trigger: str, metrics: JobMetrics) -> None:
        self._run = run
        self._metrics = metrics
        self._every_s = plan.settings.heartbeat_every.total_seconds()
        context = plan.session.sparkContext
        self._heartbeat = pb.RunHeartbeat(
            job_id=run.job_id,
            run=run.number,
            start_time_us=run.head.start_time_us,
            every_us=int(self._every_s * 1e6),
            host=platform.node(),
            process_id=os.getpid(),
            process_identity=own_identity(),
            application_id=context.applicationId,
            spark_ui_url=context.uiWebUrl or "",
            trigger=trigger,
            settings=shown_settings(plan.settings),
        )
        self._sources: Callable[[], Sequence[pb.SourceProgress]] = tuple
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._has_end = False
        self._logger = _logger.about(job=run.job_id, run=run.number)
        self._thread = threading.Thread(target=self._beat, name=f"statebed-heartbeat-{run.job_id}", daemon=True)

    def start(self) -> None:
        """Start sending heartbeats."""
        self._show(None)
        self._thread.start()
        atexit.register(self._exited)

    def follow(self, sources: Callable[[], Sequence[pb.SourceProgress]]) -> None:
        """Include the progress of sources in each heartbeat; `sources` must not block."""
        self._sources = sources

    def end(self, outcome: pb.RunOutcome.ValueType, failure: BaseException | None = None) -> None:
        """Record how the run ended; wait at most 15 s for the store."""
        with self._lock:
            if self._has_end:
                return
            self._has_end = True
        self._ended.set()
        atexit.unregister(self._exited)
        end = self._end(outcome, failure)
        self._show(end)
        self._logger.info("run %d has ended: %s", end.run, pb.RunOutcome.Name(outcome).removeprefix("RUN_").lower())
        writer = threading.Thread(target=self._put_end, args=(end,), daemon=True)
        writer.start()
        writer.join(_END_SECONDS)
        if writer.is_alive():
            self._logger.warning(
                "the end of the run is not recorded: the store did not answer within %g s", _END_SECONDS
            )

    def failed(self, failure: BaseException) -> None:
        """Record that the run failed, or that a later run superseded it."""
        self.end(pb.RUN_FENCED if isinstance(failure, FencedError) else pb.RUN_FAILED, failure)

    # ---- inside ----------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        while True:
            self._put_heartbeat()
            if self._ended.wait(self._every_s):
                return

    def _put_heartbeat(self) -> None:
        sign = pb.RunHeartbeat()
        sign.CopyFrom(self._heartbeat)
        sign.time_us = self._run.environment.now_us()
        sign.epoch = self._run.head.epoch
        sign.sources.extend(self._sources())
        if not self._ended.is_set():
            self._show(None)
        try:
            put_heartbeat(self._run.store, sign)
        except StatebedError as error:
            self._logger.warning("heartbeat failed: %s", error)

    def _show(self, end: pb.RunEnd | None) -> None:
        """Update the metrics of this process with what the folder shows to others."""
        now_us = self._run.environment.now_us()
        sign = pb.RunHeartbeat()
        sign.CopyFrom(self._heartbeat)
        sign.time_us = now_us
        status = RunStatus(self._run.number, end, sign)
        report = judge_run(status, last=None, superseded_by=None, now_us=now_us)
        self._metrics.show_run(report, self._sources())

    def _end(self, outcome: pb.RunOutcome.ValueType, failure: BaseException | None) -> pb.RunEnd:
        run = self._run
        return pb.RunEnd(
            job_id=run.job_id,
            run=run.number,
            outcome=outcome,
            start_time_us=self._heartbeat.start_time_us,
            time_us=run.environment.now_us(),
            epoch=run.head.epoch,
            error=None if failure is None else error_of(failure),
            undelivered=run.undelivered,
            written_by=run.environment.written_by,
        )

    def _put_end(self, end: pb.RunEnd) -> None:
        try:
            put_end(self._run.store, end)
        except StatebedError as error:
            self._logger.warning("the end of the run is not recorded: %s", error)
            return
        self._put_heartbeat()  # the last heartbeat: progress of the sources at the end

    def _exited(self) -> None:
        """Record the end if the interpreter exits while the run is active."""
        self.end(
            pb.RUN_EXITED,
            StatebedError(
                "the driver process exited while the query was running",
                fix="wait for the query in the program: query.await_termination(), or stop it: query.stop(). After a "
                "start the job continues from its last committed epoch",
            ),
        )


def error_of(failure: BaseException) -> pb.RunError:
    """Store what a person needs of an exception, bounded in size."""
    if isinstance(failure, StatebedError):
        code, what, where, fix = failure.code, failure.what, failure.where, failure.fix
    else:
        code, what, where = "", str(failure), ""
        fix = "see the traceback; after a start the job continues from its last committed epoch"
    return pb.RunError(
        code=code,
        kind=type(failure).__name__,
        what=shortened(what, MAX_TEXT),
        where=shortened(where, MAX_TEXT),
        fix=shortened(fix, MAX_TEXT),
        traceback=shortened(_traceback_of(failure), MAX_TRACEBACK),
    )


def _traceback_of(failure: BaseException) -> str:
    """Return the traceback of user code that caused the failure: from a worker, as text, or from this process."""
    cause: BaseException | None = failure
    while cause is not None:
        if remote := traceback_in(str(cause)):
            return remote
        if isinstance(cause, PySparkException | Py4JError):
            return ""
        if not isinstance(cause, StatebedError):
            return "".join(traceback.format_exception(type(cause), cause, cause.__traceback__, chain=False)).strip()
        cause = cause.__cause__
    return ""


def shown_settings(settings: Settings) -> dict[str, str]:
    """Return all settings as people write them; none of them contains a secret."""
    return {
        declaration.name: declaration.shown(getattr(settings, declaration.name))
        for declaration in DECLARATIONS.values()
    }
