"""View of a time-keyed table: rows with a time, appended in batches, read by time range, kept for a retention.

Appended rows are collected in memory and spilled under memory pressure. A checkpoint turns them into data files,
without rewriting what was spilled already. A deletion reads nothing: files and segments inside a deleted time range are
removed, one tombstone hides the rest. Rows older than the watermark minus the retention are removed in the same way. In
a generational table, the row appended last replaces others with the same key and time.

Every row carries the table's sequence at the time it was appended. A deletion takes that sequence and raises it, so it
hides earlier rows and no later ones. A view is for one thread. The memory controller may move its segments at any time,
and scans and compactions that have begun may continue on other threads.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import int64_values
from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import KEY_HASH, TIME
from statebed.state.arguments import check_rows, check_times, checked_micros, checked_range
from statebed.state.compaction import ALL_BYTES, Edit, NameOf
from statebed.state.config import TableConfig
from statebed.state.host_cache import HostCache
from statebed.state.live.files import BEGINNING, END, LiveFiles
from statebed.state.live.tombstones import DeletionKind
from statebed.state.memory.controller import SEGMENTS_IN_BUDGET, Purpose, Reservation
from statebed.state.memory.sizes import ArrowRows
from statebed.state.metrics import TableStatistics
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.spooled_rows import SpooledRows
from statebed.state.tiers.spooled_values import SpooledValues
from statebed.state.tiers.tier import Tier
from statebed.state.time_keyed.checkpoint import metadata_of, written
from statebed.state.time_keyed.compaction import TimeKeyedJob, all_due_files, due_files, tombstone_bytes_of
from statebed.state.time_keyed.files import full_bytes
from statebed.state.time_keyed.given_rows import GivenRows
from statebed.state.time_keyed.row_merge import Combine, newest, ordered
from statebed.state.time_keyed.snapshot import Snapshot, WantedRows, filtered
from statebed.state.time_keyed.table import MAX_FILES
from statebed.state.time_keyed.table_state import TakenRows, TimeKeyedState
from statebed.state.upload import Upload
from statebed.storage import ObjectStore


class TimeKeyedView:
    """State of one time-keyed table in the hash range that one subtask owns."""

    def __init__(
        self,
        config: TableConfig,
        *,
        owned: pb.HashRange,
        store: ObjectStore,
        parts: Sequence[pb.TableSubtaskCheckpointMetadata] = (),
        tiers: Tiers | None = None,
        owner: str = "",
        combine: Combine | None = None,
        cache: HostCache | None = None,
    ) -> None:
        """Restore from the metadata of one or more earlier subtasks, at any parallelism; no file is read yet.

        `tiers` has the memory budget (default: that of the process). Memory is charged to `owner` (default: the table).
        `combine` reduces rows with the same key and time when files are written and compacted; readers must accept both
        forms. With a `cache`, files are read from copies that all processes of this host share.
        """
        self._state = TimeKeyedState(
            config,
            owned=owned,
            store=store,
            parts=parts,
            tiers=tiers or Tiers.shared(),
            owner=owner or config.name,
            combine=combine,
            cache=cache,
        )
        self.table = self._state.table
        self._where = f"table {self.table.name!r}"
        self._given = GivenRows(self.table, owned)
        self._retention_us = config.time_keyed.retention_us
        self._kept_from_us = BEGINNING
        self._closed = ""
        self.late_rows = 0
        """Number of rows dropped because their retention was over when they were appended."""

    @property
    def row_schema(self) -> pa.Schema:
        """Columns of rows as programs see them: keys, `_time`, values."""
        return self._given.schema

    @property
    def chunk_bytes(self) -> int:
        """Bytes of results that a program should sort at a time, which takes several copies of them."""
        return max(1, self._state.tiers.memory.budget // SEGMENTS_IN_BUDGET)

    @property
    def part_bytes(self) -> int:
        """Bytes of stored rows that a program should hold at a time: an eighth of the memory budget."""
        return max(1, 2 * self._state.tiers.memory.budget // SEGMENTS_IN_BUDGET)

    def reservation(self) -> Reservation:
        """Return a charge of 0 bytes on this table's account, for rows that its user holds in memory."""
        return self._state.tiers.memory.charge(self._state.owner, Purpose.READS, 0)

    def spooled(self, schema: pa.Schema) -> SpooledRows:
        """Return a local file, in the folder for spilled state, for rows that may not fit into memory."""
        return SpooledRows(self._state.tiers.folder, schema)

    def spooled_values(self, kind: pa.DataType) -> SpooledValues:
        """Return local files, in the folder for spilled state, for values that may not fit into memory."""
        return SpooledValues(self._state.tiers.folder, kind, where=self._where)

    # ---- rows ------------------------------------------------------------------------------------------------

    def append(self, rows: ArrowRows) -> None:
        """Add rows: key and value columns, and `_time` without nulls. Rows whose retention is over are dropped and
        counted.

        All rows are added, or none if this raises.
        """
        self._check_open()
        check_rows(rows, "rows", where=self._where)
        state = self._state
        table, late = self._completed(rows)
        state.buffer.append(table)
        self.late_rows += late
        if state.generational and rows.num_rows > late:
            state.live = replace(state.live, next_sequence=state.live.next_sequence + 1)

    def read(
        self,
        start_us: int | None = None,
        end_us: int | None = None,
        *,
        keys: ArrowRows | None = None,
        hashed: bool = False,
    ) -> pa.Table:
        """Return the rows with start_us <= time < end_us (None: unbounded), by bin and key.

        With `keys` (a table of key columns), only rows of these keys. With `hashed`, rows start with `_key_hash`.
        """
        wanted = self._wanted(start_us, end_us, keys)
        snapshot = self._state.snapshot(wanted.files_of)
        empty = self._state.empty
        rows = ordered(pa.concat_tables([empty, *snapshot.pieces(wanted)]), self._state.spec)
        if self._state.generational:
            rows = pa.concat_tables([empty, *newest([rows], self._state.keys)])
        return self._shown(rows, hashed=hashed)

    def scan(
        self,
        start_us: int | None = None,
        end_us: int | None = None,
        *,
        keys: ArrowRows | None = None,
        hashed: bool = False,
    ) -> Iterator[pa.Table]:
        """Yield rows as `read` does, in pieces of which one is in memory at a time; each is sorted, but not across
        pieces.

        Shows the rows at the time of the call, whatever is done to the table later. For a generational table, one piece
        of each file is in memory.
        """
        wanted = self._wanted(start_us, end_us, keys)
        snapshot = self._state.snapshot(wanted.files_of)
        return self._scanned(snapshot, wanted, hashed=hashed)

    def prefetch(
        self,
        start_us: int | None = None,
        end_us: int | None = None,
        *,
        keys: ArrowRows | None = None,
        spare: bool = False,
    ) -> "list[Future[bool]]":
        """Load segments that may hold rows of this time range, and of `keys` if given, in the background.

        Waiting for the futures is optional. `spare`: load only into free memory, so that nothing is evicted, and only
        files of which at least half of the time span is selected.
        """
        wanted = self._wanted(start_us, end_us, keys)
        state = self._state
        if state.closed:
            return []  # it would never be evicted again
        segments = state.segments_of(wanted.files_of(state.live))
        segments += [segment for segment in state.buffer.segments if wanted.may_be_in(segment.entry)]
        left = state.tiers.memory.low_bytes
        nearer: list[Future[bool]] = []
        for segment in segments:
            if spare and (segment.tier is Tier.MEMORY or not wanted.covers_half_of(segment.entry)):
                continue
            left -= segment.nbytes
            if left < 0:
                break  # loading more would evict the first ones
            nearer.append(segment.prefetch(spare=spare))
        return nearer

    # ---- deletions -------------------------------------------------------------------------------------------

    def delete(self, keys: ArrowRows) -> None:
        """Delete all rows of these keys (a table of the key columns)."""
        self._delete(DeletionKind.KEY, self._given.deleted(DeletionKind.KEY, keys))

    def delete_at(self, keys: ArrowRows, times: pa.Array | pa.ChunkedArray) -> None:
        """Delete the rows of each key at its time."""
        check_times(times, where=self._where)
        rows = self._beside(keys, pa.table({TIME: times}))
        self._delete(DeletionKind.TIME_KEY, self._given.deleted(DeletionKind.TIME_KEY, rows))

    def delete_values(self, keys: ArrowRows, values: ArrowRows) -> None:
        """Delete the rows of each key that have its values (a table of all value columns)."""
        deleted = self._given.deleted(DeletionKind.VALUE, self._beside(keys, values))
        if not self._state.generational:
            self._delete(DeletionKind.VALUE, deleted)
            return
        # Deleting only the newest generation would bring an older one back, so delete by key and time.
        newest = self._state.newest_of(deleted)
        self._delete(DeletionKind.TIME_KEY, self._given.deleted(DeletionKind.TIME_KEY, newest))

    def delete_times(self, start_us: int, end_us: int) -> None:
        """Delete the rows with start_us <= time < end_us, without reading any."""
        self._check_open()
        self._state.absorb()
        self._state.delete_range(*checked_range(start_us, end_us, where=self._where))

    def advance(self, watermark_us: int) -> None:
        """Expire the rows whose retention is over; the watermark never goes back."""
        watermark_us = checked_micros(watermark_us, "watermark", where=self._where)
        kept_from = max(self._kept_from_us, watermark_us - self._retention_us)
        if kept_from > self._kept_from_us:
            self._kept_from_us = kept_from
            self.delete_times(BEGINNING, kept_from)

    def flush(self) -> None:
        """Spill appended rows to local disk now.

        They stay readable. If a group of rows was written whole, the next checkpoint uploads its file unchanged.
        """
        self._check_open()
        self._state.buffer.spill()

    # ---- durability ------------------------------------------------------------------------------------------

    def metadata(self, *, subtask_index: int = 0) -> pb.TableSubtaskCheckpointMetadata:
        """Return the metadata of what is in files: everything up to the last checkpoint."""
        self._state.absorb()
        return metadata_of(self._state.live.without_idle_tombstones(), subtask_index=subtask_index)

    def checkpoint(
        self, name_of: NameOf, *, max_files: int = MAX_FILES, max_bytes: int | None = None
    ) -> tuple[Upload, ...]:
        """Write everything appended since the last checkpoint to files, which `metadata` then names.

        Offered edits are applied. With more than `max_files` small files, or far too many tombstones, it compacts some
        files itself, of about `max_bytes` and at most the size of one file.
        """
        taken = self._state.take()
        try:
            _, uploads = written(self._state, taken, name_of, max_files=max_files, max_bytes=max_bytes)
        except BaseException:
            self._state.put_back(taken)
            raise
        self._state.absorb()
        return uploads

    def take(self) -> TakenRows:
        """Take all changes since the last checkpoint, for another thread to `write`. The view can be used in the
        meantime.

        Checkpoints are written in the order in which they were taken. Changes whose writing fails are in no later
        checkpoint.
        """
        return self._state.take()

    def write(
        self,
        taken: TakenRows,
        name_of: NameOf,
        *,
        announce: Callable[[Upload], None],
        max_bytes: int | None = None,
        subtask_index: int = 0,
    ) -> tuple[pb.TableSubtaskCheckpointMetadata, tuple[Upload, ...]]:
        """Write the files of a taken checkpoint; pass each upload to `announce` before it is read. On one thread."""
        live, uploads = written(
            self._state, taken, name_of, max_files=MAX_FILES, max_bytes=max_bytes, announce=announce
        )
        return metadata_of(live, subtask_index=subtask_index), uploads

    def abandon(self, taken: TakenRows) -> None:
        """Give up the edits of a checkpoint that will not be written. Its rows stay readable, but are in no file."""
        if not taken.done:
            for edit in taken.edits:
                edit.discard()

    def plan_compaction(self, *, max_bytes: int, everything: bool = False, alone: bool = True) -> TimeKeyedJob | None:
        """Return a compaction that is due, of at most `max_bytes`, or of everything that it can improve; None if
        nothing is.

        `alone`: return at least the smallest compaction that is due, however large. Callable on any thread, as is `run`
        of the result.
        """
        if everything:
            bin_us, full = self.table.bin_us, full_bytes(self._state.tiers)
            schema_id = self._state.spec.schema_id
            return self._state.job(partial(all_due_files, bin_us=bin_us, full_bytes=full, schema_id=schema_id))
        return self._state.job(partial(self._due_files, max_bytes=max_bytes, alone=alone))

    @property
    def due_bytes(self) -> int:
        """Size of files that are worth compacting."""
        return sum(file.size for file in self._due_files(self._state.mergeable(), max_bytes=ALL_BYTES))

    def warm(self) -> None:
        """Copy all files into the host cache, so that the next subtask restored from them decodes nothing."""
        self._state.absorb()
        self._state.warm()

    def offer_edit(self, edit: Edit) -> None:
        """Offer the result of a compaction to the next checkpoint, which applies or discards it. On any thread."""
        self._state.offer_edit(edit)

    @property
    def edits(self) -> tuple[int, int]:
        """Number of edits applied, and number discarded because an input was no longer live."""
        return self._state.edits_applied, self._state.edits_discarded

    def statistics(self) -> TableStatistics:
        """Return statistics; reads nothing."""
        self._state.absorb()
        return statistics_of(self._state, late_rows=self.late_rows)

    def close(self, reason: str = "its view was closed") -> None:
        """Refuse further rows and deletions; reads still work."""
        self._closed = self._closed or reason

    def release(self) -> None:
        """Release memory and local files. If every row is in a checkpoint, reads from the store still work."""
        self.close()
        self._state.close()

    # ---- inside ----------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(
                f"the table {self.table.name!r} accepts no more writes: {self._closed}",
                fix="restore a new manager from the last committed record, and write to its tables",
            )

    def _due_files(self, live: LiveFiles, *, max_bytes: int, alone: bool = True) -> tuple[pb.FileEntry, ...]:
        return due_files(
            live,
            bin_us=self.table.bin_us,
            full_bytes=full_bytes(self._state.tiers),
            max_bytes=max_bytes,
            alone=alone,
            tombstone_bytes=tombstone_bytes_of(self._state.tiers),
        )

    def _completed(self, rows: ArrowRows) -> tuple[pa.Table, int]:
        """Return the rows to add, and the number of late rows."""
        state = self._state
        table = self._given.completed(rows, sequence=state.live.next_sequence)
        kept = int64_values(table[TIME]) >= self._kept_from_us
        table = filtered(table, kept)
        if state.generational and table.num_rows:
            table = state.last_of_each(table)
        return table, int(len(kept) - np.count_nonzero(kept))

    def _beside(self, keys: ArrowRows, more: ArrowRows) -> pa.Table:
        """Return a table with the columns of both; without key columns, only the latter."""
        check_rows(keys, "keys", where=self._where)
        check_rows(more, "values", where=self._where)
        if keys.schema.names and keys.num_rows != more.num_rows:
            raise InputError(
                f"got {keys.num_rows} keys, but {more.num_rows} times or values",
                where=self._where,
                fix="give one for each key",
            )
        return pa.table({name: rows.column(name) for rows in (keys, more) for name in rows.schema.names})

    def _delete(self, kind: DeletionKind, deleted: pa.Table) -> None:
        self._check_open()
        state = self._state
        state.absorb()
        state.install(state.live.delete_rows(kind, deleted, fresh=state.spans()))

    def _wanted(self, start_us: int | None, end_us: int | None, keys: ArrowRows | None) -> WantedRows:
        if self._state.lost:
            raise InputError(
                f"the table {self.table.name!r} was released with changes that no checkpoint contains",
                fix="restore a new view from the last committed record",
            )
        self._state.absorb()
        return WantedRows(
            BEGINNING if start_us is None else checked_micros(start_us, "start", where=self._where),
            END if end_us is None else checked_micros(end_us, "end", where=self._where),
            None if keys is None else self._given.key_set(keys),
        )

    def _scanned(self, snapshot: Snapshot, wanted: WantedRows, *, hashed: bool) -> Iterator[pa.Table]:
        rows = snapshot.in_order(wanted) if self._state.generational else snapshot.pieces(wanted)
        for piece in rows:
            if piece.num_rows:
                yield self._shown(piece, hashed=hashed)
            del piece  # before the next one is read, so that only one is in memory

    def _shown(self, rows: pa.Table, *, hashed: bool) -> pa.Table:
        shown = pa.Table.from_arrays([rows[name] for name in self.row_schema.names], schema=self.row_schema)
        return shown.add_column(0, self._state.empty.schema.field(KEY_HASH), rows[KEY_HASH]) if hashed else shown


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
