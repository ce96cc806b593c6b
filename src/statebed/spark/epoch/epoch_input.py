"""Builds what the first level of an epoch reads from a micro-batch: a scan of its files, or a DataFrame with pieces of
rows, or groups, and heartbeats.

Everything that stays the same between epochs is built once: each Spark column needs several JVM calls, which would
dominate the time of a small batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from statebed.logs import id_logger
from statebed.operators import Clock
from statebed.spark.analysed.expression_text import UntranslatableError
from statebed.spark.epoch.epoch_figures import MeasuredReading, MeasuredScan, Meter
from statebed.spark.epoch.epoch_levels import routing
from statebed.spark.epoch.exchange import exchange
from statebed.spark.epoch.level_task import StageFunction
from statebed.spark.epoch.preaggregation import Preaggregation, Reduction
from statebed.spark.plan.job_plan import JobPlan
from statebed.spark.plan.pieces import BRANCH, HEARTBEAT, PAYLOAD, PIECES_SCHEMA, SUBTASK, Piece
from statebed.spark.plan.source_plan import stays_in_place
from statebed.spark.scan.native_scan import NativeScan, native_scan
from statebed.spark.scan.parquet_reader import ScanRefusedError
from statebed.spark.session import plan_once

_logger = id_logger(__name__)


class EpochRows(Protocol):
    """Input of an epoch."""

    @property
    def preaggregation(self) -> Preaggregation | None:
        """Pre-aggregation applied in the JVM, or None if rows are sent as they are."""

    def action(self, levels: Sequence[StageFunction]) -> Callable[[], list[Piece]]:
        """Return the Spark action that runs the levels over the rows and collects what the last one yields."""


@dataclass(frozen=True)
class RowsOfFrame:
    """Pieces, or groups, that Spark reads."""

    frame: DataFrame
    parallelism: int
    preaggregation: Preaggregation | None = None

    def action(self, levels: Sequence[StageFunction]) -> Callable[[], list[Piece]]:
        """Return the action, a plan of DataFrames."""
        frame = self.frame
        for level in levels:
            frame = frame.repartitionById(self.parallelism, F.col(SUBTASK)).mapInArrow(level, PIECES_SCHEMA)
        return lambda: [Piece(*row) for row in frame.collect()]


@dataclass(frozen=True)
class ScannedRows:
    """Rows that tasks read from files; no rows if there is no scan."""

    context: SparkContext
    parallelism: int
    scan: MeasuredScan | None = None
    preaggregation: None = None

    def action(self, levels: Sequence[StageFunction]) -> Callable[[], list[Piece]]:
        """Return the action, which moves pieces without a DataFrame."""
        if self.scan is not None and self.scan.scan.in_place:
            return exchange(self.context, levels, parallelism=self.parallelism, read_in_place=self.scan.of_subtask)
        readers = 0 if self.scan is None else len(self.scan.scan.tasks)
        return exchange(self.context, levels, parallelism=self.parallelism, read=self.scan, readers=readers)


class EpochInput:
    """Builds the input of each epoch of a query."""

    def __init__(self, plan: JobPlan) -> None:
        self.reduction = Reduction(plan)
        self._plan = plan
        self._scan = _scan_of(plan)
        self._heartbeats: dict[str, DataFrame] = {}
        self._begun = False

    def of_batch(self, batch: DataFrame, clocks: Mapping[str, Clock], meter: Meter, *, query_id: str) -> EpochRows:
        """Return the input of an epoch with a batch."""
        session, preaggregation, rows = batch.sparkSession, self.reduction.worthwhile(), batch
        always = self._plan.settings.preaggregate_below == 1 and preaggregation is not None
        if not self._begun and stays_in_place(self._plan.prepared):
            plan_once(session, partitions=self._plan.parallelism)
        self._begun = True  # all batches of a query share one session
        # Reading rows with Arrow costs less than adding them up in the JVM.
        scanned = None if always else self._scanned(session, meter, query_id)
        if scanned is not None:
            return scanned
        if preaggregation is not None:
            rows = preaggregation.groups(batch, late_us=clocks[preaggregation.operator.operator_id].late_us)
            if preaggregation.placed is not None:
                if "groups" not in self._heartbeats:
                    self._heartbeats["groups"] = _empty_groups(session, self._plan.parallelism, rows.schema)
                return RowsOfFrame(rows.union(self._heartbeats["groups"]), self._plan.parallelism, preaggregation)
        pieces = rows.mapInArrow(MeasuredReading(routing(self._plan, preaggregation), meter), PIECES_SCHEMA)
        return RowsOfFrame(pieces.union(self._beats(session)), self._plan.parallelism, preaggregation)

    def read_by_spark(self, reason: str) -> None:
        """Let Spark read this and all later batches."""
        _logger.about(job=self._plan.job_id).info("Spark reads the sources: %s", reason)
        self._scan = None

    def _scanned(self, session: SparkSession, meter: Meter, query_id: str) -> ScannedRows | None:
        """Return the input of an epoch whose files are scanned natively, or None if Spark must read them."""
        if self._scan is None:
            return None
        try:
            scan = self._scan.of_batch(self._plan.prepared.sparkSession, query_id, parallelism=self._plan.parallelism)
        except ScanRefusedError as refused:
            self.read_by_spark(str(refused))
            return None
        reading = None if scan is None else MeasuredScan(scan, routing(self._plan, None), meter)
        return ScannedRows(session.sparkContext, self._plan.parallelism, reading)

    def of_nothing(self, session: SparkSession) -> EpochRows:
        """Return the input of an epoch without a batch."""
        return ScannedRows(session.sparkContext, self._plan.parallelism)

    def _beats(self, session: SparkSession) -> DataFrame:
        if "pieces" not in self._heartbeats:
            nothing = F.lit(None).cast("binary").alias(PAYLOAD)
            self._heartbeats["pieces"] = _subtasks(session, self._plan.parallelism).select(
                SUBTASK, F.lit(HEARTBEAT).alias(BRANCH), nothing
            )
        return self._heartbeats["pieces"]


def _scan_of(plan: JobPlan) -> NativeScan | None:
    if not plan.settings.native_scan:
        return None
    try:
        return native_scan(plan)
    except UntranslatableError as error:
        _logger.about(job=plan.job_id).info("Spark reads the sources: %s", error.why)
        return None


def _empty_groups(session: SparkSession, parallelism: int, schema: StructType) -> DataFrame:
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema if field.name != SUBTASK]
    return _subtasks(session, parallelism).select(SUBTASK, *nothing)


def _subtasks(session: SparkSession, parallelism: int) -> DataFrame:
    """Return one row per subtask, without which Spark might not run a subtask that gets no rows."""
    return session.range(0, parallelism, 1, 1).select(F.col("id").cast("int").alias(SUBTASK))
