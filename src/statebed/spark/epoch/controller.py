"""The controller, which turns each micro-batch into one committed epoch, on the driver.

For each batch, it decides by the head of the lineage whether the batch is new. It runs the subtasks in one Spark action
and takes exactly one report of each. Then it commits the record, which commits everything, and publishes. Epochs
without a batch take the same path with heartbeat rows alone. Callers are serialised: Spark's stream thread and the
query's own thread.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from statebed.checkpoint import Environment, EpochDraft, Publisher, Run
from statebed.errors import FencedError, InputError, SparkStoppedError, StatebedError, StateGoneError, SubtaskError
from statebed.flow.clocks import (
    SourceClock,
    drained_clocks,
    is_due,
    marks_of,
    next_clocks,
    operator_clocks,
    source_entry,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.operators import Clock
from statebed.operators.labels import operator_label
from statebed.protocol import Replay, decide_replay
from statebed.protocol.requests import CleanUp, Compact, Stop
from statebed.spark.causes import LOST_MESSAGES, MALFORMED_MESSAGE, cause_of, source_problem, worker_traceback
from statebed.spark.checkpoint.folder import SparkProjection
from statebed.spark.compaction.rounds import CompactionCounts, compaction_of
from statebed.spark.epoch.background_cleanup import BackgroundCleanup
from statebed.spark.epoch.deadline import deadline
from statebed.spark.epoch.epoch_input import EpochInput, EpochRows, ScannedRows
from statebed.spark.epoch.epoch_levels import of_groups, stages
from statebed.spark.epoch.epoch_log import EpochLog
from statebed.spark.epoch.level_task import StageFunction
from statebed.spark.epoch.observed_times import ObservedTimes, observed_ms
from statebed.spark.epoch.observers import Observers
from statebed.spark.epoch.reports import (
    accepted,
    new_entry,
    operator_entry,
    source_clocks_of,
    timer_is_due,
    watermarks_of,
)
from statebed.spark.plan.job_plan import JobPlan
from statebed.spark.plan.pieces import Piece
from statebed.spark.plan.state_match import kept_entries
from statebed.spark.scan.parquet_reader import ScanRefusedError
from statebed.spark.session import is_stopped

_SCAN_REFUSED = f"{ScanRefusedError.__module__}.{ScanRefusedError.__qualname__}: "


class HaltedError(Exception):
    """Ends a step of the controller after the query was stopped; never shown to users."""


class Controller:
    """Owns the run while a query is active."""

    def __init__(
        self,
        *,
        plan: JobPlan,
        run: Run,
        publisher: Publisher,
        projection: SparkProjection,
        environment: Environment,
        observers: Observers,
        reads_once: bool = False,
    ) -> None:
        """Create the controller. If `reads_once`, the query reads the available input and ends, and a drain waits for
        that.
        """
        self._plan = plan
        self._run = run
        self._publisher = publisher
        self._projection = projection
        self._environment = environment
        self._compaction = compaction_of(plan, run.number)
        self._reads_once = reads_once
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._halted = False
        self._epochs = self._cleaned_up_at = 0
        self._feeding = EpochInput(plan)
        watermarks = plan.graph.spark_watermarks
        self._event_times = ObservedTimes(watermarks) if watermarks else None
        """Event times that Spark observes, for operators that follow Spark's clock."""
        self._last_epoch = time.monotonic()
        self._last_look = 0.0
        self._stop_wanted: Stop | None = None
        self._input_ended = False
        self.stopped = False
        """Whether a requested stop has been recorded."""
        self.drained = False
        """Whether all windows were closed before the stop."""
        self.epoch = run.head.epoch
        """Newest record that is committed and published."""
        self.epoch_log = EpochLog(plan, run.number, environment, observers)
        self._cleanup = BackgroundCleanup(run, failed=self.epoch_log.cleanup_failed)

    @property
    def run_number(self) -> int:
        return self._run.number

    @property
    def halted(self) -> bool:
        return self._halted

    @property
    def failure(self) -> BaseException | None:
        """Error that stopped the controller; Spark only has its text."""
        return self._failure

    @property
    def stop_wanted(self) -> bool:
        return self._stop_wanted is not None

    @property
    def _drain_wanted(self) -> bool:
        return self._stop_wanted is not None and self._stop_wanted.drain

    @property
    def _may_drain(self) -> bool:
        """Whether the query has read all rows that a drain must include."""
        return self._input_ended or not self._reads_once

    def _stop_is_due(self) -> bool:
        return self._stop_wanted is not None and not self.stopped and (self._may_drain or not self._drain_wanted)

    def request_stop(self, *, drain: bool) -> None:
        """Request the end of the query, with a final record as soon as no batch is running; `drain` closes all windows
        first.
        """
        self._stop_wanted = Stop(drain=drain)

    def halt(self) -> None:
        """Let the epoch in progress end, and start no other."""
        self._halted = True
        with self._lock:
            pass  # acquired once the epoch in progress has ended

    def close(self) -> None:
        """Stop all background work after the end of the query."""
        self._compaction.stop()
        self._cleanup.close()
        self.epoch_log.observers.close()

    @property
    def compaction(self) -> CompactionCounts:
        """Compaction work alongside the epochs."""
        return self._compaction.counts

    def on_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Process a batch; called by foreachBatch.

        After a stop it does nothing, because Spark would log an exception with a stack trace. Spark then considers the
        batch done, but only in the checkpoint folder of this run, which no later run reads.
        """
        with self._lock, contextlib.suppress(HaltedError):
            if not self.stopped:
                self._guarded(lambda: self._batch(batch, batch_id))

    def finish(self, session: SparkSession, *, close: bool) -> None:
        """End after the last batch: stop as requested, or close what the watermark allows if the input has ended; then
        clean up.
        """
        with self._lock:
            # Spark silently ends a query when a newer one in its session takes over the checkpoint.
            self._guarded(self._run.check_live)
            self._input_ended = True
            if self._stop_wanted is not None and not self.stopped:
                self._guarded(lambda: self._serve_requests(session))
            if close and not self.stopped:
                self._guarded(lambda: self._end_of_input(session))
            self._compaction.stop()
            self._guarded(lambda: self._cleanup.end(self._compaction.in_flight))

    def on_idle(self, session: SparkSession, *, close_when_idle: bool) -> None:
        """Serve requests, and close windows once the input has been idle. Does nothing while a batch runs."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._guarded(lambda: self._serve_requests(session))
            idle_seconds = self._plan.settings.idle_after.total_seconds()
            if close_when_idle and not self.stopped and time.monotonic() - self._last_epoch >= idle_seconds:
                self._guarded(lambda: self._close_windows(session, status=pb.COMPLETE))
        finally:
            self._lock.release()

    def explain_failure(self, seen: BaseException) -> BaseException:
        """Return the error to report: a lost or superseded run, else the controller's own error, else Spark's."""
        if is_stopped(self._plan.session):
            return SparkStoppedError(
                "Spark was stopped while the query ran",
                where=f"job {self._plan.job_id}",
                fix="stop the query before Spark; on the next start the job continues from its last committed epoch",
            )
        try:
            # A superseded run may fail for another reason first, such as a missing checkpoint folder of Spark.
            self._run.check_live()
        except (FencedError, StateGoneError) as end:
            return end
        except StatebedError as error:
            self.epoch_log.logger.warning("cannot determine whether the run is still live: %s", error)
        problem = None if self._failure is not None else source_problem(str(seen))
        if problem is not None:
            unreadable = unreadable_source(problem, where=f"job {self._plan.job_id}")
            unreadable.__cause__ = seen
            return unreadable
        return self._failure or seen

    def _guarded(self, step: Callable[[], None]) -> None:
        if self._failure is not None:
            raise self._failure
        if self._halted:
            raise HaltedError
        try:
            step()
        except HaltedError:
            raise
        except BaseException as failure:
            self._failure = failure
            raise

    # ---- epochs ----------------------------------------------------------------------------------------------

    def _batch(self, batch: DataFrame, batch_id: int) -> None:
        query_id = _query_id(batch.sparkSession)
        decision = decide_replay(
            self._run.head.source_position,
            query_id=query_id,
            batch_id=batch_id,
            offsets=self._projection.offsets(batch_id),
        )
        if decision is Replay.ALREADY_COMMITTED:
            self.epoch_log.logger.info("batch %d is already committed: publishing unpublished epochs", batch_id)
            self._publisher.publish_pending()
            return
        self._serve_requests(batch.sparkSession)
        if self.stopped:
            raise HaltedError
        self._epoch(batch.sparkSession, batch, batch_id=batch_id, query_id=query_id, status=pb.COMPLETE)

    def _close_windows(self, session: SparkSession, *, status: pb.RecordStatus.ValueType) -> None:
        """Commit an epoch without a batch if time alone has effects that no batch has had yet."""
        plan, now_us = self._plan, self._environment.now_us()
        sources = next_clocks(plan.graph, source_clocks_of(self._run.head))
        clocks = self._operator_clocks(sources, epoch_time_us=now_us)
        if is_due(plan.graph, clocks) or timer_is_due(self._run.head, now_us):
            self._epoch(session, clocks=clocks, status=status)

    def _operator_clocks(self, sources: Mapping[str, SourceClock], *, epoch_time_us: int) -> dict[str, Clock]:
        """Return the clocks that the operators have reached."""
        head = self._run.head
        return operator_clocks(
            self._plan.graph,
            sources,
            watermarks_of(head),
            epoch_time_us=epoch_time_us,
            observed_ms=observed_ms(head.source_position),
        )

    def _end_of_input(self, session: SparkSession) -> None:
        """Close what the watermark allows and apply finished compactions, with an epoch without a batch."""
        has_edits, before = self._compaction.settle(), self._run.head.epoch
        self._close_windows(session, status=pb.STOPPED)
        if has_edits and self._run.head.epoch == before:
            self._epoch(session, status=pb.STOPPED)

    def _drain(self, session: SparkSession) -> None:
        """Close all open windows, regardless of the watermark."""
        plan, head = self._plan, self._run.head
        sources, before = next_clocks(plan.graph, source_clocks_of(head)), watermarks_of(head)
        clocks = drained_clocks(plan.graph, sources, before, epoch_time_us=self._environment.now_us())
        if marks_of(clocks) == {name: before.get(name) for name in clocks}:
            self._carry_over(pb.DRAINED)
        else:
            self._epoch(session, clocks=clocks, status=pb.DRAINED)
        self.drained = True

    def _epoch(
        self,
        session: SparkSession,
        batch: DataFrame | None = None,
        *,
        batch_id: int | None = None,
        query_id: str = "",
        clocks: Mapping[str, Clock] | None = None,
        status: pb.RecordStatus.ValueType,
    ) -> None:
        """Run one epoch with the given clocks (for a drain or an idle input), else with those that its sources have
        reached.
        """
        head, plan, epoch_log = self._run.head, self._plan, self.epoch_log
        meter = epoch_log.begin(self._run.next_epoch)
        sources = next_clocks(plan.graph, source_clocks_of(head))
        if clocks is None:
            clocks = self._operator_clocks(sources, epoch_time_us=epoch_log.started_us)
        epoch_time_us = next(iter(clocks.values())).epoch_time_us
        edits = self._compaction.before_epoch(self._run.next_epoch)
        for table in plan.graph.tables:
            table.refresh()
        levels = stages(plan, head, self._run.next_epoch, clocks, edits, meter=meter)
        if batch is None:
            fed = self._feeding.of_nothing(session)
        else:
            fed = self._feeding.of_batch(batch, clocks, meter, query_id=query_id)
        try:
            pieces = self._act(session, fed, levels)
        except ScanRefusedError as refused:
            assert batch is not None
            self._feeding.read_by_spark(str(refused))
            fed = self._feeding.of_batch(batch, clocks, meter, query_id=query_id)
            pieces = self._act(session, fed, levels)
        labels = {name: operator_label(operator) for name, operator in plan.operators.items()}
        taken = accepted(pieces, operators=labels, parallelism=plan.parallelism)
        self._feeding.reduction.observe(taken.reports)
        figures = epoch_log.figures(meter, self.compaction, preaggregated=fed.preaggregation is not None)
        position = head.source_position
        if batch_id is not None:
            position = self._projection.position(
                epoch=self._run.next_epoch, query_id=query_id, batch_id=batch_id, spark_version=plan.session.version
            )
            if self._event_times is not None:
                latest = (
                    taken.observed_ms
                    if isinstance(fed, ScannedRows)
                    else self._event_times.by_spark(plan.prepared.sparkSession, query_id)
                )
                position.observed.extend(self._event_times.after(head.source_position, latest))
        entries = [
            new_entry(
                operator,
                taken.reports[name],
                clocks[name],
                origins=plan.graph.origins(name),
                parallelism=plan.parallelism,
                before=operator_entry(head, name),
                drained=status == pb.DRAINED,
            )
            for name, operator in plan.operators.items()
        ]
        self._commit(
            EpochDraft(
                operators=[*entries, *kept_entries(head, plan.operators, plan.removed)],
                source_position=position,
                sources=[
                    source_entry(name, clock.seen(taken.seen.get(name), epoch_time_us=epoch_time_us), plan.graph)
                    for name, clock in sources.items()
                ],
                outbox=[
                    file
                    for subtask_reports in taken.reports.values()
                    for report in subtask_reports
                    for file in report.outbox
                ],
                sinks=plan.sink_entries(itertools.chain(*taken.reports.values())),
                epoch_time_us=epoch_time_us,
                start_time_us=epoch_log.started_us,
                parallelism=plan.parallelism,
                status=status,
                figures=figures,
            )
        )
        self._compaction.after_epoch(
            self._run.head,
            [report for subtask_reports in taken.reports.values() for report in subtask_reports],
            may_begin=not self._cleanup.under_way,
        )
        epoch_log.ended(self._run.head, taken.reports, clocks, batch_id)

    def _carry_over(self, status: pb.RecordStatus.ValueType) -> None:
        """Commit a record that changes nothing."""
        self._commit(replace(self._run.carry_over(status), figures=self.epoch_log.carried(self._run.head)))

    def _commit(self, draft: EpochDraft) -> None:
        self.epoch_log.committing()
        record = self._run.commit(draft)
        self.epoch_log.committed()
        self._publisher.publish_pending()
        self.epoch_log.published(record)
        self._epochs += 1
        self._last_epoch = time.monotonic()
        if self._cleanup.settle():
            self._clean_up()
        every = self._plan.settings.collect_every
        # Prefer a clean-up outside a compaction round, all of whose files must be kept, but do not wait for a long one.
        if self._epochs - self._cleaned_up_at >= (2 * every if self._compaction.under_way else every):
            self._clean_up()
        self.epoch = self._run.head.epoch

    def _act(self, session: SparkSession, rows: EpochRows, levels: Sequence[StageFunction]) -> list[Piece]:
        """Run the Spark action of an epoch; a repetition writes the same objects again."""
        if rows.preaggregation is not None:
            levels = [of_groups(levels[0], rows.preaggregation), *levels[1:]]
        epoch, where = self._run.next_epoch, f"job {self._plan.job_id}"
        attempts, seconds = self._plan.settings.attempts, self._plan.settings.epoch_timeout.total_seconds()
        with deadline(session.sparkContext, seconds, what=f"epoch {epoch}", where=where) as limit:
            for attempt in range(1, attempts + 1):
                # Built again for each attempt: Spark caches a failed stage in the plan and would fail again at once.
                action = rows.action(levels)
                self.epoch_log.planned()
                try:
                    return action()
                except (PySparkException, Py4JError) as error:
                    cause = cause_of(error)
                    if cause.startswith(_SCAN_REFUSED):
                        raise ScanRefusedError(cause.removeprefix(_SCAN_REFUSED)) from error
                    if attempt == attempts or self._halted or limit.expired:
                        problem = source_problem(str(error))
                        if problem is not None:
                            raise unreadable_source(problem, where=where) from error
                        raise SubtaskError(
                            f"the subtasks of epoch {epoch} failed {attempt} times; the last time: {cause}",
                            where=where,
                            fix="see the executors' logs; on the next start the job continues from its last committed "
                            "epoch",
                        ) from (worker_traceback(error) or error)
                    self.epoch_log.retried(epoch, attempt, cause)
        raise AssertionError

    # ---- requests and garbage --------------------------------------------------------------------------------

    def _serve_requests(self, session: SparkSession) -> None:
        """Grant requests of tools and of the query itself, with a separate record."""
        if self._stop_is_due():
            self._run.add_request(pb.Request(stop=pb.StopRequest(drain=self._drain_wanted)))
        elif time.monotonic() - self._last_look < self._plan.settings.requests_every.total_seconds():
            return
        self._last_look = time.monotonic()
        effects = self._run.serve_requests()
        stops = [effect for effect in effects if isinstance(effect, Stop)]
        if any(stop.drain for stop in stops) and not self._may_drain:
            # A tool may also request a drain: it is granted, and done when the input has ended.
            self._stop_wanted, stops = Stop(drain=True), []
        if any(stop.drain for stop in stops):
            self._drain(session)
        elif effects:
            self._carry_over(pb.STOPPED if stops else pb.COMPLETE)
        self.stopped = self.stopped or bool(stops)
        if Compact() in effects:
            self._compaction.start_soon()
        if CleanUp() in effects:
            self._clean_up()

    def _clean_up(self) -> None:
        """Start a clean-up alongside the epochs."""
        self._cleaned_up_at = self._epochs
        self._cleanup.begin(self._compaction.in_flight)


def unreadable_source(problem: str, *, where: str) -> InputError:
    """Return the error of a source that cannot be read: files or messages are missing, or cannot be decoded."""
    if problem.startswith(MALFORMED_MESSAGE):
        return InputError(
            problem,
            where=where,
            fix="read the topic with its actual schema, or let malformed messages through to another stream: "
            "job.kafka(..., malformed='dead_letters'); on the next start the job continues from its last committed "
            "epoch",
        )
    if problem.startswith(LOST_MESSAGES):
        return InputError(
            problem,
            where=where,
            fix="start the job again: the start says which messages are gone, and how to continue without them",
        )
    return InputError(
        problem,
        where=where,
        fix="restore the file or folder, or read it with its actual schema: job.source(spark.readStream.schema("
        "...)); on the next start the job continues from its last committed epoch",
    )


def _query_id(session: SparkSession) -> str:
    """Return the id of the query whose batch runs on this thread; Spark sets it for every job of the batch."""
    return str(session.sparkContext.getLocalProperty("sql.streaming.queryId") or "")
