"""The changelog of a step, consolidated in chunks that fit into memory.

Up to one chunk is consolidated as a whole. More rows go through a local file, chunk by chunk: each chunk is
consolidated by itself, and all retractions come before all insertions, as always. Where chunks begin depends only on
the rows and their order, so that every attempt of a task produces the same output.
"""

from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from statebed.format.stream_schema import weights_of
from statebed.operators.changelog import consolidated, folded, weighted
from statebed.state import KeyedView

CHUNK_BYTES = 8 << 20
MAX_ROWS = 1 << 17
SAMPLE_ROWS = 1 << 12
"""Number of first rows whose width determines the number of rows in a chunk, at least."""
_COPIES = 4
"""Copies of a chunk that consolidation makes."""


class ChangelogSpool:
    """Collects the weighted rows of a step, whose schema without the weight is `schema`."""

    def __init__(self, schema: pa.Schema, view: KeyedView) -> None:
        self._schema = schema
        self._view = view
        self._held: list[pa.Table] = []
        self._rows = 0
        self._chunk_rows = 0
        whole = weighted(schema.empty_table(), np.zeros(0, dtype=np.int64)).schema
        self._gone, self._added = view.spooled(whole), view.spooled(whole)
        self._spooled = False
        self._charge = view.reservation()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._charge.release()
        self._gone.close()
        self._added.close()

    def add(self, rows: pa.Table) -> None:
        """Add rows; chunks that are full go to the file."""
        if not rows.num_rows:
            return
        self._held.append(rows)
        self._rows += rows.num_rows
        if not self._chunk_rows and self._rows >= SAMPLE_ROWS:
            self._chunk_rows = self._measured()
        while self._chunk_rows and self._rows >= self._chunk_rows:
            self._spool(self._chunk_rows)

    def table(self) -> pa.Table:
        """Return the consolidated changelog: retractions, then insertions."""
        if not self._spooled:
            return folded(self._held, self._schema)
        if self._rows:
            self._spool(self._rows)
        return pa.concat_tables([self._gone.table(), self._added.table()])

    def _measured(self) -> int:
        """Return the number of rows in a chunk, from the width of the first rows."""
        sample = pa.concat_tables(self._held).slice(0, SAMPLE_ROWS)
        nbytes = int(sample.take(pa.array(np.arange(sample.num_rows))).nbytes)
        return max(min(CHUNK_BYTES * SAMPLE_ROWS // max(nbytes, 1), MAX_ROWS), SAMPLE_ROWS)

    def _spool(self, count: int) -> None:
        held = pa.concat_tables(self._held)
        chunk, rest = held.slice(0, count), held.slice(count)
        self._charge.resize(_COPIES * chunk.nbytes)
        net = consolidated(chunk)
        cut = int(np.count_nonzero(weights_of(net) < 0))
        self._gone.append(net.slice(0, cut))
        self._added.append(net.slice(cut))
        self._spooled = True
        self._held, self._rows = ([rest] if rest.num_rows else []), rest.num_rows
