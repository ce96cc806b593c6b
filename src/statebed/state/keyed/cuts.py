"""Where blocks begin and end: a large one is cut between hashes, so that each part has about as many rows; small ones
that are neighbours become one.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from statebed.arrays.key_hash import Hashes
from statebed.arrays.mutable import cuts_at
from statebed.format import checkpoint_pb2 as pb
from statebed.state.keyed.sorted_run import SortedRun


def edges_of(hashes: Hashes, *, parts: int) -> Hashes:
    """First hashes of all parts but the first; a hash stays in one part."""
    if not len(hashes) or hashes[0] == hashes[-1]:
        return hashes[:0]
    edges = np.unique(hashes[[len(hashes) * part // parts for part in range(1, parts)]])
    # Where many keys share the lowest hash, the others are the second part.
    upper: Hashes = edges[edges > hashes[0]] if edges[-1] > hashes[0] else hashes[hashes > hashes[0]][:1]
    return upper


def ranges_between(owned: pb.HashRange, edges: Hashes) -> list[pb.HashRange]:
    """The range, cut before each of the edges."""
    firsts = [owned.first, *edges.tolist()]
    lasts = [*(edges - np.uint64(1)).tolist(), owned.last]
    return [pb.HashRange(first=first, last=last) for first, last in zip(firsts, lasts, strict=True)]


def cut_at(run: SortedRun, edges: Hashes) -> list[SortedRun]:
    """The run, cut before each of the edges."""
    cuts = itertools.pairwise(cuts_at(run.hashes, edges))
    return [run.select(np.arange(start, end, dtype=np.int64)) for start, end in cuts]


def merged_at(runs: Sequence[SortedRun], edges: Hashes) -> list[SortedRun]:
    """Runs that share no key as one, cut before each of the edges; without rows that can be forgotten."""
    if len(runs) == 1:
        return cut_at(runs[0], edges)
    made = []
    for starts, ends in itertools.pairwise(zip(*(cuts_at(run.hashes, edges) for run in runs), strict=True)):
        first, *others = (run.slice(start, end) for run, start, end in zip(runs, starts, ends, strict=True))
        made.append(first.merged(others))
    return made


def joined(ranges: Sequence[pb.HashRange], sizes: Sequence[float], *, most: float) -> list[pb.HashRange]:
    """Neighbours as one range, as long as their sizes sum up to no more."""
    result: list[pb.HashRange] = []
    size = 0.0
    for one, added in zip(ranges, sizes, strict=True):
        if result and size + added <= most:
            result[-1] = pb.HashRange(first=result[-1].first, last=one.last)
            size += added
        else:
            result.append(one)
            size = added
    return result
