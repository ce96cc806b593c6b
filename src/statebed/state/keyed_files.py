"""Files of keyed tables: rows of a range of hashes read from them, the newest of each key, and edits of what is live.

Files of level BASE hold blocks: their ranges do not overlap, and no file of theirs is older than what they replace.
All others are deltas. In memory and here, of two rows with the same key the one with the greater sequence counts.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from statebed.errors import MissingFileError, ObjectMissingError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.columns import from_numpy, uint64_values
from statebed.format.ranges import overlaps
from statebed.format.schema import KEY_HASH, SEQUENCE
from statebed.format.segment import DAMAGED_FIX
from statebed.format.segment_reader import GetRange, SegmentReader
from statebed.state.keyed_batch import KeyBatch, take_rows
from statebed.state.keyed_table import KeyedTable
from statebed.state.live_files import in_range
from statebed.storage import ObjectStore

DELTA = 0
MERGED_DELTAS = 1
BASE = 2


def deltas_of(files: Iterable[pb.FileEntry]) -> list[pb.FileEntry]:
    """Entries of deltas, oldest first."""
    deltas = [file for file in files if file.level != BASE]
    return sorted(deltas, key=lambda file: (file.max_sequence, file.path, file.owned.first))


def read_range(
    table: KeyedTable, files: Iterable[pb.FileEntry], store: ObjectStore, owned: pb.HashRange | None = None
) -> pa.Table:
    """All rows that the files have in `owned`, oldest first, with deletions and older versions."""
    pieces = [table.file_schema.empty_table()]
    for file in sorted(files, key=lambda entry: (entry.max_sequence, entry.path, entry.owned.first)):
        clipped = file.owned if owned is None else intersection(file.owned, owned)
        if clipped is None:
            continue
        reader = SegmentReader(file, _fetch_from(store))
        groups = reader.select_row_groups(owned=clipped)
        if groups:
            rows = reader.read(row_groups=groups, columns=table.file_schema.names)
            wanted = in_range(uint64_values(rows[KEY_HASH]), clipped)
            kept = rows if wanted.all() else take_rows(rows, np.flatnonzero(wanted))
            pieces.append(pa.Table.from_arrays(kept.columns, schema=table.file_schema))
    rows = pa.concat_tables(pieces)
    sequences = uint64_values(rows[SEQUENCE])
    if (sequences[1:] < sequences[:-1]).any():
        rows = take_rows(rows, np.argsort(sequences, kind="stable"))
    return rows


def newest_rows(table: KeyedTable, rows: pa.Table) -> pa.Table:
    """The last row of each key, in the order of files."""
    hashes = uint64_values(rows[KEY_HASH])
    batch = KeyBatch.of(rows.select(table.key_names), table.key_schema, lambda _: hashes)
    return take_rows(rows, batch.order[batch.ends()])


def with_sequence(rows: pa.Table, sequence: int) -> pa.Table:
    """The rows, all with this sequence."""
    index = rows.schema.get_field_index(SEQUENCE)
    sequences = from_numpy(np.full(rows.num_rows, sequence, dtype=np.uint64), pa.uint64())
    return rows.set_column(index, rows.schema.field(index), sequences)


def to_merge(deltas: Sequence[pb.FileEntry], *, most: int) -> list[pb.FileEntry]:
    """Which deltas to write again together with a new one so that at most `most` files are left: the youngest ones,
    as many as are not larger than all that is younger.
    """
    paths = list(dict.fromkeys(file.path for file in deltas))
    if len(paths) < most:
        return []
    sizes = {file.path: file.size for file in deltas}
    first = len(paths) - 1
    for index in range(len(paths)):
        if sizes[paths[index]] <= sum(sizes[path] for path in paths[index + 1 :]):
            first = index
            break
    first = min(first, most - 1)
    chosen = set(paths[first:])
    return [file for file in deltas if file.path in chosen]


def without_range(files: Iterable[pb.FileEntry], hole: pb.HashRange) -> tuple[pb.FileEntry, ...]:
    """The entries without a range of hashes: clipped, split in two, or gone."""
    kept = []
    for file in files:
        if not overlaps(file.owned, hole):
            kept.append(file)
            continue
        if file.owned.first < hole.first:
            kept.append(_owning(file, file.owned.first, hole.first - 1))
        if hole.last < file.owned.last:
            kept.append(_owning(file, hole.last + 1, file.owned.last))
    return tuple(kept)


def rows_in(files: Iterable[pb.FileEntry], owned: pb.HashRange) -> float:
    """About how many rows the files have in a range, hashes being spread evenly."""
    rows = 0.0
    for file in files:
        clipped = intersection(file.owned, owned)
        if clipped is not None:
            held = max(file.max_key_hash - file.min_key_hash, 1)
            width = min(clipped.last, file.max_key_hash) - max(clipped.first, file.min_key_hash)
            rows += file.rows * max(width, 0) / held
    return rows


def intersection(one: pb.HashRange, other: pb.HashRange) -> pb.HashRange | None:
    if not overlaps(one, other):
        return None
    return pb.HashRange(first=max(one.first, other.first), last=min(one.last, other.last))


def block_ranges(files: Sequence[pb.FileEntry], owned: pb.HashRange, *, block_bytes: int) -> list[pb.HashRange]:
    """Ranges for blocks: those of the base's files, and what lies between cut by the size of its deltas."""
    ranges = []
    start = owned.first
    for file in sorted((file for file in files if file.level == BASE), key=lambda entry: entry.owned.first):
        if start < file.owned.first:
            ranges += _cut(files, pb.HashRange(first=start, last=file.owned.first - 1), block_bytes)
        ranges.append(file.owned)
        start = file.owned.last + 1
    if start <= owned.last:
        ranges += _cut(files, pb.HashRange(first=start, last=owned.last), block_bytes)
    return ranges


def _cut(files: Sequence[pb.FileEntry], gap: pb.HashRange, block_bytes: int) -> list[pb.HashRange]:
    # Rows take more room in memory than in files: twice is a guess, and blocks that turn out too large are split.
    size = sum(2 * file.size for file in files if overlaps(file.owned, gap))
    width = gap.last - gap.first + 1
    parts = min(max(-(-size // block_bytes), 1), width)
    edges = [gap.first + width * part // parts for part in range(parts + 1)]
    return [pb.HashRange(first=edges[part], last=edges[part + 1] - 1) for part in range(parts)]


def _owning(file: pb.FileEntry, first: int, last: int) -> pb.FileEntry:
    clipped = pb.FileEntry()
    clipped.CopyFrom(file)
    clipped.owned.CopyFrom(pb.HashRange(first=first, last=last))
    return clipped


def _fetch_from(store: ObjectStore) -> GetRange:
    """Ranges of files, with the error that readers of state expect."""

    def get_range(path: str, start: int, length: int) -> bytes:
        try:
            return store.get_range(path, start, length)
        except ObjectMissingError as error:
            raise MissingFileError(
                "metadata names a data file that is not there", where=f"{store.url}/{path}", fix=DAMAGED_FIX
            ) from error

    return get_range
