"""The view of a keyed table: what one subtask reads and writes, in whole batches.

    view = KeyedView(config, owned=owned_range(0, 1), store=store)
    view.merge(keys, values, add)
    values, found = view.get(keys)
    checkpoint = view.checkpoint(name_of)      # put its uploads, say so to each (on_stored), then commit its metadata

Rows live in blocks, which change in place in memory and lie in mapped files when memory is short (`tiers`: one budget
for all tables of a process). A checkpoint writes the rows that changed, and the keys that were deleted or expired, as
one delta: its bytes grow with what changed, and are the same in whatever order the changes came. `take` does the part
of it that needs the operator's thread, and another thread writes what it took (`TakenChanges`). Compactions
turn base and deltas into a new base, or some deltas into one, beside the view: `plan_compaction` gives the work,
`offer_edit` takes its result, and the next checkpoint applies it. Only when there are MAX_DELTAS nevertheless, a
checkpoint writes the youngest again with the new one.

A view is for one thread, except for what says otherwise. A batch that is large against the memory budget is applied in
pieces, one after the other; each piece is applied as a whole or, when it is refused or fails, not at all.
"""

from collections import Counter
from collections.abc import Sequence

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
from statebed.state.keyed.lent_block import lent
from statebed.state.keyed.operations import KeyedOperations
from statebed.state.keyed.table import KeyedTable
from statebed.state.memory.controller import Purpose, Reservation
from statebed.state.metrics import TableStatistics
from statebed.state.tiers.shared_tiers import Tiers
from statebed.storage import ObjectStore


class KeyedView(KeyedOperations):
    """The state of one keyed table in the range of hashes that one subtask owns."""

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
        """Restore from the metadata of one or more earlier subtasks, at any parallelism; no file is read yet.

        `tiers` is the memory and local disk that it shares with other tables (None: those of the process), `owner` its
        name there. Blocks take at most `block_bytes`; None: what suits the budget. With a `cache` files are looked up
        in copies that all processes of this host share.
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
        """Rows that changed since the last checkpoint; a spilled one may count more than once."""
        return sum(slot.block.dirty_rows for slot in self._blocks)

    # ---- durability --------------------------------------------------------------------------------------

    def metadata(self, *, subtask_index: int = 0) -> pb.TableSubtaskCheckpointMetadata:
        """What is in files: everything up to the last checkpoint."""
        return self._durable.metadata(subtask_index)

    def checkpoint(self, name_of: NameOf, *, subtask_index: int = 0) -> KeyedCheckpoint:
        """All changes since the last checkpoint, and the metadata of the whole state.

        Changes are one file, or several where there are more than fit into a block. When this fails, nothing has
        happened, and it may be repeated.
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
        """All changes since the last checkpoint, for another thread to write. The view goes on meanwhile.

        Checkpoints are written in the order in which they were taken. Changes whose writing fails are in no later
        checkpoint.
        """
        taken = self._changes()
        self._saved()
        return taken

    def _changes(self) -> TakenChanges:
        self._expire()
        with self._blocks.operation(0), self._blocks.locked():
            blocks = [slot.block for slot in self._blocks]
            for block in blocks:
                # An operation that found damage may have been done by half.
                block.check_sound()
            rows = sum(block.dirty_rows for block in blocks)
            self._durable.taken += 1
            self._durable.taken_rows += rows
            return TakenChanges(
                lent(blocks, self.table, self._charge),
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
        """A checkpoint has taken all changes."""
        with self._blocks.locked():
            for slot in self._blocks:
                slot.block.mark_written()
            self._blocks.saved()

    def plan_compaction(self, *, most_bytes: int, everything: bool = False, alone: bool = True) -> CompactionJob | None:
        """Work that would make reading and restoring cheaper, at most `most_bytes` of files; None: there is none.

        `everything` takes all that can be compacted or has older columns, whatever its size; `alone` at least one
        range that is due. By any thread, when a checkpoint is durable.
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
            expired_until=self._expired_until(),
        )

    @property
    def due_bytes(self) -> int:
        """Bytes of files that are worth compacting."""
        return due_bytes(self._durable.files, self.owned)

    def leave_alone(self, epoch: int) -> None:
        """The files of epochs up to this are compacted elsewhere; checkpoints leave them to that, as they do with
        those that a compaction here reads.
        """
        old = [file.path for file in self._durable.files if (names.epoch_of(file.path) or 0) <= epoch]
        self._edits.reading = frozenset(old)

    def warm(self) -> None:
        """Have copies of all files in the host's cache, so that who is restored from them next decodes nothing."""
        self._durable.copies(self.owned)

    def offer_edit(self, edit: Edit) -> None:
        """Have the next checkpoint apply what a compaction made. By any thread."""
        self._edits.offer(edit)

    def release(self, wanted_bytes: int) -> int:
        """Forget blocks without changes until that many bytes of memory are free or none is left; gives the bytes.

        They are read from files again, so nothing is forgotten before those are stored.
        """
        freed = 0
        for slot in self._blocks:
            if freed >= wanted_bytes:
                break
            freed += self._blocks.release(slot)
        return freed

    def give_up(self) -> None:
        """Take no memory and no local disk any more, whatever has changed since the last checkpoint.

        Without such changes it can still be read, from the store.
        """
        self.close("it was given up")
        self._forget_keys()
        self._edits.settle(self._edits.take(), applied=())
        self._blocks.give_up()

    def statistics(self) -> TableStatistics:
        """What it counts; reads no file. By any thread."""
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
