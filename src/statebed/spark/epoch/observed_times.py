"""Event times that Spark observes at the watermarks of a query, read while its batch runs.

Spark itself turns them into a watermark only after the batch, and keeps it in its own log. The record of the epoch
keeps the observed times, so that a run that starts from it has the same watermark.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from statebed.flow.spark_clock import SparkWatermark
from statebed.format import checkpoint_pb2 as pb

_WATERMARK = "EventTimeWatermark"


def observed_ms(position: pb.SourcePosition) -> list[int | None]:
    """Return the greatest event time at each watermark, up to a batch."""
    return [time.max_ms if time.HasField("max_ms") else None for time in position.observed]


class ObservedTimes:
    """Event times at a job's watermarks, which the plan that Spark runs has collected, or tasks that read files."""

    def __init__(self, watermarks: Sequence[SparkWatermark]) -> None:
        self._watermarks = tuple(watermarks)
        self._paths: list[tuple[int, ...]] = []
        """Positions of the watermark nodes in the plan, which mostly has the same shape in each batch."""

    def by_spark(self, session: SparkSession, query_id: str) -> dict[str, int]:
        """Return the greatest event time at each watermark of the batch that Spark reads, by the id of its node."""
        streams: Any = session._jsparkSession.streams()  # noqa: SLF001 - no public way to the plan of a batch
        return self._latest(streams.get(query_id).streamingQuery().lastExecution().executedPlan())

    def after(self, before: pb.SourcePosition, latest: Mapping[str, int]) -> list[pb.ObservedEventTime]:
        """Return the greatest event times after a batch."""
        known: list[int | None] = observed_ms(before)
        known += [None] * (len(self._watermarks) - len(known))
        event_times = []
        for watermark, earlier in zip(self._watermarks, known, strict=True):
            times = [time for time in (earlier, latest.get(watermark.node_id)) if time is not None]
            event_times.append(pb.ObservedEventTime(max_ms=max(times) if times else None))
        return event_times

    def _latest(self, plan: Any) -> dict[str, int]:
        """Return the greatest event time of the batch by watermark node."""
        nodes = [_followed(plan, path) for path in self._paths]
        if not nodes or any(node is None for node in nodes):
            self._paths = list(_watermark_paths(plan, ()))
            nodes = [_followed(plan, path) for path in self._paths]
        by_node: dict[str, int] = {}
        for node in nodes:
            statistics = node.eventTimeStats().value()
            if int(statistics.count()) > 0:
                key = str(node.nodeId().toString())
                by_node[key] = max(int(statistics.max()), by_node.get(key, int(statistics.max())))
        return by_node


def _followed(plan: Any, path: tuple[int, ...]) -> Any:
    """Return the watermark node at the end of a path; None if the plan has another shape than before."""
    node = plan
    for place in path:
        children = _children(node)
        if place >= len(children):
            return None
        node = children[place]
    return node if str(node.nodeName()) == _WATERMARK else None


def _watermark_paths(node: Any, path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if str(node.nodeName()) == _WATERMARK:
        yield path
    for place, child in enumerate(_children(node)):
        yield from _watermark_paths(child, (*path, place))


def _children(node: Any) -> list[Any]:
    """Return the children of a plan node, also inside what adaptive execution has planned."""
    name = str(node.nodeName())
    if name == "AdaptiveSparkPlan":
        return [node.executedPlan()]
    if name.endswith("QueryStage"):
        return [node.plan()]
    children = node.children()
    return [children.apply(place) for place in range(children.size())]
