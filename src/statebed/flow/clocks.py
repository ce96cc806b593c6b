"""Watermarks of a graph, epoch by epoch, from its sources to each of its operators.

A source's watermark follows Spark's rule: the greatest event time seen in earlier epochs minus the delay; it never
decreases. An operator uses the least watermark of its inputs, broadcast tables aside, and derives one for its own
results. In epoch n a row is late by the watermark that its operator had in epoch n - 1, and results are final by that
of epoch n. A window over a time column that may lag behind the event time uses the watermark minus that lag.

After `idle_after` without rows, a source no longer holds back the watermark until it has rows again.

Sources of a query that came from Spark follow Spark's clock instead (`spark_clock`), and so do operators that read
nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from statebed.flow.graph import Graph, OperatorNode, SourceNode, StepNode, UnionNode
from statebed.flow.spark_clock import SparkClock, watermark_behind
from statebed.flow.steps import EXACT, Lag
from statebed.format import checkpoint_pb2 as pb
from statebed.operators.input_rows import greatest
from statebed.operators.operator import Clock

Marks = Mapping[str, int | None]
"""Watermarks of operators by name."""

_EARLIEST_US = -(1 << 62)
"""Earliest watermark: below it, times before the watermark would not fit into 64 bits."""


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
        if reached is not None and reached < _EARLIEST_US:
            reached = None  # nothing is late yet, and nothing closes
        return replace(self, watermark_us=greatest([self.watermark_us, reached]))

    def with_watermark(self, watermark_us: int) -> "SourceClock":
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
    graph: Graph,
    sources: Mapping[str, SourceClock],
    before: Marks,
    *,
    epoch_time_us: int,
    observed_ms: Sequence[int | None] = (),
) -> dict[str, Clock]:
    """Return the clock of each operator, from the sources' watermarks and the operators' previous ones.

    `observed_ms` are the greatest event times at the watermarks of queries that came from Spark, whose operators follow
    Spark's clock.
    """
    spark_marks = _spark_marks(graph, observed_ms)
    by_spark = {
        name: None if graph.sources[name].event_time is None else spark_marks[clock]
        for name, clock in graph.spark_clocks.items()
    }
    repeating = {name: spark_marks[clock] for name, clock in graph.repeating.items()}
    idle = {name for name, node in graph.sources.items() if sources[name].is_idle(node, epoch_time_us)}
    marks: list[int | None] = []
    silent: list[bool] = []
    follows: list[bool] = []
    """Whether the rows of a node follow Spark's clock."""
    clocks: dict[str, Clock] = {}
    for node in graph.nodes:
        if isinstance(node, SourceNode):
            follows.append(node.name in by_spark)
            marks.append(by_spark[node.name] if follows[-1] else sources[node.name].watermark_us)
            silent.append(node.name in idle)
            continue
        follows.append(all(follows[edge.node] for edge in node.inputs))
        if follows[-1]:
            silent.append(False)
            mark = _min_known(marks[edge.node] for edge in node.inputs)
            if isinstance(node, OperatorNode):
                earlier = before.get(node.operator.operator_id) or 0
                reached = max(earlier, mark or 0, repeating.get(node.operator.operator_id, 0))
                clocks[node.operator.operator_id] = Clock(earlier, reached, epoch_time_us)
                mark = watermark_behind(node.operator, reached)
            marks.append(mark)
            continue
        timed = _timed_inputs(node)
        mark = _lowest(_minus(marks[origin], lag.max_us) for origin, lag in timed if not silent[origin])
        silent.append(all(silent[origin] for origin, _ in timed))
        if isinstance(node, OperatorNode):
            had = before.get(node.operator.operator_id)
            mark = greatest([had, mark])
            clocks[node.operator.operator_id] = Clock(had, mark, epoch_time_us)
            mark = None if mark is None else node.operator.output_watermark(mark)
        marks.append(mark)
    return clocks


def _spark_marks(graph: Graph, observed_ms: Sequence[int | None]) -> dict[SparkClock, int]:
    """Return the watermark of each query that came from Spark, by its clock."""
    clocks = dict.fromkeys(graph.spark_clocks.values())
    known = list(observed_ms) + [None] * (len(graph.spark_watermarks) - len(observed_ms))
    marks: dict[SparkClock, int] = {}
    for clock in clocks:
        marks[clock] = clock.watermark_us(known[: len(clock.watermarks)])
        known = known[len(clock.watermarks) :]
    return marks


def _min_known(marks: Iterable[int | None]) -> int | None:
    """Return the lowest watermark of the inputs that have one, as Spark does."""
    return min((mark for mark in marks if mark is not None), default=None)


def source_entry(name: str, clock: SourceClock, graph: Graph) -> pb.SourceWatermark:
    """Return the entry of a source for the record."""
    return pb.SourceWatermark(
        source=name,
        watermark_us=clock.watermark_us,
        max_event_time_us=clock.max_event_time_us,
        last_rows_us=clock.last_rows_us,
        head=graph.heads.get(name, ""),
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
        reached = greatest(_minus(latest[origin], lag.min_us) for origin, lag in _timed_inputs(node))
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
        and (name in graph.repeating or graph.operators[name].is_due(clock.late_us, clock.watermark_us))
        for name, clock in clocks.items()
    )


def _timed_inputs(node: StepNode | UnionNode | OperatorNode) -> list[tuple[int, Lag]]:
    """Return the nodes whose event times count for this one, and how far the times that it uses lag behind them.

    A broadcast table changes rarely, and would hold back the watermark for as long as it does not.
    """
    if not isinstance(node, OperatorNode):
        return [(edge.node, EXACT) for edge in node.inputs]
    return [
        (edge.node, feed.lag) for edge, feed in zip(node.inputs, node.feeds, strict=True) if not feed.input.broadcast
    ]


def _minus(mark_us: int | None, lag_us: int) -> int | None:
    return None if mark_us is None else mark_us - lag_us


def _lowest(marks: Iterable[int | None]) -> int | None:
    """Return the lowest watermark, or None if there is none or one is unknown."""
    everything = list(marks)
    known = [mark for mark in everything if mark is not None]
    return min(known) if known and len(known) == len(everything) else None
