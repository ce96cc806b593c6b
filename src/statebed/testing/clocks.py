"""Watermarks of a graph, node by node, epoch by epoch.

A source's watermark is what a test says, or Spark's rule: the greatest event time seen in earlier epochs minus the
delay. That of any other node comes from its inputs: the least of them, through what the operator promises of its
output.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from statebed.flow.graph import Graph, OperatorNode, SourceNode
from statebed.operators.operator import Clock
from statebed.operators.rows import greatest


@dataclass(frozen=True)
class SourceClock:
    """How far a source has come."""

    watermark_us: int | None = None
    max_event_time_us: int | None = None

    def next(self, delay_us: int) -> "SourceClock":
        """What the following epoch works with, before it has seen its rows."""
        reached = None if self.max_event_time_us is None else self.max_event_time_us - delay_us
        return replace(self, watermark_us=greatest([self.watermark_us, reached]))

    def said(self, watermark_us: int) -> "SourceClock":
        """As a test says; it never goes back."""
        return replace(self, watermark_us=greatest([self.watermark_us, watermark_us]))

    def seen(self, max_event_time_us: int | None) -> "SourceClock":
        """After the epoch's rows."""
        return replace(self, max_event_time_us=greatest([self.max_event_time_us, max_event_time_us]))


def node_watermarks(graph: Graph, sources: Mapping[str, SourceClock]) -> list[int | None]:
    """Up to where the output of each node is complete."""
    marks: list[int | None] = []
    for node in graph.nodes:
        if isinstance(node, SourceNode):
            marks.append(sources[node.name].watermark_us)
            continue
        mark = least([marks[edge.node] for edge in node.inputs])
        if mark is not None and isinstance(node, OperatorNode):
            mark = node.operator.output_watermark(mark)
        marks.append(mark)
    return marks


def node_clock(node: OperatorNode, before: list[int | None], after: list[int | None], epoch_time_us: int) -> Clock:
    """The clock of an operator, from the watermarks of its inputs in the epoch before and in this one."""
    late, mark = (least([marks[edge.node] for edge in node.inputs]) for marks in (before, after))
    return Clock(late, mark, epoch_time_us)


def least(marks: list[int | None]) -> int | None:
    """The least; unknown as long as one is."""
    known = [mark for mark in marks if mark is not None]
    return min(known) if known and len(known) == len(marks) else None
