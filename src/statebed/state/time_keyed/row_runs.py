"""Merge of sorted runs in mapped files into one sorted stream, by cells that are small enough to be sorted.

Reading any part of a mapped run is cheap, so samples of all runs determine where to cut: each cell takes the rows of
each run between two places in the order. However many runs there are, about one cell is in memory.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import int64_values, uint64_values
from statebed.format.schema import BIN, KEY_HASH
from statebed.format.segment import SegmentSpec
from statebed.state.time_keyed.row_merge import SortedSource, merged, ordered

SAMPLES = 256
"""Number of samples of each run."""
TOO_LARGE = 2
"""A cell larger than this many times its target size holds one key, which samples cannot cut."""


def merged_runs(runs: Sequence[pa.Table], spec: SegmentSpec, *, limit: int) -> Iterator[pa.Table]:
    """Yield all rows in order, in cells of about `limit` bytes; each run is sorted, in one chunk, and not empty."""
    total = sum(int(run.nbytes) for run in runs)
    places = _places(runs, 1 + total // limit)
    cuts = [_cuts(run, places) for run in runs]
    for cell in range(len(cuts[0]) - 1):
        parts = [run.slice(cut[cell], cut[cell + 1] - cut[cell]) for run, cut in zip(runs, cuts, strict=True)]
        parts = [part for part in parts if part.num_rows]
        if sum(int(part.nbytes) for part in parts) > TOO_LARGE * limit:
            yield from merged([_source(part, limit // len(parts)) for part in parts], spec)
        elif parts:
            yield ordered(pa.concat_tables(parts), spec)


def _places(runs: Sequence[pa.Table], cells: int) -> list[tuple[int, int]]:
    """Return the bin and hash after which each cell but the last ends."""
    bins, hashes, weights = [], [], []
    for run in runs:
        chosen = np.arange(0, run.num_rows, max(1, run.num_rows // SAMPLES), dtype=np.int64)
        bins.append(int64_values(run[BIN])[chosen])
        hashes.append(uint64_values(run[KEY_HASH])[chosen])
        weights.append(np.full(len(chosen), run.num_rows / len(chosen)))
    every_bin, every_hash = np.concatenate(bins), np.concatenate(hashes)
    order = np.lexsort((every_hash, every_bin))
    reached = np.cumsum(np.concatenate(weights)[order])
    at = np.searchsorted(reached, reached[-1] * np.arange(1, cells) / cells)
    return sorted({(int(every_bin[order[row]]), int(every_hash[order[row]])) for row in at})


def _cuts(run: pa.Table, places: Sequence[tuple[int, int]]) -> list[int]:
    """Return the positions at which the cells of a run begin, and its end."""
    bins, hashes = int64_values(run[BIN]), uint64_values(run[KEY_HASH])
    cuts = [0]
    for last_bin, last_hash in places:
        first, behind = (int(np.searchsorted(bins, last_bin, side=side)) for side in ("left", "right"))
        cuts.append(first + int(np.searchsorted(hashes[first:behind], np.uint64(last_hash), side="right")))
    return [*cuts, run.num_rows]


def _source(run: pa.Table, share: int) -> SortedSource:
    count = max(1, share * run.num_rows // max(1, int(run.nbytes)))
    slices = (run.slice(start, count) for start in range(0, run.num_rows, count))
    return SortedSource(int(int64_values(run[BIN])[0]), slices)
