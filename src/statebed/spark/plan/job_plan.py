"""A job as it will run: everything checked, nothing written yet."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from statebed.checkpoint import Publisher, Run, Sink, SinkStart
from statebed.config import Settings
from statebed.errors import UnboundedStateWarning
from statebed.flow.graph import Graph
from statebed.format import checkpoint_pb2 as pb
from statebed.operators import Operator
from statebed.operators.labels import operator_label
from statebed.operators.windows.sessions import SessionAggregate
from statebed.spark.plan.host_memory import HostBudget, TaskShare
from statebed.spark.plan.rebuild import rebuilds
from statebed.spark.plan.routing import Layout
from statebed.spark.plan.state_match import RemovedStatePolicy
from statebed.spark.plan.topology import Topology


@dataclass(frozen=True)
class JobPlan:
    """Sources, operators, sinks, and how they run."""

    job_id: str
    state_url: str
    local_state: Path | None
    """The state's folder when it is on this machine."""
    parallelism: int
    session: SparkSession
    graph: Graph
    topology: Topology
    prepared: DataFrame
    """The streaming DataFrame that the first level is fed from."""
    layouts: Mapping[int, Layout]
    spark_sources: tuple[str, ...]
    """The job's sources in the order in which Spark's query reads them."""
    sinks: tuple[Sink, ...]
    settings: Settings
    budget: HostBudget
    removed: RemovedStatePolicy = RemovedStatePolicy.REFUSE
    """What becomes of the state of operators that the job no longer has."""
    sink_starts: Mapping[str, SinkStart] = field(default_factory=dict)
    """What to do with sinks that lack epochs which are gone, by name."""
    abandoned_sinks: tuple[str, ...] = ()
    """Sinks that the job no longer has, whose unpublished epochs are given up."""

    def publisher(self, run: Run) -> Publisher:
        """Build the publisher of a run of this job."""
        return Publisher(
            run,
            self.sinks,
            starts=self.sink_starts,
            abandon=self.abandoned_sinks,
            rebuilds=rebuilds(self.topology, job_id=self.job_id, store=run.store),
        )

    @property
    def share(self) -> TaskShare:
        """What a task may use of its host."""
        return TaskShare.of(self.budget, self.settings)

    @property
    def operators(self) -> dict[str, Operator]:
        """By name, in an order in which rows can go through them."""
        return {place.operator.operator_id: place.operator for place in self.topology.places}

    @property
    def sink_entries(self) -> list[pb.SinkEntry]:
        """What each sink is to get of an epoch, for its record."""
        streams = self.topology.sinks
        return [
            pb.SinkEntry(
                sink_id=sink.sink_id,
                operator_id=streams[sink.sink_id].operator_id,
                stream=streams[sink.sink_id].stream,
            )
            for sink in self.sinks
        ]

    def warn_of_unbounded_state(self) -> None:
        """State that grows with the number of keys, and never forgets one, is a decision that should be made."""
        for operator in self.operators.values():
            tables = unbounded_tables(operator)
            if tables:
                warnings.warn(
                    f"{operator_label(operator)} remembers every key for ever (table {', '.join(tables)}): "
                    "give it a ttl=, or make sure that there is a bounded number of keys",
                    UnboundedStateWarning,
                    stacklevel=3,
                )


def unbounded_tables(operator: Operator) -> list[str]:
    """Tables that keep a row of each key until somebody removes it."""
    if isinstance(operator, SessionAggregate):
        return []
    return [
        name
        for name, config in operator.tables.items()
        if config.WhichOneof("kind") == "keyed" and not config.keyed.HasField("time_to_live_us")
    ]
