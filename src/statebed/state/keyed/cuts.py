"""Boundaries of blocks: a large block is cut between hashes into parts of about equal size, and small neighbours are
joined.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from statebed.arrays.key_hash import Hashes
from statebed.arrays.mutable import cuts_at
from statebed.format import checkpoint_pb2 as pb
from statebed.state.keyed.sorted_run import SortedRun

_SAMPLES = 8
"""Number of hashes of each run, for each run, that are considered as the end of a piece."""


def edges_of(hashes: Hashes, *, parts: int) -> Hashes:
    """Return the first hash of each part but the first. All rows of a hash stay in one part."""
    if not len(hashes) or hashes[0] == hashes[-1]:
        return hashes[:0]
    edges = np.unique(hashes[[len(hashes) * part // parts for part in range(1, parts)]])
    # If many keys share the lowest hash, all others form the second part.
    upper: Hashes = edges[edges > hashes[0]] if edges[-1] > hashes[0] else hashes[hashes > hashes[0]][:1]
    return upper


def ranges_between(owned: pb.HashRange, edges: Hashes) -> list[pb.HashRange]:
    """Cut a range before each edge."""
    firsts = [owned.first, *edges.tolist()]
    lasts = [*(edges - np.uint64(1)).tolist(), owned.last]
    return [pb.HashRange(first=first, last=last) for first, last in zip(firsts, lasts, strict=True)]


def piece_end(runs: Sequence[Hashes], first: int, *, rows: int) -> int | None:
    """Return a hash such that the runs together have about `rows` rows, but not more, from the hash `first` up to and
    including it; None if they have no more than that. Only the rows of one hash, which stay together, may exceed it.
    """
    starts = [int(np.searchsorted(hashes, np.uint64(first))) for hashes in runs]
    if sum(len(hashes) - start for hashes, start in zip(runs, starts, strict=True)) <= rows:
        return None
    every = max(rows // (_SAMPLES * len(runs)), 1)
    samples = [hashes[start : start + rows + 1 : every] for hashes, start in zip(runs, starts, strict=True)]
    ends = np.unique(np.concatenate(samples))
    counts = np.zeros(len(ends), dtype=np.int64)
    for hashes, start in zip(runs, starts, strict=True):
        counts += np.searchsorted(hashes, ends, side="right") - start
    return int(ends[max(int(np.searchsorted(counts, rows, side="right")) - 1, 0)])


def cut_at(run: SortedRun, edges: Hashes) -> list[SortedRun]:
    """Cut a run before each edge."""
    cuts = itertools.pairwise(cuts_at(run.hashes, edges))
    return [run.select(np.arange(start, end, dtype=np.int64)) for start, end in cuts]


def merged_at(runs: Sequence[SortedRun], edges: Hashes) -> list[SortedRun]:
    """Merge runs that share no key, and cut the result before each edge. Deleted rows that are in no file are
    dropped.
    """
    if len(runs) == 1:
        return [part.without_forgotten() for part in cut_at(runs[0], edges)]
    merged = []
    for starts, ends in itertools.pairwise(zip(*(cuts_at(run.hashes, edges) for run in runs), strict=True)):
        first, *others = (run.slice(start, end) for run, start, end in zip(runs, starts, ends, strict=True))
        merged.append(first.merged(others))
    return merged


def joined(ranges: Sequence[pb.HashRange], sizes: Sequence[float], *, max_size: float) -> list[pb.HashRange]:
    """Join neighbouring ranges as long as the sum of their sizes is at most `max_size`."""
    result: list[pb.HashRange] = []
    size = 0.0
    for hash_range, added in zip(ranges, sizes, strict=True):
        if result and size + added <= max_size:
            result[-1] = pb.HashRange(first=result[-1].first, last=hash_range.last)
            size += added
        else:
            result.append(hash_range)
            size = added
    return result
