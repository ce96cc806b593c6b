"""Slices of a result that processes read independently: each contains the list of its files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.tables.finished_rows import FinishedRows
from statebed.inspect.tables.pinned import Pinned
from statebed.inspect.tables.read_plan import PartPlan
from statebed.inspect.tables.request import Request
from statebed.inspect.tables.row_reader import answer, rows_of_part
from statebed.inspect.tables.table_shape import KEYED
from statebed.state.keyed.files import pieces_of
from statebed.state.live.files import clipped

Part = pb.TableSubtaskCheckpointMetadata
SLICE_BYTES = 128 << 20
"""Approximate size of the files of a slice, in bytes."""


@dataclass(frozen=True, eq=False)
class Slice:
    """Some rows of a result; can be pickled."""

    pinned: Pinned
    request: Request
    part: bytes
    """Serialised metadata of one subtask's part, or of some of its hashes or files."""
    finished: FinishedRows | None = None
    """Requested final results, or None for stored rows."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches."""
        plan = PartPlan(self.request, Part.FromString(self.part), self.pinned.fetch)
        for rows in answers_of_part(plan, self.finished):
            yield from rows.combine_chunks().to_batches()


def answers_of_part(plan: PartPlan, finished: FinishedRows | None) -> Iterator[pa.Table]:
    """Return the matching rows of one subtask with the requested columns, as stored or as final results."""
    if finished is not None:
        return finished.of_part(plan)
    return (answer(rows, plan.request) for rows in rows_of_part(plan))


def slices_of(
    pinned: Pinned,
    request: Request,
    parts: Sequence[Part],
    *,
    finished: FinishedRows | None = None,
    slice_bytes: int = SLICE_BYTES,
) -> list[Slice]:
    """Return slices that together are the result, without subtasks that hold none of it."""
    return [
        Slice(pinned, request, piece.SerializeToString(), finished)
        for part in parts
        if PartPlan(request, part, pinned.fetch).files
        for piece in _pieces(part, request, slice_bytes, whole=finished is not None and finished.results.in_time_order)
        if PartPlan(request, piece, pinned.fetch).files
    ]


def _pieces(part: Part, request: Request, slice_bytes: int, *, whole: bool) -> Iterator[Part]:
    """Yield pieces of a part, or the part itself if rows of several of its files must be combined (`whole`)."""
    shape = request.shape
    whole = whole or (shape.newest_counts and shape.kind != KEYED)
    if sum(file.size for file in part.files) <= slice_bytes or whole:
        yield part
    elif shape.kind == KEYED:
        for owned in pieces_of(part.files, part.owned, piece_bytes=2 * slice_bytes, row_bytes=0):
            yield _with_files(part, clipped(part.files, owned))
    else:
        yield from (_with_files(part, group) for group in _groups(part.files, slice_bytes))


def _groups(files: Sequence[pb.FileEntry], slice_bytes: int) -> list[list[pb.FileEntry]]:
    """Group consecutive files into groups of about `slice_bytes` bytes."""
    groups: list[list[pb.FileEntry]] = []
    held = slice_bytes
    for file in files:
        if held + file.size > slice_bytes:
            groups.append([])
            held = 0
        groups[-1].append(file)
        held += int(file.size)
    return groups


def _with_files(part: Part, files: Sequence[pb.FileEntry]) -> Part:
    piece = Part()
    piece.CopyFrom(part)
    del piece.files[:]
    piece.files.extend(files)
    return piece
