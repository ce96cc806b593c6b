"""Compaction of keyed tables: base and deltas of some ranges of hashes become new base files, or deltas become one.

A compaction into the base reads all files that have rows in its ranges, so nothing older lies below: deleted and
expired rows leave. The ranges are those of the base's files, or of what lies between them; the ones with most rows of
deltas for each row of the base come first, as many as the bytes allow. While none is due, the youngest deltas become
one as soon as there are some, so that checkpoints seldom have to merge them themselves; deletions stay.

Outputs carry the greatest sequence of what they replace; a delta that comes meanwhile is newer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import intersection
from statebed.format.segment import SegmentSpec
from statebed.format.segment_writer import ROW_GROUP_BYTES
from statebed.state.compaction import Edit
from statebed.state.keyed.files import (
    BASE,
    MERGED_DELTAS,
    RangeReader,
    block_ranges,
    bytes_in,
    bytes_of,
    deltas_of,
    rows_in,
    to_merge,
    with_sequence,
    without_range,
)
from statebed.state.keyed.output import RangeFiles
from statebed.state.keyed.run_rows import without_deleted
from statebed.state.keyed.table import KeyedTable
from statebed.state.memory.controller import Purpose
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.spill_files import ParquetFile
from statebed.storage import ObjectStore

WORTH_COMPACTING = 0.5
"""A range is written again when deltas hold this many rows for each row of its base."""
MANY_DELTAS = 5
"""With so many deltas the youngest become one; a checkpoint does it itself only when there are MAX_DELTAS."""
_ROOM = 12
"""Merging takes so many times the bytes of small files: decoded, sorted, and encoded again."""


@dataclass(frozen=True)
class Plan:
    """Which ranges to write again, and the files that have rows in them."""

    ranges: tuple[pb.HashRange, ...]
    inputs: tuple[pb.FileEntry, ...]
    input_bytes: int
    level: int = BASE
    """Of its outputs."""


def debt(files: Sequence[pb.FileEntry], owned: pb.HashRange) -> float:
    """Rows of deltas for each row of the base, about."""
    deltas = rows_in((file for file in files if file.level != BASE), owned)
    return deltas / max(rows_in((file for file in files if file.level == BASE), owned), 1.0)


def due_bytes(files: Sequence[pb.FileEntry], owned: pb.HashRange) -> int:
    """About the bytes that a compaction would do something for, without looking at single ranges; 0: none is due."""
    many = len(deltas_of(files)) >= MANY_DELTAS
    return bytes_of(files) if many or debt(files, owned) > WORTH_COMPACTING else 0


def plan(
    files: Sequence[pb.FileEntry],
    owned: pb.HashRange,
    *,
    most_bytes: int | None,
    block_bytes: int,
    row_bytes: int,
    schema_id: int | None = None,
    alone: bool = True,
) -> Plan | None:
    """What is worth being compacted, at most about `most_bytes` of it (None: all that can be), but `alone` at least
    one range, however large.

    With `schema_id` ranges are due, too, whose base has other columns than this schema.
    """
    least = 0.0 if most_bytes is None else WORTH_COMPACTING
    ranges = block_ranges(files, owned, block_bytes=block_bytes, row_bytes=row_bytes)
    debts = [(inf if _has_other_columns(files, one, schema_id) else debt(files, one), one) for one in ranges]
    due = sorted(((much, one) for much, one in debts if much > least), key=lambda pair: (-pair[0], pair[1].first))
    chosen: list[pb.HashRange] = []
    spent = 0.0
    for _, one in due:
        size = bytes_in(files, one)
        if (chosen or not alone) and most_bytes is not None and spent + size > most_bytes:
            break
        chosen.append(one)
        spent += size
    if not chosen:
        return None if most_bytes is None else _merge_of_deltas(files, owned, most_bytes=most_bytes)
    chosen.sort(key=lambda one: one.first)
    inputs = tuple(file for file in files if any(_holds(file, one) for one in chosen))
    return Plan(tuple(chosen), inputs, int(spent))


def _has_other_columns(files: Sequence[pb.FileEntry], owned: pb.HashRange, schema_id: int | None) -> bool:
    return schema_id is not None and any(file.schema_id != schema_id and _holds(file, owned) for file in files)


def _merge_of_deltas(files: Sequence[pb.FileEntry], owned: pb.HashRange, *, most_bytes: int) -> Plan | None:
    """The youngest deltas that should become one, at most so many bytes of them."""
    chosen = list(to_merge(deltas_of(files), most=MANY_DELTAS))
    while chosen and sum(map(bytes_of, chosen)) > most_bytes:
        del chosen[0]
    if len(chosen) <= 1:
        return None
    inputs = tuple(file for delta in chosen for file in delta)
    return Plan((owned,), inputs, bytes_of(inputs), level=MERGED_DELTAS)


@dataclass(frozen=True)
class KeyedCompaction:
    """A compaction that was planned."""

    plan: Plan
    table: KeyedTable
    spec: SegmentSpec
    store: ObjectStore
    tiers: Tiers
    owner: str
    file_bytes: int
    expired_until: int | None

    @property
    def input_bytes(self) -> int:
        return self.plan.input_bytes

    def run(self) -> Edit:
        """Merge. On any thread; reads immutable files alone, within the memory budget."""
        outputs: list[ParquetFile] = []
        memory = self.tiers.memory
        try:
            # Pieces, and a row group of what is read or written; small inputs take less.
            most = min(4 * memory.segment_bytes + ROW_GROUP_BYTES, _ROOM * self.input_bytes)
            with memory.reserve(self.owner, Purpose.MERGES, most):
                for one in self.plan.ranges:
                    outputs += self._merged(one)
        except BaseException:
            Edit(inputs=(), outputs=tuple(outputs)).discard()
            raise
        remains = self.plan.inputs
        for one in self.plan.ranges:
            remains = without_range(remains, one)
        return Edit(inputs=self.plan.inputs, outputs=tuple(outputs), remains=remains)

    def _merged(self, owned: pb.HashRange) -> tuple[ParquetFile, ...]:
        inputs = [file for file in self.plan.inputs if _holds(file, owned)]
        sequence = max(int(file.max_sequence) for file in inputs)
        reader = RangeReader(self.table, inputs, self.store, ranges=self.tiers.ranges)
        folder = self.tiers.folder
        with RangeFiles(self.spec, folder, owned=owned, level=self.plan.level, file_bytes=self.file_bytes) as files:
            for rows in reader.newest(owned, piece_bytes=self.tiers.memory.segment_bytes):
                # Deltas hide what lies below them.
                kept = without_deleted(rows, expired_until=self.expired_until) if self.plan.level == BASE else rows
                files.write(with_sequence(kept, sequence))
            return files.finish()


def _holds(file: pb.FileEntry, owned: pb.HashRange) -> bool:
    """Whether the file may have rows in the range."""
    clipped = intersection(file.owned, owned)
    return clipped is not None and file.min_key_hash <= clipped.last and clipped.first <= file.max_key_hash
