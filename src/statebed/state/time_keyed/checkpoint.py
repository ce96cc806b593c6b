"""A checkpoint of a time-keyed table: what was appended becomes files.

A single segment becomes the file of the epoch: as it is, if it was spilled already. Several are merged, and cut into
files of the size that files get; so an epoch adds at most one file for each such size. Rows that are hidden by now are
left out. What is in the files is a function of the rows alone: neither what was spilled nor the order inside a batch
shows.

Where there are too many files or tombstones, the checkpoint merges some itself, of bounded bytes: the rest is left to
the next ones. Only tombstones that take much of the memory budget go at once.

The operator's thread takes (`TimeKeyedState.take`): it seals what is loose, at most a segment. Another thread writes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.state.compaction import ALL_BYTES, Edit, NameOf, distinct
from statebed.state.live import tombstones
from statebed.state.live.files import LiveFiles
from statebed.state.tiers.segments import Segment
from statebed.state.time_keyed.compaction import files_for_checkpoint, tombstone_bytes_of
from statebed.state.time_keyed.files import file_bytes, full_bytes
from statebed.state.time_keyed.state import TakenRows, TimeKeyedState
from statebed.state.upload import Upload

Written = tuple[LiveFiles, dict[str, Upload]]
"""Live files, and uploads of new ones by path."""

HARD_TOMBSTONES_IN_BUDGET = 4
"""Tombstones cannot leave memory: where they take more than this part of the budget, rather more bytes are merged."""


def written(
    state: TimeKeyedState,
    taken: TakenRows,
    name_of: NameOf,
    *,
    most_files: int,
    most_bytes: int | None = None,
    announce: Callable[[Upload], None] | None = None,
) -> tuple[LiveFiles, tuple[Upload, ...]]:
    """Make files of what a checkpoint took, apply its edits, and merge where there is too much.

    Gives the live files of the checkpoint, and what to upload. Files of about `most_bytes` are merged, and not of more
    than one file gets (None: of as many). `announce` gets each upload before its file can be read. One checkpoint is
    written at a time, in the order in which they were taken.
    """
    base = state.base_of(taken)
    name_of = distinct(name_of, (file.path for file in base.files))
    live, uploads = _with_edits(state, taken, base, name_of)
    live, appended = _with_appended(state, taken, live, name_of)
    uploads |= appended
    choose = partial(
        files_for_checkpoint,
        most_files=most_files,
        full_bytes=full_bytes(state.tiers),
        most_bytes=_bytes_to_merge(state, live, most_bytes),
        tombstone_bytes=tombstone_bytes_of(state.tiers),
    )
    job = state.job(choose, live)
    if job is not None:
        live, merged = _edited(state, live, job.run(), name_of)
        uploads |= merged
    named = {file.path for file in live.files}
    for path, upload in uploads.items():
        if path not in named:
            upload.on_stored()  # it was merged again: nobody reads it, and its segment may go
    stored = tuple(upload for path, upload in uploads.items() if path in named)
    if announce is not None:
        for upload in stored:
            announce(upload)
    state.publish(taken, live)
    return live, stored


def metadata_of(live: LiveFiles, *, subtask_index: int) -> pb.TableSubtaskCheckpointMetadata:
    """The part of a checkpoint that says what is live."""
    return pb.TableSubtaskCheckpointMetadata(
        subtask_index=subtask_index,
        owned=live.owned,
        next_sequence=live.next_sequence,
        files=live.files,
        tombstones=live.tombstones,
        schemas=live.schemas,
        bytes=sum({file.path: file.size for file in live.files}.values()),
        rows=sum({file.path: file.rows for file in live.files}.values()),
    )


def _bytes_to_merge(state: TimeKeyedState, live: LiveFiles, most_bytes: int | None) -> int:
    if tombstones.held_bytes(live.tombstones) > state.tiers.memory.budget // HARD_TOMBSTONES_IN_BUDGET:
        return ALL_BYTES
    return min(file_bytes(state.tiers), ALL_BYTES if most_bytes is None else most_bytes)


def _with_edits(state: TimeKeyedState, taken: TakenRows, live: LiveFiles, name_of: NameOf) -> Written:
    """Apply edits all of whose inputs are live as they were; discard the rest."""
    uploads: dict[str, Upload] = {}
    fresh = [segment.entry for segment in taken.segments]
    for edit in taken.edits:
        if edit.applies_to(live.files):
            live, made = _edited(state, live, edit, name_of, fresh=fresh)
            uploads |= made
            state.edits_applied += 1
        else:
            edit.discard()
            state.edits_discarded += 1
    return live, uploads


def _edited(
    state: TimeKeyedState, live: LiveFiles, edit: Edit, name_of: NameOf, *, fresh: Sequence[pb.FileEntry] = ()
) -> Written:
    """The outputs of an edit in the place of its inputs."""
    made = [state.staged_file(file, name_of) for file in edit.outputs]
    files = edit.applied_to(live.files, [entry for entry, _ in made])
    live = replace(live, files=files, schemas=state.schemas if made else live.schemas)
    return live.without_idle_tombstones(fresh=fresh), {upload.path: upload for _, upload in made}


def _with_appended(state: TimeKeyedState, taken: TakenRows, live: LiveFiles, name_of: NameOf) -> Written:
    if not taken.segments:
        return live.without_idle_tombstones(), {}
    made = _files_of(state, taken.segments, live)
    applied = live.next_sequence - 1
    staged = [state.staged(segment, name_of, applied_sequence=applied) for segment in made]
    taken.kept = frozenset(id(segment) for segment in made)
    files = (*live.files, *(entry for entry, _ in staged))
    live = replace(live, files=files, schemas=state.schemas, next_sequence=live.next_sequence + 1)
    return live.without_idle_tombstones(), {upload.path: upload for _, upload in staged}


def _files_of(state: TimeKeyedState, segments: Sequence[Segment], live: LiveFiles) -> list[Segment]:
    """The segments whose files the checkpoint adds."""
    if len(segments) == 1 and _is_settled(state, segments[0].entry, live):
        return [segments[0]]
    snapshot = state.snapshot(lambda _: (), fresh=segments, live=live)
    if sum(segment.nbytes for segment in segments) > state.tiers.memory.segment_bytes:
        files = state.new_files(snapshot).write(snapshot.in_order())
        return [state.tiers.on_disk(file, spec=state.spec, owner=state.owner) for file in files]
    rows = pa.concat_tables([state.empty, *snapshot.in_order()]).combine_chunks()
    if not rows.num_rows:
        return []
    return [Segment.in_memory(state.tiers, rows, spec=state.spec, owner=state.owner)]


def _is_settled(state: TimeKeyedState, entry: pb.FileEntry, live: LiveFiles) -> bool:
    """Whether all rows of a segment are visible, each the newest of its generation, and none is to be combined."""
    if state.combines:
        return False
    if any(tombstones.may_hide(one, entry) for one in live.tombstones):
        return False
    return not state.generational or entry.min_sequence == entry.max_sequence
