"""Watermarks of a graph, epoch by epoch, from its sources to each of its operators.

A source's watermark follows Spark's rule: the greatest event time seen in earlier epochs minus the delay; it never
decreases. An operator uses the least watermark of its inputs, and derives one for its own results. In epoch n a row is
late by the watermark that its operator had in epoch n - 1, and results are final by that of epoch n. A window over a
time column that may lag behind the event time uses the watermark minus that lag.

After `idle_after` without rows, a source no longer holds back the watermark until it has rows again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from statebed.flow.graph import Graph, OperatorNode, SourceNode, StepNode, UnionNode
from statebed.flow.steps import EXACT, Lag
from statebed.format import checkpoint_pb2 as pb
from statebed.operators.input_rows import greatest
from statebed.operators.operator import Clock

Marks = Mapping[str, int | None]
"""Watermarks of operators by name."""


@dataclass(frozen=True)
class SourceClock:
    """Progress of a source, in microseconds since 1970."""

    watermark_us: int | None = None
    max_event_time_us: int | None = None
    last_rows_us: int | None = None
    """Processing time of the last epoch with rows, or of the first epoch if there were none."""

    def next(self, delay_us: int) -> "SourceClock":
        """Return the clock of the following epoch, before its rows are seen."""
        reached = None if self.max_event_time_us is None else self.max_event_time_us - delay_us
        return replace(self, watermark_us=greatest([self.watermark_us, reached]))

    def said(self, watermark_us: int) -> "SourceClock":
        """Return the clock with a watermark set by a test; the watermark never decreases."""
        return replace(self, watermark_us=greatest([self.watermark_us, watermark_us]))

    def seen(self, max_event_time_us: int | None, *, epoch_time_us: int) -> "SourceClock":
        """Return the clock after the epoch's rows; `max_event_time_us` is None if none has an event time."""
        gave_rows = max_event_time_us is not None or self.last_rows_us is None
        return replace(
            self,
            max_event_time_us=greatest([self.max_event_time_us, max_event_time_us]),
            last_rows_us=epoch_time_us if gave_rows else self.last_rows_us,
        )

    def is_idle(self, node: SourceNode, epoch_time_us: int) -> bool:
        """Return whether the source has been idle long enough not to hold back the watermark."""
        if node.idle_after_us is None or self.last_rows_us is None:
            return False
        return epoch_time_us - self.last_rows_us >= node.idle_after_us


def next_clocks(graph: Graph, sources: Mapping[str, SourceClock]) -> dict[str, SourceClock]:
    """Return the clocks of the sources in the following epoch."""
    return {name: sources.get(name, SourceClock()).next(node.delay_us) for name, node in graph.sources.items()}


def operator_clocks(
    graph: Graph, sources: Mapping[str, SourceClock], before: Marks, *, epoch_time_us: int
) -> dict[str, Clock]:
    """Return the clock of each operator, from the sources' watermarks and the operators' previous ones."""
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
    """Return the entry of a source for the record."""
    return pb.SourceWatermark(
        source=name,
        watermark_us=clock.watermark_us,
        max_event_time_us=clock.max_event_time_us,
        last_rows_us=clock.last_rows_us,
    )


def drained_clocks(
    graph: Graph, sources: Mapping[str, SourceClock], before: Marks, *, epoch_time_us: int
) -> dict[str, Clock]:
    """Return clocks that close everything that is open, operator by operator, and nothing that has not started."""
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
    """Return the watermarks of operators, as the previous ones of the following epoch."""
    return {name: clock.watermark_us for name, clock in clocks.items()}


def is_due(graph: Graph, clocks: Mapping[str, Clock]) -> bool:
    """Return whether an epoch without rows would change anything."""
    return any(
        clock.watermark_us is not None
        and clock.watermark_us != clock.late_us
        and graph.operators[name].is_due(clock.late_us, clock.watermark_us)
        for name, clock in clocks.items()
    )


def _lags(node: StepNode | UnionNode | OperatorNode) -> list[Lag]:
    """Return, for each input, the lag of the times that the node uses behind the event times of the input."""
    return [feed.lag for feed in node.feeds] if isinstance(node, OperatorNode) else [EXACT] * len(node.inputs)


def _minus(mark_us: int | None, lag_us: int) -> int | None:
    return None if mark_us is None else mark_us - lag_us


def _least(marks: Iterable[int | None]) -> int | None:
    """Return the least watermark, or None if there is none or one is unknown."""
    everything = list(marks)
    known = [mark for mark in everything if mark is not None]
    return min(known) if known and len(known) == len(everything) else None
