"""What a time-keyed table holds: live files with their segments, appended rows, tombstones. Its view speaks for it.

All that changes is replaced whole: the value of live files, the tuple of edits. Segments and the buffer of appended
rows are safe to use from any thread, and so are snapshots of them.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.format.columns import from_numpy, uint64_values
from statebed.format.order import sort_indices
from statebed.format.schema import KEY_HASH, TIME, field_id, find_schema, register_schema, schema_from_bytes
from statebed.format.segment import SegmentSpec
from statebed.state import tombstones
from statebed.state.adaptation import SchemaHistory, adapt
from statebed.state.append_buffer import AppendBuffer
from statebed.state.column_defaults import defaults_from_bytes
from statebed.state.compaction import Edit, NameOf
from statebed.state.deletions import Deletions
from statebed.state.live_files import LiveFiles
from statebed.state.memory import Purpose
from statebed.state.row_merge import newest
from statebed.state.row_set import RowSet
from statebed.state.segments import Segment
from statebed.state.spill_files import ParquetFile
from statebed.state.tier import Uses
from statebed.state.tiers import Tiers
from statebed.state.time_keyed import TimeKeyedTable
from statebed.state.time_keyed_compaction import TimeKeyedJob, job_of
from statebed.state.time_keyed_files import NewFiles
from statebed.state.time_keyed_snapshot import Snapshot, Wanted, filtered
from statebed.state.upload import Upload
from statebed.storage import ObjectStore

_NUMBER = "_number"


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
        self.tiers = tiers
        self.owner = owner
        self.live = LiveFiles.restore(parts, owned=owned)
        self._store = store
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
        self._edit_lock = threading.Lock()
        self._edits: tuple[Edit, ...] = ()
        self.edits_applied = 0
        self.edits_discarded = 0
        self.gone = Uses()
        """Of segments that were there and are not any more."""

    # ---- files -----------------------------------------------------------------------------------------------

    def install(self, live: LiveFiles) -> None:
        """Go on with other live files and tombstones: segments that are in no file any more are closed."""
        # Room is made first: when that fails, nothing has changed.
        self._charged.resize(tombstones.held_bytes(live.tombstones))
        if live.tombstones is not self._indexed[0]:
            self._indexed = ((), Deletions((), keys=self.keys))
        self.live = live
        named = {file.path for file in live.files}
        for path in [path for path in self._segments if path not in named]:
            self._retire(self._segments.pop(path))

    def drop_fresh(self, start_us: int, end_us: int) -> None:
        """Forget appended segments, unread, all of whose rows lie in a range of time or are deleted already."""
        for segment in self.buffer.segments:
            entry = segment.entry
            inside = start_us <= entry.min_time_us and entry.max_time_us < end_us
            if inside or tombstones.hide_all(self.live.tombstones, entry):
                self.buffer.release([segment])
                self._retire(segment)

    def segment_of(self, file: pb.FileEntry) -> Segment:
        """The segment of a live file; nothing is read."""
        segment = self._segments.get(file.path)
        if segment is None:
            spec = self._spec_of(file)
            segment = self._segments[file.path] = self.tiers.stored(file, self._store, spec=spec, owner=self.owner)
        return segment

    def segments(self) -> list[Segment]:
        """All that are known: of files that were read, and of appended rows."""
        return [*self._segments.values(), *self.buffer.segments]

    def deletions(self) -> Deletions:
        """The tombstones as they are now, ready to be applied."""
        if self._indexed[0] is not self.live.tombstones:
            self._indexed = (self.live.tombstones, Deletions(self.live.tombstones, keys=self.keys))
            self._charged.resize(tombstones.held_bytes(self.live.tombstones) + self._indexed[1].nbytes)
        return self._indexed[1]

    def snapshot(self, files: Iterable[pb.FileEntry], *, fresh: Sequence[Segment] | None = None) -> Snapshot:
        """These files, and appended rows: these segments, or all there are."""
        pinned, loose = self.buffer.pinned() if fresh is None else ((), ())
        snapshot = Snapshot(
            spec=self.spec,
            bin_us=self.table.bin_us,
            generational=self.generational,
            live=self.live,
            files=tuple((file, self.segment_of(file)) for file in files),
            fresh=pinned if fresh is None else tuple(fresh),
            loose=loose,
            deletions=self.deletions(),
            adapt=self.adapt,
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
        pieces = self.snapshot(self.live.files).in_order(Wanted(hashes=hashes))
        equal = (filtered(rows, found.contains(rows)).select(columns) for rows in pieces)
        return pa.concat_tables([self.empty.select(columns), *equal])

    def adapt(self, file: pb.FileEntry, rows: pa.Table) -> pa.Table:
        """Rows of a file, with the columns that rows have now."""
        if file.schema_id == self.spec.schema_id:
            return rows
        adapted = adapt(rows, self._spec_of(file).schema, self.table.file_schema, self._defaults)
        return pa.Table.from_arrays(adapted.columns, schema=self.plain_schema)

    def new_files(self, *, level: int = 0) -> NewFiles:
        """How files are written whose rows are all visible now."""
        return NewFiles(
            tiers=self.tiers,
            spec=self.spec,
            owner=self.owner,
            owned=self.live.owned,
            applied_sequence=self.live.next_sequence - 1,
            level=level,
        )

    def with_files(self, added: Iterable[pb.FileEntry]) -> LiveFiles:
        """The live files with new ones, and the schema that they have."""
        return replace(self.live, files=(*self.live.files, *added), schemas=self._schemas)

    # ---- uploads ---------------------------------------------------------------------------------------------

    def staged(self, segment: Segment, name_of: NameOf, *, applied_sequence: int = 0) -> tuple[pb.FileEntry, Upload]:
        """A segment as a data file on its way to the store; from now on it is the segment of that file."""
        entry, upload = segment.staged(
            self._store, name_of=name_of, owned=self.live.owned, applied_sequence=applied_sequence
        )
        replaced = self._segments.get(entry.path)
        if replaced is not None and replaced is not segment:
            self._retire(replaced)
        self._segments[entry.path] = segment
        return entry, upload

    def staged_file(self, file: ParquetFile, name_of: NameOf) -> tuple[pb.FileEntry, Upload]:
        """The same of a file that was merged."""
        segment = self.tiers.on_disk(file, spec=self.spec, owner=self.owner)
        return self.staged(segment, name_of, applied_sequence=int(file.entry.applied_sequence))

    # ---- edits -----------------------------------------------------------------------------------------------

    def job(self, inputs: Sequence[pb.FileEntry]) -> TimeKeyedJob:
        """The merge of some live files."""
        return job_of(self.snapshot(inputs, fresh=()), self.new_files(), bin_us=self.table.bin_us)

    def offer_edit(self, edit: Edit) -> None:
        """Have an edit applied by the next checkpoint. On any thread."""
        with self._edit_lock:
            self._edits = (*self._edits, edit)

    def apply_edits(self, name_of: NameOf) -> list[Upload]:
        """Apply what was offered, where all inputs are live as they were; discard the rest."""
        with self._edit_lock:
            edits, self._edits = self._edits, ()
        uploads: list[Upload] = []
        for edit in edits:
            if edit.applies_to(self.live.files):
                uploads += self.apply_edit(edit, name_of)
                self.edits_applied += 1
            else:
                edit.discard()
                self.edits_discarded += 1
        return uploads

    def apply_edit(self, edit: Edit, name_of: NameOf) -> list[Upload]:
        """Put the outputs of an edit into the place of its inputs."""
        made = [self.staged_file(file, name_of) for file in edit.outputs]
        files = edit.applied_to(self.live.files, [entry for entry, _ in made])
        live = replace(self.live, files=files, schemas=self._schemas if made else self.live.schemas)
        self.install(live.without_idle_tombstones(fresh=self.buffer.spans()))
        return [upload for _, upload in made]

    def close(self) -> None:
        """Give up memory and local files."""
        self.buffer.close()
        for segment in self._segments.values():
            segment.close()
        self._segments = {}
        with self._edit_lock:
            edits, self._edits = self._edits, ()
        for edit in edits:
            edit.discard()
        self._charged.release()

    def _retire(self, segment: Segment) -> None:
        self.gone.add(segment.uses)
        segment.close()

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
