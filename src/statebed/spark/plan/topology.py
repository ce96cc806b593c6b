"""Topology of a job on Spark: the levels of its operators, and the paths of rows between them.

Operators that read only sources are on level 1; others are one level after the last operator that they read. A level is
one shuffle and one stage, in which each task runs the subtasks of all operators of the level. Rows travel along
*branches*, each to one input of one operator: from frames, which Spark computes, or from outputs of earlier operators,
through row-wise steps. Pure: nothing here touches Spark.
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
"""Maximum number of characters of a sink's name in the name of its stream."""


@dataclass(frozen=True)
class Branch:
    """Path of rows from a frame to an input of an operator."""

    number: int
    edge: Edge
    operator: Operator
    """Operator that gets the rows."""
    feed: Feed
    sources: tuple[str, ...]
    """Sources of the rows."""


@dataclass(frozen=True)
class Route:
    """Path of rows from an output to an input of a later operator; serialised with tasks."""

    number: int
    """Number of the branch."""
    output: str
    steps: tuple[Step, ...]
    feed: Feed

    def rows(self, outputs: Mapping[str, pa.Table]) -> pa.Table | None:
        """Return the input rows of the later operator, with key hashes, or None if there are none."""
        rows = outputs.get(self.output)
        return None if rows is None or not rows.num_rows else self.feed.apply(stepped(rows, self.steps))


@dataclass(frozen=True)
class OutgoingRows:
    """Path of rows from an output to sinks; serialised with tasks."""

    stream: str
    origins: tuple[tuple[str, tuple[Step, ...]], ...]
    """Outputs and the steps after them; several if a union combines them again."""
    output: Output

    def rows(self, outputs: Mapping[str, pa.Table]) -> pa.Table:
        parts = [
            with_weights(stepped(outputs[output], steps), self.output)
            for output, steps in self.origins
            if output in outputs
        ]
        return pa.concat_tables([self.output.schema.empty_table(), *parts])


@dataclass(frozen=True)
class NoOutgoingRows:
    """Outgoing rows of an operator that no sink reads."""

    stream: str = ""

    def rows(self, outputs: Mapping[str, pa.Table]) -> pa.Table:  # noqa: ARG002 - the protocol's argument
        return pa.table({})


NOTHING = NoOutgoingRows()


@dataclass(frozen=True)
class OperatorPlace:
    """Position of an operator in the topology."""

    operator: Operator
    level: int
    branches: tuple[tuple[int, ...], ...]
    """Branches that lead to each input."""
    routes: tuple[Route, ...]
    outgoing: tuple[OutgoingRows, ...]


@dataclass(frozen=True)
class SinkStream:
    """Stream of a sink, as named in records."""

    operator_id: str
    """Operator of the stream; empty if there are several."""
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
        return [[place for place in self.places if place.level == level] for level in range(1, last + 1)]


def stream_for(sink_id: str) -> str:
    """Return the name of the stream of a single sink. Object names use '-' and '.' as separators, so it contains
    neither.
    """
    plain = sink_id.replace("-", "_").replace(".", "_")[:_LONGEST]
    if plain == sink_id:
        return f"for_{plain}"
    return f"for_{plain}_{hashlib.sha256(sink_id.encode()).hexdigest()[:8]}"


def stepped(rows: pa.Table, steps: Sequence[Step]) -> pa.Table:
    """Return the rows after these steps."""
    for step in steps:
        rows = step.apply(rows)
    return rows


def topology(graph: Graph, frames: Collection[Edge], sinks: Mapping[str, Edge]) -> Topology:
    """Compute the topology of a graph; `frames` are the streams that Spark computes, `sinks` maps each sink to its
    stream.
    """
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
            for origin, steps in origins(graph, frames, edge):
                if origin in frames:
                    origin_sources = sources_of(graph, origin)
                    branches.append(Branch(count, origin, node.operator, feed, origin_sources))
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
    """Drop the columns that an aggregation needs only for late rows, if nothing reads these."""
    if not isinstance(node.operator, Aggregation):
        return node
    operator = node.operator.without_late_columns()
    feeds = tuple(replace(feed, input=input_) for input_, feed in zip(operator.inputs, node.feeds, strict=True))
    return OperatorNode(operator, node.inputs, feeds)


def origins(graph: Graph, frames: Collection[Edge], edge: Edge) -> Iterator[tuple[Edge, tuple[Step, ...]]]:
    """Yield the origins of a stream's rows: a frame or an output of an operator, and the steps after it."""
    node = graph.nodes[edge.node]
    if edge in frames or isinstance(node, OperatorNode):
        yield edge, ()
        return
    added = (node.step,) if isinstance(node, StepNode) else ()
    for input_edge in node.inputs:
        for origin, steps in origins(graph, frames, input_edge):
            yield origin, (*steps, *added)


def sources_of(graph: Graph, edge: Edge) -> tuple[str, ...]:
    """Return the sources of a frame."""
    node = graph.nodes[edge.node]
    if isinstance(node, SourceNode):
        return (node.name,)
    names: Iterable[str] = (name for input_ in node.inputs for name in sources_of(graph, input_))
    return tuple(dict.fromkeys(names))


def _outgoing(
    graph: Graph, frames: Collection[Edge], sinks: Mapping[str, Edge]
) -> tuple[dict[int, list[OutgoingRows]], dict[str, SinkStream]]:
    """Return the outbox streams of each operator, and the stream of each sink. Sinks of one output share its files."""
    outgoing: dict[int, list[OutgoingRows]] = {}
    streams: dict[str, SinkStream] = {}
    for sink_id, edge in sinks.items():
        node, output = graph.nodes[edge.node], graph.output(edge)
        direct = isinstance(node, OperatorNode)
        stream = edge.output if direct else stream_for(sink_id)
        streams[sink_id] = SinkStream(node.operator.operator_id if isinstance(node, OperatorNode) else "", stream)
        by_node: dict[int, list[tuple[str, tuple[Step, ...]]]] = {}
        for origin, steps in origins(graph, frames, edge):
            by_node.setdefault(origin.node, []).append((origin.output, steps))
        for number, outputs in by_node.items():
            there = outgoing.setdefault(number, [])
            if stream not in {other.stream for other in there}:
                there.append(OutgoingRows(stream, tuple(outputs), output))
    return outgoing, streams
