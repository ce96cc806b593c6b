"""Counts of a time-keyed table, taken from what is in memory anyway."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from statebed.state import tombstones
from statebed.state.segments import Tier
from statebed.state.time_keyed_compaction import due_files
from statebed.state.time_keyed_files import file_bytes
from statebed.state.time_keyed_state import TimeKeyedState


@dataclass(frozen=True)
class TimeKeyedStatistics:
    """What a table holds and has done since its view was made."""

    rows: int
    """In files and appended, hidden ones too."""
    appended_rows: int
    """In no file yet."""
    bytes_by_tier: Mapping[Tier, int]
    """By the nearest tier that has them: in memory as held there, else as files."""
    files_per_level: Mapping[int, int]
    tombstones: int
    tombstone_bytes: int
    spills: int
    loads: int
    late_rows: int
    compaction_debt: int
    """Bytes of files whose merge is due."""
    edits_applied: int
    edits_discarded: int


def statistics_of(state: TimeKeyedState, *, late_rows: int) -> TimeKeyedStatistics:
    """No I/O."""
    live = state.live
    known = {id(segment): segment for segment in state.segments()}
    by_tier: Counter[Tier] = Counter({Tier.MEMORY: state.buffer.loose_bytes})
    for segment in known.values():
        by_tier[segment.tier] += segment.nbytes
    for file in live.files:
        if not state.knows(file):
            by_tier[Tier.STORE] += file.size
    due = due_files(live, bin_us=state.table.bin_us, full_bytes=file_bytes(state.tiers) // 2, most_bytes=1 << 62)
    return TimeKeyedStatistics(
        rows=sum(file.rows for file in live.files) + state.buffer.rows,
        appended_rows=state.buffer.rows,
        bytes_by_tier=dict(by_tier),
        files_per_level=dict(Counter(file.level for file in live.files)),
        tombstones=len(live.tombstones),
        tombstone_bytes=tombstones.held_bytes(live.tombstones),
        spills=state.gone_spills + sum(segment.spills for segment in known.values()),
        loads=state.gone_loads + sum(segment.loads for segment in known.values()),
        late_rows=late_rows,
        compaction_debt=sum(file.size for file in due),
        edits_applied=state.edits_applied,
        edits_discarded=state.edits_discarded,
    )
