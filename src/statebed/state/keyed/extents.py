"""Approximate distribution of the rows of files over hashes, to cut ranges whose rows take equal amounts of memory.

An extent says that a number of bytes of rows is spread evenly between two hashes. An ordinary keyed table needs one
extent per file, because its hashes are spread evenly. In a multiset table a few groups may have most of the rows, so
its extents are computed from the hashes themselves.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from statebed.arrays.key_hash import Hashes
from statebed.format import checkpoint_pb2 as pb

Bytes = npt.NDArray[np.float64]

SAMPLED_ROWS = 1024
"""Number of rows in each extent of a multiset table."""


@dataclass(frozen=True)
class Extents:
    """Sizes of rows between pairs of hashes."""

    firsts: Hashes
    lasts: Hashes
    nbytes: Bytes

    @classmethod
    def of_files(cls, files: Iterable[pb.FileEntry], *, row_bytes: int) -> "Extents":
        """Build one extent per file from the file entries alone."""
        entries = list(files)
        return cls(
            np.array([max(file.min_key_hash, file.owned.first) for file in entries], dtype=np.uint64),
            np.array([min(file.max_key_hash, file.owned.last) for file in entries], dtype=np.uint64),
            np.array([_memory_of(file, row_bytes) * _owned_share(file) for file in entries], dtype=np.float64),
        )

    @classmethod
    def of_hashes(cls, hashes: Hashes, *, row_bytes: float) -> "Extents":
        """Build one extent for every SAMPLED_ROWS neighbours of ascending hashes."""
        starts = np.arange(0, len(hashes), SAMPLED_ROWS, dtype=np.int64)
        ends = np.append(starts[1:], len(hashes))
        return cls(hashes.take(starts), hashes.take(ends - 1), (ends - starts).astype(np.float64) * row_bytes)

    @classmethod
    def concatenated(cls, parts: "Iterable[Extents]") -> "Extents":
        empty = np.zeros(0, dtype=np.uint64)
        all_parts = [cls(empty, empty, np.zeros(0)), *parts]
        return cls(
            np.concatenate([extents.firsts for extents in all_parts]),
            np.concatenate([extents.lasts for extents in all_parts]),
            np.concatenate([extents.nbytes for extents in all_parts]),
        )

    def bytes_in(self, whole: pb.HashRange) -> float:
        """Return the size of the rows in a range."""
        return float(self._clipped(whole).nbytes.sum())

    def cut(self, whole: pb.HashRange, *, piece_bytes: float) -> list[pb.HashRange]:
        """Cut a range into parts of equal size, at most about `piece_bytes` each."""
        inside = self._clipped(whole)
        total = float(inside.nbytes.sum())
        parts = min(max(-int(-total // piece_bytes), 1), whole.last - whole.first + 1)
        edges = inside.edges(whole.first, [total * part / parts for part in range(1, parts)])
        edges = sorted({edge for edge in edges if whole.first < edge <= whole.last})
        firsts = [whole.first, *edges]
        lasts = [*(edge - 1 for edge in edges), whole.last]
        return [pb.HashRange(first=first, last=last) for first, last in zip(firsts, lasts, strict=True)]

    def _clipped(self, whole: pb.HashRange) -> "Extents":
        """Return the extents clipped to a range."""
        firsts = np.maximum(self.firsts, np.uint64(whole.first))
        lasts = np.minimum(self.lasts, np.uint64(whole.last))
        inside = np.flatnonzero((firsts <= lasts) & (self.firsts <= self.lasts))
        firsts, lasts = firsts.take(inside), lasts.take(inside)
        share = _widths(firsts, lasts) / _widths(self.firsts.take(inside), self.lasts.take(inside))
        return Extents(firsts, lasts, self.nbytes.take(inside) * share)

    def edges(self, first: int, targets: list[float]) -> list[int]:
        """Return the hashes below which the rows take the given numbers of bytes."""
        if not targets:
            return []
        begins = (self.firsts - np.uint64(first)).astype(np.float64)
        ends = (self.lasts - np.uint64(first)).astype(np.float64) + 1
        density = self.nbytes / np.maximum(ends - begins, 1)
        order = np.argsort(np.concatenate([begins, ends]), kind="stable")
        at = np.concatenate([begins, ends]).take(order)
        slopes = np.maximum(np.cumsum(np.concatenate([density, -density]).take(order)), 0)
        below = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(at))])
        return [first + int(edge) for edge in np.interp(targets, below, at)]


def _widths(firsts: Hashes, lasts: Hashes) -> Bytes:
    return (lasts - firsts).astype(np.float64) + 1


def _owned_share(file: pb.FileEntry) -> float:
    """Return the fraction of a file's rows that its entry owns."""
    held = file.max_key_hash - file.min_key_hash + 1
    width = min(file.owned.last, file.max_key_hash) - max(file.owned.first, file.min_key_hash) + 1
    return max(width, 0) / held


def _memory_of(file: pb.FileEntry, row_bytes: int) -> float:
    """Return the approximate size of the rows of a file in memory.

    Rows take more memory than in the file if they are compressed well. A factor of 2 is a guess; blocks that turn out
    too large are split.
    """
    return float(max(2 * file.size, file.rows * row_bytes))


def memory_of_row(file: pb.FileEntry, *, row_bytes: int) -> float:
    """Return the approximate size of one row of a file in memory."""
    return _memory_of(file, row_bytes) / max(file.rows, 1)
