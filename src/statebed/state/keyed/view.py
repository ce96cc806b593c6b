"""The view of a keyed table, which one subtask reads and writes in whole batches.

    view = KeyedView(config, owned=owned_range(0, 1), store=store)
    view.merge(keys, values, add)
    values, found = view.get(keys)
    checkpoint = view.checkpoint(name_of)      # put its uploads, call on_stored of each, then commit its metadata

Rows live in blocks, which are changed in place in memory and spilled to mapped files when memory is short (`tiers` is
one budget for all tables of a process). A checkpoint writes the rows that changed, and the keys that were deleted or
expired, as one delta. Its size grows with the changes, and its bytes do not depend on their order. `take` does the part
that needs the operator's thread; another thread writes what it took (`TakenChanges`). Compactions run beside the view,
and rewrite base and deltas as a new base, or several deltas as one: `plan_compaction` returns the work, `offer_edit`
accepts its result, and the next checkpoint applies it. Only if there are MAX_DELTAS nevertheless, a checkpoint rewrites
the youngest with the new one.

Every operation on rows first reserves memory and fetches the blocks it needs, then works on them under the view's lock,
and finally updates what is charged for them. A view is for one thread, except where stated otherwise. A batch that is
large compared with the memory budget is applied in pieces. Each piece is applied as a whole or, if it is refused or
fails, not at all.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, one_chunk, uint64_values
from statebed.arrays.grouping import Grouping
from statebed.arrays.mutable import Mask, Rows, taken
from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.ranges import in_range
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP, merge_schema_lists
from statebed.state.arguments import check_rows, checked_micros, checked_range
from statebed.state.compaction import CompactionJob, Edit, EditQueue, NameOf
from statebed.state.config import TableConfig
from statebed.state.host_cache import HostCache
from statebed.state.keyed.batch import (
    HashFunction,
    KeyBatch,
    MergeFunction,
    folded,
    last_of_each,
    latest_times,
    take_rows,
)
from statebed.state.keyed.batch_matches import BatchMatches
from statebed.state.keyed.block import Block, Pick
from statebed.state.keyed.block_set import Blocks
from statebed.state.keyed.cached_runs import CachedRuns
from statebed.state.keyed.checkpoint import KeyedCheckpoint, TakenChanges
from statebed.state.keyed.compaction import KeyedCompaction, Plan, due_bytes, plan
from statebed.state.keyed.durable import DurableRows
from statebed.state.keyed.files import bytes_of
from statebed.state.keyed.groups import ElementPage, Groups, GroupSpan, element_page
from statebed.state.keyed.input import Batch, check_timed, checked_values, given_times, written_times
from statebed.state.keyed.lent_block import lend_blocks
from statebed.state.keyed.run_rows import file_rows
from statebed.state.keyed.sorted_run import DELETED, Marks, Times
from statebed.state.keyed.table import KeyedTable
from statebed.state.keyed.written_values import WrittenValues, values_of
from statebed.state.live.row_set import RowSet, ascending
from statebed.state.memory.controller import SEGMENTS_IN_BUDGET, Purpose, Reservation
from statebed.state.memory.pages import count_processed
from statebed.state.metrics import TableStatistics
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.spooled_rows import SpooledRows
from statebed.state.tiers.spooled_values import SpooledValues
from statebed.storage import ObjectStore

T = TypeVar("T")

LARGE_BATCH = 4
"""Batches that could take more than 1/n of the budget are written in pieces."""
_ROW_BYTES = 48
"""Bytes that a row takes besides its keys and values: its hash, time and marks, and its entries in the index and the
batch.
"""


class KeyedView:
    """State of one keyed table in the range of hashes that one subtask owns."""

    def __init__(
        self,
        config: TableConfig,
        *,
        owned: pb.HashRange,
        store: ObjectStore,
        parts: Sequence[pb.TableSubtaskCheckpointMetadata] = (),
        hash_function: HashFunction | None = None,
        block_bytes: int | None = None,
        tiers: Tiers | None = None,
        owner: str | None = None,
        cache: HostCache | None = None,
    ) -> None:
        """Restore from the metadata of one or more earlier subtasks, at any parallelism. Reads no file yet.

        `tiers` is the memory and local disk shared with other tables (by default those of the process), and `owner` the
        name of this view there. Blocks take at most `block_bytes`, which by default depends on the budget. With a
        `cache`, files are looked up in copies that all processes of this host share.
        """
        self.table = KeyedTable(config, merge_schema_lists(part.schemas for part in parts))
        self._where = f"table {self.table.name!r}"
        self._tiers = tiers or Tiers.shared()
        self._memory = self._tiers.memory
        self._owner = owner or config.name
        self._store = store
        images = None
        if cache is not None:
            images = CachedRuns(cache, self.table, store, owned=owned, memory=self._memory, owner=self._owner)
        self._durable = DurableRows(self.table, store, parts, owned, images=images, ranges=self._tiers.ranges)
        self._blocks = Blocks(self.table, self._durable, self._tiers, owner=self._owner, block_bytes=block_bytes)
        self._hash = hash_function or self.table.hash_keys
        self._edits = EditQueue()
        self._now_us: int | None = None
        self._closed = ""
        self._half_written = False
        self._is_changing = False
        """Whether the last checkpoint had changes."""
        self._last_batch: tuple[Batch, KeyBatch] | None = None
        """Keys of the last operation, hashed and sorted, since keys that are read are often written next. Only if they
        are small.
        """
        self.expired_rows = 0
        """Number of rows that have expired since the view was created."""
        self.dependents: list[KeyedView] = []
        """Multiset tables whose groups are deleted when the row of their key expires here."""

    @property
    def owned(self) -> pb.HashRange:
        """Range of hashes of the rows."""
        return self._durable.owned

    # ---- reading -----------------------------------------------------------------------------------------

    def get(self, keys: Batch) -> tuple[pa.Table, Mask]:
        """Return the values of each key, null if it has none, and a mask of the keys that have values. Keys may
        repeat.
        """
        batch = self._batch(keys)
        has_values = np.zeros(len(batch), dtype=np.bool_)
        source = np.full(len(batch), -1, dtype=np.int64)
        tables = [_nullable(self.table.value_schema).empty_table()]
        count = 0
        for piece in self._matches(batch):
            rows = batch.order[piece.rows]
            has_values[rows] = True
            source[rows] = np.arange(count, count + len(rows), dtype=np.int64)
            count += len(rows)
            tables.append(values_of(piece.run, piece.at, tables[0].schema))
        table = pa.concat_tables(tables)
        wanted = None if has_values.all() else has_values
        columns = [taken(one_chunk(column), source, wanted) for column in table.columns]
        return pa.Table.from_arrays(columns, schema=table.schema), has_values

    def has(self, keys: Batch) -> Mask:
        """Return a mask of the keys that have values. Keys may repeat."""
        batch = self._batch(keys)
        has_values = np.zeros(len(batch), dtype=np.bool_)
        for piece in self._matches(batch):
            has_values[batch.order[piece.rows]] = True
        return has_values

    def distinct(self, keys: Batch) -> tuple[pa.Table, Grouping]:
        """Return each key once, in the order of hashes, and the rows of `keys` that have it.

        The next operation on the returned keys neither hashes nor sorts them again, if they are small.
        """
        batch = self._hashed(keys)
        starts = batch.starts()
        columns = batch.taken(starts)
        unique = pa.Table.from_arrays([column.array() for column in columns], schema=self.table.key_schema)
        every_row = np.arange(len(starts), dtype=np.int64)
        self._remember(unique, KeyBatch(batch.hashes.take(starts), columns, came_from=every_row))
        return unique, Grouping(batch.order, starts)

    def scan(self) -> Iterator[pa.Table]:
        """Yield all rows by hash, in pieces that fit into memory: keys, `_time` if rows expire, values.

        Each piece shows the rows as they are when it is reached. Concurrent writes are visible only in later pieces.
        """
        first = self.owned.first
        while first <= self.owned.last:
            rows, first = self._piece_from(first)
            if rows.num_rows:
                yield rows

    def elements(self, keys: Batch) -> Iterator[ElementPage]:
        """Yield all rows of groups of a multiset table, in pages that fit into memory. `keys` has each group once.

        Groups come in the order of their hashes, and rows of a group in the order of theirs. Each page shows the rows
        as they are when it is reached.
        """
        groups = self._groups(keys)
        pages = self._by_page(groups, lambda _, pieces: element_page(self.table, groups.keys, pieces))
        return _counted(filter(len, pages))

    def count_elements(self, keys: Batch, limits: Rows) -> Rows:
        """Return the number of rows of each group of a multiset table. `keys` has each group once.

        Counting a large group stops when the count exceeds its limit, so such a count may be too low.
        """
        groups = self._groups(keys)
        counts = np.zeros(len(groups), dtype=np.int64)
        max_counts = limits.take(groups.keys.order)

        def count(_: Block, pieces: list[BatchMatches]) -> None:
            for piece in pieces:
                np.add.at(counts, piece.rows, 1)

        for _ in self._by_page(groups, count, enough=lambda group: bool(counts[group] > max_counts[group])):
            pass
        result = np.empty_like(counts)
        result[groups.keys.order] = counts
        return result

    def prefetch(self, keys: Batch) -> tuple[Future[bool], ...]:
        """Bring the rows of these keys nearer in the background.

        Rows are loaded from the store to memory, or to mapped files if memory is short, and from mapped files to
        memory, evicting colder rows. This is only a hint: a future yields False if too many loads are waiting already,
        or if the rows have changed or were loaded before.
        """
        nearer, left = [], self._memory.low_bytes
        for slot, _, _ in self._blocks.of(self._batch(keys).hashes):
            if not slot.block.present:
                nearer.append(self._blocks.soon(self._blocks.load, slot))
            elif slot.block.spilled and slot.block.reload_bytes <= left:
                # Only as many as fit into memory together.
                left -= slot.block.reload_bytes
                nearer.append(self._blocks.soon(self._blocks.reload, slot))
        return tuple(nearer)

    # ---- writing -----------------------------------------------------------------------------------------

    def upsert(self, keys: Batch, values: Batch, *, times: pa.Array | None = None) -> None:
        """Set the values of keys. If a key repeats, its last row wins.

        The time of a key is the latest that it was written with.
        """
        self._write(keys, values, times, None)

    def replace(self, keys: Batch, values: Batch, kept: Mask) -> None:
        """Set the values of the keys in `kept`, and delete the other keys. `values` has one row for each key that is
        kept. No key may repeat.

        The keys are looked up once, or not at all if they were just read.
        """
        self._check_open()
        table = checked_values(self.table, keys, values, kept=kept)
        times = written_times(self.table, keys.num_rows, None, now_us=self._now_us)
        batch = self._batch(keys)
        if batch.repeats is not None:
            raise InputError(
                f"`replace` got {keys.num_rows} keys, of which only {len(batch.starts())} are distinct",
                where=self._where,
                fix="pass each key once",
            )
        source, is_kept = (np.cumsum(kept) - 1)[batch.order], kept[batch.order]
        columns = [taken(one_chunk(column), source, is_kept) for column in table.columns]
        rows = pa.Table.from_arrays(columns, schema=_nullable(self.table.value_schema))
        self._write_pieces(batch, rows, times, None, is_kept)

    def merge(self, keys: Batch, values: Batch, function: MergeFunction, *, times: pa.Array | None = None) -> None:
        """Set each key to `function(old values, new values)`, or to the new values if it has none.

        Rows of one key within the batch are folded in pairs by the same function first, earlier rows first, so it has
        to be associative. It is called with whole columns, and must not use the view.

        A batch that is large for the memory budget is merged in pieces. If the first piece fails, nothing has changed.
        If a later one does, the view accepts no more writes and no checkpoint, as for `upsert`.
        """
        if not callable(function):
            raise InputError(
                f"the merge function must be callable, got {type(function).__name__}",
                where=self._where,
                fix="pass a function of old and new rows, or `merge_columns(...)`; to replace rows, use `upsert`",
            )
        self._write(keys, values, times, function)

    def delete(self, keys: Batch) -> Mask:
        """Delete keys, and return a mask of those that had values. Keys may repeat."""
        self._check_open()
        batch = self._batch(keys)
        had_values = np.zeros(len(batch), dtype=np.bool_)
        with self._blocks.operation(2 * int(keys.nbytes) + _ROW_BYTES * len(batch)):
            parts = self._blocks.available(batch)
            with self._blocks.locked():
                for slot, start, end in parts:
                    alive = self._alive(slot.block.locate(batch, start, end)[0])
                    for piece in alive:
                        had_values[batch.order[piece.rows]] = True
                    slot.block.delete(alive)
                self._blocks.settle(slot for slot, _, _ in parts)
        self._forget_keys()
        return had_values

    def delete_elements(self, keys: Batch) -> int:
        """Delete all rows of groups of a multiset table, and return their number. `keys` has each group once."""
        self._check_open()

        def delete(block: Block, pieces: list[BatchMatches]) -> int:
            block.delete(pieces)
            return sum(len(piece.at) for piece in pieces)

        count = sum(self._by_page(self._groups(keys), delete))
        self._forget_keys()
        return count

    def delete_values(self, keys: Batch, values: Batch) -> Mask:
        """Delete keys that have exactly these values, and return a mask of the rows of the batch that matched.

        Nulls equal nulls, NaN equals NaN, and -0.0 equals 0.0.
        """
        columns = checked_values(self.table, keys, values)
        return self._delete_equal(keys, dict(zip(columns.column_names, columns.columns, strict=True)))

    def delete_at(self, keys: Batch, times: pa.Array) -> Mask:
        """Delete keys that have exactly these times, and return a mask of the rows of the batch that matched."""
        check_timed(self.table, "deleting by key and time")
        check_rows(keys, "keys", where=self._where)
        moments = given_times(self.table, keys.num_rows, times)
        return self._delete_equal(keys, {TIME: from_numpy(moments, TIMESTAMP)})

    def delete_times(self, start_us: int, end_us: int) -> int:
        """Delete the rows with start_us <= time < end_us, and return their number."""
        self._check_open()
        check_timed(self.table, "deleting by time")
        start_us, end_us = checked_range(start_us, end_us, where=self._where)
        until = self._expired_until()

        def pick(marks: Marks, times: Times | None) -> Mask:
            assert times is not None
            return _alive_at(until)(marks, times) & (times >= start_us) & (times < end_us)

        return sum(
            self._delete_where(slot.block.owned, pick)
            for slot in self._blocks
            if slot.block.present or self._durable.may_hold(slot.block.owned, start_us, end_us - 1)
        )

    def advance(self, now_us: int) -> int:
        """Advance the table's clock, which never goes back, and return the number of rows that expired."""
        now_us = checked_micros(now_us, "time", where=self._where)
        self._now_us = now_us if self._now_us is None else max(now_us, self._now_us)
        return self._expire()

    # ---- checkpoints -----------------------------------------------------------------------------------

    def metadata(self, *, subtask_index: int = 0) -> pb.TableSubtaskCheckpointMetadata:
        """Return the metadata of the files, which cover everything up to the last checkpoint."""
        return self._durable.metadata(subtask_index)

    def checkpoint(self, name_of: NameOf, *, subtask_index: int = 0) -> KeyedCheckpoint:
        """Write all changes since the last checkpoint, and return the files and the metadata of the whole state.

        Changes are one file, or several if they do not fit into one block. If this fails, nothing has changed, and it
        can be repeated.
        """
        taken = self._changes()
        try:
            done = taken.write(name_of, subtask_index=subtask_index)
        except BaseException:
            taken.put_back()
            raise
        self._saved()
        return done

    def take(self) -> TakenChanges:
        """Take all changes since the last checkpoint for another thread to write. The view can be used in the meantime.

        Checkpoints have to be written in the order in which they were taken. Changes that fail to be written are in no
        later checkpoint.
        """
        taken = self._changes()
        self._saved()
        return taken

    # ---- compaction ------------------------------------------------------------------------------------

    def plan_compaction(
        self, *, max_bytes: int, everything: bool = False, alone: bool = True, often: bool = False
    ) -> CompactionJob | None:
        """Plan work on at most `max_bytes` of files that makes reads and restores cheaper, or return None if there is
        none.

        `everything` plans all that can be compacted or has older columns, whatever its size. `alone` plans at least one
        range that is due, however large it is. `often` leaves out what can wait, because this is called after each
        checkpoint; nothing waits if the last one had no changes. Any thread may call this, once a checkpoint is
        durable.
        """
        files, often = self._durable.files, often and self._is_changing
        schema_id = self._durable.spec.schema_id if everything else None
        chosen = self._plan(
            files, max_bytes=None if everything else max_bytes, schema_id=schema_id, alone=alone, often=often
        )
        if chosen is None or not all(self._durable.is_stored(file) for file in chosen.inputs):
            return None
        self._edits.reading = frozenset(file.path for file in chosen.inputs)
        return KeyedCompaction(
            plan=chosen,
            table=self.table,
            spec=self._durable.spec,
            store=self._store,
            tiers=self._tiers,
            owner=self._owner,
            file_bytes=self._blocks.block_bytes,
            # A compaction must not drop expired rows before a checkpoint has deleted their groups in dependent tables.
            expired_until=None if self.dependents else self._expired_until(),
        )

    @property
    def due_bytes(self) -> int:
        """Bytes of files that are worth compacting."""
        return due_bytes(self._durable.files, self.owned)

    def reserve_for_compaction(self, epoch: int) -> None:
        """Leave the files of epochs up to `epoch` alone in checkpoints, because they are compacted elsewhere."""
        old = [file.path for file in self._durable.files if (names.epoch_of(file.path) or 0) <= epoch]
        self._edits.reading = frozenset(old)

    def offer_edit(self, edit: Edit) -> None:
        """Have the next checkpoint apply the result of a compaction. Any thread may call this."""
        self._edits.offer(edit)

    # ---- memory and figures ----------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes of all arrays and indexes in memory."""
        return sum(slot.block.held_bytes for slot in self._blocks)

    @property
    def dirty_rows(self) -> int:
        """Number of rows that changed since the last checkpoint. A spilled row may be counted more than once."""
        return sum(slot.block.dirty_rows for slot in self._blocks)

    def reservation(self) -> Reservation:
        """Return a charge of 0 bytes on this table's account, for rows that its user holds in memory."""
        return self._memory.charge(self._owner, Purpose.READS, 0)

    def spooled(self, schema: pa.Schema) -> SpooledRows:
        """Return a local file, in the folder for spilled state, for rows that may not fit into memory."""
        return SpooledRows(self._tiers.folder, schema)

    def spooled_values(self, kind: pa.DataType) -> SpooledValues:
        """Return local files, in the folder for spilled state, for values that may not fit into memory."""
        return SpooledValues(self._tiers.folder, kind, where=self._where)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of rows that a program should sort at a time, which takes several copies of them."""
        return max(1, self._memory.budget // SEGMENTS_IN_BUDGET)

    def warm(self) -> None:
        """Copy all files to the host cache, so that the next process that is restored from them decodes nothing."""
        self._durable.copies(self.owned)

    def release(self, wanted_bytes: int) -> int:
        """Release blocks without changes until `wanted_bytes` of memory are free or none is left, and return the bytes
        freed.

        Released rows are read from files again, so nothing is released before these are stored.
        """
        freed = 0
        for slot in self._blocks:
            if freed >= wanted_bytes:
                break
            freed += self._blocks.release(slot)
        return freed

    def give_up(self) -> None:
        """Release all memory and local disk, whatever has changed since the last checkpoint.

        If nothing has changed, the view can still be read, from the store.
        """
        self.close("it was given up")
        self._forget_keys()
        self._edits.settle(self._edits.take(), applied=())
        self._blocks.give_up()

    def statistics(self) -> TableStatistics:
        """Return the statistics of the table. Reads no file; any thread may call this."""
        files = self._durable.files
        blocks = [slot.block for slot in self._blocks]
        counts = self._blocks.counts
        due = self._plan(files, max_bytes=None)
        return TableStatistics(
            rows=self.metadata().rows + sum(block.dirty_rows for block in blocks) + self._durable.unwritten_rows,
            memory_bytes=sum(block.held_bytes for block in blocks),
            disk_bytes=sum(block.disk_bytes for block in blocks),
            store_bytes=bytes_of(files),
            files=Counter(level for _, level in {(file.path, file.level) for file in files}),
            spills=counts.spills,
            loads=counts.loads,
            hits=counts.hits,
            compaction_debt_bytes=0 if due is None else due.input_bytes,
            expired_rows=self.expired_rows,
            edits_applied=self._edits.applied,
            edits_discarded=self._edits.discarded,
        )

    def close(self, reason: str) -> None:
        """Refuse later writes. Reads are still possible."""
        self._closed = self._closed or reason

    # ---- inside: batches of rows -----------------------------------------------------------------------

    def _batch(self, keys: Batch) -> KeyBatch:
        if self._last_batch is not None and self._last_batch[0] is keys:
            return self._last_batch[1]
        batch = self._hashed(keys)
        self._remember(keys, batch)
        return batch

    def _hashed(self, keys: Batch) -> KeyBatch:
        batch = KeyBatch.of(keys, self.table.key_schema, self._hash, where=self._where)
        if len(batch) and not in_range(batch.hashes[[0, -1]], self.owned).all():
            raise self._of_another_subtask()
        return batch

    def _remember(self, keys: Batch, batch: KeyBatch) -> None:
        nbytes = 2 * int(keys.nbytes) + _ROW_BYTES * len(batch)
        self._last_batch = (keys, batch) if self._blocks.remember(nbytes) else None

    def _of_another_subtask(self) -> InputError:
        return InputError(
            f"some keys of table {self.table.name!r} belong to another subtask",
            fix="send each row to the subtask that owns the hash of its key",
        )

    def _forget_keys(self) -> None:
        self._last_batch = None
        self._blocks.remember(0)

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(
                f"the table {self.table.name!r} takes no more writes: {self._closed}",
                fix="restore a new view from the last committed record",
            )

    def _matches(self, batch: KeyBatch) -> Iterator[BatchMatches]:
        """Yield the live rows that have keys of a batch, with the lock held."""
        with self._blocks.operation(_ROW_BYTES * len(batch)):
            for slot, start, end in self._blocks.available(batch):
                with self._blocks.locked():
                    remember = self._last_batch is not None
                    yield from self._alive(slot.block.locate(batch, start, end, remember=remember)[0])
                    self._blocks.settle([slot])

    def _alive(self, pieces: Sequence[BatchMatches]) -> list[BatchMatches]:
        until = self._expired_until()
        alive = [piece.where(piece.run.alive(piece.at, until)) for piece in pieces]
        return [piece for piece in alive if len(piece.rows)]

    def _write(self, keys: Batch, values: Batch, times: pa.Array | None, function: MergeFunction | None) -> None:
        """Check a batch, then write it."""
        self._check_open()
        table = checked_values(self.table, keys, values)
        moments = written_times(self.table, keys.num_rows, times, now_us=self._now_us)
        batch = self._batch(keys)
        unique, rows = last_of_each(batch, table) if function is None else folded(batch, table, function)
        latest = None if moments is None else latest_times(batch, moments)
        self._write_pieces(unique, rows, latest, function, None)

    def _write_pieces(
        self,
        unique: KeyBatch,
        rows: pa.Table,
        latest: Times | None,
        function: MergeFunction | None,
        kept: Mask | None,
    ) -> None:
        """Write a batch that has each key once, in pieces by hash if it is large. Keys that are not `kept` are
        deleted.
        """
        step = self._rows_at_once(len(unique), _growth(rows))
        for start in range(0, len(unique), step):
            end = min(start + step, len(unique))
            part = None if latest is None else latest[start:end]
            part_kept = None if kept is None else kept[start:end]
            try:
                self._write_piece(unique.slice(start, end), rows.slice(start, step), part, function, part_kept)
            except BaseException:
                if start:
                    self._half_written = True
                    self.close("a write failed when a part of it was done")
                raise
        self._forget_keys()

    def _rows_at_once(self, count: int, growth: int) -> int:
        """Return the number of rows to write at once: all of them, or fewer if the batch is large compared with the
        budget.
        """
        if growth <= self._memory.budget // LARGE_BATCH:
            return max(count, 1)
        return max(count * (self._memory.budget // (2 * LARGE_BATCH)) // growth, 1)

    def _write_piece(
        self,
        unique: KeyBatch,
        values: pa.Table,
        times: Times | None,
        function: MergeFunction | None,
        kept: Mask | None,
    ) -> None:
        self._blocks.await_loans(unique.hashes)
        # New keys may make a block merge its runs or split, which copies its rows.
        with self._blocks.operation(_growth(values) + 2 * self._blocks.block_bytes):
            parts = self._blocks.available(unique)
            with self._blocks.locked():
                located = [(slot, *slot.block.locate(unique, start, end)) for slot, start, end in parts]
                alive = self._alive([piece for _, pieces, _ in located for piece in pieces])
                times = _latest(times, alive)
                written = WrittenValues(values, alive, function)
                for slot, pieces, missing in located:
                    slot.block.put(pieces, missing, unique, written, times, kept=kept)
                self._blocks.settle(slot for slot, _, _ in located)

    def _groups(self, keys: Batch) -> Groups:
        groups = Groups.of(keys, self.table)
        if len(groups) and not in_range(groups.keys.hashes[[0, -1]], self.owned).all():
            raise self._of_another_subtask()
        return groups

    def _by_page(
        self,
        groups: Groups,
        function: Callable[[Block, list[BatchMatches]], T],
        *,
        enough: Callable[[int], bool] | None = None,
    ) -> Iterator[T]:
        """Yield the result of a function of the rows of groups, page by page. It is called with the lock held.

        `enough` is called with the number of a large group, and returns whether to skip its remaining pages.
        """
        at, first = 0, None
        while at < len(groups):
            # Deleting rows of mapped files adds rows in memory.
            with self._blocks.operation(2 * self._memory.segment_bytes):
                low = int(groups.firsts[at]) if first is None else first
                # If the first page may be enough, the rest of a large block need not be loaded.
                wanted = None if enough is None else np.array([low], dtype=np.uint64)
                self._blocks.fetch(self._blocks.at(low), wanted)
                slot = self._blocks.at(low)
                with self._blocks.locked():
                    span = self._span(slot.block, groups, at, low)
                    result = function(slot.block, slot.block.elements(groups, span, self._expired_until()))
                    self._blocks.settle([slot])
            yield result
            del result  # before the next page is built, so that only one is in memory
            last, end = int(span.lasts[-1]), at + len(span)
            if last < int(groups.lasts[end - 1]) and not (enough is not None and enough(end - 1)):
                at, first = end - 1, last + 1
            else:
                at, first = end, None

    def _span(self, block: Block, groups: Groups, at: int, low: int) -> GroupSpan:
        """Return the groups that fit into one page, beginning with group `at` and hash `low`. A large group is cut by
        hash.
        """
        end = max(int(np.searchsorted(groups.firsts, np.uint64(block.owned.last), side="right")), at + 1)
        firsts = groups.firsts[at:end].copy()
        firsts[0] = low
        span = GroupSpan(at, firsts, np.minimum(groups.lasts[at:end], np.uint64(block.owned.last)))
        piece_bytes = self._memory.segment_bytes
        fitting = int(np.searchsorted(np.cumsum(block.element_counts(span)), block.rows_in(piece_bytes), side="right"))
        if fitting >= len(span):
            return span
        span = GroupSpan(at, span.firsts[: max(fitting, 1)], span.lasts[: max(fitting, 1)].copy())
        if not fitting:
            span.lasts[0] = min(block.cut(low, piece_bytes=piece_bytes), int(span.lasts[0]))
        return span

    def _piece_from(self, first: int) -> tuple[pa.Table, int]:
        """Return one piece of rows, beginning with the hash `first`, and the hash at which the next piece begins."""
        with self._blocks.operation(2 * self._memory.segment_bytes):
            self._blocks.fetch(self._blocks.at(first))
            slot = self._blocks.at(first)
            with self._blocks.locked():
                block, until = slot.block, self._expired_until()
                last = block.cut(first, piece_bytes=self._memory.segment_bytes)
                parts = [
                    file_rows(self.table, run, rows, marks)
                    for run, rows, marks in block.current(first, last, _alive_at(until))
                ]
                self._blocks.settle([slot])
        rows = pa.concat_tables([self.table.file_schema.empty_table(), *parts])
        if len(parts) > 1:
            rows = take_rows(rows, np.argsort(uint64_values(rows[KEY_HASH]), kind="stable"))
        rows = rows.select(self.table.row_schema.names)
        return pa.Table.from_arrays(rows.columns, schema=self.table.row_schema), last + 1

    def _expired_until(self) -> int | None:
        if self.table.time_to_live_us is None or self._now_us is None:
            return None
        return self._now_us - self.table.time_to_live_us

    def _expire(self) -> int:
        until = self._expired_until()
        if until is None:
            return 0

        def pick(marks: Marks, times: Times | None) -> Mask:
            assert times is not None
            over: Mask = (times <= until) & ((marks & DELETED) == 0)
            return over

        count = 0
        for slot in self._blocks:
            owned = slot.block.owned
            block = slot.block
            whole = block.present and block.opened is None
            due = (block.present and block.may_expire(until)) or (
                not whole and self._durable.may_hold(owned, None, until)
            )
            if due:
                count += self._delete_where(owned, pick, self.dependents)
                with self._blocks.locked():
                    for part in self._blocks.within(owned):
                        part.block.has_expired(until)
        self.expired_rows += count
        return count

    def _delete_where(self, owned: pb.HashRange, pick: Pick, dependents: Sequence["KeyedView"] = ()) -> int:
        """Delete rows in a range, which may have been split into several blocks, one piece at a time, and their groups
        in the dependent tables.
        """
        count, first, piece_bytes = 0, owned.first, self._memory.segment_bytes
        while first <= owned.last:
            # Deleting rows of mapped files adds rows in memory; rows in memory are marked in place.
            with self._blocks.operation(2 * piece_bytes):
                self._blocks.fetch(self._blocks.at(first))
                slot = self._blocks.at(first)
                with self._blocks.locked():
                    block, gone = slot.block, []
                    small = block.spilled or bool(dependents)
                    last = block.cut(first, piece_bytes=piece_bytes) if small else block.owned.last
                    if dependents:
                        gone = [
                            file_rows(self.table, run, rows, marks).select(list(self.table.key_names))
                            for run, rows, marks in block.current(first, last, pick)
                        ]
                    count += block.delete_where(first, last, pick)
                    self._blocks.settle([slot])
            if gone:
                keys = pa.concat_tables(gone).cast(self.table.key_schema)
                for dependent in dependents:
                    dependent.delete_elements(keys)
            first = last + 1
        return count

    def _delete_equal(self, keys: Batch, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> Mask:
        """Delete the keys whose rows equal the batch in further columns."""
        self._check_open()
        batch = self._batch(keys)
        hashes = np.empty(len(batch), dtype=np.uint64)
        hashes[batch.order] = batch.hashes
        names = list(self.table.key_names)
        wanted = {KEY_HASH: from_numpy(hashes, pa.uint64()), **{name: keys[name] for name in names}, **columns}
        rows = RowSet(pa.table(wanted), keys=names)
        done = np.zeros(len(batch), dtype=np.bool_)
        with self._blocks.operation(2 * int(keys.nbytes) + _ROW_BYTES * len(batch)):
            parts = self._blocks.available(batch)
            with self._blocks.locked():
                for slot, start, end in parts:
                    for piece in self._alive(slot.block.locate(batch, start, end)[0]):
                        at = ascending(piece.at)
                        held = file_rows(self.table, piece.run, at, piece.run.marks[at]).select(list(wanted))
                        gone = np.zeros(len(at), dtype=np.bool_)
                        for theirs, ours in rows.pairs(held):
                            gone[theirs] = True
                            done[ours] = True
                        slot.block.delete([BatchMatches(piece.run, piece.frozen, at[gone], at[gone])])
                self._blocks.settle(slot for slot, _, _ in parts)
        self._forget_keys()
        return done

    # ---- inside: checkpoints and compaction ------------------------------------------------------------

    def _changes(self) -> TakenChanges:
        if self._half_written:
            self._check_open()
        self._expire()
        with self._blocks.operation(0), self._blocks.locked():
            blocks = [slot.block for slot in self._blocks]
            for block in blocks:
                # An operation that found damage may be half done.
                block.check_sound()
            rows = sum(block.dirty_rows for block in blocks)
            self._durable.taken += 1
            self._durable.taken_rows += rows
            self._is_changing = rows > 0
            return TakenChanges(
                lend_blocks(blocks, self.table, self._charge),
                rows,
                self._edits.take(),
                queue=self._edits,
                table=self.table,
                durable=self._durable,
                tiers=self._tiers,
                owner=self._owner,
                file_bytes=self._blocks.block_bytes,
            )

    def _charge(self) -> Reservation:
        return self._memory.charge(self._owner, Purpose.WRITES, 0)

    def _saved(self) -> None:
        """Record that a checkpoint has taken all changes."""
        with self._blocks.locked():
            for slot in self._blocks:
                slot.block.mark_written()
            self._blocks.saved()

    def _plan(
        self,
        files: Sequence[pb.FileEntry],
        *,
        max_bytes: int | None,
        schema_id: int | None = None,
        alone: bool = True,
        often: bool = False,
    ) -> Plan | None:
        return plan(
            files,
            self.owned,
            max_bytes=max_bytes,
            block_bytes=self._blocks.block_bytes,
            row_bytes=self.table.row_bytes,
            schema_id=schema_id,
            alone=alone,
            often=often,
        )


def _alive_at(expired_until: int | None) -> Pick:
    def pick(marks: Marks, times: Times | None) -> Mask:
        alive: Mask = (marks & DELETED) == 0
        return alive if times is None or expired_until is None else alive & (times > expired_until)

    return pick


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _growth(values: pa.Table) -> int:
    """Return the approximate memory needed to write these values."""
    return 2 * int(values.nbytes) + _ROW_BYTES * int(values.num_rows)


def _latest(times: Times | None, alive: Sequence[BatchMatches]) -> Times | None:
    """Return the later of the times of the batch and those of existing rows."""
    if times is None:
        return None
    times = times.copy()
    for piece in alive:
        if piece.run.times is not None:
            times[piece.rows] = np.maximum(times[piece.rows], piece.run.times[piece.at])
    return times


def _counted(pages: Iterator[ElementPage]) -> Iterator[ElementPage]:
    """Count pages as copied bytes: their columns are so small that the C library would keep their memory."""
    for page in pages:
        nbytes = page.rows.nbytes
        yield page
        del page  # before the next one is built
        count_processed(nbytes)
