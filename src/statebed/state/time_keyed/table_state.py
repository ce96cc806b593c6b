"""What a time-keyed table holds: live files with their segments, appended rows, tombstones. Its view speaks for it.

It is changed by one thread. Others may take snapshots to merge files, and offer the edits that come of it: a lock is
held while what is live and its segments are looked at or replaced together, never while room is made or files are read.

A checkpoint is taken by that thread and written by another one. So there are two lists of live files: `live` is what
the operator sees, `durable` what the last written checkpoint names. Rows that were taken stay readable as segments
until the operator's thread absorbs the files that were made of them. Meanwhile every deletion leaves a tombstone, which
hides its rows in files that are still to come.
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
from statebed.state.tiers.tier import Tier, Uses
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
"""Which files of those that are live."""

_NUMBER = "_number"


@dataclass(eq=False)
class TakenRows:
    """What one checkpoint took; the thread that writes it fills in what it made."""

    groups: tuple[RowGroup, ...]
    """Appended rows; the thread that writes the checkpoint sorts what is loose."""
    live: LiveFiles
    """Files, tombstones and sequence when it was taken."""
    dropped: frozenset[str]
    """Files that left since the checkpoint before."""
    edits: tuple[Edit, ...]
    kept: frozenset[int] = frozenset()
    """Ids of the segments that became files as they are."""
    added: tuple[pb.FileEntry, ...] = ()
    removed: frozenset[str] = frozenset()
    done: bool = False

    def runs(self) -> list[Segment]:
        """Its rows as far as they are sorted."""
        return [run for group in self.groups for run in group.runs]

    def spans(self) -> list[pb.FileEntry]:
        """What its rows span."""
        return [entry for group in self.groups for entry in group.spans()]


class TimeKeyedState:
    """The state of one table in the range of hashes that one subtask owns."""

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
        """It was closed with rows that no checkpoint has: nothing is answered without them."""
        self.closed = False
        self.live = LiveFiles.restore(parts, owned=owned)
        self.durable = self.live
        """Files and tombstones of the last written checkpoint; for the thread that writes checkpoints."""
        self._pending: tuple[TakenRows, ...] = ()
        """Checkpoints that were taken and not absorbed yet, the oldest first."""
        self._dropped: set[str] = set()
        """Files that left since the last checkpoint was taken: the next one does not name them."""
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
        """Bytes of spilled files that became data files of checkpoints as they were."""
        self.gone = Uses()
        """Of segments that were there and are not any more."""

    # ---- files -----------------------------------------------------------------------------------------------

    def install(self, live: LiveFiles) -> None:
        """Go on with other live files and tombstones: segments that are in no file any more are closed."""
        nbytes = tombstones.held_bytes(live.tombstones)
        more = max(0, nbytes - self._charged.nbytes)
        # Room is made first: when that fails, nothing has changed.
        with self.tiers.memory.reserve(self.owner, Purpose.TOMBSTONES, more):
            gone = self._replaced(live, nbytes)
        for segment in gone:
            self._retire(segment)

    def delete_range(self, start_us: int, end_us: int) -> None:
        """Delete a range of time: what lies inside leaves unread, a tombstone hides the rest."""

        def is_inside(entry: pb.FileEntry) -> bool:
            return bool(start_us <= entry.min_time_us and entry.max_time_us < end_us)

        # One tombstone of a few bytes comes at most: it is charged, and whoever grows next makes room for it. So
        # nobody waits while the buffer is still, and what frees memory is not refused for lack of it.
        with self.buffer.still():
            fresh = [entry for entry in self.buffer.spans() if not is_inside(entry)]
            fresh += self._pending_spans(self._pending, self.live)
            live = self.live.delete_range(start_us, end_us, fresh=fresh)
            hiding = live.tombstones
            gone = self._replaced(live, tombstones.held_bytes(hiding))
            gone += self.buffer.remove_where(lambda one: is_inside(one) or tombstones.hide_all(hiding, one))
        for segment in gone:
            self._retire(segment)

    def segments(self) -> list[Segment]:
        """All that are known: of files that were read, and of appended rows."""
        with self._lock:
            pending = [run for taken in self._pending for run in taken.runs()]
            known = {id(one): one for one in (*self._segments.values(), *pending, *self.buffer.segments)}
            return list(known.values())

    def segments_of(self, files: Iterable[pb.FileEntry]) -> list[Segment]:
        """The segments of live files; nothing is read."""
        with self._lock:
            return [self._segment_of(file) for file in files]

    def snapshot(
        self, choose: Choose, *, fresh: Sequence[Segment] | None = None, live: LiveFiles | None = None
    ) -> Snapshot:
        """Some of the live files (`live`: of these), and appended rows: these segments, or all there are. On any
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
        """No rows, with the columns of files."""
        return self.plain_schema.empty_table()

    def last_of_each(self, rows: pa.Table) -> pa.Table:
        """Of a batch's rows with one key and time, the last."""
        numbered = rows.append_column(_NUMBER, from_numpy(np.arange(rows.num_rows, dtype=np.int64), pa.int64()))
        order = sort_indices(numbered, (*self.spec.sort_columns, _NUMBER))
        kept = pa.concat_tables(newest([numbered.take(order).combine_chunks()], self.keys))
        return kept.drop_columns([_NUMBER])

    def newest_of(self, values: pa.Table) -> pa.Table:
        """Keys and times of the newest generations that equal one of these rows (`_key_hash`, keys, values)."""
        hashes = np.unique(uint64_values(values[KEY_HASH]))
        found = RowSet(values, keys=self.keys)
        columns = [*self.keys, TIME]
        pieces = self.snapshot(lambda live: live.files).in_order(WantedRows(hashes=hashes))
        equal = (filtered(rows, found.contains(rows)).select(columns) for rows in pieces)
        return pa.concat_tables([self.empty.select(columns), *equal])

    def adapt(self, file: pb.FileEntry, rows: pa.Table) -> pa.Table:
        """Rows of a file, with the columns that rows have now."""
        if file.schema_id == self.spec.schema_id:
            return rows
        adapted = adapt(rows, self._spec_of(file).schema, self.table.file_schema, self._defaults)
        return pa.Table.from_arrays(adapted.columns, schema=self.plain_schema)

    def new_files(self, snapshot: Snapshot) -> NewFiles:
        """How files are written of rows that are visible in a snapshot."""
        return NewFiles(
            tiers=self.tiers,
            spec=self.spec,
            owner=self.owner,
            owned=snapshot.live.owned,
            applied_sequence=snapshot.live.next_sequence - 1,
        )

    def warm(self) -> None:
        """Have copies of all files in the host's cache, if there is one."""
        if self._images is not None:
            for file in self.live.files:
                self._images.rows(file, make=True)

    @property
    def schemas(self) -> tuple[pb.TableSchema, ...]:
        """Schemas of all files, those that are written now too."""
        return self._schemas

    # ---- checkpoints -----------------------------------------------------------------------------------------

    def take(self) -> "TakenRows":
        """All that was appended and deleted since the last checkpoint, for another thread to write."""
        self.absorb()
        with self._edit_lock:
            edits, self._edits = self._edits, ()
        with self._lock:
            groups = self.buffer.take()
            taken = TakenRows(groups, self.live, frozenset(self._dropped), edits)
            self._dropped = set()
            self._pending = (*self._pending, taken)
            # What comes after the checkpoint is newer than what it holds.
            self.live = replace(self.live, next_sequence=self.live.next_sequence + bool(groups))
        return taken

    def put_back(self, taken: "TakenRows") -> None:
        """Undo the taking, after which nothing has happened."""
        with self._edit_lock:
            self._edits = (*taken.edits, *self._edits)
        with self._lock:
            self._pending = tuple(one for one in self._pending if one is not taken)
            self._dropped |= taken.dropped
            self.buffer.put_back(taken.groups)

    def base_of(self, taken: "TakenRows") -> LiveFiles:
        """What the checkpoint builds on: files of the one before that have not left, tombstones as they were."""
        hiding = taken.live.tombstones
        files = tuple(
            file
            for file in self.durable.files
            if file.path not in taken.dropped and not tombstones.hide_all(hiding, file)
        )
        return replace(self.durable, files=files, tombstones=hiding, next_sequence=taken.live.next_sequence)

    def publish(self, taken: "TakenRows", live: LiveFiles) -> None:
        """The checkpoint is in files, which can be read; the operator's thread absorbs them when it comes to it."""
        with self._lock:
            before, after = {file.path for file in self.durable.files}, {file.path for file in live.files}
            taken.added = tuple(file for file in live.files if file.path not in before)
            taken.removed = frozenset(before - after)
            self.durable = live
            self._staged = set()
            taken.done = True

    def absorb(self) -> None:
        """Go on with the files of checkpoints that were written since. On the operator's thread."""
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
            for segment in (*gone, *(one for one in taken.runs() if id(one) not in taken.kept)):
                self._retire(segment)

    @property
    def loose_bytes(self) -> int:
        """Bytes of appended rows that are not sorted yet."""
        taken = sum(group.loose_bytes for taken in self._pending for group in taken.groups)
        return self.buffer.loose_bytes + taken

    @property
    def taken_rows(self) -> int:
        """Rows that checkpoints took and that are in no live file yet."""
        return sum(group.rows for taken in self._pending for group in taken.groups)

    def mergeable(self) -> LiveFiles:
        """The files that compactions may merge, and the tombstones that hide rows of them. On any thread."""
        with self._lock:
            if not self._pending:
                return self.live
            return replace(
                self.durable, files=tuple(file for file in self.durable.files if file.path not in self._dropped)
            )

    def spans(self) -> list[pb.FileEntry]:
        """What rows span that are in no live file."""
        return [*self.buffer.spans(), *self._pending_spans(self._pending, self.live)]

    def _pending_spans(self, pending: Iterable["TakenRows"], live: LiveFiles) -> list[pb.FileEntry]:
        """What rows may span that come back in files of checkpoints that are being written: of merged files, too."""
        pending = tuple(pending)
        return [*(entry for taken in pending for entry in taken.spans()), *(live.files if pending else ())]

    # ---- uploads ---------------------------------------------------------------------------------------------

    def staged(self, segment: Segment, name_of: NameOf, *, applied_sequence: int = 0) -> tuple[pb.FileEntry, Upload]:
        """A segment as a data file on its way to the store; from now on it is the segment of that file."""
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
        """The same of a file that was merged."""
        segment = self.tiers.on_disk(file, spec=self.spec, owner=self.owner)
        return self.staged(segment, name_of, applied_sequence=int(file.entry.applied_sequence))

    # ---- edits -----------------------------------------------------------------------------------------------

    def job(self, choose: Choose, live: LiveFiles | None = None) -> TimeKeyedJob | None:
        """The merge of some live files (`live`: of these); None if none is chosen. On any thread."""
        snapshot = self.snapshot(choose, fresh=(), live=live or self.mergeable())
        if not snapshot.files:
            return None
        return job_of(snapshot, self.new_files(snapshot), bin_us=self.table.bin_us)

    def offer_edit(self, edit: Edit) -> None:
        """Have an edit applied by the next checkpoint. On any thread."""
        with self._edit_lock:
            self._edits = (*self._edits, edit)

    def close(self) -> None:
        """Give up memory and local files; rows that no checkpoint has are lost."""
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
            segment.abandon()  # an upload that failed has left its pin
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
        """Go on with other live files and `nbytes` of tombstones, without making room; gives the segments that are in
        no file any more. `absorbed`: these are the files of a checkpoint, but for the `hidden` ones.
        """
        named = {file.path for file in live.files}
        with self._lock:
            replaced = frozenset[str]() if absorbed is None else absorbed.removed
            self._dropped |= {file.path for file in self.live.files} - named - replaced
            self._dropped |= set(hidden)
            self._pending = tuple(one for one in self._pending if one is not absorbed)
            named |= {file.path for file in self.durable.files} - self._dropped
            named |= self._staged
            if live.tombstones is not self._indexed[0]:
                self._indexed = ((), Deletions((), keys=self.keys))
            self._charged.set(nbytes + self._indexed[1].nbytes)
            self.live = live
            return [self._segments.pop(path) for path in list(self._segments) if path not in named]

    def _pinned_rows(self) -> tuple[tuple[Segment, ...], tuple[pa.Table, ...]]:
        """Runs and loose rows that are in no live file; the caller unpins each run."""
        found = [*(group.pinned() for taken in self._pending for group in taken.groups), self.buffer.pinned()]
        return tuple(run for runs, _ in found for run in runs), tuple(rows for _, some in found for rows in some)

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
            return Deletions(live.tombstones, keys=self.keys)  # of a checkpoint: it is used once
        if self._indexed[0] is not live.tombstones:
            self._indexed = (live.tombstones, Deletions(live.tombstones, keys=self.keys))
            # No room is made here: a lock is held, and whoever reads next makes it.
            self._charged.set(tombstones.held_bytes(live.tombstones) + self._indexed[1].nbytes)
        return self._indexed[1]

    def _retire(self, segment: Segment) -> None:
        self.gone.add(segment.uses)
        segment.close()
        # Somebody may still read it, or will never let go of it after a failure.
        with self._lock:
            self._leaving = [one for one in (*self._leaving, segment) if not one.closed]

    def _spec_of(self, file: pb.FileEntry) -> SegmentSpec:
        spec = self._stored_specs.get(file.schema_id)
        if spec is None:
            schema = find_schema(self.live.schemas, file.schema_id, where=f"table {self.table.name!r}")
            spec = self._stored_specs[file.schema_id] = self._spec(file.schema_id, schema)
        return spec

    def _spec(self, schema_id: int, schema: pa.Schema) -> SegmentSpec:
        # A key may have had another name.
        names = {field_id(field): field.name for field in schema}
        keys = (self.table.columns.field(name) for name in self.keys)
        return SegmentSpec(
            self.table.name, schema_id, schema, pb.BIN_FIRST, tuple(names.get(field_id(key), key.name) for key in keys)
        )


def _settling(keys: Sequence[str], combine: Combine | None, *, generational: bool) -> Settle | None:
    if generational:
        return partial(newest, keys=keys)
    return None if combine is None else partial(combined, keys=keys, combine=combine)
