"""Reports on the epochs of a query: figures for the record, progress for people, events for observers.

The controller reports its steps; times are taken here. The commit and publication of a record end after it is written,
so the next record contains their durations.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from statebed.checkpoint import Environment
from statebed.errors import FencedError, StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.figures import PHASES
from statebed.logs import id_logger
from statebed.metrics.job_metrics import Event
from statebed.metrics.telemetry import EpochSpan, Phase
from statebed.operators import Clock
from statebed.operators.joins.matches import entry_warning
from statebed.operators.labels import stored_label
from statebed.spark.compaction.rounds import CompactionCounts
from statebed.spark.epoch.epoch_figures import COMMIT, PLANNING, PUBLISH, Meter
from statebed.spark.epoch.observers import Observers
from statebed.spark.epoch.reports import EpochSummary, Reports, operator_summary
from statebed.spark.plan.job_plan import JobPlan

_logger = id_logger(__name__)
_PROGRESS_KEPT = 100


class _SteadyClock:
    """A wall clock that is read once, when it is set, and then advances with the monotonic clock, so that no interval
    is negative even if the machine's clock is set back.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.set()

    def set(self) -> int:
        """Set it to the time of the machine's clock."""
        self._set_us = self._environment.now_us()
        self._set_at = self._environment.steady_seconds()
        return self._set_us

    def now_us(self) -> int:
        return self._set_us + round((self._environment.steady_seconds() - self._set_at) * 1e6)


@dataclass
class _Times:
    started_us: int = 0
    planned_us: int = 0
    committing_us: int = 0
    committed_us: int = 0
    published_us: int = 0
    scanned_rows: tuple[int, ...] = ()


@dataclass
class EpochLog:
    """Log of the epochs of a query, written by the controller one epoch at a time."""

    plan: JobPlan
    run: int
    environment: Environment
    observers: Observers
    progress: deque[EpochSummary] = field(default_factory=lambda: deque(maxlen=_PROGRESS_KEPT))
    _times: _Times = field(default_factory=_Times)
    _previous: dict[str, int] = field(default_factory=dict)
    _late: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.logger = _logger.about(job=self.plan.job_id, run=self.run)
        self._cautioned: set[str] = set()
        """Operators whose warning was logged; one per run is enough."""
        self._clock = _SteadyClock(self.environment)

    def begin(self, epoch: int) -> Meter:
        """Note the start of an epoch with tasks."""
        self._times = _Times(started_us=self._clock.set())
        return Meter.of(self.plan.session.sparkContext, f"{self.plan.state_url} {self.plan.job_id} {self.run}", epoch)

    def of_batch(self, batch_id: int) -> EpochSummary | None:
        """Return the summary of a micro-batch's epoch while it is remembered, else None."""
        return next((entry for entry in reversed(self.progress.copy()) if entry.batch_id == batch_id), None)

    @property
    def started_us(self) -> int:
        return self._times.started_us

    def planned(self) -> None:
        """Note that Spark starts to work; called for each attempt."""
        self._times.planned_us = self._clock.now_us()

    def figures(self, meter: Meter, compaction: CompactionCounts, *, preaggregated: bool) -> pb.EpochFigures:
        """Return the figures for the record after the action has ended."""
        acted_us, times, taken = self._clock.now_us(), self._times, meter.take()
        times.scanned_rows = taken.scanned_rows
        topology = self.plan.topology
        phases = taken.phases(
            acted_us - times.planned_us,
            [[place.operator.operator_id for place in level] for level in topology.levels],
            slots=self.plan.session.sparkContext.defaultParallelism,
        )
        return pb.EpochFigures(
            phases_us={PLANNING: times.planned_us - times.started_us, **phases},
            previous_phases_us=self._previous,
            operators=taken.operators(list(self.plan.operators)),
            hosts=taken.hosts(),
            compaction=_compaction(compaction),
            preaggregated=preaggregated,
        )

    def carried(self, head: pb.CheckpointMetadata) -> pb.EpochFigures:
        """Return the figures of a record that changes nothing: the tables of its head, without events."""
        figures = pb.EpochFigures(operators=head.figures.operators, previous_phases_us=self._previous)
        if head.figures.HasField("compaction"):
            figures.compaction.CopyFrom(head.figures.compaction)
        for operator in figures.operators:
            operator.bytes_written = operator.busy_us = operator.rows_expired = operator.retractions_dropped = 0
            for table in operator.tables:
                table.spills = table.loads = table.hits = 0
        return figures

    def committing(self) -> None:
        """Note that the record is about to be written."""
        self._times.committing_us = self._clock.now_us()

    def committed(self) -> None:
        """Note that the record is durable."""
        self._times.committed_us = self._clock.now_us()

    def published(self, record: pb.CheckpointMetadata) -> None:
        """Note that the record is published to all sinks."""
        times = self._times
        times.published_us = self._clock.now_us()
        self._previous = {
            COMMIT: times.committed_us - times.committing_us,
            PUBLISH: times.published_us - times.committed_us,
        }
        self.observers.metrics.observe(record, self._previous)
        for entry in record.operators:
            if entry.operator_id not in self._cautioned and (text := entry_warning(entry)) is not None:
                self._cautioned.add(entry.operator_id)
                label = stored_label(entry.operator_id, entry.definition)
                self.logger.about(epoch=record.epoch, operator=entry.operator_id).warning("%s: %s", label, text)

    def ended(
        self, record: pb.CheckpointMetadata, reports: Reports, clocks: Mapping[str, Clock], batch_id: int | None
    ) -> None:
        """Note that an epoch is complete."""
        phases = {**record.figures.phases_us, **self._previous}
        summary = EpochSummary(
            epoch=record.epoch,
            batch_id=batch_id,
            operators={name: operator_summary(reports[name], clocks[name]) for name in self.plan.operators},
            duration_us=self._clock.now_us() - self._times.started_us,
            preaggregated=record.figures.preaggregated,
            phases_us={name: phases[name] for name in PHASES if name in phases},
            figures=record.figures,
            scanned_rows=self._times.scanned_rows,
        )
        self.progress.append(summary)
        self._log(summary)
        self.observers.epoch(self._span(summary))

    def retried(self, epoch: int, attempt: int, cause: str) -> None:
        """Note that the action of an epoch failed and is repeated."""
        self.observers.metrics.event(Event.RETRY)
        attempts = self.plan.settings.attempts
        logger = self.logger.about(epoch=epoch)
        logger.warning("epoch %d, attempt %d of %d failed: %s", epoch, attempt, attempts, cause)

    def cleanup_failed(self, error: StatebedError) -> None:
        """Note that a clean-up failed."""
        self.observers.metrics.event(Event.CLEANUP_FAILURE)
        self.logger.warning("clean-up failed: %s", error)

    def failed(self, failure: BaseException, epoch: int) -> None:
        """Note the error that ends the query before `epoch` is committed."""
        fenced = isinstance(failure, FencedError)
        self.observers.metrics.event(Event.FENCED if fenced else Event.FAILURE)
        logger = self.logger.about(epoch=epoch)
        logger.error("job %s stopped: %s", self.plan.job_id, failure, exc_info=failure)
        now_us = self._clock.now_us()
        attributes: dict[str, str | int] = {"job": self.plan.job_id, "run": self.run, "epoch": epoch}
        problem = f"{type(failure).__name__}: {failure}"
        self.observers.epoch(EpochSpan(self._times.started_us or now_us, now_us, (), attributes, problem))

    def _log(self, summary: EpochSummary) -> None:
        logger = self.logger.about(epoch=summary.epoch)
        logger.info(
            "epoch %d: %d rows in, %d late, %d out, %.3f s",
            summary.epoch,
            summary.rows_in,
            summary.rows_late,
            summary.rows_out,
            summary.duration_us / 1e6,
        )
        for name, operator in summary.operators.items():
            if operator.rows_late:
                # Worth one message; after that it is normal for this job.
                tell = logger.info if name in self._late else logger.warning
                tell(
                    "operator %s: %d of %d rows were late",
                    name,
                    operator.rows_late,
                    operator.rows_in,
                    extra={"operator": name},
                )
                self._late.add(name)

    def _span(self, summary: EpochSummary) -> EpochSpan:
        attributes: dict[str, str | int] = {
            "job": self.plan.job_id,
            "run": self.run,
            "epoch": summary.epoch,
            "rows_in": summary.rows_in,
            "rows_late": summary.rows_late,
            "rows_out": summary.rows_out,
            "state_rows": summary.state_rows,
            "state_bytes": summary.state_bytes,
        }
        if summary.batch_id is not None:
            attributes["batch_id"] = summary.batch_id
        phases = tuple(self._phases(summary))
        return EpochSpan(self._times.started_us, self._times.published_us, phases, attributes)

    def _phases(self, summary: EpochSummary) -> Iterator[Phase]:
        """Yield the phases in order; commit and publication with their actual times."""
        times, at = self._times, self._times.started_us
        known = {COMMIT: times.committing_us, PUBLISH: times.committed_us}
        for name, us in summary.phases_us.items():
            at = known.get(name, at)
            yield Phase(name, at, at + us)
            at += us


def _compaction(counts: CompactionCounts) -> pb.CompactionFigures:
    return pb.CompactionFigures(
        rounds=counts.rounds,
        merges=counts.edits_applied,
        read_bytes=counts.read_bytes,
        written_bytes=counts.written_bytes,
        failures=counts.failures,
    )
