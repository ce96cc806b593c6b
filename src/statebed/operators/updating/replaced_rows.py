"""Changes of results in a step: rows that are retracted and rows that are inserted, of any size.

If results contain all values of a key, they may be larger than memory. Up to one chunk of them stays there, and more go
to two local files, which are mapped: outbox files and shuffle pieces are made from slices of them.
"""

from types import TracebackType
from typing import Self

import pyarrow as pa

from statebed.state import KeyedView
from statebed.state.tiers.spooled_rows import SpooledRows

MAX_BYTES = 8 << 20


class ReplacedRows:
    """Collects the retractions and insertions of a step; in memory if they are not `large`."""

    def __init__(self, schema: pa.Schema, view: KeyedView, *, large: bool) -> None:
        self._schema = schema
        self._view = view
        self._max_bytes = min(view.chunk_bytes, MAX_BYTES) if large else None
        self._held: tuple[list[pa.Table], list[pa.Table]] = ([], [])
        self._held_bytes = 0
        self._charge = view.reservation()
        self._spooled: tuple[SpooledRows, SpooledRows] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._charge.release()
        for spooled in self._spooled or ():
            spooled.close()

    def add(self, taken: pa.Table, added: pa.Table) -> None:
        """Add retractions and insertions; a full chunk goes to the files."""
        for held, rows in zip(self._held, (taken, added), strict=True):
            if rows.num_rows:
                held.append(rows.cast(self._schema))
                self._held_bytes += rows.nbytes
        if self._max_bytes is not None:
            if self._held_bytes >= self._max_bytes:
                self._spool()
            self._charge.resize(self._held_bytes)

    def table(self) -> pa.Table:
        """Return the retractions, then the insertions, each in the order in which they were added."""
        if self._spooled is None:
            return pa.concat_tables([self._schema.empty_table(), *self._held[0], *self._held[1]])
        self._spool()
        tables, self._spooled = [spooled.table() for spooled in self._spooled], None
        return pa.concat_tables(tables)

    def _spool(self) -> None:
        if self._spooled is None:
            self._spooled = (self._view.spooled(self._schema), self._view.spooled(self._schema))
        for spooled, held in zip(self._spooled, self._held, strict=True):
            for rows in held:
                spooled.append(rows)
            held.clear()
        self._held_bytes = 0
