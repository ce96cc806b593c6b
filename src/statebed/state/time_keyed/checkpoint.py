"""Checkpoints of a time-keyed table: groups of appended rows become data files.

Each group becomes one file. A group that is one run with only visible rows becomes a file as it is: if it was spilled,
its file is uploaded without being read. The rows of any other group are merged, without hidden rows, and encoded. The
contents of the files depend on the rows alone, not on what was spilled nor on the order inside a batch.

If there are too many files or tombstones, the checkpoint compacts some of them itself, within a limit on bytes; the
rest is left to later checkpoints. It does not compact its own full groups. Only tombstones that take much of the memory
budget are removed immediately.

The operator's thread hands the groups over (`TimeKeyedState.take`) without sorting or copying a row. Another thread
sorts and writes them.
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
from statebed.state.time_keyed.row_group import RowGroup
from statebed.state.time_keyed.table_state import TakenRows, TimeKeyedState
from statebed.state.upload import Upload

WrittenValues = tuple[LiveFiles, dict[str, Upload]]
"""Live files, and the uploads of new ones by path."""

HARD_TOMBSTONES_IN_BUDGET = 4
"""Tombstones cannot be evicted: if they take more than this part of the budget, more bytes are compacted."""


def written(
    state: TimeKeyedState,
    taken: TakenRows,
    name_of: NameOf,
    *,
    max_files: int,
    max_bytes: int | None = None,
    announce: Callable[[Upload], None] | None = None,
) -> tuple[LiveFiles, tuple[Upload, ...]]:
    """Write the files of a checkpoint, apply its edits, and compact if there are too many files or tombstones.

    Returns the live files of the checkpoint and the uploads. At most about `max_bytes` are compacted, and never more
    than the size of one file (None: that size). `announce` is called with each upload before its file can be read.
    Checkpoints are written one at a time, in the order in which they were taken.
    """
    base = state.base_of(taken)
    name_of = distinct(name_of, (file.path for file in base.files))
    live, uploads = _with_edits(state, taken, base, name_of)
    live, appended = _with_appended(state, taken, live, name_of)
    uploads |= appended
    # The last group is rarely complete.
    whole = frozenset(list(appended)[:-1])
    choose = partial(
        files_for_checkpoint,
        max_files=max_files,
        full_bytes=full_bytes(state.tiers),
        left_alone=whole,
        max_bytes=_bytes_to_compact(state, live, max_bytes),
        tombstone_bytes=tombstone_bytes_of(state.tiers),
    )
    job = state.job(choose, live)
    if job is not None:
        live, merged = _edited(state, live, job.run(), name_of)
        uploads |= merged
    named = {file.path for file in live.files}
    for path, upload in uploads.items():
        if path not in named:
            upload.on_stored()  # compacted again: no one reads it, and its segment may be closed
    stored = tuple(upload for path, upload in uploads.items() if path in named)
    if announce is not None:
        for upload in stored:
            announce(upload)
    state.publish(taken, live)
    return live, stored


def metadata_of(live: LiveFiles, *, subtask_index: int) -> pb.TableSubtaskCheckpointMetadata:
    """Return the part of a checkpoint's metadata that lists what is live."""
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


def _bytes_to_compact(state: TimeKeyedState, live: LiveFiles, max_bytes: int | None) -> int:
    if tombstones.held_bytes(live.tombstones) > state.tiers.memory.budget // HARD_TOMBSTONES_IN_BUDGET:
        return ALL_BYTES
    return min(file_bytes(state.tiers), ALL_BYTES if max_bytes is None else max_bytes)


def _with_edits(state: TimeKeyedState, taken: TakenRows, live: LiveFiles, name_of: NameOf) -> WrittenValues:
    """Apply edits whose inputs are all live as they were; discard the rest."""
    uploads: dict[str, Upload] = {}
    fresh = taken.spans()
    for edit in taken.edits:
        if edit.applies_to(live.files):
            live, of_edit = _edited(state, live, edit, name_of, fresh=fresh)
            uploads |= of_edit
            state.edits_applied += 1
        else:
            edit.discard()
            state.edits_discarded += 1
    return live, uploads


def _edited(
    state: TimeKeyedState, live: LiveFiles, edit: Edit, name_of: NameOf, *, fresh: Sequence[pb.FileEntry] = ()
) -> WrittenValues:
    """Replace the inputs of an edit by its outputs."""
    staged = [state.staged_file(file, name_of) for file in edit.outputs]
    files = edit.applied_to(live.files, [entry for entry, _ in staged])
    live = replace(live, files=files, schemas=state.schemas if staged else live.schemas)
    return live.without_idle_tombstones(fresh=fresh), {upload.path: upload for _, upload in staged}


def _with_appended(state: TimeKeyedState, taken: TakenRows, live: LiveFiles, name_of: NameOf) -> WrittenValues:
    if not taken.groups:
        return live.without_idle_tombstones(), {}
    applied = live.next_sequence - 1
    kept: list[Segment] = []
    staged: list[tuple[pb.FileEntry, Upload]] = []
    for group in taken.groups:
        segment = _file_of(state, group, live)
        if segment is not None:
            kept.append(segment)
            entry, upload = state.staged(segment, name_of, applied_sequence=applied)
            staged.append((entry, upload))
            if segment in group.runs and not upload.resident:
                state.reused_bytes += upload.size
            else:
                state.encoded_rows += segment.rows
    taken.kept = frozenset(id(segment) for segment in kept)
    files = (*live.files, *(entry for entry, _ in staged))
    live = replace(live, files=files, schemas=state.schemas, next_sequence=live.next_sequence + 1)
    return live.without_idle_tombstones(), {upload.path: upload for _, upload in staged}


def _file_of(state: TimeKeyedState, group: RowGroup, live: LiveFiles) -> Segment | None:
    """Return the segment whose file the checkpoint adds for a group, or None if none of its rows is visible."""
    group.seal()
    runs, _ = group.pinned()
    try:
        if len(runs) == 1 and _is_settled(state, group, live):
            return runs[0]
        snapshot = state.snapshot(lambda _: (), fresh=runs, live=live)
    finally:
        for run in runs:
            run.unpin()
    if sum(run.nbytes for run in runs) > state.tiers.memory.segment_bytes:
        files = replace(state.new_files(snapshot), cut=False).write(snapshot.in_order())
        return state.tiers.on_disk(files[0], spec=state.spec, owner=state.owner) if files else None
    rows = pa.concat_tables([state.empty, *snapshot.in_order()]).combine_chunks()
    return Segment.in_memory(state.tiers, rows, spec=state.spec, owner=state.owner) if rows.num_rows else None


def _is_settled(state: TimeKeyedState, group: RowGroup, live: LiveFiles) -> bool:
    """Return whether all rows of a sorted group are visible, and none must be replaced or combined."""
    if any(tombstones.may_hide(tombstone, entry) for tombstone in live.tombstones for entry in group.spans()):
        return False
    return not ((state.combines or state.generational) and group.repeats)
