"""What a job will do, in words: sources, operators with their tables, what expires when, sinks and their promises."""

from collections.abc import Iterator

from statebed.flow.graph import SourceNode
from statebed.format.ranges import owned_range
from statebed.operators import MAIN, Operator
from statebed.operators.operator import Changes
from statebed.spark.outputs import described as described_sink
from statebed.spark.plan import JobPlan, unbounded_tables
from statebed.spark.topology import Place
from statebed.state import TableConfig

_WIDTH = 13


def explained(plan: JobPlan) -> str:
    """The plan as text."""
    share = (owned_range(0, plan.parallelism).last + 1) / 2**64
    lines = [
        f"job {plan.job_id}",
        _line("state", plan.state_url),
        _line("parallelism", f"{plan.parallelism} subtasks, each owns {share:.2%} of the key-hash space"),
        _line("memory", plan.budget.described()),
    ]
    lines += [_line("source", _source(node)) for node in plan.graph.sources.values()]
    for place in plan.topology.places:
        lines += _operator(plan, place)
    for sink in plan.sinks:
        stream = plan.topology.sinks[sink.sink_id]
        given = stream.operator_id + (f".{stream.stream}" if stream.stream else "") if stream.operator_id else "a union"
        lines.append(_line("sink", f"{sink.sink_id}: rows of {given}, {described_sink(sink)}"))
    return "\n".join(lines)


def _line(what: str, text: str) -> str:
    return f"  {what:<{_WIDTH}}{text}"


def _source(node: SourceNode) -> str:
    if node.event_time is None:
        return f"{node.name}: no event time"
    idle = "" if node.idle_after_us is None else f", idle after {node.idle_after_us / 1e6:g} s without rows"
    return f"{node.name}: event time {node.event_time}, late after {node.delay_us / 1e6:g} s{idle}"


def _operator(plan: JobPlan, place: Place) -> Iterator[str]:
    operator = place.operator
    keys = ", ".join(operator.inputs[0].keys) or "no key: one subtask has all rows"
    node = plan.graph.nodes[plan.graph.names[operator.operator_id].node]
    origins = ", ".join(plan.graph.origin(edge) for edge in node.inputs)
    yield _line("operator", f"{operator.operator_id}: {described(operator)} by {keys}, level {place.level}")
    yield _line("", f"reads {origins}")
    for name, config in operator.tables.items():
        yield _line("", f"table {name}: {config.description}; {expiry(operator, name, config)}")
    output = operator.outputs[MAIN]
    changelog = ", as a changelog" if output.changes is Changes.CHANGELOG else ""
    yield _line("", f"gives {', '.join(output.columns.names)}{changelog}")


def described(operator: Operator) -> str:
    """The kind of an operator, in words."""
    window = getattr(operator, "window", None)
    kind = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(operator).__name__).strip()
    text = kind.removesuffix(" operator")
    aggregates = ", ".join(
        f"{one.name} = {one.function.value}({one.text})" for one in getattr(operator, "aggregates", ())
    )
    parts = [text, *([window.described()] if window is not None else []), *([aggregates] if aggregates else [])]
    return ", ".join(parts)


def expiry(operator: Operator, name: str, config: TableConfig) -> str:
    """When rows of a table leave it."""
    if name in unbounded_tables(operator):
        return "kept for ever"
    if config.WhichOneof("kind") == "keyed" and config.keyed.HasField("time_to_live_us"):
        return f"forgotten {config.keyed.time_to_live_us / 1e6:g} s after a key's latest row"
    return "leaves when the watermark has passed it"
