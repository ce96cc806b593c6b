"""`sb.explain(df)`: what Spark and statebed compute for a query, zone by zone."""

from dataclasses import dataclass
from html import escape
from typing import Any

from pyspark.sql import DataFrame

from statebed.flow.event_time import event_time_text
from statebed.flow.graph import Edge, Graph, OperatorNode, SourceNode, StepNode, UnionNode
from statebed.flow.steps import shown_step
from statebed.operators.labels import operator_label
from statebed.present import notebook
from statebed.queries.job import QueryJob
from statebed.queries.translation import Options, Translation
from statebed.spark.analysed.plan_tree import PlanNode, analysed_plan
from statebed.spark.api.stream import Transformed

_HEAD_STEPS = frozenset({"Aggregate", "Expand", "Filter", "Generate", "Join", "LateralJoin", "MapPartitions", "Union"})
"""Steps of Spark's plan that are worth a line."""


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
    """Describe a translated query: the parts of the job that its rows pass."""
    job = translation.job
    graph = job.graph
    stream = result.stream if isinstance(result, Transformed) else result
    head: list[str] = []
    between: list[str] = []
    for number in _nodes_before(graph, stream.edge):
        node, edge = graph.nodes[number], Edge(number)
        match node:
            case SourceNode():
                columns = ", ".join(node.columns.names)
                head.append(f"{node.name}: {columns}; event time {event_time_text(graph, edge)}")
            case StepNode() if edge not in job.frames:
                between.append(f"{shown_step(node.step)}{_time(graph, edge)}")
            case UnionNode() if edge not in job.frames:
                between.append(f"union{_time(graph, edge)}")
            case OperatorNode():
                reads = ", ".join(_origin(graph, input_) for input_ in node.inputs)
                label = operator_label(node.operator)
                between.append(f"{node.operator.operator_id}: {label}, reads {reads}{_time(graph, edge)}")
    head += _head_steps(translation, stream.edge)
    tail = tuple(_step(node) for node in translation.tail_steps) if isinstance(result, Transformed) else ()
    return QueryExplanation(tuple(head), tuple(between), tail, tuple(translation.notes))


def explained_text(job: QueryJob) -> str:
    """Describe a job that was made from SQL text: the job as a whole, then each of its queries by zone."""
    parts = [str(job.explain())]
    for label, translation, result in job.sql_tables.translations:
        zones = "\n".join(f"  {line}" for line in str(explained(translation, result)).splitlines())
        parts.append(f"query {label}\n{zones}")
    return "\n".join(parts)


def _nodes_before(graph: Graph, edge: Edge) -> list[int]:
    """Return the nodes that the rows of a stream pass, in the order in which they were added."""
    numbers: set[int] = set()
    waiting = [edge.node]
    while waiting:
        number = waiting.pop()
        if number not in numbers:
            numbers.add(number)
            node = graph.nodes[number]
            waiting += [] if isinstance(node, SourceNode) else [input_.node for input_ in node.inputs]
    return sorted(numbers)


def _head_steps(translation: Translation, last: Edge) -> list[str]:
    """Describe what Spark computes between the sources and the first operators: filters, joins and the like."""
    job, steps = translation.job, dict[str, None]()
    before = _nodes_before(job.graph, last)
    for number in before:
        node = job.graph.nodes[number]
        inputs = node.inputs if isinstance(node, OperatorNode | UnionNode | StepNode) else ()
        first = [input_ for input_ in inputs if input_ in job.frames and Edge(number) not in job.frames]
        first += [last] if last in job.frames and number == before[-1] else []
        for edge in first:
            plan = analysed_plan(job.frames[edge].df)
            shown = [_step(entry) for entry in plan.walk() if entry.kind in _HEAD_STEPS]
            steps |= dict.fromkeys(reversed(shown))
    return list(steps)


def _time(graph: Graph, edge: Edge) -> str:
    return f"; event time {event_time_text(graph, edge)}" if graph.is_timed(edge) else ""


def _origin(graph: Graph, edge: Edge) -> str:
    return " and ".join(graph.outputs_behind(edge))


def _step(node: PlanNode) -> str:
    return node.described()
