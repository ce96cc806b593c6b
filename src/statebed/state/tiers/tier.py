"""Tiers of segments, counters of their use, and the bounds of their rows."""

import enum
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import int64_values, uint64_values
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.schema import KEY_HASH, SEQUENCE, TIME
from statebed.format.segment import SegmentSpec


class Tier(enum.Enum):
    """Place where a segment can be, nearest first."""

    MEMORY = "memory"
    DISK = "local disk"
    STORE = "object store"


@dataclass
class UseCounts:
    """Number of moves and reads of a segment. Counted without a lock, so a race may lose one."""

    spills: int = 0
    """Moves from memory to local disk."""
    loads: int = 0
    """Reads from local disk or the store."""
    hits: int = 0
    """Reads from memory."""
    prefetches: int = 0
    """Loads into memory by a prefetch."""
    prefetch_hits: int = 0
    """Prefetched segments that were read from memory before they were evicted."""

    def count(self, *, in_memory: bool) -> None:
        """Count a read."""
        if in_memory:
            self.hits += 1
        else:
            self.loads += 1

    def add(self, other: "UseCounts") -> None:
        """Add the counts of another segment."""
        self.spills += other.spills
        self.loads += other.loads
        self.hits += other.hits
        self.prefetches += other.prefetches
        self.prefetch_hits += other.prefetch_hits


def spanned(rows: pa.Table, spec: SegmentSpec) -> pb.FileEntry:
    """Return the bounds of rows (at least one) in the form of a file entry."""
    hashes, sequences = uint64_values(rows[KEY_HASH]), uint64_values(rows[SEQUENCE])
    times = int64_values(rows[TIME].drop_null()) if TIME in rows.column_names else np.empty(0, dtype=np.int64)
    return pb.FileEntry(
        rows=rows.num_rows,
        owned=WHOLE_SPACE,
        min_key_hash=int(hashes.min()),
        max_key_hash=int(hashes.max()),
        min_time_us=int(times.min()) if len(times) else None,
        max_time_us=int(times.max()) if len(times) else None,
        min_sequence=int(sequences.min()),
        max_sequence=int(sequences.max()),
        schema_id=spec.schema_id,
        sort_order=spec.sort_order,
    )
