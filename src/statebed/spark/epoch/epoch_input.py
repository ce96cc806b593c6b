"""Builds the DataFrame that the first level of an epoch reads from a micro-batch: pieces of rows, or groups, and
heartbeats.

Everything that stays the same between epochs is built once: each Spark column needs several JVM calls, which would
dominate the time of a small batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from statebed.operators import Clock
from statebed.spark.epoch.epoch_figures import MeasuredReading, Meter
from statebed.spark.epoch.epoch_levels import routing
from statebed.spark.epoch.preaggregation import Preaggregation, Reduction
from statebed.spark.plan.job_plan import JobPlan
from statebed.spark.plan.pieces import BRANCH, HEARTBEAT, PAYLOAD, PIECES_SCHEMA, SUBTASK
from statebed.spark.plan.source_plan import stays_in_place
from statebed.spark.session import plan_once


@dataclass(frozen=True)
class FedFrame:
    """Input of an epoch."""

    frame: DataFrame
    added_up: Preaggregation | None = None
    """Pre-aggregation applied in the JVM, or None if rows are sent as they are."""


class EpochInput:
    """Builds the input DataFrame of each epoch of a query."""

    def __init__(self, plan: JobPlan) -> None:
        self.reduction = Reduction(plan)
        self._plan = plan
        self._heartbeats: dict[str, DataFrame] = {}
        self._begun = False

    def of_batch(self, batch: DataFrame, clocks: Mapping[str, Clock], meter: Meter) -> FedFrame:
        """Return the input of an epoch with a batch."""
        session, added_up, rows = batch.sparkSession, self.reduction.worthwhile(), batch
        if not self._begun and stays_in_place(self._plan.prepared):
            plan_once(session, partitions=self._plan.parallelism)
        self._begun = True  # all batches of a query share one session
        if added_up is not None:
            rows = added_up.groups(batch, late_us=clocks[added_up.operator.operator_id].late_us)
            if added_up.placed is not None:
                if "groups" not in self._heartbeats:
                    self._heartbeats["groups"] = _empty_groups(session, self._plan.parallelism, rows.schema)
                return FedFrame(rows.union(self._heartbeats["groups"]), added_up)
        pieces = rows.mapInArrow(MeasuredReading(routing(self._plan, added_up), meter), PIECES_SCHEMA)
        return FedFrame(pieces.union(self._beats("batch", session)), added_up)

    def of_nothing(self, session: SparkSession) -> FedFrame:
        """Return the input of an epoch without a batch, in a session other than the query's."""
        return FedFrame(self._beats("", session))

    def _beats(self, name: str, session: SparkSession) -> DataFrame:
        if name not in self._heartbeats:
            nothing = F.lit(None).cast("binary").alias(PAYLOAD)
            self._heartbeats[name] = _subtasks(session, self._plan.parallelism).select(
                SUBTASK, F.lit(HEARTBEAT).alias(BRANCH), nothing
            )
        return self._heartbeats[name]


def _empty_groups(session: SparkSession, parallelism: int, schema: StructType) -> DataFrame:
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema if field.name != SUBTASK]
    return _subtasks(session, parallelism).select(SUBTASK, *nothing)


def _subtasks(session: SparkSession, parallelism: int) -> DataFrame:
    """Return one row per subtask, without which Spark might not run a subtask that gets no rows."""
    return session.range(0, parallelism, 1, 1).select(F.col("id").cast("int").alias(SUBTASK))
