"""External sort: any number of rows in bounded memory.

Up to one chunk is sorted as a whole. More rows are sorted chunk by chunk into runs in a local file, and the runs are
merged. The order is a total order of the rows, so the result does not depend on how they were cut into chunks: attempts
of a task may read their state in other pieces.

A merge takes a page of each run that can hold the next rows, and sorts them together. It returns the rows up to the end
of the first page that is exhausted, because the next rows of that run may be smaller than the remaining ones.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import from_numpy
from statebed.state.memory.controller import Reservation
from statebed.state.tiers.spooled_rows import SpooledRows

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
OrderOf = Callable[[pa.Table], Integers]
"""Function that returns the positions of rows in their total order."""
FAN_IN = 64
"""Number of runs that are merged at once."""
MIN_PAGE_ROWS = 256


class SortSpace(Protocol):
    """Memory and local files for a sort; the views of tables have them."""

    @property
    def chunk_bytes(self) -> int: ...

    def reservation(self) -> Reservation: ...

    def spooled(self, schema: pa.Schema) -> SpooledRows: ...


class ExternalSort:
    """Collects rows in any order, and returns them sorted.

    Sorting a chunk takes `copies` times its memory: the rows, numbers that order them, and the sorted rows.
    """

    def __init__(self, schema: pa.Schema, order_of: OrderOf, space: SortSpace, *, copies: int) -> None:
        self._schema = schema
        self._order_of = order_of
        self._space = space
        self._copies = copies
        self._charge = space.reservation()
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
        chunk_bytes = self._space.chunk_bytes
        count = max(1, rows.num_rows * chunk_bytes // max(rows.nbytes, 1))
        for first in range(0, rows.num_rows, count):
            part = rows.slice(first, count)
            self._held.append(part)
            self._held_bytes += part.nbytes
            self._charge.resize(self._held_bytes)
            if self._held_bytes >= chunk_bytes:
                self._write_run()

    @property
    def fits(self) -> bool:
        """Whether all rows are in memory."""
        return self._runs is None

    def pages(self) -> Iterator[pa.Table]:
        """Yield all rows in order; in one page if they are in memory."""
        if self._runs is None:
            yield self._sorted_chunk()
            return
        if self._held:
            self._write_run()
        while len(self._run_rows) > FAN_IN:
            rows, lengths = self._runs.table(), self._run_rows
            self._runs, self._run_rows = self._space.spooled(self._schema), []
            for merged, length in self._merged(rows, lengths):
                for page in merged:
                    self._runs.append(page)
                self._run_rows.append(length)
        rows, self._runs = self._runs.table(), None
        for merged, _ in self._merged(rows, self._run_rows):
            yield from merged

    def table(self) -> pa.Table:
        """Return all rows in order; from a local file if they were not in memory."""
        if self._runs is None:
            return self._sorted_chunk()
        sorted_rows = self._space.spooled(self._schema)
        try:
            for page in self.pages():
                sorted_rows.append(page)
        except BaseException:
            sorted_rows.close()
            raise
        return sorted_rows.table()

    def _write_run(self) -> None:
        rows = self._sorted_chunk()
        if self._runs is None:
            self._runs = self._space.spooled(self._schema)
        self._runs.append(rows)
        self._run_rows.append(rows.num_rows)

    def _sorted_chunk(self) -> pa.Table:
        self._charge.resize(self._copies * self._held_bytes)
        rows = pa.concat_tables([self._schema.empty_table(), *self._held]).combine_chunks()
        self._held, self._held_bytes = [], 0
        return rows.take(from_numpy(self._order_of(rows), pa.int64())) if rows.num_rows > 1 else rows

    def _merged(self, rows: pa.Table, lengths: Sequence[int]) -> Iterator[tuple[Iterator[pa.Table], int]]:
        """Yield the pages of each `FAN_IN` neighbouring runs, merged, and the number of their rows."""
        ends = list(itertools.accumulate(lengths))
        runs = [rows.slice(end - length, length) for length, end in zip(lengths, ends, strict=True)]
        chunk_rows = self._space.chunk_bytes * rows.num_rows // max(rows.nbytes, 1)
        page_rows = max(chunk_rows // min(FAN_IN, len(runs)), MIN_PAGE_ROWS)
        for first in range(0, len(runs), FAN_IN):
            merging = runs[first : first + FAN_IN]
            yield merged_pages(merging, self._order_of, page_rows=page_rows), sum(lengths[first : first + FAN_IN])


def merged_pages(runs: Sequence[pa.Table], order_of: OrderOf, *, page_rows: int) -> Iterator[pa.Table]:
    """Yield the rows of sorted runs in order, with at most `page_rows` rows of each run in memory."""
    sizes = np.array([run.num_rows for run in runs], dtype=np.int64)
    starts = np.zeros(len(runs), dtype=np.int64)
    while (left := np.flatnonzero(starts < sizes)).size:
        ends = np.minimum(starts + page_rows, sizes)
        borders = [runs[run].slice(rows[run], 1) for rows in (starts, ends - 1) for run in left.tolist()]
        active = left[_next_pages(_ranks(pa.concat_tables(borders), order_of), ends[left] < sizes[left])]
        lengths = ends[active] - starts[active]
        slices = [runs[run].slice(starts[run], ends[run] - starts[run]) for run in active.tolist()]
        page = pa.concat_tables(slices).combine_chunks()
        order = order_of(page)
        # The rows after an unfinished page may belong before the rest of the others.
        unfinished = ends[active] < sizes[active]
        ends_page = np.zeros(len(order), dtype=np.bool_)
        ends_page[(np.cumsum(lengths) - 1)[unfinished]] = True
        cut = int(np.argmax(ends_page[order])) + 1 if unfinished.any() else len(order)
        owners = np.repeat(np.arange(len(active)), lengths)[order[:cut]]
        starts[active] += np.bincount(owners, minlength=len(active))
        yield page.take(from_numpy(order[:cut], pa.int64()))


def _ranks(rows: pa.Table, order_of: OrderOf) -> Integers:
    """Return the position of each row in the output order."""
    ranks = np.empty(rows.num_rows, dtype=np.int64)
    ranks[order_of(rows)] = np.arange(rows.num_rows)
    return ranks


def _next_pages(ranks: Integers, unfinished: Flags) -> Integers:
    """Return the pages that may hold the next rows: those that begin before the first unfinished page ends.

    `ranks` has the ranks of the first rows of all pages, then those of their last rows.
    """
    count = len(unfinished)
    firsts, lasts = ranks[:count], ranks[count:]
    bound = int(lasts[unfinished].min()) if unfinished.any() else 2 * count
    return np.flatnonzero(firsts <= bound)
