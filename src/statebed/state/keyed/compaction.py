"""Compaction of keyed tables: rewrites the base and deltas of some ranges of hashes as new base files, or several
deltas as one.

A compaction into the base reads all files that have rows in its ranges, so there are no older rows, and deleted and
expired rows can be dropped. The ranges are those of the base files and the gaps between them. Ranges with the most
delta rows per base row come first, up to the byte limit. If no range is due, the youngest deltas are compacted into one
once there are a few of them, so that checkpoints seldom have to do it themselves. Deletions are kept in that case.
Ranges where no two files overlap are due only on request: rewriting the first delta of a table would change little.

A manager that stays open plans after each checkpoint, and finds its rows in memory. There, a range waits until it has
several deltas with as many rows as its base, so a row of a growing state is rewritten about once per doubling.

Outputs carry the greatest sequence of the files they replace. A delta written in the meantime is newer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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
    to_compact,
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
"""Minimum number of delta rows per base row for a range to be rewritten."""
WORTH_COMPACTING_OFTEN = 1.0
"""The same number after each checkpoint of a manager that stays open."""
MANY_DELTAS = 5
"""Number of deltas from which on the youngest are compacted into one, and from which on a manager that stays open
rewrites a range. A checkpoint merges deltas itself only at MAX_DELTAS.
"""
_ROOM = 12
"""Memory for compacting small files, as a multiple of their size: decoded, sorted and encoded again."""
_HELD_BYTES = ROW_GROUP_BYTES + (ROW_GROUP_BYTES >> 2)
"""Memory for a decoded row group of each file, of which the next piece needs the rest, if so much is free. Otherwise
row groups are decoded once for each piece.
"""


@dataclass(frozen=True)
class Plan:
    """Ranges to rewrite, and the files that have rows in them."""

    ranges: tuple[pb.HashRange, ...]
    inputs: tuple[pb.FileEntry, ...]
    input_bytes: int
    level: int = BASE
    """Level of the outputs."""


def debt(files: Sequence[pb.FileEntry], owned: pb.HashRange) -> float:
    """Return the approximate number of delta rows per base row."""
    deltas = rows_in((file for file in files if file.level != BASE), owned)
    return deltas / max(rows_in((file for file in files if file.level == BASE), owned), 1.0)


def due_bytes(files: Sequence[pb.FileEntry], owned: pb.HashRange) -> int:
    """Return about how many bytes a compaction would have to process, or 0 if none is due. Does not look at single
    ranges.
    """
    many = len(deltas_of(files)) >= MANY_DELTAS
    due = many or (debt(files, owned) > WORTH_COMPACTING and _overlap(files, owned))
    return bytes_of(files) if due else 0


def plan(
    files: Sequence[pb.FileEntry],
    owned: pb.HashRange,
    *,
    max_bytes: int | None,
    block_bytes: int,
    row_bytes: int,
    schema_id: int | None = None,
    alone: bool = True,
    often: bool = False,
) -> Plan | None:
    """Choose what to compact, at most about `max_bytes` of files (None for no limit), or return None if nothing is
    due.

    With `alone`, at least one range is chosen, however large it is. With `schema_id`, ranges that have files of another
    schema are due too. With `often`, the caller plans after each checkpoint, and ranges with few deltas wait.
    """
    min_debt = 0.0 if max_bytes is None else WORTH_COMPACTING_OFTEN if often else WORTH_COMPACTING
    ranges = block_ranges(files, owned, block_bytes=block_bytes, row_bytes=row_bytes)
    if max_bytes is not None:
        min_deltas = MANY_DELTAS if often else 1
        ranges = [span for span in ranges if _overlap(files, span) and _count_deltas(files, span) >= min_deltas]
    debts = [(inf if _has_other_columns(files, span, schema_id) else debt(files, span), span) for span in ranges]
    due = sorted(
        ((much, range_) for much, range_ in debts if much > min_debt), key=lambda pair: (-pair[0], pair[1].first)
    )
    chosen: list[pb.HashRange] = []
    spent = 0.0
    for _, hash_range in due:
        size = bytes_in(files, hash_range)
        if (chosen or not alone) and max_bytes is not None and spent + size > max_bytes:
            break
        chosen.append(hash_range)
        spent += size
    if not chosen:
        return None if max_bytes is None else _compaction_of_deltas(files, owned, max_bytes=max_bytes)
    chosen.sort(key=lambda range_: range_.first)
    inputs = tuple(file for file in files if any(_holds(file, range_) for range_ in chosen))
    return Plan(tuple(chosen), inputs, int(spent))


def _overlap(files: Sequence[pb.FileEntry], owned: pb.HashRange) -> bool:
    """Return whether several files may have rows with equal hashes in the range."""
    spans = sorted(
        (max(file.min_key_hash, file.owned.first, owned.first), min(file.max_key_hash, file.owned.last, owned.last))
        for file in files
        if _holds(file, owned)
    )
    return any(later[0] <= earlier[1] for earlier, later in pairwise(spans))


def _count_deltas(files: Sequence[pb.FileEntry], owned: pb.HashRange) -> int:
    """Return the number of deltas that may have rows in the range."""
    return len(deltas_of(file for file in files if _holds(file, owned)))


def _has_other_columns(files: Sequence[pb.FileEntry], owned: pb.HashRange, schema_id: int | None) -> bool:
    return schema_id is not None and any(file.schema_id != schema_id and _holds(file, owned) for file in files)


def _compaction_of_deltas(files: Sequence[pb.FileEntry], owned: pb.HashRange, *, max_bytes: int) -> Plan | None:
    """Choose the youngest deltas to compact into one, at most `max_bytes` of them."""
    chosen = list(to_compact(deltas_of(files), limit=MANY_DELTAS))
    while chosen and sum(map(bytes_of, chosen)) > max_bytes:
        del chosen[0]
    if len(chosen) <= 1:
        return None
    inputs = tuple(file for delta in chosen for file in delta)
    return Plan((owned,), inputs, bytes_of(inputs), level=MERGED_DELTAS)


@dataclass(frozen=True)
class KeyedCompaction:
    """A planned compaction of a keyed table."""

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
        """Rewrite the files and return the edit. Any thread may call this; it reads only immutable files, within the
        memory budget.
        """
        outputs: list[ParquetFile] = []
        memory = self.tiers.memory
        try:
            # Pieces, and one row group that is read or written. Small inputs are one piece, which takes less.
            whole, pieces = _ROOM * self.input_bytes, 4 * memory.segment_bytes + ROW_GROUP_BYTES
            held = min(len(self.plan.inputs) * _HELD_BYTES, whole) if whole > pieces else 0
            with (
                memory.reserve(self.owner, Purpose.MERGES, min(pieces, whole)),
                memory.try_reserve(self.owner, Purpose.MERGES, held) as fits,
            ):
                max_held = held if fits else 0
                reader = RangeReader(
                    self.table, self.plan.inputs, self.store, ranges=self.tiers.ranges, max_held=max_held
                )
                for hash_range in self.plan.ranges:
                    outputs += self._compacted(reader, hash_range)
        except BaseException:
            Edit(inputs=(), outputs=tuple(outputs)).discard()
            raise
        remains = self.plan.inputs
        for hash_range in self.plan.ranges:
            remains = without_range(remains, hash_range)
        return Edit(inputs=self.plan.inputs, outputs=tuple(outputs), remains=remains)

    def _compacted(self, reader: RangeReader, owned: pb.HashRange) -> tuple[ParquetFile, ...]:
        sequence = max(int(file.max_sequence) for file in self.plan.inputs if _holds(file, owned))
        folder = self.tiers.folder
        with RangeFiles(self.spec, folder, owned=owned, level=self.plan.level, file_bytes=self.file_bytes) as files:
            for rows in reader.newest(owned, piece_bytes=self.tiers.memory.segment_bytes):
                # Deltas keep deletions, because they hide rows of older files.
                kept = without_deleted(rows, expired_until=self.expired_until) if self.plan.level == BASE else rows
                files.write(with_sequence(kept, sequence))
            return files.finish()


def _holds(file: pb.FileEntry, owned: pb.HashRange) -> bool:
    """Return whether the file may have rows in the range."""
    clipped = intersection(file.owned, owned)
    return clipped is not None and file.min_key_hash <= clipped.last and clipped.first <= file.max_key_hash
