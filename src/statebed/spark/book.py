"""What is told about the epochs of one query: figures for the record, progress for people, news for whoever watches.

The controller says where it is; times are taken here. Commit and publication of a record end after it is put, so the
next record tells how long they took.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from statebed.checkpoint import Environment
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.figures import PHASES
from statebed.operators import Clock
from statebed.spark.compaction import CompactionCounts
from statebed.spark.figures import COMMIT, PLANNING, PUBLISH, Meter
from statebed.spark.plan import JobPlan
from statebed.spark.reports import EpochSummary, Reports, operator_summary

_PROGRESS_KEPT = 100


@dataclass
class _Times:
    started_us: int = 0
    planned_us: int = 0
    committing_us: int = 0
    committed_us: int = 0
    published_us: int = 0


@dataclass
class Book:
    """Written by the controller, one epoch after the other."""

    plan: JobPlan
    run: int
    environment: Environment
    progress: deque[EpochSummary] = field(default_factory=lambda: deque(maxlen=_PROGRESS_KEPT))
    _times: _Times = field(default_factory=_Times)
    _previous: dict[str, int] = field(default_factory=dict)

    def begin(self, epoch: int) -> Meter:
        """An epoch with work for tasks begins."""
        self._times = _Times(started_us=self.environment.now_us())
        return Meter.of(self.plan.session.sparkContext, f"{self.plan.state_url} {self.plan.job_id} {self.run}", epoch)

    @property
    def started_us(self) -> int:
        return self._times.started_us

    def planned(self) -> None:
        """Spark begins to work; said again for each attempt."""
        self._times.planned_us = self.environment.now_us()

    def figures(self, meter: Meter, compaction: CompactionCounts, *, preaggregated: bool) -> pb.EpochFigures:
        """The action has ended: what it took, for the record."""
        acted_us, times, taken = self.environment.now_us(), self._times, meter.take()
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
        """Of a record that changes nothing: the tables of its head as they were, and no events."""
        figures = pb.EpochFigures(operators=head.figures.operators, previous_phases_us=self._previous)
        if head.figures.HasField("compaction"):
            figures.compaction.CopyFrom(head.figures.compaction)
        for operator in figures.operators:
            operator.bytes_written = operator.busy_us = operator.rows_expired = operator.retractions_dropped = 0
            for table in operator.tables:
                table.spills = table.loads = table.hits = 0
        return figures

    def committing(self) -> None:
        """The record is about to be put."""
        self._times.committing_us = self.environment.now_us()

    def committed(self) -> None:
        """The record is durable."""
        self._times.committed_us = self.environment.now_us()

    def published(self) -> None:
        """The sinks have it, too."""
        times = self._times
        times.published_us = self.environment.now_us()
        self._previous = {
            COMMIT: times.committed_us - times.committing_us,
            PUBLISH: times.published_us - times.committed_us,
        }

    def ended(
        self, record: pb.CheckpointMetadata, reports: Reports, clocks: Mapping[str, Clock], batch_id: int | None
    ) -> None:
        """All of an epoch is done."""
        phases = {**record.figures.phases_us, **self._previous}
        self.progress.append(
            EpochSummary(
                epoch=record.epoch,
                batch_id=batch_id,
                operators={name: operator_summary(reports[name], clocks[name]) for name in self.plan.operators},
                duration_us=self.environment.now_us() - self._times.started_us,
                preaggregated=record.figures.preaggregated,
                phases_us={name: phases[name] for name in PHASES if name in phases},
                figures=record.figures,
            )
        )


def _compaction(counts: CompactionCounts) -> pb.CompactionFigures:
    return pb.CompactionFigures(
        rounds=counts.rounds,
        merges=counts.edits_applied,
        read_bytes=counts.read_bytes,
        written_bytes=counts.written_bytes,
        failures=counts.failures,
    )
