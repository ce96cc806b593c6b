"""A checkpoint of a keyed table: the changes that its view took, and how they become files.

The view's thread takes (`KeyedView.take`), which copies little. Any one thread writes, in the order in which
checkpoints were taken: it applies edits of compactions, sorts and encodes the changed rows, and merges deltas where
there are too many. The sequence of a delta is given when it is written, so it does not depend on how far the writer is
behind.
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
MOST_PIECE_BYTES = 32 << 20
"""A checkpoint with more changes than this part of the budget, or than this many bytes, is written to local files
first, piece by piece.
"""


@dataclass(frozen=True)
class KeyedCheckpoint:
    """What makes the state durable: files to put, and then the metadata that names them and all earlier ones."""

    metadata: pb.TableSubtaskCheckpointMetadata
    uploads: tuple[Upload, ...]


class TakenChanges:
    """What one checkpoint took, to be written, put back or abandoned by one thread."""

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
        """Changed rows; a spilled one may count more than once."""
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
        """Make files of it. `announce` gets each of them before the view may read it."""
        memory, durable = self._tiers.memory, self._durable
        piece_bytes = min(max(memory.segment_bytes, memory.budget // PIECES_IN_BUDGET), MOST_PIECE_BYTES)
        # A piece as it is gathered, sorted and cut, and the row group that is being written.
        room = 4 * piece_bytes + min(ROW_GROUP_BYTES, memory.budget // 8)
        with memory.reserve(self._owner, Purpose.WRITES, room), durable.changing(announce):
            made = [(edit, durable.apply(edit, name_of)) for edit in self.edits]
            uploads = [upload for _, some in made for upload in some or ()]
            if self.rows:
                unreadable = frozenset(upload.path for upload in uploads)
                merged: Delta = durable.deltas_to_merge(self._queue.reading, unreadable=unreadable)
                uploads += write_delta(
                    self._blocks,
                    self._table,
                    durable,
                    name_of,
                    merged=merged,
                    older=durable.older(merged),
                    folder=self._tiers.folder,
                    piece_bytes=piece_bytes,
                    file_bytes=self._file_bytes,
                )
        self._end()
        self._queue.settle(self.edits, applied=[edit for edit, some in made if some is not None])
        return KeyedCheckpoint(metadata=durable.metadata(subtask_index), uploads=tuple(uploads))

    def put_back(self) -> None:
        """Undo the taking: the changes are still those of the view, which has not been written since."""
        self._end()
        self._queue.put_back(self.edits)

    def abandon(self) -> None:
        """Give up changes that are not written: they are lost. Local files of edits are removed."""
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
