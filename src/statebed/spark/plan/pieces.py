"""Rows on their way to a subtask: pieces of Arrow IPC, each for one subtask and branch.

Spark moves few large values instead of many small rows, and converts none of them. Negative branch numbers mark what is
not made of rows. In a DataFrame a piece is a row of three columns.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import boolean_array, from_numpy, int64_values, uint64_values
from statebed.format.ranges import subtask_of
from statebed.format.schema import KEY_HASH

SUBTASK = "_subtask"
BRANCH = "_branch"
PAYLOAD = "_payload"
HEARTBEAT = -1
"""Marker of a heartbeat row, which guarantees that every subtask runs."""
REPORT = -2
SEEN = -3
"""Marker of the maximum event times of sources."""
FAILED = -4
OBSERVED = -5
"""Marker of the greatest event times at the watermarks of Spark's clock."""
PIECES_SCHEMA = f"{SUBTASK} int, {BRANCH} int, {PAYLOAD} binary"
_PIECES = pa.schema([(SUBTASK, pa.int32()), (BRANCH, pa.int32()), (PAYLOAD, pa.binary())])
PIECE_ROWS = 1 << 16
PIECE_BYTES = 8 << 20
"""Maximum size of a piece: it must fit a value of Spark, and several must fit its memory."""


class Piece(NamedTuple):
    """Rows of one branch for one subtask, or something else that the branch number marks."""

    subtask: int
    branch: int
    payload: Any
    """Bytes, or a buffer that gives them without a copy; a table if the rows stay in the process that has read them."""

    @property
    def is_table(self) -> bool:
        """Whether the rows are not encoded."""
        return isinstance(self.payload, pa.Table)

    def row(self) -> pa.RecordBatch:
        """Return the row of a DataFrame."""
        offsets = np.array([0, len(self.payload)], dtype=np.int32)
        data = self.payload if isinstance(self.payload, pa.Buffer) else pa.py_buffer(self.payload)
        values = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), data])
        numbers = [from_numpy(np.array([number], dtype=np.int32), pa.int32()) for number in self[:2]]
        return pa.RecordBatch.from_arrays([*numbers, values], schema=_PIECES)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""
        yield from self.payload.to_batches() if self.is_table else pa.ipc.open_stream(self.payload)

    def encoded(self) -> "Iterator[Piece]":
        """Yield the same rows as pieces that can be moved."""
        if self.is_table:
            yield from pieces(self.payload, self.branch, self.subtask)
        else:
            yield self


def pieces_of(batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
    """Yield the pieces in the rows of a DataFrame, except for heartbeats."""
    for batch in batches:
        subtasks, branches = (int64_values(batch.column(name).cast(pa.int64())).tolist() for name in (SUBTASK, BRANCH))
        for row, (subtask, branch) in enumerate(zip(subtasks, branches, strict=True)):
            if branch != HEARTBEAT:
                yield Piece(subtask, branch, batch.column(PAYLOAD)[row].as_buffer())


def routed(
    rows: pa.Table, branch: int, parallelism: int, *, broadcast: bool = False, only: int | None = None
) -> Iterator[Piece]:
    """Yield the rows in pieces, each for the subtask that owns their key hashes, or all rows for every subtask.

    With `only`, yield those of that subtask as a table, since it runs in this process.
    """
    if not rows.num_rows:
        return
    everywhere = broadcast or parallelism == 1
    if only is not None:
        own = rows if everywhere else rows.filter(boolean_array(_owners(rows, parallelism) == only))
        if own.num_rows:
            yield Piece(only, branch, own)
        return
    if everywhere:
        for index in range(parallelism):
            yield from pieces(rows, branch, index)
        return
    owners = _owners(rows, parallelism)
    order = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[order], np.arange(parallelism + 1))
    placed = rows.take(from_numpy(order.astype(np.int64), pa.int64()))
    for index in range(parallelism):
        start, end = int(ends[index]), int(ends[index + 1])
        yield from pieces(placed.slice(start, end - start), branch, index)


def _owners(rows: pa.Table, parallelism: int) -> npt.NDArray[np.uint16]:
    return subtask_of(uint64_values(rows[KEY_HASH]), parallelism)


def pieces(rows: pa.Table, branch: int, index: int) -> Iterator[Piece]:
    """Yield the rows in pieces of bounded size, all for one subtask."""
    if not rows.num_rows:
        return
    width = max(rows.nbytes // rows.num_rows, 1)
    step = max(1, min(PIECE_ROWS, PIECE_BYTES // width))
    for start in range(0, rows.num_rows, step):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows.slice(start, step).combine_chunks())
        yield Piece(index, branch, sink.getvalue())
