"""`sb.explain(df)`: what Spark and statebed compute for a query, zone by zone."""

from dataclasses import dataclass
from html import escape
from typing import Any

from pyspark.sql import DataFrame

from statebed.flow.event_time import event_time_text
from statebed.flow.graph import Edge, Graph, OperatorNode, SourceNode, StepNode, UnionNode
from statebed.operators.labels import operator_label
from statebed.present import notebook
from statebed.queries.job import QueryJob
from statebed.queries.plan_tree import PlanNode
from statebed.queries.translation import Options, Translation
from statebed.spark.api.stream import Transformed


@dataclass(frozen=True)
class QueryExplanation:
    """Description of a query by zone; print it, or show it in a notebook."""

    head: tuple[str, ...]
    between: tuple[str, ...]
    tail: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        zones = [
            ("head (Spark, before the first operator)", self.head),
            ("between (statebed's operators, on Arrow)", self.between),
            ("tail (Spark, over the committed rows of an epoch)", self.tail),
            ("notes", self.notes),
        ]
        lines = []
        for title, items in zones:
            if items or title != "notes":
                lines += [title, *(f"  {item}" for item in items or ("nothing",))]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return notebook.block("query", f"<pre>{escape(str(self))}</pre>")


def explain(
    df: DataFrame, *, mode: str | None = None, clock: str = "spark", approximate: bool = False
) -> QueryExplanation:
    """Describe how a streaming DataFrame would run; raises the errors that `from_dataframe` raises.

    >>> spark = sb.Job("rows", state="state").spark
    >>> rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load()
    >>> sb.explain(rows.groupBy("value").count()).between[0].split(":")[0]
    'aggregate'
    """
    job = QueryJob("explain", spark=df.sparkSession)
    translation = Translation(job, df, Options(mode, approximate, clock))
    return explained(translation, translation.result())


def explained(translation: Translation, result: Any) -> QueryExplanation:
    """Describe a translated query."""
    graph = translation.job.graph
    head: list[str] = []
    between: list[str] = []
    for number, node in enumerate(graph.nodes):
        match node:
            case SourceNode():
                columns = ", ".join(node.columns.names)
                head.append(f"{node.name}: {columns}; event time {event_time_text(graph, Edge(number))}")
            case StepNode() if not _is_head(translation, number):
                between.append(f"{node.step.text}")
            case UnionNode():
                between.append("union")
            case OperatorNode():
                reads = ", ".join(_origin(graph, edge) for edge in node.inputs)
                between.append(f"{node.operator.operator_id}: {operator_label(node.operator)}, reads {reads}")
    tail = tuple(_step(node) for node in translation.tail_steps) if isinstance(result, Transformed) else ()
    return QueryExplanation(tuple(head), tuple(between), tail, tuple(translation.notes))


def _is_head(translation: Translation, number: int) -> bool:
    return Edge(number) in translation.job.frames


def _origin(graph: Graph, edge: Edge) -> str:
    return " and ".join(graph.outputs_behind(edge))


def _step(node: PlanNode) -> str:
    return node.described()
