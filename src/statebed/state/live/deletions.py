"""Evaluation of tombstones: decides for whole tables of rows at once which rows are hidden.

All tombstones of one kind form one set of rows, each with the sequence of its tombstone. Live tombstones change far
less often than rows are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import int64_values, uint64_values
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import KEY_HASH, SEQUENCE, TIME
from statebed.state.live import tombstones
from statebed.state.live.row_set import RowSet
from statebed.state.live.tombstones import DeletionKind

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Rows:
    """Rows of all tombstones of one kind."""

    deleted: RowSet
    sequences: npt.NDArray[np.uint64]


class Deletions:
    """Decides which rows a set of tombstones hides."""

    def __init__(self, deletions: Sequence[pb.Tombstone], *, keys: Sequence[str]) -> None:
        self._ranges = [tombstone for tombstone in deletions if tombstones.kind_of(tombstone) is None]
        self._rows = [
            _of_kind([tombstone for tombstone in deletions if tombstones.kind_of(tombstone) is kind], keys)
            for kind in DeletionKind
            if any(tombstones.kind_of(tombstone) is kind for tombstone in deletions)
        ]
        self.nbytes = sum(row.deleted.nbytes + row.sequences.nbytes for row in self._rows)

    def visible(self, rows: pa.Table) -> Mask:
        """Return a mask of the rows that no tombstone hides; `rows` have the columns of files."""
        hashes, sequences = uint64_values(rows[KEY_HASH]), uint64_values(rows[SEQUENCE])
        visible = np.ones(rows.num_rows, dtype=np.bool_)
        times = int64_values(rows[TIME]) if self._ranges else None
        for tombstone in self._ranges:
            assert times is not None
            span = tombstone.delete_time_range
            hidden = (times >= span.start_us) & (times < span.end_us) & (sequences <= np.uint64(tombstone.sequence))
            visible &= ~(
                hidden & (hashes >= np.uint64(tombstone.owned.first)) & (hashes <= np.uint64(tombstone.owned.last))
            )
        for kind in self._rows:
            # All rows of a tombstone are in its owned range, so comparing keys is enough.
            for theirs, ours in kind.deleted.pairs(rows):
                visible[theirs[sequences[theirs] <= kind.sequences[ours]]] = False
        return visible


def _of_kind(deletions: Sequence[pb.Tombstone], keys: Sequence[str]) -> _Rows:
    parts = [tombstones.rows_of(tombstone) for tombstone in deletions]
    sequences = [
        np.full(part.num_rows, tombstone.sequence, dtype=np.uint64)
        for part, tombstone in zip(parts, deletions, strict=True)
    ]
    return _Rows(RowSet(pa.concat_tables(parts).combine_chunks(), keys=keys), np.concatenate(sequences))
