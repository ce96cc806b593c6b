"""Metrics of a manager and its tables: plain numbers, read at one moment, without threads or a registry."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from statebed.state.memory.controller import MemorySnapshot


@dataclass(frozen=True)
class TableStatistics:
    """Statistics of a table. Counts of events start when the view is made."""

    rows: int
    """Rows in live files, counted once per file that holds them, plus rows that are not in files yet."""
    memory_bytes: int
    disk_bytes: int
    """Size of local files: spilled, cached, or waiting to be uploaded."""
    store_bytes: int
    """Size of live data files."""
    files: Mapping[int, int] = field(default_factory=dict)
    """Number of live data files by level."""
    tombstones: int = 0
    spills: int = 0
    """Moves from memory to local disk."""
    loads: int = 0
    """Reads from local disk or the store, because the data was not in memory."""
    hits: int = 0
    """Reads answered from memory."""
    compaction_debt_bytes: int = 0
    """Size of the files that a compaction of everything would read."""
    expired_rows: int = 0
    late_rows: int = 0
    edits_applied: int = 0
    """Compactions whose outputs replaced their inputs."""
    edits_discarded: int = 0
    """Compactions discarded because an input was no longer live."""
    prefetches: int = 0
    """Loads in the background, before the rows were read."""
    prefetch_hits: int = 0
    """Prefetched segments that a later read found in memory."""
    encoded_rows: int = 0
    """Appended rows that checkpoints encoded."""
    reused_bytes: int = 0
    """Bytes of spilled files that checkpoints uploaded unchanged as data files."""


@dataclass(frozen=True)
class CheckpointSpans:
    """Duration of each phase of one checkpoint, in seconds."""

    epoch: int
    take: float
    """Deciding and copying what changed, on the operator's thread."""
    encode: float
    """Handing over files, encoding them if necessary; includes waiting for slow uploads."""
    upload: float
    """Time until the last file was durable."""
    metadata: float
    """Writing the metadata and reading it back."""

    @property
    def total(self) -> float:
        return self.take + self.encode + self.upload + self.metadata


@dataclass(frozen=True)
class CompactionMetrics:
    """Compaction counts since the manager was made."""

    compactions: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    failures: int = 0


@dataclass(frozen=True)
class ManagerMetrics:
    """Metrics of one manager at one moment."""

    tables: Mapping[str, TableStatistics]
    memory: MemorySnapshot
    """Memory of the whole process, unless the manager has a separate budget."""
    checkpoints: tuple[CheckpointSpans, ...]
    """Most recent checkpoints, oldest first."""
    pending_checkpoints: int
    upload_bytes: int
    """Bytes of uploads in progress."""
    compaction: CompactionMetrics
