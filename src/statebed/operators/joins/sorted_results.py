"""Results of a join by time, sorted by event time, key hash and all columns, in memory that does not grow with them.

Up to one chunk is sorted as a whole. More rows are sorted chunk by chunk into runs in a local file, and the runs are
merged into a second one. The order is a total order of the rows, so the output has the same bytes however the rows were
cut into chunks: attempts of a task may read their state in other pieces.

`FAN_IN` runs are merged at a time.
"""

import itertools
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa

from statebed.operators.joins.pairs import Integers, in_output_order, output_order
from statebed.operators.merged_runs import merged_pages
from statebed.state import TimeKeyedView
from statebed.state.tiers.spooled_rows import SpooledRows

FAN_IN = 16
LEAST_PAGE_ROWS = 256
_COPIES = 8
"""Memory that sorting a chunk takes, in sizes of the chunk: the rows, their keys as numbers, and the sorted rows."""


class SortedResults:
    """Collects the results of a step, whose schema is `schema`; `keys` are the key columns of its left input."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str], view: TimeKeyedView) -> None:
        self._schema = schema
        self._keys = keys
        self._view = view
        self._chunk_bytes = view.chunk_bytes
        self._charge = view.reservation()
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._runs: SpooledRows | None = None
        self._run_rows: list[int] = []
        """Number of rows of each run in the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._charge.release()
        if self._runs is not None:
            self._runs.close()

    def add(self, rows: pa.Table) -> None:
        """Add rows in any order; a full chunk goes to the file."""
        if not rows.num_rows:
            return
        count = max(1, rows.num_rows * self._chunk_bytes // max(rows.nbytes, 1))
        for first in range(0, rows.num_rows, count):
            part = rows.slice(first, count)
            self._held.append(part)
            self._held_bytes += part.nbytes
            if self._held_bytes >= self._chunk_bytes:
                self._write_run()

    def table(self) -> pa.Table:
        """Return all rows in order."""
        if self._runs is None:
            return in_output_order(pa.concat_tables([self._schema.empty_table(), *self._held]), self._keys)
        if self._held:
            self._write_run()
        while len(self._run_rows) > 1:
            self._merge_runs()
        rows = self._runs.table()
        self._runs = None
        return rows

    def _write_run(self) -> None:
        self._charge.resize(_COPIES * self._held_bytes)
        rows = in_output_order(pa.concat_tables([self._schema.empty_table(), *self._held]), self._keys)
        if self._runs is None:
            self._runs = self._view.spooled(self._schema)
        self._runs.append(rows)
        self._run_rows.append(rows.num_rows)
        self._held, self._held_bytes = [], 0

    def _merge_runs(self) -> None:
        """Merge each `FAN_IN` neighbouring runs into one, in a new file."""
        assert self._runs is not None
        rows, lengths = self._runs.table(), self._run_rows
        ends = list(itertools.accumulate(lengths))
        runs = [rows.slice(end - length, length) for length, end in zip(lengths, ends, strict=True)]
        page_rows = max(self._chunk_bytes * rows.num_rows // max(rows.nbytes, 1) // FAN_IN, LEAST_PAGE_ROWS)
        self._runs, self._run_rows = self._view.spooled(self._schema), []
        for first in range(0, len(runs), FAN_IN):
            for merged in merged_pages(runs[first : first + FAN_IN], self._order, page_rows=page_rows):
                self._runs.append(merged)
            self._run_rows.append(sum(lengths[first : first + FAN_IN]))

    def _order(self, rows: pa.Table) -> Integers:
        return output_order(rows, self._keys)
