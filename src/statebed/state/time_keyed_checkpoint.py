"""A checkpoint of a time-keyed table: what was appended becomes files.

One segment becomes one file: as it is, if it was spilled already. Several are merged, as many as make one file of the
size that files get; so an epoch adds at most one file for each such size. Where rows are written anyway, those that
are hidden by now are left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.state.compaction import NameOf
from statebed.state.live_files import LiveFiles
from statebed.state.segments import Segment
from statebed.state.tier import Layout, Tier
from statebed.state.time_keyed_compaction import hidden_in, surplus_files, too_many_tombstones
from statebed.state.time_keyed_files import file_bytes, full_bytes
from statebed.state.time_keyed_state import TimeKeyedState
from statebed.state.upload import Upload

FAR_TOO_MANY = 4
"""With so many times the tombstones that make files due, the checkpoint itself merges."""


def written(state: TimeKeyedState, name_of: NameOf, *, most_files: int) -> tuple[Upload, ...]:
    """Make files of all that was appended, apply edits, and merge where there is too much; gives what to upload."""
    uploads = {upload.path: upload for upload in state.apply_edits(name_of)}
    uploads |= {upload.path: upload for upload in _appended(state, name_of)}

    def surplus(live: LiveFiles) -> list[pb.FileEntry]:
        files = surplus_files(live, most_files=most_files, full_bytes=full_bytes(state.tiers))
        hidden = hidden_in(live) if too_many_tombstones(live.tombstones, times=FAR_TOO_MANY) else []
        return [*(file for file in files if file not in hidden), *hidden]

    job = state.job(surplus)
    if job is not None:
        uploads |= {upload.path: upload for upload in state.apply_edit(job.run(), name_of)}
    named = {file.path for file in state.live.files}
    for path, upload in uploads.items():
        if path not in named:
            upload.on_stored()  # it was merged again: nobody reads it, and its segment may go
    return tuple(upload for path, upload in uploads.items() if path in named)


def _appended(state: TimeKeyedState, name_of: NameOf) -> Iterator[Upload]:
    state.buffer.seal()
    segments = state.buffer.segments
    if not segments:
        return
    made: list[tuple[Segment, int]] = []
    for bunch in _bunches(segments, file_bytes(state.tiers)):
        made += _files_of(state, bunch)
    kept = {id(segment) for segment, _ in made}
    staged = [state.staged(segment, name_of, applied_sequence=applied) for segment, applied in made]
    state.buffer.release(segments)
    for segment in segments:
        if id(segment) not in kept:
            segment.close()
    live = state.with_files(entry for entry, _ in staged)
    # What comes after the checkpoint is newer than what it holds.
    state.install(replace(live, next_sequence=live.next_sequence + 1).without_idle_tombstones())
    yield from (upload for _, upload in staged)


def _bunches(segments: Sequence[Segment], limit: int) -> Iterator[list[Segment]]:
    """Segments in the order in which they came, as many as make one file."""
    bunch: list[Segment] = []
    for segment in segments:
        if bunch and sum(one.nbytes for one in bunch) + segment.nbytes > limit:
            yield bunch
            bunch = []
        bunch.append(segment)
    yield bunch


def _files_of(state: TimeKeyedState, bunch: list[Segment]) -> list[tuple[Segment, int]]:
    """The segments whose files the checkpoint adds, each with the sequence up to which tombstones were applied."""
    snapshot = state.snapshot(lambda _: (), fresh=bunch)
    applied = snapshot.live.next_sequence - 1
    in_memory = all(segment.tier is Tier.MEMORY for segment in bunch)
    if len(bunch) == 1 and not in_memory:
        return [(bunch[0], 0)]
    if in_memory and sum(segment.nbytes for segment in bunch) <= state.tiers.memory.segment_bytes:
        rows = pa.concat_tables([state.empty, *snapshot.in_order()])
        if len(bunch) == 1 and rows.num_rows == bunch[0].rows:
            return [(bunch[0], applied)]
        if not rows.num_rows:
            return []
        whole = rows.combine_chunks()
        segment = Segment.in_memory(state.tiers, whole, spec=state.spec, owner=state.owner, layout=Layout.PARQUET)
        return [(segment, applied)]
    files = state.new_files(snapshot).write(snapshot.in_order())
    return [(state.tiers.on_disk(file, spec=state.spec, owner=state.owner), applied) for file in files]
