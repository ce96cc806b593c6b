"""Compaction of a time-keyed table: which files to compact, decided on entries alone, and the compaction itself.

Files of one time bucket are compacted together; a file with rows of several buckets is split among them. Small files
are compacted with files that are not much larger, so that a row is rewritten only a few times in its life. With many
tombstones, the files with hidden rows become due: a compaction leaves hidden rows out, and the tombstones retire. The
files that the oldest tombstones wait for come first. Each file gets its turn this way, and a tombstone is gone once all
files have been compacted once, however few bytes are compacted at a time.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from statebed.format import checkpoint_pb2 as pb
from statebed.state.compaction import Edit
from statebed.state.live import tombstones
from statebed.state.live.files import LiveFiles
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.time_keyed.files import MAX_BUCKETS, NewFiles, bucket_width, is_full
from statebed.state.time_keyed.snapshot import Snapshot

MERGED_AT_ONCE = 4
"""Number of files of similar size in one bucket that makes them due."""
MUCH_LARGER = 2
"""A file larger than this many times all smaller ones together is not compacted with them."""
MAX_TOMBSTONES = 64
TOMBSTONES_IN_BUDGET = 16
MAX_TOMBSTONE_BYTES = 1 << 20
"""Size of tombstones above which the files with hidden rows become due."""
FAR_TOO_MANY = 4
"""At this many times the limit on tombstones, the checkpoint itself compacts."""
FEWER_AFTER = MAX_BUCKETS + 2
"""Number of small files whose compaction certainly leaves fewer: at most one for each bucket."""


@dataclass(frozen=True)
class TimeKeyedJob:
    """A planned compaction. Reads what its snapshot pins, on any thread."""

    snapshot: Snapshot
    new_files: NewFiles
    input_bytes: int

    def run(self) -> Edit:
        inputs = tuple(file for file, _ in self.snapshot.files)
        return Edit(inputs=inputs, outputs=self.new_files.write(self.snapshot.in_order()))


def due_files(
    live: LiveFiles,
    *,
    bin_us: int,
    full_bytes: int,
    max_bytes: int,
    alone: bool = True,
    tombstone_bytes: int = MAX_TOMBSTONE_BYTES,
) -> tuple[pb.FileEntry, ...]:
    """Return the files to compact next, of at most `max_bytes` together; empty if nothing is due.

    `alone`: return at least the smallest possible compaction, even if it exceeds `max_bytes`.
    """
    if too_many_tombstones(live.tombstones, tombstone_bytes):
        return _within(hidden_in(live), max_bytes, min_files=1 if alone else 0)
    groups = [smallest_files(files) for files in by_bucket(live.files, bin_us=bin_us, full_bytes=full_bytes).values()]
    due = [group for group in groups if len(group) >= MERGED_AT_ONCE]
    if not due:
        return ()
    chosen = _within(max(due, key=len), max_bytes, min_files=2 if alone else 0)
    return chosen if len(chosen) > 1 else ()


def all_due_files(
    live: LiveFiles, *, bin_us: int, full_bytes: int, schema_id: int | None = None
) -> tuple[pb.FileEntry, ...]:
    """Return all files that a compaction could improve; with `schema_id`, also those with another schema."""
    width = bucket_width(live.files, bin_us=bin_us)
    alone = {bucket: files[0].path for bucket, files in _grouped(live.files, width).items() if len(files) == 1}
    hidden = {file.path for file in hidden_in(live)}
    done = {
        file.path
        for file in live.files
        if file.path not in hidden
        and schema_id in {None, file.schema_id}
        and (
            is_full(file, full_bytes)
            or (_bucket(file, width) is not None and alone.get(_bucket(file, width)) == file.path)
        )
    }
    return tuple(file for file in live.files if file.path not in done)


def files_for_checkpoint(
    live: LiveFiles,
    *,
    max_files: int,
    full_bytes: int,
    max_bytes: int,
    left_alone: Container[str] = (),
    tombstone_bytes: int = MAX_TOMBSTONE_BYTES,
) -> tuple[pb.FileEntry, ...]:
    """Return the files that a checkpoint compacts itself: surplus files, and files with rows hidden by too many
    tombstones.

    They have about `max_bytes` together, but are always enough to reduce the number of files or, without a surplus, at
    least one file, however large. Files in `left_alone`, the complete groups that this checkpoint adds, do not count as
    surplus.
    """
    older = replace(live, files=tuple(file for file in live.files if file.path not in left_alone))
    surplus = surplus_files(older, max_files=max_files, full_bytes=full_bytes)
    surplus = _within(surplus, max_bytes, min_files=FEWER_AFTER)
    if not too_many_tombstones(live.tombstones, tombstone_bytes, times=FAR_TOO_MANY):
        return surplus
    others = [file for file in hidden_in(live) if file not in surplus]
    left = max_bytes - sum(file.size for file in surplus)
    return (*surplus, *_within(others, left, min_files=0 if surplus else 1))


def surplus_files(live: LiveFiles, *, max_files: int, full_bytes: int) -> tuple[pb.FileEntry, ...]:
    """Return the smallest files if there are too many small ones; they must be compacted before more are added."""
    small = sorted(
        (file for file in live.files if not is_full(file, full_bytes)), key=lambda file: (file.size, file.path)
    )
    surplus = len(small) - max_files
    return tuple(small[: surplus + max(max_files // 2, 1)]) if surplus > 0 else ()


def tombstone_bytes_of(tiers: Tiers) -> int:
    """Return the limit on the memory of tombstones, which cannot be evicted."""
    return min(MAX_TOMBSTONE_BYTES, tiers.memory.budget // TOMBSTONES_IN_BUDGET)


def too_many_tombstones(deletions: Sequence[pb.Tombstone], max_bytes: int, *, times: int = 1) -> bool:
    """Return whether the number or size of tombstones exceeds `times` its limit."""
    return len(deletions) > times * MAX_TOMBSTONES or tombstones.held_bytes(deletions) > times * max_bytes


def hidden_in(live: LiveFiles) -> list[pb.FileEntry]:
    """Return the files that tombstones may hide rows of, the longest waiting first."""
    by_age = sorted(live.tombstones, key=lambda tombstone: tombstone.sequence)
    waiting = [
        (oldest, file)
        for file in live.files
        if (oldest := next((marker.sequence for marker in by_age if tombstones.may_hide(marker, file)), None))
        is not None
    ]
    return [file for _, file in sorted(waiting, key=lambda entry: (entry[0], entry[1].size, entry[1].path))]


def by_bucket(files: Iterable[pb.FileEntry], *, bin_us: int, full_bytes: int) -> dict[int | None, list[pb.FileEntry]]:
    """Return the files that are not full, by bucket; files that span several buckets are under None."""
    files = tuple(files)
    return _grouped((file for file in files if not is_full(file, full_bytes)), bucket_width(files, bin_us=bin_us))


def smallest_files(files: Iterable[pb.FileEntry]) -> list[pb.FileEntry]:
    """Return the smallest files, up to the first that is much larger than all of them together."""
    chosen: list[pb.FileEntry] = []
    total = 0
    for file in sorted(files, key=lambda entry: (entry.size, entry.path)):
        if chosen and file.size > MUCH_LARGER * total:
            break
        chosen.append(file)
        total += file.size
    return chosen


def job_of(snapshot: Snapshot, new_files: NewFiles, *, bin_us: int) -> TimeKeyedJob:
    """Return the compaction of the snapshot's files."""
    inputs = [file for file, _ in snapshot.files]
    placed = replace(
        new_files,
        level=1 + max(file.level for file in inputs),
        bucket_us=bucket_width(snapshot.live.files, bin_us=bin_us),
    )
    return TimeKeyedJob(snapshot, placed, sum(file.size for file in inputs))


def _grouped(files: Iterable[pb.FileEntry], width: int) -> dict[int | None, list[pb.FileEntry]]:
    groups: dict[int | None, list[pb.FileEntry]] = defaultdict(list)
    for file in files:
        groups[_bucket(file, width)].append(file)
    return groups


def _bucket(file: pb.FileEntry, width: int) -> int | None:
    first, last = file.min_time_us // width, file.max_time_us // width
    return first if first == last else None


def _within(files: Sequence[pb.FileEntry], max_bytes: int, *, min_files: int) -> tuple[pb.FileEntry, ...]:
    chosen: list[pb.FileEntry] = []
    total = 0
    for file in files:
        total += file.size
        if total > max_bytes and len(chosen) >= min_files:
            break
        chosen.append(file)
    return tuple(chosen)
