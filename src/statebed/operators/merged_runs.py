"""Merge of sorted runs of rows that are in a local file, in memory that does not grow with them.

A merge takes a page of each run that can hold the next rows, sorts them together, and returns the rows up to the first
page that ends: what follows it may be smaller than the rest.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import from_numpy

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
OrderOf = Callable[[pa.Table], Integers]
"""Function that returns the positions of rows in their total order."""


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
