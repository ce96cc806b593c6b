"""How the operators of a graph run on Spark: their levels, and the way of rows from one to the next.

Operators that read sources alone are of level 1; others are one level behind the last operator that they read. A level
is one shuffle and one stage, in which each task runs the subtasks of all operators of the level. Rows go along
*branches*, each to one input of one operator: from frames, which Spark computes, or from outputs of earlier operators,
through steps that take each row by itself. Pure: nothing here touches Spark.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from statebed.flow.graph import Edge, Graph, OperatorNode, SourceNode, StepNode
from statebed.flow.steps import Feed, Step, with_weights
from statebed.format.stream_schema import Output
from statebed.operators.aggregation import Aggregation
from statebed.operators.operator import LATE, Operator

_LONGEST = 80
"""Characters of a sink's name that the name of its stream begins with."""


@dataclass(frozen=True)
class Branch:
    """Rows of a frame on their way to an input of an operator."""

    number: int
    edge: Edge
    operator: Operator
    """The one that takes the rows."""
    feed: Feed
    sources: tuple[str, ...]
    """From which rows come."""


@dataclass(frozen=True)
class Route:
    """Rows of an output on their way to an input of an operator behind it; travels with tasks."""

    number: int
    """Of the branch."""
    output: str
    steps: tuple[Step, ...]
    feed: Feed

    def rows(self, outputs: Mapping[str, pa.Table]) -> pa.Table | None:
        """What the operator behind gets, with key hashes; None: no rows."""
        rows = outputs.get(self.output)
        return None if rows is None or not rows.num_rows else self.feed.apply(stepped(rows, self.steps))


@dataclass(frozen=True)
class Outgoing:
    """Rows of an output on their way to sinks; travels with tasks."""

    stream: str
    ways: tuple[tuple[str, tuple[Step, ...]], ...]
    """Outputs and the steps behind them; several where a union brings them together again."""
    given: Output

    def rows(self, outputs: Mapping[str, pa.Table]) -> pa.Table:
        found = [
            with_weights(stepped(outputs[output], steps), self.given)
            for output, steps in self.ways
            if output in outputs
        ]
        return pa.concat_tables([self.given.schema.empty_table(), *found])


@dataclass(frozen=True)
class Nothing:
    """Of an operator that no sink listens to."""

    stream: str = ""

    def rows(self, outputs: Mapping[str, pa.Table]) -> pa.Table:  # noqa: ARG002 - the protocol's argument
        return pa.table({})


NOTHING = Nothing()


@dataclass(frozen=True)
class OperatorPlace:
    """An operator among the others."""

    operator: Operator
    level: int
    branches: tuple[tuple[int, ...], ...]
    """For each input, those that lead to it."""
    routes: tuple[Route, ...]
    outgoing: tuple[Outgoing, ...]


@dataclass(frozen=True)
class SinkStream:
    """What a sink listens to, as records name it."""

    operator_id: str
    """Empty: of several operators."""
    stream: str


@dataclass(frozen=True)
class Topology:
    """All operators and branches of a job."""

    branches: tuple[Branch, ...]
    places: tuple[OperatorPlace, ...]
    sinks: Mapping[str, SinkStream]

    @property
    def levels(self) -> list[list[OperatorPlace]]:
        last = max(place.level for place in self.places)
        return [[one for one in self.places if one.level == level] for level in range(1, last + 1)]


def stream_for(sink_id: str) -> str:
    """The name of what one sink alone gets, as object names allow it: theirs have parts, which '-' and '.' separate."""
    plain = sink_id.replace("-", "_").replace(".", "_")[:_LONGEST]
    if plain == sink_id:
        return f"for_{plain}"
    return f"for_{plain}_{hashlib.sha256(sink_id.encode()).hexdigest()[:8]}"


def stepped(rows: pa.Table, steps: Sequence[Step]) -> pa.Table:
    """The rows after these steps."""
    for step in steps:
        rows = step.apply(rows)
    return rows


def topology(graph: Graph, frames: Collection[Edge], sinks: Mapping[str, Edge]) -> Topology:
    """The places of a graph's operators; `frames` are the streams that Spark computes, `sinks` what each listens to."""
    branches: list[Branch] = []
    levels: dict[int, int] = {}
    leading: dict[int, list[tuple[int, ...]]] = {}
    routes: dict[int, list[Route]] = {}
    outgoing, streams = _outgoing(graph, frames, sinks)
    looked_at = {edge for node in graph.nodes for edge in node.inputs} | set(sinks.values())
    nodes = {
        number: node if Edge(number, LATE) in looked_at else _without_late_columns(node)
        for number, node in enumerate(graph.nodes)
        if isinstance(node, OperatorNode)
    }
    count = 0
    for number, node in nodes.items():
        levels[number] = 1
        for edge, feed in zip(node.inputs, node.feeds, strict=True):
            numbers: list[int] = []
            for origin, steps in ways(graph, frames, edge):
                if origin in frames:
                    found = sources_of(graph, origin)
                    branches.append(Branch(count, origin, node.operator, feed, found))
                else:
                    levels[number] = max(levels[number], levels[origin.node] + 1)
                    routes.setdefault(origin.node, []).append(Route(count, origin.output, steps, feed))
                numbers.append(count)
                count += 1
            leading.setdefault(number, []).append(tuple(numbers))
    places = tuple(
        OperatorPlace(
            node.operator,
            levels[number],
            tuple(leading[number]),
            tuple(routes.get(number, ())),
            tuple(outgoing.get(number, ())),
        )
        for number, node in nodes.items()
    )
    return Topology(tuple(branches), places, streams)


def _without_late_columns(node: OperatorNode) -> OperatorNode:
    """An aggregation whose late rows nobody looks at gets the columns that it computes with, and no others."""
    if not isinstance(node.operator, Aggregation):
        return node
    operator = node.operator.without_late_columns()
    feeds = tuple(replace(feed, input=one) for one, feed in zip(operator.inputs, node.feeds, strict=True))
    return OperatorNode(operator, node.inputs, feeds)


def ways(graph: Graph, frames: Collection[Edge], edge: Edge) -> Iterator[tuple[Edge, tuple[Step, ...]]]:
    """From where rows of a stream come: a frame, or an output of an operator; and the steps behind that."""
    node = graph.nodes[edge.node]
    if edge in frames or isinstance(node, OperatorNode):
        yield edge, ()
        return
    added = (node.step,) if isinstance(node, StepNode) else ()
    for one in node.inputs:
        for origin, steps in ways(graph, frames, one):
            yield origin, (*steps, *added)


def sources_of(graph: Graph, edge: Edge) -> tuple[str, ...]:
    """The sources behind a frame."""
    node = graph.nodes[edge.node]
    if isinstance(node, SourceNode):
        return (node.name,)
    found: Iterable[str] = (name for one in node.inputs for name in sources_of(graph, one))
    return tuple(dict.fromkeys(found))


def _outgoing(
    graph: Graph, frames: Collection[Edge], sinks: Mapping[str, Edge]
) -> tuple[dict[int, list[Outgoing]], dict[str, SinkStream]]:
    """What each operator puts into its outbox, and where sinks find it. Sinks of one output share its files."""
    outgoing: dict[int, list[Outgoing]] = {}
    streams: dict[str, SinkStream] = {}
    for sink_id, edge in sinks.items():
        node, given = graph.nodes[edge.node], graph.output(edge)
        direct = isinstance(node, OperatorNode)
        stream = edge.output if direct else stream_for(sink_id)
        streams[sink_id] = SinkStream(node.operator.operator_id if isinstance(node, OperatorNode) else "", stream)
        found: dict[int, list[tuple[str, tuple[Step, ...]]]] = {}
        for origin, steps in ways(graph, frames, edge):
            found.setdefault(origin.node, []).append((origin.output, steps))
        for number, some in found.items():
            there = outgoing.setdefault(number, [])
            if stream not in {other.stream for other in there}:
                there.append(Outgoing(stream, tuple(some), given))
    return outgoing, streams
