"""A job as it will run: fully checked, nothing written yet."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from statebed.checkpoint import Publisher, Run, Sink, SinkStart
from statebed.config import Settings
from statebed.errors import UnboundedStateWarning
from statebed.flow.graph import Graph
from statebed.format import checkpoint_pb2 as pb
from statebed.operators import Operator
from statebed.operators.joins import IntervalJoin
from statebed.operators.joins.matches import MAX_BOUND_US
from statebed.operators.labels import operator_label
from statebed.operators.windows.sessions import SessionAggregate
from statebed.protocol.kafka_start import SourceStart
from statebed.sinks import TwoPhaseSink
from statebed.spark.plan.host_memory import HostBudget, TaskShare
from statebed.spark.plan.kafka_offsets import KafkaStart
from statebed.spark.plan.rebuild import rebuilds
from statebed.spark.plan.routing import Layout
from statebed.spark.plan.state_match import RemovedStatePolicy
from statebed.spark.plan.topology import OperatorPlace, Topology
from statebed.subtasks import SubtaskReport
from statebed.subtasks.staged_writer import StagedOutput


@dataclass(frozen=True)
class JobPlan:
    """Sources, operators, sinks, and how they run."""

    job_id: str
    state_url: str
    local_state: Path | None
    """Folder of the state if it is on this machine."""
    parallelism: int
    session: SparkSession
    graph: Graph
    topology: Topology
    prepared: DataFrame
    """Streaming DataFrame that feeds the first level."""
    layouts: Mapping[int, Layout]
    spark_sources: tuple[str, ...]
    """Sources of the job in the order in which Spark's query reads them."""
    sinks: tuple[Sink, ...]
    settings: Settings
    budget: HostBudget
    removed: RemovedStatePolicy = RemovedStatePolicy.REFUSE
    """Choice for the state of operators that the job no longer has."""
    sink_starts: Mapping[str, SinkStart] = field(default_factory=dict)
    """Choice for sinks that lack epochs which are no longer retained, by name."""
    abandoned_sinks: tuple[str, ...] = ()
    """Sinks that the job no longer has, whose unpublished epochs are given up."""
    skipped_epochs: Mapping[str, int] = field(default_factory=dict)
    """Epochs up to which the unpublished rows of sinks are given up, by name."""
    source_starts: Mapping[str, SourceStart] = field(default_factory=dict)
    """Choice for Kafka sources whose messages are gone, by name."""
    kafka: KafkaStart = field(default_factory=KafkaStart)

    def publisher(self, run: Run) -> Publisher:
        """Build the publisher of a run of this job."""
        return Publisher(
            run,
            self.sinks,
            starts=self.sink_starts,
            abandon=self.abandoned_sinks,
            skip=self.skipped_epochs,
            rebuilds=rebuilds(self.topology, job_id=self.job_id, store=run.store),
        )

    @property
    def share(self) -> TaskShare:
        """Share of a task in its host."""
        return TaskShare.of(self.budget, self.settings)

    @property
    def operators(self) -> dict[str, Operator]:
        """Operators by name, in topological order."""
        return {place.operator.operator_id: place.operator for place in self.topology.places}

    def sink_entries(self, reports: Iterable[SubtaskReport]) -> list[pb.SinkEntry]:
        """Build the sink entries of an epoch's record, with what the writers of two-phase sinks returned."""
        streams = self.topology.sinks
        staged: dict[str, list[pb.CommitData]] = {}
        for report in reports:
            for sink_id, data in report.staged:
                piece = pb.CommitData(subtask_index=report.subtask_index, data=data)
                staged.setdefault(sink_id, []).append(piece)
        return [
            pb.SinkEntry(
                sink_id=sink.sink_id,
                operator_id=streams[sink.sink_id].operator_id,
                stream=streams[sink.sink_id].stream,
                commit_data=staged.get(sink.sink_id, ()),
            )
            for sink in self.sinks
        ]

    def staging(self, place: OperatorPlace) -> tuple[StagedOutput, ...]:
        """Return the writers of two-phase sinks for the output of an operator."""
        streams = {delivery.stream for delivery in place.outgoing}
        return tuple(
            StagedOutput(sink.sink_id, target.stream, sink.writer)
            for sink in self.sinks
            if isinstance(sink, TwoPhaseSink)
            and (target := self.topology.sinks[sink.sink_id]).stream in streams
            and target.operator_id in {"", place.operator.operator_id}
        )

    def staged_only(self, place: OperatorPlace) -> frozenset[str]:
        """Return the streams of an operator that only two-phase sinks read, so that they need no outbox files."""
        others = {self.topology.sinks[sink.sink_id] for sink in self.sinks if not isinstance(sink, TwoPhaseSink)}
        read = {sink.stream for sink in others if sink.operator_id in {"", place.operator.operator_id}}
        return frozenset(staging.stream for staging in self.staging(place) if staging.stream not in read)

    def warn_of_unbounded_state(self) -> None:
        """Warn of state that grows with the number of keys and never expires; that should be a conscious decision."""
        for operator in self.operators.values():
            tables = unbounded_tables(operator)
            if tables:
                what = "every key"
                limit = self.graph.state_limits.get(operator.operator_id, "set ttl=")
                fix = f"{limit}, or make sure that the number of keys is bounded"
                if isinstance(operator, IntervalJoin):
                    what = "every row"
                    fix = "add a range of the event times of both sides to the condition, or join within a window"
                warnings.warn(
                    f"{operator_label(operator)} keeps {what} forever (table {', '.join(tables)}): {fix}",
                    UnboundedStateWarning,
                    stacklevel=3,
                )


def unbounded_tables(operator: Operator) -> list[str]:
    """Return the tables that keep a row of each key until it is removed explicitly, or rows without an end."""
    if isinstance(operator, SessionAggregate):
        return []
    if isinstance(operator, IntervalJoin):
        return [name for name, config in operator.tables.items() if config.time_keyed.retention_us >= MAX_BOUND_US]
    return [
        name
        for name, config in operator.tables.items()
        if config.WhichOneof("kind") == "keyed"
        and not config.keyed.HasField("time_to_live_us")
        and not config.keyed.expires_with
    ]
