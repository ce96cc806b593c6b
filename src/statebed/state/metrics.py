"""What a manager and its tables count: plain numbers, read at one moment, without threads or a registry."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from statebed.state.memory.controller import MemorySnapshot


@dataclass(frozen=True)
class TableStatistics:
    """What a view counts of its table. Counts of events are since the view was made."""

    rows: int
    """In live files, each row as often as files hold it, and not yet in files."""
    memory_bytes: int
    disk_bytes: int
    """In local files: spilled, cached, or waiting to be uploaded."""
    store_bytes: int
    """Of live data files."""
    files: Mapping[int, int] = field(default_factory=dict)
    """How many live data files each level has."""
    tombstones: int = 0
    spills: int = 0
    """Moves from memory to local disk."""
    loads: int = 0
    """Reads from local disk or the store, because what was wanted was not in memory."""
    hits: int = 0
    """Reads that memory could answer."""
    compaction_debt_bytes: int = 0
    """Of the files that a compaction of everything would read."""
    expired_rows: int = 0
    late_rows: int = 0
    edits_applied: int = 0
    """Merges whose results took the place of their inputs."""
    edits_discarded: int = 0
    """Merges whose inputs had left by then."""
    prefetches: int = 0
    """Loads in the background, before the rows were wanted."""
    prefetch_hits: int = 0
    """Prefetched segments that a read then found in memory."""
    encoded_rows: int = 0
    """Appended rows that checkpoints encoded."""
    reused_bytes: int = 0
    """Bytes of spilled files that became data files of checkpoints as they were."""


@dataclass(frozen=True)
class CheckpointSpans:
    """Where the time of one checkpoint went, in seconds."""

    epoch: int
    take: float
    """On the operator's thread: deciding and copying what changed."""
    encode: float
    """Handing files over, encoded where they were not yet; waits for uploads that are behind are part of it."""
    upload: float
    """Until the last file was durable."""
    metadata: float
    """Writing the metadata and reading it back."""

    @property
    def total(self) -> float:
        return self.take + self.encode + self.upload + self.metadata


@dataclass(frozen=True)
class CompactionMetrics:
    """What compaction did since the manager was made."""

    merges: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    failures: int = 0


@dataclass(frozen=True)
class ManagerMetrics:
    """All of one manager, at one moment."""

    tables: Mapping[str, TableStatistics]
    memory: MemorySnapshot
    """Of the whole process, unless the manager has a budget of its own."""
    checkpoints: tuple[CheckpointSpans, ...]
    """The last ones, oldest first."""
    pending_checkpoints: int
    upload_bytes: int
    """On their way to the store."""
    compaction: CompactionMetrics
