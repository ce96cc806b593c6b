"""Description of a job as text and as a diagram: sources, operators and their tables, expiry, sinks."""

from collections.abc import Iterator
from html import escape
from typing import Self

from statebed.checkpoint import Guarantee, Sink
from statebed.flow.event_time import event_time_text
from statebed.flow.graph import Edge, Graph, Node, OperatorNode, SourceNode, StepNode
from statebed.flow.steps import shown_step
from statebed.format.ranges import owned_range
from statebed.format.stream_schema import Changes
from statebed.operators import MAIN, Operator
from statebed.operators.aggregation import Aggregation
from statebed.operators.joins import IntervalJoin
from statebed.present.graph_drawing import Arrow, BoxKind, DrawnBox, drawn
from statebed.present.units import binary_size
from statebed.quantities import duration_text
from statebed.sinks import BaseSink
from statebed.spark.api.outputs import described as described_sink
from statebed.spark.plan.job_plan import JobPlan, unbounded_tables
from statebed.spark.plan.topology import OperatorPlace, SinkStream
from statebed.spark.scan.native_scan import reading_text
from statebed.state import TableConfig

_WIDTH = 13


class Explanation(str):
    """Printable text with a diagram; notebooks show both."""

    __slots__ = ("_picture",)
    _picture: str

    def __new__(cls, text: str, picture: str) -> Self:
        explanation = super().__new__(cls, text)
        explanation._picture = picture
        return explanation

    def picture(self) -> str:
        """Return the graph of the job as SVG text."""
        return self._picture

    def _repr_html_(self) -> str:
        return f"{self._picture}\n<pre>{escape(self)}</pre>"


def explained(plan: JobPlan) -> Explanation:
    """Describe the plan as text and diagram."""
    return Explanation(_text(plan), _picture(plan))


def _text(plan: JobPlan) -> str:
    share = (owned_range(0, plan.parallelism).last + 1) / 2**64
    lines = [
        f"job {plan.job_id}",
        _line("state", plan.state_url),
        _line("parallelism", f"{plan.parallelism} subtasks, each owns {share:.2%} of the key-hash space"),
        _line("memory", plan.budget.described()),
    ]
    lines += [_line("source", _source(node)) for node in plan.graph.sources.values()]
    lines.append(_line("read by", reading_text(plan)))
    for place in plan.topology.places:
        lines += _operator(plan, place)
    for sink in plan.sinks:
        stream = plan.topology.sinks[sink.sink_id]
        delivered = _delivered(plan, stream)
        lines.append(_line("sink", f"{sink.sink_id}: rows of {delivered}, {described_sink(sink)}"))
    return "\n".join(lines)


def _delivered(plan: JobPlan, listened: SinkStream) -> str:
    """Name the operators whose rows a sink gets; steps on the way have no names."""
    if listened.operator_id:
        return listened.operator_id + (f".{listened.stream}" if listened.stream else "")
    names = [
        place.operator.operator_id
        for place in plan.topology.places
        if any(outgoing.stream == listened.stream for outgoing in place.outgoing)
    ]
    return f"{' and '.join(names)}, after row-wise steps"


def _line(what: str, text: str) -> str:
    return f"  {what:<{_WIDTH}}{text}"


def _source(node: SourceNode) -> str:
    if node.event_time is None:
        return f"{node.name}: no event time"
    idle = "" if node.idle_after_us is None else f", idle after {duration_text(node.idle_after_us)} without rows"
    return f"{node.name}: event time {node.event_time}, late after {duration_text(node.delay_us)}{idle}"


def _operator(plan: JobPlan, place: OperatorPlace) -> Iterator[str]:
    operator = place.operator
    keys = ", ".join(operator.inputs[0].keys) or "no key: one subtask gets all rows"
    node = plan.graph.nodes[plan.graph.names[operator.operator_id].node]
    origins = ", ".join(_origin(plan.graph, edge) for edge in node.inputs)
    yield _line("operator", f"{operator.operator_id}: {described(operator)} by {keys}, level {place.level}")
    yield _line("", f"reads {origins}")
    if isinstance(operator, IntervalJoin):
        yield _line("", f"interval: {operator.interval_text()}")
    for text in _times(plan.graph, node):
        yield _line("", text)
    for name, config in operator.tables.items():
        kept = _kept(plan, operator.operator_id, name)
        yield _line("", f"table {name}: {config.description}; {expiry(operator, name, config)}{kept}")
    output = operator.outputs[MAIN]
    changelog = ", as a changelog" if output.changes is Changes.CHANGELOG else ""
    yield _line("", f"gives {', '.join(output.columns.names)}{changelog}")
    if isinstance(operator, Aggregation) and operator.whole_results:
        names = ", ".join(operator.whole_results)
        yield _line("", f"each value of {names} contains all values of its group, however many: limit= bounds it")
    if plan.graph.is_timed(Edge(plan.graph.names[operator.operator_id].node)):
        time = event_time_text(plan.graph, Edge(plan.graph.names[operator.operator_id].node))
        yield _line("", f"event time of results: {time}")


def _times(graph: Graph, node: Node) -> Iterator[str]:
    """Describe the times by which an operator takes the rows of its inputs."""
    assert isinstance(node, OperatorNode)
    for operator_input, edge, feed in zip(node.operator.inputs, node.inputs, node.feeds, strict=True):
        if not graph.is_timed(edge):
            continue
        name = f" of {operator_input.name}" if len(node.inputs) > 1 else ""
        if feed.time is None:
            yield f"event time{name}: {event_time_text(graph, edge)}"
        elif feed.time.lag is None:
            yield f"windows on {feed.time.name}; rows behind the watermark of the event time are late"
        else:
            lag = duration_text(max(0, feed.time.lag.max_us))
            yield f"windows on {feed.time.name}, at most {lag} behind the event time ({event_time_text(graph, edge)})"


def _kept(plan: JobPlan, operator: str, table: str) -> str:
    """Describe the memory reserved for a table, alone or with the other tables of its operator."""
    shares = plan.settings.memory_shares or {}
    name = next((candidate for candidate in (f"{operator}.{table}", operator) if candidate in shares), None)
    if name is None:
        return ""
    together = "" if "." in name else " with its other tables"
    nbytes = binary_size(int(shares[name] * plan.budget.per_task_bytes))
    return f"; keeps {shares[name]:.0%} of each task's memory ({nbytes}){together}"


def _picture(plan: JobPlan) -> str:
    graph, places = plan.graph, plan.topology.places
    boxes = [
        DrawnBox(name, BoxKind.SOURCE, 0, tuple(_source(node).removeprefix(f"{name}: ").split(", ")))
        for name, node in graph.sources.items()
    ]
    numbers = {name: number for number, name in enumerate(graph.sources)}
    arrows: list[Arrow] = []
    for place in places:
        operator = place.operator
        name = operator.operator_id
        numbers[name] = len(boxes)
        keys = ", ".join(operator.inputs[0].keys)
        tables = [
            f"{table_name}: {expiry(operator, table_name, config)}" for table_name, config in operator.tables.items()
        ]
        interval = [operator.interval_text()] if isinstance(operator, IntervalJoin) else []
        by = f"by {keys}" if keys else "no key: one subtask gets all rows"
        texts = (described(operator), *interval, by, *tables)
        boxes.append(DrawnBox(name, BoxKind.OPERATOR, place.level, texts))
        node = graph.nodes[graph.names[name].node]
        arrows += [
            _arrow(graph, origin, numbers, numbers[name], _origin(graph, edge))
            for edge in node.inputs
            for origin in dict.fromkeys(_origins(graph, edge))
        ]
    last = max(place.level for place in places) + 1
    for sink in plan.sinks:
        boxes.append(DrawnBox(sink.sink_id, BoxKind.SINK, last, _promise(sink)))
        listened = plan.topology.sinks[sink.sink_id]
        for place in places:
            name = place.operator.operator_id
            outputs = {
                output
                for outgoing in place.outgoing
                if outgoing.stream == listened.stream and listened.operator_id in {"", name}
                for output, _ in outgoing.origins
            }
            edges = [Edge(graph.names[name].node, output) for output in sorted(outputs)]
            arrows += [_arrow(graph, edge, numbers, len(boxes) - 1, _origin(graph, edge)) for edge in edges]
    title = f"job {plan.job_id}, {plan.parallelism} subtasks of each operator"
    return drawn(title, boxes, arrows)


def _promise(sink: Sink) -> tuple[str, ...]:
    promise = "exactly once" if sink.guarantee is Guarantee.EXACTLY_ONCE else "at least once"
    return (sink.described, promise) if isinstance(sink, BaseSink) else (promise,)


def _origin(graph: Graph, edge: Edge) -> str:
    """Describe the origin of a stream's rows, and the steps applied to them."""
    node = graph.nodes[edge.node]
    if isinstance(node, SourceNode):
        return node.name
    if isinstance(node, OperatorNode):
        return node.operator.operator_id + (f".{edge.output}" if edge.output else "")
    step = shown_step(node.step) if isinstance(node, StepNode) else "union"
    return f"{step} ({', '.join(_origin(graph, input_) for input_ in node.inputs)})"


def _origins(graph: Graph, edge: Edge) -> Iterator[Edge]:
    """Yield the sources and operator outputs from which rows of a stream come."""
    node = graph.nodes[edge.node]
    if isinstance(node, SourceNode | OperatorNode):
        yield edge
        return
    for input_edge in node.inputs:
        yield from _origins(graph, input_edge)


def _arrow(graph: Graph, origin: Edge, numbers: dict[str, int], end: int, about: str) -> Arrow:
    node = graph.nodes[origin.node]
    if isinstance(node, SourceNode):
        return Arrow(numbers[node.name], end, about=about)
    assert isinstance(node, OperatorNode)
    is_changelog = node.outputs[origin.output].changes is Changes.CHANGELOG
    return Arrow(numbers[node.operator.operator_id], end, origin.output, about, is_changelog)


def described(operator: Operator) -> str:
    """Describe the kind of an operator."""
    window = getattr(operator, "window", None)
    kind = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(operator).__name__).strip()
    text = kind.removesuffix(" operator")
    aggregates = ", ".join(
        f"{aggregate.name} = {aggregate.function.name}({aggregate.text.strip()})"
        for aggregate in getattr(operator, "aggregates", ())
    )
    parts = [text, *([window.described()] if window is not None else []), *([aggregates] if aggregates else [])]
    return ", ".join(parts)


def expiry(operator: Operator, name: str, config: TableConfig) -> str:
    """Describe when rows of a table expire."""
    if name in unbounded_tables(operator):
        return "kept for ever"
    if config.WhichOneof("kind") == "keyed" and config.keyed.HasField("time_to_live_us"):
        return f"expires {duration_text(config.keyed.time_to_live_us)} after the latest row of a key"
    return "expires when the watermark passes it"
