"""Deltas of a checkpoint: the changed rows of all blocks, written block by block within a bounded amount of memory.

A few changes become one file in memory. Many changes are written to local files piece by piece, one range of hashes at
a time, together with the rows of the deltas that they replace. The rows and their order do not depend on the pieces.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from statebed.arrays.mutable import Rows
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import intersection
from statebed.state.compaction import NameOf
from statebed.state.keyed.block import Block
from statebed.state.keyed.durable import DurableRows, OlderRows
from statebed.state.keyed.extents import Extents
from statebed.state.keyed.files import DELTA, MERGED_DELTAS, Delta, newest_rows, with_sequence
from statebed.state.keyed.output import RangeFiles, row_bytes
from statebed.state.keyed.run_rows import file_rows
from statebed.state.keyed.sorted_run import Marks, SortedRun
from statebed.state.keyed.table import KeyedTable
from statebed.state.memory.pages import give_back_pages
from statebed.state.tiers.spill_folder import SpillFolder
from statebed.state.upload import Upload

_TRIMMED_EVERY = 8
"""Number of pieces after which allocators return unused pages, which would otherwise add up to more than a piece."""


def write_delta(
    blocks: Sequence[Block],
    table: KeyedTable,
    durable: DurableRows,
    name_of: NameOf,
    *,
    merged: Delta,
    older: OlderRows,
    folder: SpillFolder,
    piece_bytes: int,
    kept_bytes: int,
    file_bytes: int,
) -> tuple[Upload, ...]:
    """Write the changes of the blocks as a delta that replaces the `merged` deltas. Return no upload if nothing has
    changed.

    `older` reads the rows of the merged deltas (`DurableRows.older`). Up to `kept_bytes` of pieces stay in memory until
    the end, for the host cache, which would otherwise decode the new file.
    """
    spans = _spans(blocks, older.extents, piece_bytes=piece_bytes)
    pieces = _pieces(blocks, spans, table, older.read, sequence=durable.next_sequence)
    if len(spans) == 1:
        rows = next(pieces)
        if row_bytes(rows).sum() <= file_bytes:
            return (durable.add_delta(rows, name_of, merged=merged),) if rows.num_rows else ()
        pieces = iter([rows])
    level = MERGED_DELTAS if merged else DELTA
    with RangeFiles(durable.spec, folder, owned=durable.owned, level=level, file_bytes=file_bytes) as files:
        kept: list[pa.Table] = []
        size = 0
        for number, piece in enumerate(pieces):
            files.write(piece)
            size += piece.nbytes
            if size <= kept_bytes:
                kept.append(piece)
            else:
                kept.clear()
            if number % _TRIMMED_EVERY == _TRIMMED_EVERY - 1:
                give_back_pages()
        written = files.finish()
    return durable.add_large_delta(written, name_of, merged=merged, pieces=kept) if written else ()


def _pieces(
    blocks: Sequence[Block],
    spans: Sequence[pb.HashRange],
    table: KeyedTable,
    older: Callable[[pb.HashRange], pa.Table],
    *,
    sequence: int,
) -> Iterator[pa.Table]:
    for span in spans:
        changed = [
            file_rows(table, run, rows, marks)
            for block in blocks
            if block.dirty_rows and (inside := intersection(block.owned, span)) is not None
            for run, rows, marks in _as_one(list(block.changed(inside.first, inside.last)))
        ]
        rows = pa.concat_tables([older(span), *changed])
        yield with_sequence(newest_rows(table, rows), sequence)


def _as_one(
    parts: Sequence[tuple[SortedRun, Rows, Marks | None]],
) -> Sequence[tuple[SortedRun, Rows | None, Marks | None]]:
    """Merge the rows of several runs into one run, in the order of files, which is cheaper than sorting them later.
    Adjacent rows of one run are not copied, because the run is lent.
    """
    if len(parts) <= 1:
        return [
            (run.slice(int(rows[0]), int(rows[-1]) + 1), None, marks)
            if rows[-1] - rows[0] + 1 == len(rows)
            else (run, rows, marks)
            for run, rows, marks in parts
        ]
    # From here on, marks only matter for deletions.
    first, *others = (
        run.select(rows, np.zeros(len(rows), dtype=np.uint8) if marks is None else marks) for run, rows, marks in parts
    )
    run = first.merged(others, forget=False)
    return [(run, None, None if run.all_alive else run.marks)]


def _spans(blocks: Sequence[Block], older: Extents, *, piece_bytes: int) -> list[pb.HashRange]:
    """Return adjacent ranges of hashes with about `piece_bytes` of rows to write in each."""
    edges: list[int] = []
    size = 0.0
    for block in blocks:
        changed, below = block.dirty_bytes, older.bytes_in(block.owned)
        if size and size + changed + below > piece_bytes:
            edges.append(block.owned.first)
            size = 0.0
        size += changed + below
        if changed + below > piece_bytes:
            edges += block.edges_of_changes(parts=int(changed // piece_bytes) + 1).tolist()
            edges += [part.first for part in older.cut(block.owned, piece_bytes=piece_bytes)[1:]]
            size = float(piece_bytes)
    firsts = [blocks[0].owned.first, *sorted(set(edges))]
    lasts = [*(first - 1 for first in firsts[1:]), blocks[-1].owned.last]
    return [pb.HashRange(first=first, last=last) for first, last in zip(firsts, lasts, strict=True)]
