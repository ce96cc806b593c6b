"""The durable part of a keyed view: its live files, which are read into runs and extended by deltas and edits.

A file counts as stored once its upload reports so. Until then it is never read: blocks keep its rows.

One thread at a time changes the files (`changing`), which may be another one than the operator's. Everything else may
be called by any thread. Readers see the files of the last complete change.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from statebed.errors import CorruptObjectError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import overlaps
from statebed.format.schema import register_schema
from statebed.format.segment import DAMAGED_FIX, SegmentSpec, encode_segment
from statebed.state.compaction import Edit, NameOf, staged
from statebed.state.keyed.cached_runs import CachedRuns
from statebed.state.keyed.extents import Extents
from statebed.state.keyed.files import DELTA, MERGED_DELTAS, Delta, RangeReader, bytes_of, deltas_of, to_compact
from statebed.state.keyed.mapped_run import FrozenRun
from statebed.state.keyed.run_rows import file_rows, run_of, without_deleted
from statebed.state.keyed.sorted_run import SortedRun
from statebed.state.keyed.table import KeyedTable
from statebed.state.live.files import LiveFiles
from statebed.state.memory.pages import count_processed
from statebed.state.tiers.fetched_ranges import FetchedRanges
from statebed.state.tiers.spill_files import ParquetFile
from statebed.state.upload import Upload
from statebed.storage import ObjectStore

MAX_DELTAS = 8
HARD_MAX_DELTAS = 2 * MAX_DELTAS
"""Number of deltas from which on they are merged even if that makes the result of a running compaction useless."""


@dataclass(frozen=True)
class OlderRows:
    """Rows of deltas that a new one replaces."""

    read: Callable[[pb.HashRange], pa.Table]
    """Returns all rows of a range of hashes, oldest first."""
    extents: Extents
    """Distribution of the rows over hashes."""


class DurableRows:
    """Live files of a keyed table in the range of one subtask."""

    def __init__(
        self,
        table: KeyedTable,
        store: ObjectStore,
        parts: Sequence[pb.TableSubtaskCheckpointMetadata],
        owned: pb.HashRange,
        *,
        images: CachedRuns | None = None,
        ranges: FetchedRanges | None = None,
    ) -> None:
        """Restore the live files from metadata.

        `images` provides copies of the files that are searched without decoding them. `ranges` keeps parts of files
        that are fetched for one block and hold rows of others.
        """
        if any(part.tombstones for part in parts):
            raise CorruptObjectError(
                f"the keyed table {table.name!r} has tombstones, but keyed tables store deletions as rows",
                fix=DAMAGED_FIX,
            )
        self._table = table
        self._store = store
        self._images = images
        self._ranges = ranges
        self._live = LiveFiles.restore(parts, owned=owned)
        self._draft = self._live
        """Live files including the changes being made."""
        self._made: list[Upload] = []
        """New files of the changes being made."""
        self._on_their_way: set[str] = set()
        self.taken = self.written = 0
        """Number of checkpoints taken from the blocks, and number of those that were written or put back."""
        self.taken_rows = self.written_rows = 0
        """Number of changed rows in the checkpoints taken, and in those written or put back."""
        table.check_schema(self._live)

    @property
    def owned(self) -> pb.HashRange:
        return self._live.owned

    @property
    def files(self) -> tuple[pb.FileEntry, ...]:
        return self._live.files

    @property
    def next_sequence(self) -> int:
        """Sequence of the next delta. Only for the thread that makes changes."""
        return self._draft.next_sequence

    @property
    def unwritten(self) -> int:
        """Number of checkpoints that were taken but not written yet."""
        return self.taken - self.written

    @property
    def unwritten_rows(self) -> int:
        """Number of changed rows in checkpoints that are not written yet."""
        return self.taken_rows - self.written_rows

    @property
    def all_stored(self) -> bool:
        """Whether all changes taken by checkpoints are known to be in the store."""
        if self.unwritten:
            return False
        return not self._on_their_way or self._on_their_way.isdisjoint([file.path for file in self.files])

    def is_stored(self, file: pb.FileEntry) -> bool:
        return file.path not in self._on_their_way

    def metadata(self, subtask_index: int) -> pb.TableSubtaskCheckpointMetadata:
        return pb.TableSubtaskCheckpointMetadata(
            subtask_index=subtask_index,
            owned=self.owned,
            next_sequence=self._live.next_sequence,
            files=self.files,
            schemas=self._live.schemas,
            bytes=bytes_of(self.files),
            rows=sum({file.path: file.rows for file in self.files}.values()),
        )

    def reader(self, files: Iterable[pb.FileEntry]) -> RangeReader:
        return RangeReader(self._table, files, self._store, ranges=self._ranges)

    def older(self, merged: Delta) -> OlderRows:
        """Return the rows of some deltas, from copies where possible.

        Missing copies are made first, which reserves memory, so call this without a lock.
        """
        copies = () if self._images is None or not merged else self._images.runs(merged, self.owned) or ()
        if not copies or not self.mapped:
            reader = self.reader(merged)
            return OlderRows(reader.read, reader.extents(self.owned))

        def read(wanted: pb.HashRange) -> pa.Table:
            parts = [copy.part(wanted).run for copy in reversed(copies)]
            rows = [file_rows(self._table, run, None, run.marks) for run in parts]
            return pa.concat_tables([self._table.file_schema.empty_table(), *rows])

        row_bytes = self._table.row_bytes
        extents = (Extents.of_hashes(copy.run.hashes, row_bytes=row_bytes) for copy in copies)
        return OlderRows(read, Extents.concatenated(extents))

    @property
    def mapped(self) -> bool:
        """Whether rows are looked up in copies of files that take no memory."""
        return self._images is not None and self._images.mapped

    @property
    def has_copies(self) -> bool:
        """Whether files may be read from copies on this host instead of being decoded."""
        return self._images is not None

    def copies(self, owned: pb.HashRange, *, besides: Collection[str] = ()) -> tuple[FrozenRun, ...]:
        """Return copies of the rows in a range of hashes, newest first, without those of files `besides`. If there are
        none, the rows have to be loaded.
        """
        if self._images is None:
            return ()
        return self._images.runs(self._files_of(owned, besides), owned) or ()

    def newest_first(self, owned: pb.HashRange) -> Iterator[tuple[str, FrozenRun | None]] | None:
        """Yield the path of each file that may have rows in a range, with a copy of these rows, or None if it cannot be
        copied. Return None if that saves nothing: rows are not looked up in copies, or all files have copies already.
        """
        files = self._files_of(owned)
        if self._images is None or not self.mapped or self._images.has_copies(files, owned):
            return None
        return ((file.path, run) for file, run in self._images.newest_first(files, owned))

    def reader_of(self, owned: pb.HashRange, *, besides: Collection[str] = ()) -> RangeReader:
        """Return a reader of all files, but those `besides`, that may have rows in a range."""
        return self.reader(self._files_of(owned, besides))

    def _files_of(self, owned: pb.HashRange, besides: Collection[str] = ()) -> list[pb.FileEntry]:
        return [file for file in self.files if overlaps(file.owned, owned) and file.path not in besides]

    def load(self, reader: RangeReader, owned: pb.HashRange, *, piece_bytes: int) -> SortedRun:
        """Load the newest row of each key in a range of hashes, without deleted rows."""
        return run_of(self._table, pa.concat_tables(_newest(reader, owned, piece_bytes=piece_bytes)))

    def load_pieces(self, reader: RangeReader, owned: pb.HashRange, *, piece_bytes: int) -> Iterator[SortedRun]:
        """Load the same rows as `load` in pieces of about `piece_bytes`, at least one."""
        return (run_of(self._table, rows) for rows in _newest(reader, owned, piece_bytes=piece_bytes))

    def max_rows(self, owned: pb.HashRange) -> int:
        """Return an upper bound of the number of rows in a range."""
        return sum(file.rows for file in self.files if overlaps(file.owned, owned))

    def may_hold(self, owned: pb.HashRange, first_us: int | None, last_us: int) -> bool:
        """Return whether files may have rows in the range with a time between `first_us` (None for no bound) and
        `last_us`.
        """
        return any(
            overlaps(file.owned, owned)
            and file.HasField("min_time_us")
            and file.min_time_us <= last_us
            and (first_us is None or file.max_time_us >= first_us)
            for file in self.files
        )

    # ---- growing -----------------------------------------------------------------------------------------

    @property
    def spec(self) -> SegmentSpec:
        """Layout of new files."""
        return self._table.segment_spec(register_schema(self._live.schemas, self._table.file_schema)[0])

    @contextlib.contextmanager
    def changing(self, announce: Callable[[Upload], None] | None = None) -> Iterator[None]:
        """Make several changes atomically: after a failure, none of them is made.

        `announce` is called with each new file before readers see it, so that its rows can be read before it is stored.
        """
        self._draft, self._made, on_their_way = self._live, [], set(self._on_their_way)
        try:
            yield
            if announce is not None:
                for upload in self._made:
                    announce(upload)
        except BaseException:
            self._on_their_way &= on_their_way
            raise
        else:
            self._live = self._draft
        finally:
            self._draft, self._made = self._live, []

    def deltas_to_compact(self, compacting: frozenset[str], *, unreadable: frozenset[str]) -> Delta:
        """Return the deltas to merge with the next one.

        Deltas that a compaction is reading are left to it, unless there are too many. Files that cannot be read yet are
        left alone.
        """
        deltas = deltas_of(self._draft.files)
        left_alone = unreadable if len(deltas) >= HARD_MAX_DELTAS else unreadable | compacting
        # Only the youngest deltas can be merged with a new one.
        taken = [index for index, delta in enumerate(deltas) if any(file.path in left_alone for file in delta)]
        deltas = deltas[taken[-1] + 1 :] if taken else deltas
        return [file for delta in to_compact(deltas, limit=MAX_DELTAS) for file in delta]

    def add_delta(self, rows: pa.Table, name_of: NameOf, *, merged: Delta) -> Upload:
        """Add one file with all changes and the rows of the `merged` deltas that it replaces. `rows` is sorted and has
        its sequence.
        """
        segment = encode_segment(rows, spec=self.spec)
        count_processed(rows.nbytes)
        path = name_of(segment.digest)
        entry = segment.file_entry(path, owned=self.owned, level=MERGED_DELTAS if merged else DELTA)
        if self._images is not None:
            self._images.add(entry, [rows])
        return self._added([entry], [Upload.of_bytes(path, segment.data)], merged)[0]

    def add_large_delta(
        self, files: Sequence[ParquetFile], name_of: NameOf, *, merged: Delta, pieces: Sequence[pa.Table] = ()
    ) -> tuple[Upload, ...]:
        """Add changes like `add_delta`, from local files that together cover the range of the subtask.

        `pieces` are all rows, if they are still in memory.
        """
        pairs = [staged(file, name_of) for file in files]
        if self._images is not None and pieces:
            rows, first = pa.concat_tables(pieces), 0
            for entry, _ in pairs:
                batches = rows.slice(first, entry.rows).to_batches()
                self._images.add(entry, [pa.Table.from_batches([batch]) for batch in batches])
                first += entry.rows
        return self._added([entry for entry, _ in pairs], [upload for _, upload in pairs], merged)

    def apply(self, edit: Edit, name_of: NameOf) -> tuple[Upload, ...] | None:
        """Apply an edit to the live files and return the uploads, or None if the edit no longer applies."""
        if not edit.applies_to(self._draft.files):
            return None
        pairs = [staged(file, name_of) for file in edit.outputs]
        self._set(edit.applied_to(self._draft.files, [entry for entry, _ in pairs]), next_sequence=self.next_sequence)
        return tuple(self._watched(upload) for _, upload in pairs)

    def _added(self, entries: list[pb.FileEntry], uploads: list[Upload], merged: Delta) -> tuple[Upload, ...]:
        replaced = {file.path for file in merged}
        kept = [file for file in self._draft.files if file.path not in replaced]
        self._set((*kept, *entries), next_sequence=self.next_sequence + 1)
        return tuple(self._watched(upload) for upload in uploads)

    def _set(self, files: tuple[pb.FileEntry, ...], *, next_sequence: int) -> None:
        schemas = register_schema(self._draft.schemas, self._table.file_schema)[1]
        self._draft = replace(self._draft, files=files, next_sequence=next_sequence, schemas=schemas)

    def _watched(self, upload: Upload) -> Upload:
        """Return the upload, extended to record here that it is stored."""
        self._on_their_way.add(upload.path)

        def on_stored() -> None:
            self._on_their_way.discard(upload.path)
            upload.on_stored()

        watched = replace(upload, on_stored=on_stored)
        self._made.append(watched)
        return watched


def _newest(reader: RangeReader, owned: pb.HashRange, *, piece_bytes: int) -> Iterator[pa.Table]:
    return map(without_deleted, reader.newest(owned, piece_bytes=piece_bytes))
