"""State of a time-keyed table: live files with their segments, appended rows, and tombstones. Used through its view.

One thread changes it. Other threads may take snapshots to compact files, and offer the resulting edits. A lock is held
while the live files and their segments are read or replaced together, never while making room or reading files.

A checkpoint is taken by that thread and written by another one, so there are two lists of live files: `live` is what
the operator sees, `durable` what the last written checkpoint names. Rows that were taken stay readable as segments
until the operator's thread absorbs the files made of them. Until then every deletion leaves a tombstone, which hides
its rows in files that are still being written.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from statebed.arrays.canonical_order import sort_indices
from statebed.arrays.columns import from_numpy, uint64_values
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import KEY_HASH, TIME, field_id, find_schema, register_schema, schema_from_bytes
from statebed.format.segment import SegmentSpec
from statebed.state.compaction import Edit, NameOf
from statebed.state.evolution.adaptation import SchemaHistory, adapt
from statebed.state.evolution.column_defaults import defaults_from_bytes
from statebed.state.host_cache import HostCache
from statebed.state.live import tombstones
from statebed.state.live.deletions import Deletions
from statebed.state.live.files import LiveFiles
from statebed.state.live.row_set import RowSet
from statebed.state.memory.controller import Purpose
from statebed.state.tiers.segments import Segment
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.spill_files import ParquetFile
from statebed.state.tiers.tier import Tier, UseCounts
from statebed.state.time_keyed.append_buffer import AppendBuffer
from statebed.state.time_keyed.cached_files import CachedFiles
from statebed.state.time_keyed.compaction import TimeKeyedJob, job_of
from statebed.state.time_keyed.files import NewFiles
from statebed.state.time_keyed.row_group import RowGroup
from statebed.state.time_keyed.row_merge import Combine, combined, newest
from statebed.state.time_keyed.snapshot import Settle, Snapshot, WantedRows, filtered
from statebed.state.time_keyed.table import TimeKeyedTable
from statebed.state.upload import Upload
from statebed.storage import ObjectStore

Choose = Callable[[LiveFiles], Iterable[pb.FileEntry]]
"""Chooses some of the live files."""

_NUMBER = "_number"


@dataclass(eq=False)
class TakenRows:
    """Rows and changes taken for one checkpoint; the thread that writes it fills in the results."""

    groups: tuple[RowGroup, ...]
    """Appended rows; the thread that writes the checkpoint sorts the loose ones."""
    live: LiveFiles
    """Files, tombstones and sequence at the time it was taken."""
    dropped: frozenset[str]
    """Files that were removed since the previous checkpoint."""
    edits: tuple[Edit, ...]
    kept: frozenset[int] = frozenset()
    """Ids of the segments that became files unchanged."""
    added: tuple[pb.FileEntry, ...] = ()
    removed: frozenset[str] = frozenset()
    done: bool = False

    def runs(self) -> list[Segment]:
        """Return the sorted runs of its rows."""
        return [run for group in self.groups for run in group.runs]

    def spans(self) -> list[pb.FileEntry]:
        """Return the spans of its rows."""
        return [entry for group in self.groups for entry in group.spans()]


class TimeKeyedState:
    """State of one table in the hash range that one subtask owns."""

    def __init__(
        self,
        config: pb.TableConfig,
        *,
        owned: pb.HashRange,
        store: ObjectStore,
        parts: Sequence[pb.TableSubtaskCheckpointMetadata],
        tiers: Tiers,
        owner: str,
        combine: Combine | None,
        cache: HostCache | None = None,
    ) -> None:
        kind = config.time_keyed
        columns = schema_from_bytes(kind.schema, where=f"table {config.name!r}")
        self.table = TimeKeyedTable(
            name=config.name,
            description=config.description,
            keys=tuple(columns.field(name) for name in kind.key_columns),
            values=tuple(field for field in columns if field.name not in kind.key_columns),
            bin_us=kind.bin_us,
        )
        self.keys = [key.name for key in self.table.keys]
        self.generational = kind.generational
        self.combines = combine is not None
        self._settle = _settling(self.keys, combine, generational=kind.generational)
        self.tiers = tiers
        self.owner = owner
        self.lost = False
        """Whether it was closed with rows that no checkpoint has, so that reads must fail."""
        self.closed = False
        self.live = LiveFiles.restore(parts, owned=owned)
        self.durable = self.live
        """Files and tombstones of the last written checkpoint; used by the thread that writes checkpoints."""
        self._pending: tuple[TakenRows, ...] = ()
        """Checkpoints that were taken but not absorbed yet, oldest first."""
        self._dropped: set[str] = set()
        """Files removed since the last checkpoint was taken; the next one does not name them."""
        self._staged: set[str] = set()
        """Files of the checkpoint that is being written."""
        self._store = store
        self._images = (
            None if cache is None else CachedFiles(cache, store, owned=owned, memory=tiers.memory, owner=owner)
        )
        self._defaults = defaults_from_bytes(kind.defaults)
        schema_id, self._schemas = register_schema(self.live.schemas, self.table.file_schema)
        self.spec = self._spec(schema_id, self.table.file_schema)
        self._stored_specs = {schema_id: self.spec}
        self.plain_schema = pa.schema([field.remove_metadata() for field in self.table.file_schema])
        where = f"table {config.name!r}"
        SchemaHistory(self.live.schemas, self.table.file_schema, self._defaults, where=where).check()
        self.buffer = AppendBuffer(tiers, spec=self.spec, owner=owner)
        self._segments: dict[str, Segment] = {}
        self._indexed: tuple[tuple[pb.Tombstone, ...], Deletions] = ((), Deletions((), keys=self.keys))
        self._charged = tiers.memory.charge(owner, Purpose.TOMBSTONES, 0)
        self._charged.set(tombstones.held_bytes(self.live.tombstones))
        self._lock = threading.Lock()
        self._edit_lock = threading.Lock()
        self._leaving: list[Segment] = []
        self._edits: tuple[Edit, ...] = ()
        self.edits_applied = 0
        self.edits_discarded = 0
        self.encoded_rows = 0
        """Appended rows that checkpoints encoded."""
        self.reused_bytes = 0
        """Bytes of spilled files that checkpoints uploaded unchanged as data files."""
        self.gone = UseCounts()
        """Usage counts of segments that were closed."""

    # ---- files -----------------------------------------------------------------------------------------------

    def install(self, live: LiveFiles) -> None:
        """Switch to other live files and tombstones; close segments that are no longer part of a file."""
        nbytes = tombstones.held_bytes(live.tombstones)
        more = max(0, nbytes - self._charged.nbytes)
        # Make room first: if that fails, nothing has changed.
        with self.tiers.memory.reserve(self.owner, Purpose.TOMBSTONES, more):
            gone = self._replaced(live, nbytes)
        for segment in gone:
            self._retire(segment)

    def delete_range(self, start_us: int, end_us: int) -> None:
        """Delete a time range: files and runs inside are removed unread, a tombstone hides the rest."""

        def is_inside(entry: pb.FileEntry) -> bool:
            return bool(start_us <= entry.min_time_us and entry.max_time_us < end_us)

        # At most one tombstone of a few bytes is added: it is charged without making room, which is left to the next
        # caller that grows. No thread then waits while the buffer is still, and a call that frees memory does not fail
        # for lack of it.
        with self.buffer.still():
            fresh = [entry for entry in self.buffer.spans() if not is_inside(entry)]
            fresh += self._pending_spans(self._pending, self.live)
            live = self.live.delete_range(start_us, end_us, fresh=fresh)
            hiding = live.tombstones
            gone = self._replaced(live, tombstones.held_bytes(hiding))
            gone += self.buffer.remove_where(lambda span: is_inside(span) or tombstones.hide_all(hiding, span))
        for segment in gone:
            self._retire(segment)

    def segments(self) -> list[Segment]:
        """Return all known segments: of files that were read, and of appended rows."""
        with self._lock:
            pending = [run for taken in self._pending for run in taken.runs()]
            known = {id(segment): segment for segment in (*self._segments.values(), *pending, *self.buffer.segments)}
            return list(known.values())

    def segments_of(self, files: Iterable[pb.FileEntry]) -> list[Segment]:
        """Return the segments of live files; nothing is read."""
        with self._lock:
            return [self._segment_of(file) for file in files]

    def snapshot(
        self, choose: Choose, *, fresh: Sequence[Segment] | None = None, live: LiveFiles | None = None
    ) -> Snapshot:
        """Take a snapshot of chosen live files (of `live` if given), and of appended rows: `fresh`, or all. On any
        thread.
        """
        with self._lock:
            live = live or self.live
            pinned, loose = self._pinned_rows() if fresh is None else ((), ())
            snapshot = Snapshot(
                spec=self.spec,
                bin_us=self.table.bin_us,
                settle=self._settle,
                live=live,
                files=tuple((file, self._segment_of(file)) for file in choose(live)),
                fresh=pinned if fresh is None else tuple(fresh),
                loose=loose,
                deletions=self._deletions(live),
                adapt=self.adapt,
                tiers=self.tiers,
                owner=self.owner,
            )
            snapshot.pin()
        for segment in pinned:
            segment.unpin()
        return snapshot

    @property
    def empty(self) -> pa.Table:
        """Return an empty table with the columns of files."""
        return self.plain_schema.empty_table()

    def last_of_each(self, rows: pa.Table) -> pa.Table:
        """Return the last of a batch's rows with one key and time."""
        numbered = rows.append_column(_NUMBER, from_numpy(np.arange(rows.num_rows, dtype=np.int64), pa.int64()))
        order = sort_indices(numbered, (*self.spec.sort_columns, _NUMBER))
        kept = pa.concat_tables(newest([numbered.take(order).combine_chunks()], self.keys))
        return kept.drop_columns([_NUMBER])

    def newest_of(self, values: pa.Table) -> pa.Table:
        """Return keys and times of the newest generations that equal one of these rows (`_key_hash`, keys, values)."""
        hashes = np.unique(uint64_values(values[KEY_HASH]))
        wanted = RowSet(values, keys=self.keys)
        columns = [*self.keys, TIME]
        pieces = self.snapshot(lambda live: live.files).in_order(WantedRows(hashes=hashes))
        equal = (filtered(rows, wanted.contains(rows)).select(columns) for rows in pieces)
        return pa.concat_tables([self.empty.select(columns), *equal])

    def adapt(self, file: pb.FileEntry, rows: pa.Table) -> pa.Table:
        """Convert rows of a file to the current columns."""
        if file.schema_id == self.spec.schema_id:
            return rows
        adapted = adapt(rows, self._spec_of(file).schema, self.table.file_schema, self._defaults)
        return pa.Table.from_arrays(adapted.columns, schema=self.plain_schema)

    def new_files(self, snapshot: Snapshot) -> NewFiles:
        """Return the writer of files for the visible rows of a snapshot."""
        return NewFiles(
            tiers=self.tiers,
            spec=self.spec,
            owner=self.owner,
            owned=snapshot.live.owned,
            applied_sequence=snapshot.live.next_sequence - 1,
        )

    def warm(self) -> None:
        """Copy all files into the host cache, if there is one."""
        if self._images is not None:
            for file in self.live.files:
                self._images.rows(file, make=True)

    @property
    def schemas(self) -> tuple[pb.TableSchema, ...]:
        """Schemas of all files, including the one written now."""
        return self._schemas

    # ---- checkpoints -----------------------------------------------------------------------------------------

    def take(self) -> "TakenRows":
        """Take everything appended and deleted since the last checkpoint, for another thread to write."""
        self.absorb()
        with self._edit_lock:
            edits, self._edits = self._edits, ()
        with self._lock:
            groups = self.buffer.take()
            taken = TakenRows(groups, self.live, frozenset(self._dropped), edits)
            self._dropped = set()
            self._pending = (*self._pending, taken)
            # Rows appended after the checkpoint must be newer than its rows.
            self.live = replace(self.live, next_sequence=self.live.next_sequence + bool(groups))
        return taken

    def put_back(self, taken: "TakenRows") -> None:
        """Undo `take`."""
        with self._edit_lock:
            self._edits = (*taken.edits, *self._edits)
        with self._lock:
            self._pending = tuple(rows for rows in self._pending if rows is not taken)
            self._dropped |= taken.dropped
            self.buffer.put_back(taken.groups)

    def base_of(self, taken: "TakenRows") -> LiveFiles:
        """Return what the checkpoint builds on: remaining files of the previous one, and the tombstones taken."""
        hiding = taken.live.tombstones
        files = tuple(
            file
            for file in self.durable.files
            if file.path not in taken.dropped and not tombstones.hide_all(hiding, file)
        )
        return replace(self.durable, files=files, tombstones=hiding, next_sequence=taken.live.next_sequence)

    def publish(self, taken: "TakenRows", live: LiveFiles) -> None:
        """Publish the readable files of a written checkpoint; the operator's thread absorbs them later."""
        with self._lock:
            before, after = {file.path for file in self.durable.files}, {file.path for file in live.files}
            taken.added = tuple(file for file in live.files if file.path not in before)
            taken.removed = frozenset(before - after)
            self.durable = live
            self._staged = set()
            taken.done = True

    def absorb(self) -> None:
        """Switch to the files of checkpoints that were written since. On the operator's thread."""
        while self._pending and self._pending[0].done:
            taken, *rest = self._pending
            hiding = self.live.tombstones
            hidden = {file.path for file in taken.added if tombstones.hide_all(hiding, file)}
            added = [file for file in taken.added if file.path not in hidden]
            kept = [file for file in self.live.files if file.path not in taken.removed]
            schemas = self._schemas if added else self.live.schemas
            live = replace(self.live, files=(*kept, *added), schemas=schemas)
            fresh = [*self.buffer.spans(), *self._pending_spans(rest, live)]
            live = live.without_idle_tombstones(fresh=fresh)
            gone = self._replaced(live, tombstones.held_bytes(live.tombstones), absorbed=taken, hidden=hidden)
            # Runs that are still read may be spilled, but not merged to a file that no one would remove.
            runs = [run for group in taken.groups for run in group.take_runs()]
            for segment in (*gone, *(run for run in runs if id(run) not in taken.kept)):
                self._retire(segment)

    @property
    def loose_bytes(self) -> int:
        """Bytes of appended rows that are not sorted yet."""
        taken = sum(group.loose_bytes for taken in self._pending for group in taken.groups)
        return self.buffer.loose_bytes + taken

    @property
    def taken_rows(self) -> int:
        """Number of rows that checkpoints took and that are not in a live file yet."""
        return sum(group.rows for taken in self._pending for group in taken.groups)

    def mergeable(self) -> LiveFiles:
        """Return the files that may be compacted, and the tombstones that hide rows in them. On any thread."""
        with self._lock:
            if not self._pending:
                return self.live
            return replace(
                self.durable, files=tuple(file for file in self.durable.files if file.path not in self._dropped)
            )

    def spans(self) -> list[pb.FileEntry]:
        """Return the spans of rows that are not in a live file."""
        return [*self.buffer.spans(), *self._pending_spans(self._pending, self.live)]

    def _pending_spans(self, pending: Iterable["TakenRows"], live: LiveFiles) -> list[pb.FileEntry]:
        """Return the possible spans of rows in files of checkpoints being written, including compacted files."""
        pending = tuple(pending)
        return [*(entry for taken in pending for entry in taken.spans()), *(live.files if pending else ())]

    # ---- uploads ---------------------------------------------------------------------------------------------

    def staged(self, segment: Segment, name_of: NameOf, *, applied_sequence: int = 0) -> tuple[pb.FileEntry, Upload]:
        """Turn a segment into a data file to upload; it becomes the segment of that file."""
        entry, upload = segment.staged(
            self._store, name_of=name_of, owned=self.live.owned, applied_sequence=applied_sequence
        )
        if self._images is not None and segment.tier is Tier.MEMORY:
            self._images.add(entry, segment.read())
        with self._lock:
            replaced = self._segments.get(entry.path)
            self._segments[entry.path] = segment
            self._staged.add(entry.path)
        if replaced is not None and replaced is not segment:
            self._retire(replaced)
        return entry, upload

    def staged_file(self, file: ParquetFile, name_of: NameOf) -> tuple[pb.FileEntry, Upload]:
        """Turn a compacted file into a data file to upload."""
        segment = self.tiers.on_disk(file, spec=self.spec, owner=self.owner)
        return self.staged(segment, name_of, applied_sequence=int(file.entry.applied_sequence))

    # ---- edits -----------------------------------------------------------------------------------------------

    def job(self, choose: Choose, live: LiveFiles | None = None) -> TimeKeyedJob | None:
        """Return the compaction of chosen live files (of `live` if given), or None if none is chosen. On any thread."""
        snapshot = self.snapshot(choose, fresh=(), live=live or self.mergeable())
        if not snapshot.files:
            return None
        return job_of(snapshot, self.new_files(snapshot), bin_us=self.table.bin_us)

    def offer_edit(self, edit: Edit) -> None:
        """Offer an edit to the next checkpoint. On any thread."""
        with self._edit_lock:
            self._edits = (*self._edits, edit)

    def close(self) -> None:
        """Release memory and local files; rows that no checkpoint has are lost."""
        self.absorb()
        unwritten = [group for taken in self._pending for group in taken.groups]
        self.closed, self.lost = True, self.lost or self.buffer.rows > 0 or bool(unwritten)
        self.buffer.close()
        self._pending = ()
        for group in unwritten:
            group.abandon()
        with self._lock:
            segments, self._segments = self._segments, {}
        for segment in (*segments.values(), *self._leaving):
            segment.abandon()  # a failed upload leaves its pin
        with self._edit_lock:
            edits, self._edits = self._edits, ()
        for edit in edits:
            edit.discard()
        self._charged.release()

    def _replaced(
        self,
        live: LiveFiles,
        nbytes: int,
        *,
        absorbed: "TakenRows | None" = None,
        hidden: Iterable[str] = (),
    ) -> list[Segment]:
        """Switch to other live files and `nbytes` of tombstones, without making room; return segments no longer in a
        file.

        `absorbed`: the files are those of this checkpoint, except the `hidden` ones.
        """
        named = {file.path for file in live.files}
        with self._lock:
            replaced = frozenset[str]() if absorbed is None else absorbed.removed
            self._dropped |= {file.path for file in self.live.files} - named - replaced
            self._dropped |= set(hidden)
            self._pending = tuple(rows for rows in self._pending if rows is not absorbed)
            named |= {file.path for file in self.durable.files} - self._dropped
            named |= self._staged
            if live.tombstones is not self._indexed[0]:
                self._indexed = ((), Deletions((), keys=self.keys))
            self._charged.set(nbytes + self._indexed[1].nbytes)
            self.live = live
            return [self._segments.pop(path) for path in list(self._segments) if path not in named]

    def _pinned_rows(self) -> tuple[tuple[Segment, ...], tuple[pa.Table, ...]]:
        """Pin and return the runs and loose rows that are not in a live file; the caller unpins each run."""
        pinned = [*(group.pinned() for taken in self._pending for group in taken.groups), self.buffer.pinned()]
        return tuple(run for runs, _ in pinned for run in runs), tuple(
            rows for _, taken_rows in pinned for rows in taken_rows
        )

    def _segment_of(self, file: pb.FileEntry) -> Segment:
        segment = self._segments.get(file.path)
        if segment is None:
            spec = self._spec_of(file)
            copied = None if self._images is None else self._images.stored(file)
            segment = self.tiers.stored(file, self._store, spec=spec, owner=self.owner, file=copied)
            self._segments[file.path] = segment
        return segment

    def _deletions(self, live: LiveFiles) -> Deletions:
        if self._indexed[0] is not live.tombstones and live is not self.live:
            return Deletions(live.tombstones, keys=self.keys)  # for a checkpoint, which uses it once
        if self._indexed[0] is not live.tombstones:
            self._indexed = (live.tombstones, Deletions(live.tombstones, keys=self.keys))
            # The lock is held, so no room is made here; the next read makes it.
            self._charged.set(tombstones.held_bytes(live.tombstones) + self._indexed[1].nbytes)
        return self._indexed[1]

    def _retire(self, segment: Segment) -> None:
        self.gone.add(segment.uses)
        segment.close()
        # It may still be read, or stay pinned forever after a failure.
        with self._lock:
            self._leaving = [leaving for leaving in (*self._leaving, segment) if not leaving.closed]

    def _spec_of(self, file: pb.FileEntry) -> SegmentSpec:
        spec = self._stored_specs.get(file.schema_id)
        if spec is None:
            schema = find_schema(self.live.schemas, file.schema_id, where=f"table {self.table.name!r}")
            spec = self._stored_specs[file.schema_id] = self._spec(file.schema_id, schema)
        return spec

    def _spec(self, schema_id: int, schema: pa.Schema) -> SegmentSpec:
        # A key may have had another name in an earlier schema.
        names = {field_id(field): field.name for field in schema}
        keys = (self.table.columns.field(name) for name in self.keys)
        return SegmentSpec(
            self.table.name, schema_id, schema, pb.BIN_FIRST, tuple(names.get(field_id(key), key.name) for key in keys)
        )


def _settling(keys: Sequence[str], combine: Combine | None, *, generational: bool) -> Settle | None:
    if generational:
        return partial(newest, keys=keys)
    return None if combine is None else partial(combined, keys=keys, combine=combine)
