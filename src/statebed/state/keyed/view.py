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

A view is for one thread, except where stated otherwise. A batch that is large compared with the memory budget is
applied in pieces. Each piece is applied as a whole or, if it is refused or fails, not at all.
"""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.schema import merge_schema_lists
from statebed.state.compaction import CompactionJob, Edit, EditQueue, NameOf
from statebed.state.config import TableConfig
from statebed.state.host_cache import HostCache
from statebed.state.keyed.batch import HashFunction
from statebed.state.keyed.block_set import Blocks
from statebed.state.keyed.cached_runs import CachedRuns
from statebed.state.keyed.checkpoint import KeyedCheckpoint, TakenChanges
from statebed.state.keyed.compaction import KeyedCompaction, Plan, due_bytes, plan
from statebed.state.keyed.durable import DurableRows
from statebed.state.keyed.files import bytes_of
from statebed.state.keyed.lent_block import lend_blocks
from statebed.state.keyed.operations import KeyedOperations
from statebed.state.keyed.table import KeyedTable
from statebed.state.memory.controller import Purpose, Reservation
from statebed.state.metrics import TableStatistics
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.spooled_rows import SpooledRows
from statebed.storage import ObjectStore


class KeyedView(KeyedOperations):
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
        table = KeyedTable(config, merge_schema_lists(part.schemas for part in parts))
        self._tiers = tiers or Tiers.shared()
        self._owner = owner or config.name
        self._store = store
        memory = self._tiers.memory
        images = (
            None if cache is None else CachedRuns(cache, table, store, owned=owned, memory=memory, owner=self._owner)
        )
        durable = DurableRows(table, store, parts, owned, images=images, ranges=self._tiers.ranges)
        blocks = Blocks(table, durable, self._tiers, owner=self._owner, block_bytes=block_bytes)
        super().__init__(table, durable, blocks, memory, hash_function or table.hash_keys)
        self._edits = EditQueue()

    @property
    def held_bytes(self) -> int:
        """Bytes of all arrays and indexes in memory."""
        return sum(slot.block.held_bytes for slot in self._blocks)

    @property
    def dirty_rows(self) -> int:
        """Number of rows that changed since the last checkpoint. A spilled row may be counted more than once."""
        return sum(slot.block.dirty_rows for slot in self._blocks)

    # ---- durability --------------------------------------------------------------------------------------

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

    def _changes(self) -> TakenChanges:
        self._expire()
        with self._blocks.operation(0), self._blocks.locked():
            blocks = [slot.block for slot in self._blocks]
            for block in blocks:
                # An operation that found damage may be half done.
                block.check_sound()
            rows = sum(block.dirty_rows for block in blocks)
            self._durable.taken += 1
            self._durable.taken_rows += rows
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

    def reservation(self) -> Reservation:
        """Return a charge of 0 bytes on this table's account, for rows that its user holds in memory."""
        return self._memory.charge(self._owner, Purpose.READS, 0)

    def spooled(self, schema: pa.Schema) -> SpooledRows:
        """Return a local file, in the folder for spilled state, for rows that may not fit into memory."""
        return SpooledRows(self._tiers.folder, schema)

    def _charge(self) -> Reservation:
        return self._memory.charge(self._owner, Purpose.WRITES, 0)

    def _saved(self) -> None:
        """Record that a checkpoint has taken all changes."""
        with self._blocks.locked():
            for slot in self._blocks:
                slot.block.mark_written()
            self._blocks.saved()

    def plan_compaction(self, *, most_bytes: int, everything: bool = False, alone: bool = True) -> CompactionJob | None:
        """Plan work on at most `most_bytes` of files that makes reads and restores cheaper, or return None if there is
        none.

        `everything` plans all that can be compacted or has older columns, whatever its size. `alone` plans at least one
        range that is due, however large it is. Any thread may call this, once a checkpoint is durable.
        """
        files = self._durable.files
        schema_id = self._durable.spec.schema_id if everything else None
        chosen = self._plan(files, most_bytes=None if everything else most_bytes, schema_id=schema_id, alone=alone)
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

    def leave_alone(self, epoch: int) -> None:
        """Leave the files of epochs up to `epoch` alone in checkpoints, because they are compacted elsewhere."""
        old = [file.path for file in self._durable.files if (names.epoch_of(file.path) or 0) <= epoch]
        self._edits.reading = frozenset(old)

    def warm(self) -> None:
        """Copy all files to the host's cache, so that the next process that is restored from them decodes nothing."""
        self._durable.copies(self.owned)

    def offer_edit(self, edit: Edit) -> None:
        """Have the next checkpoint apply the result of a compaction. Any thread may call this."""
        self._edits.offer(edit)

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
        due = self._plan(files, most_bytes=None)
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

    def _plan(
        self, files: Sequence[pb.FileEntry], *, most_bytes: int | None, schema_id: int | None = None, alone: bool = True
    ) -> Plan | None:
        return plan(
            files,
            self.owned,
            most_bytes=most_bytes,
            block_bytes=self._blocks.block_bytes,
            row_bytes=self.table.row_bytes,
            schema_id=schema_id,
            alone=alone,
        )
