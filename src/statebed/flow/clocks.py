"""Watermarks of a graph, epoch by epoch, from its sources to each of its operators.

A source's watermark follows Spark's rule: the greatest event time seen in earlier epochs minus the delay; it never goes
back. An operator works with the least watermark of its inputs, and promises one for its own results. In epoch n a row
is late by the watermark that its operator had in epoch n - 1, and results are final by that of epoch n. A window over a
time column that may lag behind the event time works with the watermark minus that lag.

A source that has given no row for its `idle_after` holds nobody back until it gives one again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from statebed.flow.graph import Graph, OperatorNode, SourceNode, StepNode, UnionNode
from statebed.flow.steps import EXACT, Lag
from statebed.format import checkpoint_pb2 as pb
from statebed.operators.input_rows import greatest
from statebed.operators.operator import Clock

Marks = Mapping[str, int | None]
"""Watermarks of operators, by their names."""


@dataclass(frozen=True)
class SourceClock:
    """How far a source has come; microseconds since 1970."""

    watermark_us: int | None = None
    max_event_time_us: int | None = None
    last_rows_us: int | None = None
    """The processing time when it last gave rows, or when it was first asked."""

    def next(self, delay_us: int) -> "SourceClock":
        """What the following epoch works with, before it has seen its rows."""
        reached = None if self.max_event_time_us is None else self.max_event_time_us - delay_us
        return replace(self, watermark_us=greatest([self.watermark_us, reached]))

    def said(self, watermark_us: int) -> "SourceClock":
        """As a test says; it never goes back."""
        return replace(self, watermark_us=greatest([self.watermark_us, watermark_us]))

    def seen(self, max_event_time_us: int | None, *, epoch_time_us: int) -> "SourceClock":
        """After the epoch's rows; None: it gave none with an event time."""
        gave_rows = max_event_time_us is not None or self.last_rows_us is None
        return replace(
            self,
            max_event_time_us=greatest([self.max_event_time_us, max_event_time_us]),
            last_rows_us=epoch_time_us if gave_rows else self.last_rows_us,
        )

    def is_idle(self, node: SourceNode, epoch_time_us: int) -> bool:
        """Whether it has been silent for so long that it holds nobody back."""
        if node.idle_after_us is None or self.last_rows_us is None:
            return False
        return epoch_time_us - self.last_rows_us >= node.idle_after_us


def next_clocks(graph: Graph, sources: Mapping[str, SourceClock]) -> dict[str, SourceClock]:
    """What the sources work with in the following epoch."""
    return {name: sources.get(name, SourceClock()).next(node.delay_us) for name, node in graph.sources.items()}


def operator_clocks(
    graph: Graph, sources: Mapping[str, SourceClock], before: Marks, *, epoch_time_us: int
) -> dict[str, Clock]:
    """The clock of each operator, from the watermarks of the sources and those it had in the epoch before."""
    idle = {name for name, node in graph.sources.items() if sources[name].is_idle(node, epoch_time_us)}
    marks: list[int | None] = []
    silent: list[bool] = []
    clocks: dict[str, Clock] = {}
    for node in graph.nodes:
        if isinstance(node, SourceNode):
            marks.append(sources[node.name].watermark_us)
            silent.append(node.name in idle)
            continue
        origins = [edge.node for edge in node.inputs]
        mark = _least(
            _minus(marks[one], lag.most_us) for one, lag in zip(origins, _lags(node), strict=True) if not silent[one]
        )
        silent.append(all(silent[one] for one in origins))
        if isinstance(node, OperatorNode):
            had = before.get(node.operator.operator_id)
            mark = greatest([had, mark])
            clocks[node.operator.operator_id] = Clock(had, mark, epoch_time_us)
            mark = None if mark is None else node.operator.output_watermark(mark)
        marks.append(mark)
    return clocks


def source_entry(name: str, clock: SourceClock) -> pb.SourceWatermark:
    """For the record."""
    return pb.SourceWatermark(
        source=name,
        watermark_us=clock.watermark_us,
        max_event_time_us=clock.max_event_time_us,
        last_rows_us=clock.last_rows_us,
    )


def drained_clocks(
    graph: Graph, sources: Mapping[str, SourceClock], before: Marks, *, epoch_time_us: int
) -> dict[str, Clock]:
    """Clocks that close everything that is open, operator after operator, and nothing that has not begun."""
    latest: list[int | None] = []
    clocks: dict[str, Clock] = {}
    for node in graph.nodes:
        if isinstance(node, SourceNode):
            latest.append(sources[node.name].max_event_time_us)
            continue
        reached = greatest(
            _minus(latest[edge.node], lag.least_us) for edge, lag in zip(node.inputs, _lags(node), strict=True)
        )
        if isinstance(node, OperatorNode):
            operator = node.operator
            had = before.get(operator.operator_id)
            closing = None if reached is None else operator.closing_watermark(reached)
            clocks[operator.operator_id] = Clock(had, greatest([had, closing]), epoch_time_us)
            reached = None if reached is None else operator.latest_result(reached)
        latest.append(reached)
    return clocks


def marks_of(clocks: Mapping[str, Clock]) -> dict[str, int | None]:
    """The watermarks that the following epoch calls its operators' earlier ones."""
    return {name: clock.watermark_us for name, clock in clocks.items()}


def is_due(graph: Graph, clocks: Mapping[str, Clock]) -> bool:
    """Whether an epoch without rows would change anything."""
    return any(
        clock.watermark_us is not None
        and clock.watermark_us != clock.late_us
        and graph.operators[name].is_due(clock.late_us, clock.watermark_us)
        for name, clock in clocks.items()
    )


def _lags(node: StepNode | UnionNode | OperatorNode) -> list[Lag]:
    """Return, for each input, how far the times that the node works with lie behind the event times of the input."""
    return [feed.lag for feed in node.feeds] if isinstance(node, OperatorNode) else [EXACT] * len(node.inputs)


def _minus(mark_us: int | None, lag_us: int) -> int | None:
    return None if mark_us is None else mark_us - lag_us


def _least(marks: Iterable[int | None]) -> int | None:
    """The least; unknown as long as one is, or when there is none."""
    found = list(marks)
    known = [mark for mark in found if mark is not None]
    return min(known) if known and len(known) == len(found) else None
