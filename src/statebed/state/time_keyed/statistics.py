"""Statistics of a time-keyed table, from data that is in memory anyway."""

from collections import Counter

from statebed.state.metrics import TableStatistics
from statebed.state.tiers.tier import Tier
from statebed.state.time_keyed.compaction import all_due_files
from statebed.state.time_keyed.files import full_bytes
from statebed.state.time_keyed.table_state import TimeKeyedState


def statistics_of(state: TimeKeyedState, *, late_rows: int) -> TableStatistics:
    """Return the statistics that are known without I/O."""
    live = state.live
    segments = state.segments()
    held: Counter[Tier] = Counter()
    for segment in segments:
        held.update(segment.bytes_by_tier())
    return TableStatistics(
        rows=sum(file.rows for file in live.files) + state.buffer.rows + state.taken_rows,
        memory_bytes=held[Tier.MEMORY] + state.loose_bytes,
        disk_bytes=held[Tier.DISK],
        store_bytes=sum(file.size for file in live.files),
        files=dict(Counter(file.level for file in live.files)),
        tombstones=len(live.tombstones),
        spills=state.gone.spills + sum(segment.uses.spills for segment in segments),
        loads=state.gone.loads + sum(segment.uses.loads for segment in segments),
        hits=state.gone.hits + sum(segment.uses.hits for segment in segments),
        compaction_debt_bytes=sum(
            file.size for file in all_due_files(live, bin_us=state.table.bin_us, full_bytes=full_bytes(state.tiers))
        ),
        late_rows=late_rows,
        prefetches=state.gone.prefetches + sum(segment.uses.prefetches for segment in segments),
        prefetch_hits=state.gone.prefetch_hits + sum(segment.uses.prefetch_hits for segment in segments),
        encoded_rows=state.encoded_rows,
        reused_bytes=state.reused_bytes,
    )
