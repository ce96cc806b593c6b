"""Figures of an epoch from its record: phases, state by tier, memory, compaction.

Records of older versions, and of engines that run without Spark, have no figures; nothing is shown then. No decision
depends on them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from google.protobuf.message import Message

from statebed.format import checkpoint_pb2 as pb

T = TypeVar("T")

PHASES = ("planning", "read", "shuffle", "merge", "write", "commit", "publish")
"""Phases of an epoch, in order."""


@dataclass(frozen=True)
class TierSizes:
    """Size of a table in each tier at the end of an epoch."""

    operator: str
    table: str
    rows: int
    memory_bytes: int
    disk_bytes: int
    store_bytes: int
    files: int
    tombstones: int
    spills: int
    loads: int
    hits: int
    compaction_debt_bytes: int


@dataclass(frozen=True)
class OperatorWork:
    """Work of an operator in an epoch."""

    operator: str
    bytes_written: int
    busy_us: int
    rows_expired: int
    retractions_dropped: int


@dataclass(frozen=True)
class HostMemory:
    """Peak memory of a worker process, and the cache of its host."""

    host: str
    budget_bytes: int
    peak_bytes: int
    holders: dict[str, int]
    cache_bytes: int
    cache_limit_bytes: int
    spilled_bytes: int
    shares: dict[str, int]
    """Bytes of the budget reserved for operators and tables."""
    held: dict[str, int]
    """Bytes that each of those used at the peak."""


@dataclass(frozen=True)
class CompactionWork:
    """Work of compaction since the start of the run."""

    rounds: int
    merges: int
    read_bytes: int
    written_bytes: int
    failures: int


@dataclass(frozen=True)
class Figures:
    """All figures of an epoch's record."""

    phases_us: dict[str, int]
    tables: tuple[TierSizes, ...]
    operators: tuple[OperatorWork, ...]
    hosts: tuple[HostMemory, ...]
    compaction: CompactionWork | None
    preaggregated: bool


def figures_of(record: pb.CheckpointMetadata, following: pb.CheckpointMetadata | None = None) -> Figures | None:
    """Return the figures of a record, or None. The following record contains the durations of its commit and
    publication.
    """
    if not record.HasField("figures"):
        return None
    figures = record.figures
    return Figures(
        phases_us=phases_of(record, following),
        tables=tuple(
            _values(TierSizes, table, operator=o.operator_id) for o in figures.operators for table in o.tables
        ),
        operators=tuple(
            _values(OperatorWork, operator, operator=operator.operator_id) for operator in figures.operators
        ),
        hosts=tuple(
            _values(HostMemory, host, holders=_most_first(host.holders), shares=dict(host.shares), held=dict(host.held))
            for host in figures.hosts
        ),
        compaction=_values(CompactionWork, figures.compaction) if figures.HasField("compaction") else None,
        preaggregated=figures.preaggregated,
    )


def phases_of(record: pb.CheckpointMetadata, following: pb.CheckpointMetadata | None = None) -> dict[str, int]:
    """Return the duration of each phase, in order, without those that were not measured."""
    measured = dict(record.figures.phases_us)
    if following is not None and following.previous == record.epoch and following.run == record.run:
        measured.update(following.figures.previous_phases_us)
    known = {phase: measured.pop(phase) for phase in PHASES if phase in measured}
    return {**known, **dict(sorted(measured.items()))}


def _values(kind: type[T], message: Message, **overrides: object) -> T:
    """Copy the fields of a message to a dataclass with the same field names."""
    wanted = [field.name for field in fields(kind) if field.name not in overrides]  # type: ignore[arg-type]  # all are dataclasses
    return kind(**{name: getattr(message, name) for name in wanted}, **overrides)


def _most_first(holders: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(holders.items(), key=lambda held: (-held[1], held[0])))
