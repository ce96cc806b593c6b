"""Queries that give all results of an aggregation in each epoch: in complete mode, or of an aggregation without keys.

Like Spark, they also give an unchanged table: after a batch without changes, and, if the query removes duplicates,
after an epoch without a batch in which the watermark alone advanced. An aggregation without keys has a row before the
first row of its input, such as a count of 0.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from statebed.checkpoint import Publication
from statebed.errors import InputError
from statebed.flow.graph import OperatorNode, StepNode
from statebed.flow.steps import Step
from statebed.inspect import read_state
from statebed.operators.updating.aggregate import UpdatingAggregate
from statebed.queries.catalyst import Catalyst
from statebed.queries.job import QueryJob
from statebed.queries.shown_rows import BatchFunction
from statebed.sinks.function import FunctionSink
from statebed.spark.analysed.optimised import optimised
from statebed.spark.analysed.plan_tree import Handle, PlanNode, plan_of
from statebed.spark.api.outputs import to_data_frame
from statebed.spark.api.stream import JobStream, Transformed
from statebed.spark.plan.source_plan import analysed_handle


class WholeTableSink(FunctionSink):
    """Calls a function with all results of an aggregation, read from the state of the epoch."""

    def __init__(
        self, *, sink_id: str, function: BatchFunction, job: QueryJob, operator: str, framed: Callable[[pa.Table], Any]
    ) -> None:
        super().__init__(sink_id=sink_id, function=function, to_frame=framed)
        self._job, self._operator = job, operator

    def rows_of(self, publication: Publication) -> pa.Table:
        """Return the whole table of the epoch."""
        results = read_state(
            self._job.state_url, job=self._job.name, operator=self._operator, epoch=publication.epoch, results=True
        )
        return results.to_arrow()

    def skip(self, publication: Publication) -> None:
        """Do nothing: the table of the next epoch replaces this one."""


def is_without_keys(rows: JobStream | Transformed) -> bool:
    """Return whether the results are the one row of an aggregation without keys."""
    last = _last_aggregate(rows)
    return last is not None and not last[0].keys


def whole_table_sink(
    job: QueryJob, df: DataFrame, rows: JobStream | Transformed, function: BatchFunction, *, sink_id: str
) -> WholeTableSink:
    """Return the sink that calls `function` with the results of the last aggregation of the query `df`."""
    last = _last_aggregate(rows)
    if last is None:
        raise InputError(
            "complete mode gives all groups of an aggregation, but the last step of the query is another one",
            where=f"job {job.name}",
            fix="use outputMode('append') or 'update'",
        )
    operator, steps = last
    tail = rows.functions if isinstance(rows, Transformed) else ()

    def framed(table: pa.Table) -> DataFrame:
        if not table.num_rows and not operator.keys:
            return over_no_rows(df)
        for step in steps:
            table = step.apply(table)
        frame = to_data_frame(job.spark, table)
        for transform in tail:
            frame = transform(frame)
        return frame

    return WholeTableSink(sink_id=sink_id, function=function, job=job, operator=operator.operator_id, framed=framed)


def over_no_rows(df: DataFrame) -> DataFrame:
    """Return the results of a streaming query over sources without rows, as a table."""
    catalyst = Catalyst(df.sparkSession)

    def replaced(node: PlanNode) -> Handle:
        if not node.children:
            schema = StructType.fromJson(node.schema_json)
            return catalyst.no_rows(schema, node.handle.output()) if node.is_streaming else node.handle
        return catalyst.with_children(node.handle, [replaced(child) for child in node.children])

    # The optimiser puts the sub-queries of WITH in their places.
    return catalyst.frame(replaced(plan_of(optimised(df.sparkSession, analysed_handle(df)))))


def _last_aggregate(rows: JobStream | Transformed) -> tuple[UpdatingAggregate, list[Step]] | None:
    """Return the aggregation whose results, after some steps, are these rows; None if there is none."""
    stream = rows.stream if isinstance(rows, Transformed) else rows
    if stream.frame is not None:
        return None
    steps: list[Step] = []
    node = stream.graph.nodes[stream.edge.node]
    while isinstance(node, StepNode):
        steps.insert(0, node.step)
        node = stream.graph.nodes[node.inputs[0].node]
    if not isinstance(node, OperatorNode) or not isinstance(node.operator, UpdatingAggregate):
        return None
    return node.operator, steps
