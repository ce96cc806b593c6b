"""A checkpoint of a keyed table: the changes taken from its view, and how they become files.

The view's thread takes the changes (`KeyedView.take`), which copies little. Any one thread writes them, in the order in
which checkpoints were taken: it applies edits of compactions, sorts and encodes the changed rows, and merges deltas if
there are too many. A delta gets its sequence when it is written, so the sequence does not depend on how far the writer
lags behind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from statebed.format import checkpoint_pb2 as pb
from statebed.format.segment_writer import ROW_GROUP_BYTES
from statebed.state.compaction import Edit, EditQueue, NameOf
from statebed.state.keyed.delta import write_delta
from statebed.state.keyed.durable import DurableRows
from statebed.state.keyed.files import Delta
from statebed.state.keyed.lent_block import LentBlock
from statebed.state.keyed.table import KeyedTable
from statebed.state.memory.controller import Purpose
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.upload import Upload

PIECES_IN_BUDGET = 64
MAX_PIECE_BYTES = 32 << 20
"""Upper limit of the piece size. A checkpoint with more changes than one piece, which is 1/PIECES_IN_BUDGET of the
budget and at most this many bytes, is first written to local files, piece by piece.
"""


@dataclass(frozen=True)
class KeyedCheckpoint:
    """Result of a checkpoint: the files to upload, and the metadata that refers to them and to all earlier files."""

    metadata: pb.TableSubtaskCheckpointMetadata
    uploads: tuple[Upload, ...]


class TakenChanges:
    """Changes taken by one checkpoint, to be written, put back or abandoned by one thread."""

    def __init__(
        self,
        blocks: Sequence[LentBlock],
        rows: int,
        edits: Sequence[Edit],
        *,
        queue: EditQueue,
        table: KeyedTable,
        durable: DurableRows,
        tiers: Tiers,
        owner: str,
        file_bytes: int,
    ) -> None:
        self.rows = rows
        """Number of changed rows. A spilled row may be counted more than once."""
        self.edits = edits
        self._blocks = blocks
        self._queue = queue
        self._table = table
        self._durable = durable
        self._tiers = tiers
        self._owner = owner
        self._file_bytes = file_bytes
        self._done = False

    def write(
        self, name_of: NameOf, *, announce: Callable[[Upload], None] | None = None, subtask_index: int = 0
    ) -> KeyedCheckpoint:
        """Write the changes to files. `announce` is called with each file before the view may read it."""
        memory, durable = self._tiers.memory, self._durable
        piece_bytes = min(max(memory.segment_bytes, memory.budget // PIECES_IN_BUDGET), MAX_PIECE_BYTES)
        # A piece while it is gathered, sorted and cut, and the row group that is being written.
        room = 4 * piece_bytes + min(ROW_GROUP_BYTES, memory.budget // 8)
        kept_bytes = self._kept_bytes(piece_bytes, memory.budget // 2 - room)
        room += kept_bytes
        with memory.reserve(self._owner, Purpose.WRITES, room), durable.changing(announce):
            applied = [(edit, durable.apply(edit, name_of)) for edit in self.edits]
            uploads = [upload for _, made_uploads in applied for upload in made_uploads or ()]
            if self.rows:
                unreadable = frozenset(upload.path for upload in uploads)
                merged: Delta = durable.deltas_to_compact(self._queue.reading, unreadable=unreadable)
                uploads += write_delta(
                    self._blocks,
                    self._table,
                    durable,
                    name_of,
                    merged=merged,
                    older=durable.older(merged),
                    folder=self._tiers.folder,
                    piece_bytes=piece_bytes,
                    kept_bytes=kept_bytes,
                    file_bytes=self._file_bytes,
                )
        self._end()
        self._queue.settle(self.edits, applied=[edit for edit, made_uploads in applied if made_uploads is not None])
        return KeyedCheckpoint(metadata=durable.metadata(subtask_index), uploads=tuple(uploads))

    def _kept_bytes(self, piece_bytes: int, max_bytes: int) -> int:
        """Return the memory for pieces that wait for the host cache: none if they are only one, or too large.

        Rows of files are up to twice as large as those of blocks.
        """
        changed = sum(block.dirty_bytes for block in self._blocks)
        return 2 * changed if self._durable.has_copies and piece_bytes < changed <= max_bytes // 2 else 0

    def put_back(self) -> None:
        """Return the changes to the view, which must not have been written since they were taken."""
        self._end()
        self._queue.put_back(self.edits)

    def abandon(self) -> None:
        """Discard changes that are not written; they are lost. Local files of edits are removed."""
        if not self._done:
            self._give_back()
            self._queue.settle(self.edits, applied=())

    def _end(self) -> None:
        self._done = True
        self._durable.written += 1
        self._durable.written_rows += self.rows
        self._give_back()

    def _give_back(self) -> None:
        for block in self._blocks:
            block.give_back()
