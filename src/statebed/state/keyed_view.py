"""The view of a keyed table: what one subtask reads and writes, in whole batches.

    view = KeyedView(config, owned=owned_range(0, 1), store=store)
    view.merge(keys, values, add)
    values, found = view.get(keys)
    checkpoint = view.checkpoint(name_of)      # put its uploads, then commit its metadata

Rows live in blocks, in memory, and change in place. A checkpoint writes the rows that changed, and the keys that were
deleted or expired, as one delta: its bytes grow with what changed, and are the same in whatever order the changes came.
When there are MAX_DELTAS, the youngest are written again with the new one. `compact` writes whole blocks again, a few
at a time. A view is for one thread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.columns import from_numpy, int64_values, one_chunk
from statebed.format.keyhash import hash_columns
from statebed.state.config import TableConfig, TimeToLiveClock
from statebed.state.keyed_batch import (
    HashFunction,
    KeyBatch,
    MergeFunction,
    ascending_rows,
    call_merge,
    folded,
    last_of_each,
    latest_times,
    table_columns,
    take_rows,
)
from statebed.state.keyed_block import BLOCK_BYTES, Block
from statebed.state.keyed_columns import Mask, Rows
from statebed.state.keyed_durable import DurableRows, NameOf
from statebed.state.keyed_files import block_ranges
from statebed.state.keyed_run import DIRTY, Run, Times
from statebed.state.keyed_table import KeyedTable
from statebed.state.live_files import in_range
from statebed.state.upload import Upload
from statebed.storage import ObjectStore

_WORTH_COMPACTING = 0.5
"""A block is written again when deltas hold this many rows for each row of its base."""


@dataclass(frozen=True)
class KeyedCheckpoint:
    """What makes the state durable: files to put, and then the metadata that names them and all earlier ones."""

    metadata: pb.TableSubtaskCheckpointMetadata
    uploads: tuple[Upload, ...]


@dataclass(frozen=True)
class _Found:
    """Rows of a batch that a run holds, and where."""

    run: Run
    at: Rows
    rows: Rows


class KeyedView:
    """The state of one keyed table in the range of hashes that one subtask owns."""

    def __init__(
        self,
        config: TableConfig,
        *,
        owned: pb.HashRange,
        store: ObjectStore,
        parts: Sequence[pb.TableSubtaskCheckpointMetadata] = (),
        hash_function: HashFunction = hash_columns,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """Restore from the metadata of one or more earlier subtasks, at any parallelism; no file is read yet."""
        self.table = KeyedTable(config)
        self._hash = hash_function
        self._block_bytes = block_bytes
        self._now_us: int | None = None
        self._durable = DurableRows(self.table, store, parts, owned)
        ranges = block_ranges(self._durable.files, owned, block_bytes=block_bytes)
        self._blocks = [Block(one, self._durable.load) for one in ranges]
        self.expired_rows = 0
        """Rows that expired since the view was made."""

    @property
    def owned(self) -> pb.HashRange:
        return self._durable.owned

    @property
    def held_bytes(self) -> int:
        """Bytes of all arrays and indexes in memory."""
        return sum(block.held_bytes for block in self._blocks)

    @property
    def dirty_rows(self) -> int:
        """Rows that changed since the last checkpoint."""
        return sum(block.dirty_rows for block in self._blocks)

    # ---- reading -----------------------------------------------------------------------------------------

    def get(self, keys: pa.Table | pa.RecordBatch) -> tuple[pa.Table, Mask]:
        """The values of each key, null where it has none, and which keys have some. Keys may repeat."""
        batch = self._batch(keys)
        pieces, _ = self._locate(batch)
        found = np.zeros(len(batch), dtype=np.bool_)
        source = np.full(len(batch), -1, dtype=np.int64)
        tables = [pa.schema([field.with_nullable(True) for field in self.table.value_schema]).empty_table()]
        start = 0
        for piece in self._alive(pieces):
            rows = batch.order[piece.rows]
            found[rows] = True
            source[rows] = np.arange(start, start + len(rows), dtype=np.int64)
            start += len(rows)
            tables.append(_values_of(piece.run, piece.at, tables[0].schema))
        table = pa.concat_tables(tables)
        indices = from_numpy(source, pa.int64(), valid=found)
        columns = [one_chunk(column).take(indices) for column in table.columns]
        return pa.Table.from_arrays(columns, schema=table.schema), found

    def scan(self) -> Iterator[pa.Table]:
        """All rows, block after block, by hash: keys, `_time` where rows expire, values."""
        for block in list(self._blocks):
            run = block.settle()
            rows = np.flatnonzero(run.alive(np.arange(len(run), dtype=np.int64), self._expired_until()))
            if len(rows):
                table = self._durable.rows_of(run, rows).select(self.table.row_schema.names)
                yield pa.Table.from_arrays(table.columns, schema=self.table.row_schema)

    # ---- writing -----------------------------------------------------------------------------------------

    def upsert(
        self, keys: pa.Table | pa.RecordBatch, values: pa.Table | pa.RecordBatch, *, times: pa.Array | None = None
    ) -> None:
        """Set the values of keys; of several rows with one key the last counts.

        The time of a key is the latest that it was written with.
        """
        batch, table, moments = self._checked(keys, values, times)
        unique, rows = last_of_each(batch, table)
        self._write(unique, rows, None if moments is None else latest_times(batch, moments), None)

    def merge(
        self,
        keys: pa.Table | pa.RecordBatch,
        values: pa.Table | pa.RecordBatch,
        function: MergeFunction,
        *,
        times: pa.Array | None = None,
    ) -> None:
        """Set each key to function(its values, the new ones); a key that has none gets the new ones.

        Rows of one key inside the batch are first folded by the same function, two and two, earlier ones first: it
        has to be associative. It is called with whole columns. If it raises, nothing has changed.
        """
        batch, table, moments = self._checked(keys, values, times)
        unique, rows = folded(batch, table, function)
        self._write(unique, rows, None if moments is None else latest_times(batch, moments), function)

    def delete(self, keys: pa.Table | pa.RecordBatch) -> Mask:
        """Delete keys, and say which of them had values. Keys may repeat."""
        batch = self._batch(keys)
        found = np.zeros(len(batch), dtype=np.bool_)
        for piece in self._alive(self._locate(batch)[0]):
            found[batch.order[piece.rows]] = True
            piece.run.delete(np.unique(piece.at))
        return found

    def advance(self, now_us: int) -> int:
        """Move the table's clock, never back, and give the number of rows that expired."""
        self._now_us = now_us if self._now_us is None else max(now_us, self._now_us)
        return self._expire()

    # ---- durability --------------------------------------------------------------------------------------

    def metadata(self, *, subtask_index: int = 0) -> pb.TableSubtaskCheckpointMetadata:
        """What is in files: everything up to the last checkpoint."""
        return self._durable.metadata(subtask_index)

    def checkpoint(self, name_of: NameOf, *, subtask_index: int = 0) -> KeyedCheckpoint:
        """All changes since the last checkpoint as at most one file, and the metadata of the whole state."""
        self._expire()
        runs = [run for block in self._blocks if block.dirty_rows for run in block.runs]
        changed = [self._durable.rows_of(run, rows) for run in runs if len(rows := run.to_write())]
        uploads = (self._durable.add_delta(changed, name_of),) if changed else ()
        for run in runs:
            run.mark_written()
        return KeyedCheckpoint(metadata=self.metadata(subtask_index=subtask_index), uploads=uploads)

    def compact(self, name_of: NameOf, *, max_blocks: int = 1) -> tuple[Upload, ...]:
        """Write at most `max_blocks` blocks again whose deltas have become large; `metadata` then names the new files.

        To be called after a checkpoint whose uploads are durable: blocks with changes since then are left as they are.
        """
        debts = [(self._durable.debt(block.owned), block) for block in self._blocks if not block.dirty_rows]
        due = [(debt, block) for debt, block in debts if debt >= _WORTH_COMPACTING]
        due.sort(key=lambda one: (-one[0], one[1].owned.first))
        uploads = []
        for _, block in due[:max_blocks]:
            run = block.settle()
            rows = np.flatnonzero(run.alive(np.arange(len(run), dtype=np.int64), None))
            upload = self._durable.replace_block(block.owned, self._durable.rows_of(run, rows), name_of)
            uploads += [] if upload is None else [upload]
        return tuple(uploads)

    def release(self, wanted_bytes: int) -> int:
        """Forget blocks without changes until that many bytes are free or none is left; gives the bytes.

        To be called when the uploads of the last checkpoint are durable: blocks are read from them again.
        """
        freed = 0
        for block in self._blocks:
            if freed >= wanted_bytes:
                break
            freed += block.release()
        return freed

    # ---- inside ------------------------------------------------------------------------------------------

    def _batch(self, keys: pa.Table | pa.RecordBatch) -> KeyBatch:
        batch = KeyBatch.of(keys, self.table.key_schema, self._hash)
        if len(batch) and not in_range(batch.hashes[[0, -1]], self.owned).all():
            raise InputError(
                f"keys of table {self.table.name!r} belong to another subtask",
                fix="send each row to the subtask that owns the hash of its key",
            )
        return batch

    def _checked(
        self, keys: pa.Table | pa.RecordBatch, values: pa.Table | pa.RecordBatch, times: pa.Array | None
    ) -> tuple[KeyBatch, pa.Table, Times | None]:
        """The input of a write, or an error before anything is written."""
        if values.num_rows != keys.num_rows:
            raise InputError(f"a write has {keys.num_rows} keys and {values.num_rows} rows of values")
        columns = table_columns(values, self.table.value_schema, what="values")
        moments = self._moments(keys.num_rows, times)
        return self._batch(keys), pa.Table.from_arrays(columns, schema=self.table.value_schema), moments

    def _moments(self, count: int, times: pa.Array | None) -> Times | None:
        where = f"table {self.table.name!r}"
        if self.table.clock is not TimeToLiveClock.EVENT_TIME:
            if times is not None:
                raise InputError("a write has times, but the rows of the table have no event time", where=where)
            if not self.table.expires:
                return None
            if self._now_us is None:
                raise InputError("the time of the epoch is not known", where=where, fix="call advance(now_us) first")
            return np.full(count, self._now_us, dtype=np.int64)
        if times is None or len(times) != count or times.null_count:
            raise InputError("a write needs the event time of each row", where=where, fix="give times=, without nulls")
        if times.type != pa.int64() and not (pa.types.is_timestamp(times.type) and times.type.unit == "us"):
            raise InputError(f"event times have the type {times.type}", where=where, fix="cast them to microseconds")
        return int64_values(times)

    def _locate(self, batch: KeyBatch) -> tuple[list[_Found], list[tuple[Block, Rows]]]:
        """Where the keys of a batch are, and which rows are in no run, by block."""
        edges = np.array([block.owned.first for block in self._blocks[1:]], dtype=np.uint64)
        cuts = [0, *np.searchsorted(batch.hashes, edges).tolist(), len(batch)]
        pieces: list[_Found] = []
        missing: list[tuple[Block, Rows]] = []
        for block, start, end in zip(self._blocks, cuts[:-1], cuts[1:], strict=True):
            rows = np.arange(start, end, dtype=np.int64)
            part = batch.slice(start, end)
            for run in block.runs if len(rows) else ():
                at = run.find(part)
                held = at >= 0
                if held.all():
                    pieces.append(_Found(run, at, rows))
                    rows = rows[:0]
                    break
                pieces.append(_Found(run, at[held], rows[held]))
                part, rows = part.select(np.flatnonzero(~held)), rows[~held]
            if len(rows):
                missing.append((block, rows))
        return [piece for piece in pieces if len(piece.rows)], missing

    def _alive(self, pieces: Sequence[_Found]) -> list[_Found]:
        alive = []
        for piece in pieces:
            mask = piece.run.alive(piece.at, self._expired_until())
            alive.append(piece if mask.all() else _Found(piece.run, piece.at[mask], piece.rows[mask]))
        return [piece for piece in alive if len(piece.rows)]

    def _write(self, batch: KeyBatch, values: pa.Table, times: Times | None, function: MergeFunction | None) -> None:
        pieces, missing = self._locate(batch)
        alive = self._alive(pieces)
        if times is not None:
            times = times.copy()
            for piece in alive:
                if piece.run.times is not None:
                    times[piece.rows] = np.maximum(times[piece.rows], piece.run.times[piece.at])
        if function is not None and alive:
            values = _merged_values(values, alive, function)
        for piece in pieces:
            part = ascending_rows(values, piece.rows)
            piece.run.put(piece.at, [one_chunk(column) for column in part.columns], _at(times, piece.rows))
        for block, rows in missing:
            self._insert(block, batch.select(rows), ascending_rows(values, rows), _at(times, rows))

    def _insert(self, block: Block, batch: KeyBatch, values: pa.Table, times: Times | None) -> None:
        columns = [one_chunk(column) for column in values.columns]
        block.insert(Run.of(batch.hashes, batch.keys, columns, times, DIRTY))
        if block.held_bytes > self._block_bytes:
            index = self._blocks.index(block)
            self._blocks[index : index + 1] = block.split(block_bytes=self._block_bytes)

    def _expired_until(self) -> int | None:
        if self.table.time_to_live_us is None or self._now_us is None:
            return None
        return self._now_us - self.table.time_to_live_us

    def _expire(self) -> int:
        until = self._expired_until()
        if until is None:
            return 0
        count = 0
        for block in self._blocks:
            if block.loaded or self._durable.may_expire(block.owned, until):
                for run in block.runs:
                    rows = run.expired(until)
                    run.delete(rows)
                    count += len(rows)
        self.expired_rows += count
        return count


def _merged_values(values: pa.Table, alive: Sequence[_Found], function: MergeFunction) -> pa.Table:
    """The new rows, merged with the old ones where there are some."""
    rows = np.concatenate([piece.rows for piece in alive])
    new = ascending_rows(values, rows) if len(alive) == 1 else take_rows(values, rows)
    old = pa.concat_tables([_values_of(piece.run, piece.at, values.schema) for piece in alive])
    merged = call_merge(function, old.combine_chunks(), new)
    if len(alive) == 1 and len(rows) == values.num_rows:
        return merged
    source = np.arange(values.num_rows, dtype=np.int64)
    source[rows] = values.num_rows + np.arange(len(rows), dtype=np.int64)
    return take_rows(pa.concat_tables([values, merged]), source)


def _values_of(run: Run, at: Rows, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([column.take(at) for column in run.values], schema=schema)


def _at(times: Times | None, rows: Rows) -> Times | None:
    return None if times is None else times[rows]
