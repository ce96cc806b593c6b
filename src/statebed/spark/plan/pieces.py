"""Rows on their way to a subtask: pieces of Arrow IPC in rows of three columns.

The columns are the owner of a piece, its branch, and its bytes; negative branch numbers mark rows that are not pieces.
Spark then moves few large values instead of many small rows, and converts none of them.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, uint64_values
from statebed.format.ranges import subtask_of
from statebed.format.schema import KEY_HASH

SUBTASK = "_subtask"
BRANCH = "_branch"
PAYLOAD = "_payload"
HEARTBEAT = -1
"""Marker of a heartbeat row, which guarantees that every subtask runs."""
REPORT = -2
SEEN = -3
"""Marker of a row with the maximum event times of sources."""
FAILED = -4
PIECES_SCHEMA = f"{SUBTASK} int, {BRANCH} int, {PAYLOAD} binary"
_PIECES = pa.schema([(SUBTASK, pa.int32()), (BRANCH, pa.int32()), (PAYLOAD, pa.binary())])
PIECE_ROWS = 1 << 16
PIECE_BYTES = 8 << 20
"""Maximum size of a piece: it must fit a value of Spark, and several must fit its memory."""


def routed(rows: pa.Table, branch: int, parallelism: int, *, broadcast: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the rows in pieces, each for the subtask that owns their key hashes, or all rows for every subtask."""
    if not rows.num_rows:
        return
    if broadcast:
        for index in range(parallelism):
            yield from pieces(rows, branch, index)
        return
    if parallelism == 1:
        yield from pieces(rows, branch, 0)
        return
    owners = subtask_of(uint64_values(rows[KEY_HASH]), parallelism)
    order = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[order], np.arange(parallelism + 1))
    placed = rows.take(from_numpy(order.astype(np.int64), pa.int64()))
    for index in range(parallelism):
        start, end = int(ends[index]), int(ends[index + 1])
        yield from pieces(placed.slice(start, end - start), branch, index)


def pieces(rows: pa.Table, branch: int, index: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in pieces of bounded size, all for one subtask."""
    if not rows.num_rows:
        return
    width = max(rows.nbytes // rows.num_rows, 1)
    step = max(1, min(PIECE_ROWS, PIECE_BYTES // width))
    for start in range(0, rows.num_rows, step):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows.slice(start, step).combine_chunks())
        yield piece(index, branch, sink.getvalue())


def piece(index: int, branch: int, payload: "bytes | pa.Buffer") -> pa.RecordBatch:
    """Build one row."""
    offsets = np.array([0, len(payload)], dtype=np.int32)
    data = payload if isinstance(payload, pa.Buffer) else pa.py_buffer(payload)
    values = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), data])
    numbers = [from_numpy(np.array([number], dtype=np.int32), pa.int32()) for number in (index, branch)]
    return pa.RecordBatch.from_arrays([*numbers, values], schema=_PIECES)


def rows_in(payload: pa.Scalar) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece."""
    yield from pa.ipc.open_stream(payload.as_buffer())
