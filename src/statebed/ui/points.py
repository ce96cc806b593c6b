"""Points: the few values of a record that charts and lists show. Pure.

Records of large jobs are large, points are small, and a page shows hundreds of them.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.chain import Chain
from statebed.inspect.figures import PHASES
from statebed.inspect.records import ABANDONED, LogEntry, input_watermark, summarise

OTHER = "other"


@dataclass(frozen=True)
class Point:
    """Values of one record of the log."""

    summary: LogEntry
    nonce: str = ""
    epoch_time_us: int | None = None
    min_epoch: int = 1
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """Watermark of each operator, up to which its windows are closed."""
    newest_event_us: int | None = None
    """Maximum event time over all sources."""
    figures: pb.EpochFigures | None = None
    has_sinks: bool = False

    @property
    def epoch(self) -> int:
        return self.summary.epoch

    @property
    def is_epoch(self) -> bool:
        return self.summary.kind == "epoch"

    @property
    def is_readable(self) -> bool:
        return not self.summary.problem

    @property
    def lag_us(self) -> int | None:
        """Lag of the slowest operator's watermark behind the clock."""
        if self.summary.watermark_us is None or self.epoch_time_us is None:
            return None
        return self.epoch_time_us - self.summary.watermark_us


def point_of(record: pb.CheckpointMetadata) -> Point:
    """Convert a record to a point."""
    events = [source.max_event_time_us for source in record.sources if source.HasField("max_event_time_us")]
    marks = {entry.operator_id: mark for entry in record.operators if (mark := input_watermark(entry)) is not None}
    return Point(
        summary=summarise(record, held=0),
        nonce=record.nonce,
        epoch_time_us=record.epoch_time_us or record.start_time_us or None,
        min_epoch=record.min_epoch,
        watermarks=marks,
        newest_event_us=max(events, default=None),
        figures=record.figures if record.HasField("figures") else None,
        has_sinks=bool(record.sinks),
    )


def with_abandoned(points: Sequence[Point], chain: Chain) -> list[Point]:
    """Return the points, with those that the newest state does not build on marked as abandoned."""

    def is_abandoned(point: Point) -> bool:
        within = any(first <= point.epoch <= last for first, last in chain.stretches)
        return point.is_epoch and point.epoch > chain.floor and not within

    return [
        dataclasses.replace(point, summary=dataclasses.replace(point.summary, status=ABANDONED))
        if is_abandoned(point)
        else point
        for point in points
    ]


def phases(points: Sequence[Point]) -> list[dict[str, int]]:
    """Return the microseconds of each phase for each point, including phases that the following record reports.

    Unexplained time is "other". An epoch whose record has no figures is "other" as a whole.
    """
    following = {point.epoch - 1: point.figures for point in points if point.figures is not None}
    by_point = []
    for point in points:
        parts: dict[str, int] = dict(point.figures.phases_us) if point.figures is not None else {}
        later = following.get(point.epoch)
        if later is not None:
            parts |= later.previous_phases_us
        known = {name: parts[name] for name in PHASES if parts.get(name)}
        named = sum(micros for name, micros in parts.items() if name in PHASES)
        extra = sum(micros for name, micros in parts.items() if name not in PHASES)
        rest = max(extra, point.summary.duration_us - named) if point.is_epoch else 0
        by_point.append(known | ({OTHER: rest} if rest > 0 else {}))
    return by_point


@dataclass(frozen=True)
class StateTotals:
    """State of a whole job or of one operator at the end of an epoch."""

    rows: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    store_bytes: int = 0
    files: int = 0
    tombstones: int = 0
    spills: int = 0
    loads: int = 0
    hits: int = 0
    compaction_debt_bytes: int = 0


def totals(figures: pb.EpochFigures | None, operator_id: str | None = None) -> StateTotals | None:
    """Sum the figures of all tables. Return None if the record has none."""
    if figures is None:
        return None
    operators = [operator for operator in figures.operators if operator_id in {None, operator.operator_id}]
    if not operators:
        return None
    tables = [table for operator in operators for table in operator.tables]
    names = [number.name for number in dataclasses.fields(StateTotals)]
    return StateTotals(**{name: sum(getattr(table, name) for table in tables) for name in names})


@dataclass(frozen=True)
class Memory:
    """Memory of all worker processes that reported it."""

    processes: int
    budget_bytes: int
    peak_bytes: int
    cache_bytes: int
    cache_limit_bytes: int
    spilled_bytes: int
    holders: tuple[tuple[str, int], ...]
    """Name and bytes of each holder, the largest first."""


def memory(figures: pb.EpochFigures | None) -> Memory | None:
    """Return the memory use, or None if the record does not report it."""
    if figures is None or not figures.hosts:
        return None
    holders: dict[str, int] = {}
    for host in figures.hosts:
        for holder, held in host.holders.items():
            holders[holder] = holders.get(holder, 0) + held
    caches = {host.host: (host.cache_bytes, host.cache_limit_bytes) for host in figures.hosts}
    return Memory(
        processes=len(figures.hosts),
        budget_bytes=sum(host.budget_bytes for host in figures.hosts),
        peak_bytes=sum(host.peak_bytes for host in figures.hosts),
        cache_bytes=sum(cache for cache, _ in caches.values()),
        cache_limit_bytes=sum(limit for _, limit in caches.values()),
        spilled_bytes=sum(host.spilled_bytes for host in figures.hosts),
        holders=tuple(sorted(holders.items(), key=lambda pair: (-pair[1], pair[0]))),
    )


def median(values: Iterable[int]) -> int | None:
    """Return the median, or None if there are no values."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None
