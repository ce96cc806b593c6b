"""Graph of a flow: sources, row-wise steps, unions and operators, each identified by its number.

A node reads only earlier nodes, so an epoch can pass through the graph in the order of numbers. The rows on an edge are
a table with the user's columns, `_time` (the event time) and, in a changelog, `_weight`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from statebed.errors import InputError
from statebed.expressions.user_functions import UserFunction, named_function
from statebed.flow.spark_clock import SparkClock, SparkWatermark
from statebed.flow.steps import Feed, Step
from statebed.flow.table_steps import EpochTable
from statebed.format.names import check_name
from statebed.format.stream_schema import Changes, Output
from statebed.operators.forward import Forward
from statebed.operators.labels import has_digest, operator_label
from statebed.operators.operator import MAIN, Operator
from statebed.operators.process import ProcessOperator
from statebed.quantities import duration_text


@dataclass(frozen=True)
class Edge:
    """An output of a node."""

    node: int
    output: str = MAIN


@dataclass(frozen=True)
class SourceNode:
    """A source of rows."""

    name: str
    columns: pa.Schema
    event_time: str | None
    delay_us: int
    """Delay of the watermark behind the greatest event time."""
    idle_after_us: int | None = None
    """Time without rows after which the source no longer holds back the watermark, or None if it always does."""

    inputs: tuple[Edge, ...] = ()

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        return {MAIN: Output(self.columns)}


@dataclass(frozen=True)
class StepNode:
    """A row-wise step: filters rows or computes columns."""

    step: Step
    inputs: tuple[Edge, ...]
    changes: Changes

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        return {MAIN: Output(self.step.columns, self.changes)}


@dataclass(frozen=True)
class UnionNode:
    """Union of several streams with the same columns."""

    columns: pa.Schema
    inputs: tuple[Edge, ...]
    changes: Changes

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        return {MAIN: Output(self.columns, self.changes)}


@dataclass(frozen=True)
class OperatorNode:
    """A stateful operator, and how its inputs are derived from the streams that it reads."""

    operator: Operator
    inputs: tuple[Edge, ...]
    feeds: tuple[Feed, ...]

    @property
    def outputs(self) -> Mapping[str, Output]:
        return self.operator.outputs


Node = SourceNode | StepNode | UnionNode | OperatorNode


@dataclass
class Graph:
    """All nodes of one flow."""

    nodes: list[Node] = field(default_factory=list)
    names: dict[str, Edge] = field(default_factory=dict)
    """Sources and operators by name, and named streams."""
    spark_clocks: dict[str, SparkClock] = field(default_factory=dict)
    """Clocks of queries that came from Spark, by the names of their sources."""
    heads: dict[str, str] = field(default_factory=dict)
    """Digests of the plans of Spark that sources of queries read, by the names of the sources."""
    repeating: dict[str, SparkClock] = field(default_factory=dict)
    """Operators that make Spark run a batch without rows whenever the watermark of the query advances, by name.

    It matters in complete mode, which emits the whole table once more.
    """
    state_limits: dict[str, str] = field(default_factory=dict)
    """Advice on limiting the state of operators without `ttl=`, such as those of SQL text, by name."""
    functions: dict[str, UserFunction] = field(default_factory=dict)
    """Functions of the user that expressions can call, by name in lower case."""
    tables: list[EpochTable] = field(default_factory=list)
    """Tables that steps join rows with, loaded before each epoch."""

    def register_function(
        self, name: str, function: Callable[..., Any], returns: str | pa.DataType | None
    ) -> UserFunction:
        """Add a function of the user; raise InputError if another one has its name."""
        registered = named_function(name, function, returns)
        if self.functions.get(name.lower(), registered).function is not registered.function:
            raise InputError(f"two functions are called {name!r}", fix="give one of them another name")
        self.functions[name.lower()] = registered
        return registered

    def add(self, node: Node) -> int:
        """Add a node and return its number; raise InputError if its name is taken."""
        if isinstance(node, SourceNode):
            self.name(node.name, Edge(len(self.nodes)))
        elif isinstance(node, OperatorNode):
            self.name(node.operator.operator_id, Edge(len(self.nodes)))
        self.nodes.append(node)
        return len(self.nodes) - 1

    def name(self, name: str, edge: Edge) -> None:
        """Give a stream a name; raise InputError if the name is taken."""
        check_name("stream", name)
        if name in self.names:
            node = self.nodes[self.names[name].node]
            if isinstance(node, OperatorNode) and has_digest(name):
                raise InputError(
                    f"the flow has {operator_label(node.operator)} twice, with the same definition and without a name",
                    fix="use the stream that the first call returned, or name one of them: name='other'",
                )
            raise InputError(
                f"two parts of the flow are called {name!r}", fix="give each source, operator and output its own name"
            )
        self.names[name] = edge

    def timed(self, source: str, event_time: str, delay_us: int, *, where: str) -> None:
        """Set the watermark of a source to the one that a step defined for its rows."""
        (place,) = [n for n, node in enumerate(self.nodes) if isinstance(node, SourceNode) and node.name == source]
        node = self.sources[source]
        if node.event_time is not None and node.delay_us != delay_us:
            raise InputError(
                f"the source {source!r} has two watermarks: rows are late after {duration_text(delay_us)} here, and "
                f"after {duration_text(node.delay_us)} elsewhere",
                where=where,
                fix="give the source one watermark, with job.source(df, watermark=...)",
            )
        if node.event_time is None:
            self.nodes[place] = replace(node, event_time=event_time, delay_us=delay_us)

    @property
    def spark_watermarks(self) -> list[SparkWatermark]:
        """Watermarks of all queries that came from Spark, in the order in which records store their times."""
        return [watermark for clock in dict.fromkeys(self.spark_clocks.values()) for watermark in clock.watermarks]

    def output(self, edge: Edge) -> Output:
        return self.nodes[edge.node].outputs[edge.output]

    def is_timed(self, edge: Edge) -> bool:
        """Return whether the rows of a stream have event times.

        Rows of steps and operators have them if the rows of all inputs do. A process may set the event time of its
        results itself.
        """
        node = self.nodes[edge.node]
        if isinstance(node, SourceNode):
            return node.event_time is not None
        if isinstance(node, OperatorNode) and isinstance(node.operator, ProcessOperator):
            return True
        broadcast = [feed.input.broadcast for feed in node.feeds] if isinstance(node, OperatorNode) else []
        return all(
            self.is_timed(edge) for place, edge in enumerate(node.inputs) if not (broadcast and broadcast[place])
        )

    def origin(self, edge: Edge) -> str:
        """Return a text for what a stream comes from, for the names of unnamed operators."""
        node = self.nodes[edge.node]
        if isinstance(node, SourceNode):
            return node.name
        if isinstance(node, OperatorNode):
            return f"{node.operator.operator_id}.{edge.output}"
        step = node.step.text if isinstance(node, StepNode) else "union"
        return f"{step} ({', '.join(self.origin(input_) for input_ in node.inputs)})"

    def written_origin(self, edge: Edge) -> str:
        """Return what a stream comes from as the user wrote it, for messages."""
        node = self.nodes[edge.node]
        if isinstance(node, SourceNode):
            return node.name
        if isinstance(node, OperatorNode):
            operator_id = node.operator.operator_id
            if isinstance(node.operator, Forward) and has_digest(operator_id):
                return self.written_origin(node.inputs[0])
            written = operator_label(node.operator) if has_digest(operator_id) else operator_id
            return f"{written}.{edge.output}" if edge.output else written
        step = node.step.text if isinstance(node, StepNode) else "union"
        return f"{step} ({', '.join(self.written_origin(input_) for input_ in node.inputs)})"

    def unnamed_before(self, edge: Edge) -> str:
        """Return the outputs of operators that a stream consists of, as the user wrote them; empty if all operators
        have names.
        """
        node = self.nodes[edge.node]
        if isinstance(node, OperatorNode):
            return self.written_origin(edge) if has_digest(node.operator.operator_id) else ""
        before = [self.unnamed_before(input_) for input_ in node.inputs]
        return ", ".join(dict.fromkeys(filter(None, before)))

    def outputs_behind(self, edge: Edge) -> list[str]:
        """Return the names of the sources and operator outputs that a stream consists of, ignoring steps in between."""
        node = self.nodes[edge.node]
        if isinstance(node, SourceNode):
            return [node.name]
        if isinstance(node, OperatorNode):
            return ["_".join(filter(None, [node.operator.operator_id, edge.output]))]
        return [name for input_ in node.inputs for name in self.outputs_behind(input_)]

    def origins(self, operator_id: str) -> list[tuple[str, ...]]:
        """Return, for each input of an operator, the names of the sources and operators whose rows it reads."""
        reader = self.nodes[self.names[operator_id].node]
        return [self.origins_of(edge) for edge in reader.inputs]

    def origins_of(self, edge: Edge) -> tuple[str, ...]:
        """Return the names of the sources and operators whose rows a stream consists of."""
        return tuple(dict.fromkeys(self._named_before(edge)))

    def _named_before(self, edge: Edge) -> Iterator[str]:
        node = self.nodes[edge.node]
        if isinstance(node, SourceNode):
            yield node.name
        elif isinstance(node, OperatorNode):
            yield node.operator.operator_id
        else:
            for input_edge in node.inputs:
                yield from self._named_before(input_edge)

    @property
    def sources(self) -> dict[str, SourceNode]:
        return {node.name: node for node in self.nodes if isinstance(node, SourceNode)}

    @property
    def operators(self) -> dict[str, Operator]:
        return {node.operator.operator_id: node.operator for node in self.nodes if isinstance(node, OperatorNode)}
