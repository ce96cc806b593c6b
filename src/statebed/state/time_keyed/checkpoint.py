"""A checkpoint of a time-keyed table: what was appended becomes files.

A single segment becomes the file of the epoch: as it is, if it was spilled already. Several are merged, and cut into
files of the size that files get; so an epoch adds at most one file for each such size. Rows that are hidden by now are
left out. What is in the files is a function of the rows alone: neither what was spilled nor the order inside a batch
shows.

Where there are too many files or tombstones, the checkpoint merges some itself, of bounded bytes: the rest is left to
the next ones. Only tombstones that take much of the memory budget go at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.state.compaction import ALL_BYTES, NameOf, distinct
from statebed.state.live import tombstones
from statebed.state.tiers.segments import Segment
from statebed.state.time_keyed.compaction import files_for_checkpoint, tombstone_bytes_of
from statebed.state.time_keyed.files import file_bytes, full_bytes
from statebed.state.time_keyed.state import TimeKeyedState
from statebed.state.upload import Upload

HARD_TOMBSTONES_IN_BUDGET = 4
"""Tombstones cannot leave memory: where they take more than this part of the budget, rather more bytes are merged."""


def written(
    state: TimeKeyedState, name_of: NameOf, *, most_files: int, most_bytes: int | None = None
) -> tuple[Upload, ...]:
    """Make files of all that was appended, apply edits, and merge where there is too much; gives what to upload.

    Files of about `most_bytes` are merged, and not of more than one file gets (None: of as many).
    """
    name_of = distinct(name_of, (file.path for file in state.live.files))
    uploads = {upload.path: upload for upload in state.apply_edits(name_of)}
    uploads |= {upload.path: upload for upload in _appended(state, name_of)}

    job = state.job(
        partial(
            files_for_checkpoint,
            most_files=most_files,
            full_bytes=full_bytes(state.tiers),
            most_bytes=_bytes_to_merge(state, most_bytes),
            tombstone_bytes=tombstone_bytes_of(state.tiers),
        )
    )
    if job is not None:
        uploads |= {upload.path: upload for upload in state.apply_edit(job.run(), name_of)}
    named = {file.path for file in state.live.files}
    for path, upload in uploads.items():
        if path not in named:
            upload.on_stored()  # it was merged again: nobody reads it, and its segment may go
    return tuple(upload for path, upload in uploads.items() if path in named)


def _bytes_to_merge(state: TimeKeyedState, most_bytes: int | None) -> int:
    if tombstones.held_bytes(state.live.tombstones) > state.tiers.memory.budget // HARD_TOMBSTONES_IN_BUDGET:
        return ALL_BYTES
    return min(file_bytes(state.tiers), ALL_BYTES if most_bytes is None else most_bytes)


def _appended(state: TimeKeyedState, name_of: NameOf) -> Iterator[Upload]:
    state.buffer.seal()
    segments = state.buffer.segments
    if not segments:
        return
    made = _files_of(state, segments)
    kept = {id(segment) for segment in made}
    applied = state.live.next_sequence - 1
    staged = [state.staged(segment, name_of, applied_sequence=applied) for segment in made]
    state.buffer.release(segments)
    for segment in segments:
        if id(segment) not in kept:
            segment.close()
    live = state.with_files(entry for entry, _ in staged)
    # What comes after the checkpoint is newer than what it holds.
    state.install(replace(live, next_sequence=live.next_sequence + 1).without_idle_tombstones())
    yield from (upload for _, upload in staged)


def _files_of(state: TimeKeyedState, segments: Sequence[Segment]) -> list[Segment]:
    """The segments whose files the checkpoint adds."""
    if len(segments) == 1 and _is_settled(state, segments[0].entry):
        return [segments[0]]
    snapshot = state.snapshot(lambda _: (), fresh=segments)
    if sum(segment.nbytes for segment in segments) > state.tiers.memory.segment_bytes:
        files = state.new_files(snapshot).write(snapshot.in_order())
        return [state.tiers.on_disk(file, spec=state.spec, owner=state.owner) for file in files]
    rows = pa.concat_tables([state.empty, *snapshot.in_order()]).combine_chunks()
    if not rows.num_rows:
        return []
    return [Segment.in_memory(state.tiers, rows, spec=state.spec, owner=state.owner)]


def _is_settled(state: TimeKeyedState, entry: pb.FileEntry) -> bool:
    """Whether all rows of a segment are visible, each the newest of its generation, and none is to be combined."""
    if state.combines:
        return False
    if any(tombstones.may_hide(one, entry) for one in state.live.tombstones):
        return False
    return not state.generational or entry.min_sequence == entry.max_sequence
